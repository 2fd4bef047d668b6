package firestore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/must"
)

// watch is a query's listener.
type watch struct {
	t         testing.TB
	snapshots *client.QuerySnapshotIterator
	last      time.Time // read time of the snapshot before
}

func (r *rig) watch(q client.Query) *watch {
	ctx, cancel := context.WithCancel(r.ctx)
	r.t.Cleanup(cancel)
	return &watch{t: r.t, snapshots: q.Snapshots(ctx)}
}

// next is the next snapshot as text: the documents with their field n, in order,
// then the changes with the documents' places: "a=1 b=2: +a@0 ~b@1-1 -c@2".
func (w *watch) next() string {
	w.t.Helper()
	snap := must.Get(w.snapshots.Next())(w.t)
	docs := must.Get(snap.Documents.GetAll())(w.t)
	if snap.ReadTime.Before(w.last) {
		w.t.Errorf("snapshot at %v after one at %v", snap.ReadTime, w.last)
	}
	w.last = snap.ReadTime
	var b strings.Builder
	for i, d := range docs {
		if d.UpdateTime.After(snap.ReadTime) {
			w.t.Errorf("the snapshot at %v shows a document of %v", snap.ReadTime, d.UpdateTime)
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

func (w *watch) wantNext(want string) {
	w.t.Helper()
	if got := w.next(); got != want {
		w.t.Errorf("snapshot %q, want %q", got, want)
	}
}

// set writes documents of the collection v by id, all in one commit; nil
// deletes.
func (r *rig) set(values map[string]any) {
	r.t.Helper()
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
		r.t.Fatalf("set: %v", err)
	}
}

var listenCases = []conformanceCase{
	{"FirstSnapshotHoldsWhatMatches", func(_ *testing.T, r *rig) {
		r.set(object{"a": 1, "b": 2, "c": 3})
		v := r.client.Collection("v")
		r.watch(v.Query).wantNext("a=1 b=2 c=3: +a@0 +b@1 +c@2")
		r.watch(v.Where("n", "<", 3).OrderBy("n", client.Desc)).wantNext("b=2 a=1: +b@0 +a@1")
		r.watch(r.client.Collection("none").Query).wantNext(":")
	}},
	{"SnapshotsFollowTheCommits", func(_ *testing.T, r *rig) {
		w := r.watch(r.client.Collection("v").OrderBy("n", client.Asc))
		w.wantNext(":")
		r.set(object{"a": 1})
		w.wantNext("a=1: +a@0")
		r.set(object{"b": 0})
		w.wantNext("b=0 a=1: +b@0")
		r.set(object{"b": 2})
		w.wantNext("a=1 b=2: ~b@0-1")
		r.set(object{"a": nil})
		w.wantNext("b=2: -a@0")
		r.set(object{"a": 1})
		w.wantNext("a=1 b=2: +a@0")
		r.set(object{"a": 1, "none": nil}) // changes nothing: no event
		r.ok(r.client.Doc("elsewhere/a").Set(r.ctx, object{"n": 1}))
		r.set(object{"a": nil, "b": 5, "c": 4})
		w.wantNext("c=4 b=5: -a@0 +c@1 ~b@0-1")
	}},
	{"DocumentLeavesAndEntersAFilter", func(_ *testing.T, r *rig) {
		r.set(object{"a": 1, "b": 6})
		w := r.watch(r.client.Collection("v").Where("n", ">", 5).OrderBy("n", client.Asc))
		w.wantNext("b=6: +b@0")
		r.set(object{"a": 9})
		w.wantNext("b=6 a=9: +a@1")
		r.set(object{"b": 5})
		w.wantNext("a=9: -b@0")
		r.set(object{"b": 4})
		r.set(object{"b": 10})
		w.wantNext("a=9 b=10: +b@1")
	}},
	{"DocumentListenerSeesDeleteAndRecreate", func(t *testing.T, r *rig) {
		ref := r.doc(object{"n": 1})
		snapshots := ref.Snapshots(r.ctx)
		var last time.Time
		next := func(want object) {
			t.Helper()
			snap := must.Get(snapshots.Next())(t)
			wantData(t, snap, want)
			if snap.ReadTime.Before(last) || snap.UpdateTime.After(snap.ReadTime) {
				t.Errorf("read at %v after %v, written at %v", snap.ReadTime, last, snap.UpdateTime)
			}
			last = snap.ReadTime
		}
		next(object{"n": int64(1)})
		r.ok(r.doc(object{"n": 2}).Delete(r.ctx)) // another one
		r.ok(ref.Delete(r.ctx))
		next(nil)
		r.ok(ref.Set(r.ctx, object{"n": 2}))
		next(object{"n": int64(2)})
		r.ok(ref.Set(r.ctx, object{"n": 3}))
		next(object{"n": int64(3)})
	}},
	{"RefusedListenerEndsWithTheReason", func(t *testing.T, r *rig) {
		_, err := r.client.Collection("__x__").Snapshots(r.ctx).Next()
		wantCode(t, err, codes.InvalidArgument)
	}},
}
