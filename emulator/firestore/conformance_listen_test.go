package firestore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"
)

// watch is a query's listener.
type watch struct {
	snapshots *client.QuerySnapshotIterator
	last      time.Time // read time of the snapshot before
}

func (r *rig) watch(t testing.TB, q client.Query) *watch {
	ctx, cancel := context.WithCancel(r.ctx)
	t.Cleanup(cancel)
	return &watch{snapshots: q.Snapshots(ctx)}
}

// next is the next snapshot as text: the documents with their field n, in order,
// then the changes with the documents' places: "a=1 b=2: +a@0 ~b@1-1 -c@2".
func (w *watch) next(t testing.TB) string {
	t.Helper()
	snap, err := w.snapshots.Next()
	if err != nil {
		t.Fatalf("next snapshot: %v", err)
	}
	docs, err := snap.Documents.GetAll()
	if err != nil {
		t.Fatalf("documents of a snapshot: %v", err)
	}
	if snap.ReadTime.Before(w.last) {
		t.Errorf("snapshot at %v after one at %v", snap.ReadTime, w.last)
	}
	w.last = snap.ReadTime
	var b strings.Builder
	for i, d := range docs {
		if d.UpdateTime.After(snap.ReadTime) {
			t.Errorf("the snapshot at %v shows a document of %v", snap.ReadTime, d.UpdateTime)
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%v", d.Ref.ID, d.Data()["n"])
	}
	b.WriteByte(':')
	for _, c := range snap.Changes {
		switch c.Kind {
		case client.DocumentAdded:
			fmt.Fprintf(&b, " +%s@%d", c.Doc.Ref.ID, c.NewIndex)
		case client.DocumentModified:
			fmt.Fprintf(&b, " ~%s@%d-%d", c.Doc.Ref.ID, c.OldIndex, c.NewIndex)
		case client.DocumentRemoved:
			fmt.Fprintf(&b, " -%s@%d", c.Doc.Ref.ID, c.OldIndex)
		}
	}
	return b.String()
}

func (w *watch) wantNext(t testing.TB, want string) {
	t.Helper()
	if got := w.next(t); got != want {
		t.Errorf("snapshot %q, want %q", got, want)
	}
}

// set writes documents of the collection v by id, all in one commit; nil
// deletes.
func (r *rig) set(t testing.TB, values map[string]any) {
	t.Helper()
	err := r.atOnce(func(tx *client.Transaction) error {
		for id, n := range values {
			ref := r.client.Doc("v/" + id)
			if n == nil {
				if err := tx.Delete(ref); err != nil {
					return err
				}
			} else if err := tx.Set(ref, object{"n": n}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("set: %v", err)
	}
}

var listenCases = []conformanceCase{
	{"FirstSnapshotHoldsWhatMatches", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 2, "c": 3})
		v := r.client.Collection("v")
		r.watch(t, v.Query).wantNext(t, "a=1 b=2 c=3: +a@0 +b@1 +c@2")
		r.watch(t, v.Where("n", "<", 3).OrderBy("n", client.Desc)).wantNext(t, "b=2 a=1: +b@0 +a@1")
		r.watch(t, r.client.Collection("none").Query).wantNext(t, ":")
		r.watch(t, r.client.CollectionGroup("v").Query).wantNext(t, "a=1 b=2 c=3: +a@0 +b@1 +c@2")
	}},
	{"SnapshotsFollowTheCommits", func(t *testing.T, r *rig) {
		w := r.watch(t, r.client.Collection("v").OrderBy("n", client.Asc))
		w.wantNext(t, ":")
		r.set(t, object{"a": 1})
		w.wantNext(t, "a=1: +a@0")
		r.set(t, object{"b": 0})
		w.wantNext(t, "b=0 a=1: +b@0")
		r.set(t, object{"b": 2})
		w.wantNext(t, "a=1 b=2: ~b@0-1")
		r.set(t, object{"a": nil})
		w.wantNext(t, "b=2: -a@0")
		r.set(t, object{"a": 1})
		w.wantNext(t, "a=1 b=2: +a@0")
	}},
	{"DocumentLeavesAndEntersAFilter", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 6})
		w := r.watch(t, r.client.Collection("v").Where("n", ">", 5).OrderBy("n", client.Asc))
		w.wantNext(t, "b=6: +b@0")
		r.set(t, object{"a": 9})
		w.wantNext(t, "b=6 a=9: +a@1")
		r.set(t, object{"b": 5})
		w.wantNext(t, "a=9: -b@0")
		r.set(t, object{"b": 4})
		r.set(t, object{"b": 10})
		w.wantNext(t, "a=9 b=10: +b@1")
	}},
	{"DocumentLeavesAndEntersBetweenCursors", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 3, "c": 7})
		w := r.watch(t, r.client.Collection("v").OrderBy("n", client.Asc).StartAt(2).EndBefore(6))
		w.wantNext(t, "b=3: +b@0")
		r.set(t, object{"a": 2, "b": 6})
		w.wantNext(t, "a=2: -b@0 +a@0")
	}},
	{"LimitLetsTheNextInWhenOneFallsOut", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 2, "c": 3})
		w := r.watch(t, r.client.Collection("v").OrderBy("n", client.Asc).Limit(2))
		w.wantNext(t, "a=1 b=2: +a@0 +b@1")
		r.set(t, object{"d": 0})
		w.wantNext(t, "d=0 a=1: -b@1 +d@0")
		r.set(t, object{"a": 8})
		w.wantNext(t, "d=0 b=2: -a@1 +b@1")
		r.set(t, object{"d": nil})
		w.wantNext(t, "b=2 c=3: -d@0 +c@1")
		r.set(t, object{"a": 9}) // beyond the limit: nothing to see
		r.set(t, object{"c": 4})
		w.wantNext(t, "b=2 c=4: ~c@1-1")
	}},
	{"OffsetMovesTheWindow", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 2, "c": 3})
		w := r.watch(t, r.client.Collection("v").OrderBy("n", client.Asc).Offset(1))
		w.wantNext(t, "b=2 c=3: +b@0 +c@1")
		r.set(t, object{"d": 0})
		w.wantNext(t, "a=1 b=2 c=3: +a@0")
		r.set(t, object{"a": nil})
		w.wantNext(t, "b=2 c=3: -a@0")
	}},
	{"SelectedFieldsAreAllThatIsSent", func(t *testing.T, r *rig) {
		ref := r.client.Doc("v/a")
		must[*client.WriteResult](t)(ref.Set(r.ctx, object{"n": 1, "m": 2}))
		snap := must[*client.QuerySnapshot](t)(r.watch(t, r.client.Collection("v").Select("n")).snapshots.Next())
		docs := must[[]*client.DocumentSnapshot](t)(snap.Documents.GetAll())
		wantData(t, docs[0], object{"n": int64(1)})
	}},
	{"TransactionArrivesInOneSnapshot", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 2})
		w := r.watch(t, r.client.Collection("v").OrderBy("n", client.Asc))
		w.wantNext(t, "a=1 b=2: +a@0 +b@1")
		r.set(t, object{"a": nil, "b": 5, "c": 4})
		w.wantNext(t, "c=4 b=5: -a@0 +c@1 ~b@0-1")
	}},
	{"WriteThatChangesNothingIsNoEvent", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1})
		w := r.watch(t, r.client.Collection("v").Query)
		w.wantNext(t, "a=1: +a@0")
		r.set(t, object{"a": 1, "none": nil})
		must[*client.WriteResult](t)(r.client.Doc("elsewhere/a").Set(r.ctx, object{"n": 1}))
		r.set(t, object{"a": 2})
		w.wantNext(t, "a=2: ~a@0-0")
	}},
	{"ListenersAreToldEachOnTheirOwn", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1})
		small := r.watch(t, r.client.Collection("v").Where("n", "<", 5))
		large := r.watch(t, r.client.Collection("v").Where("n", ">=", 5))
		small.wantNext(t, "a=1: +a@0")
		large.wantNext(t, ":")
		r.set(t, object{"a": 5})
		small.wantNext(t, ": -a@0")
		large.wantNext(t, "a=5: +a@0")
	}},
	{"DocumentListenerSeesDeleteAndRecreate", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		snapshots := ref.Snapshots(r.ctx)
		var last time.Time
		next := func(want object) {
			t.Helper()
			snap := must[*client.DocumentSnapshot](t)(snapshots.Next())
			wantData(t, snap, want)
			if snap.ReadTime.Before(last) || snap.UpdateTime.After(snap.ReadTime) {
				t.Errorf("read at %v after %v, written at %v", snap.ReadTime, last, snap.UpdateTime)
			}
			last = snap.ReadTime
		}
		next(object{"n": int64(1)})
		must[*client.WriteResult](t)(ref.Delete(r.ctx))
		next(nil)
		must[*client.WriteResult](t)(ref.Set(r.ctx, object{"n": 2}))
		next(object{"n": int64(2)})
		must[*client.WriteResult](t)(ref.Set(r.ctx, object{"n": 3}))
		next(object{"n": int64(3)})
	}},
	{"MissingDocumentIsListenedTo", func(t *testing.T, r *rig) {
		ref := r.doc(t, nil)
		snapshots := ref.Snapshots(r.ctx)
		wantData(t, must[*client.DocumentSnapshot](t)(snapshots.Next()), nil)
		must[*client.WriteResult](t)(ref.Set(r.ctx, object{"n": 1}))
		wantData(t, must[*client.DocumentSnapshot](t)(snapshots.Next()), object{"n": int64(1)})
	}},
	{"InvalidQueryIsRefused", func(t *testing.T, r *rig) {
		_, err := r.client.Collection("__x__").Snapshots(r.ctx).Next()
		wantCode(t, err, codes.InvalidArgument)
	}},
}
