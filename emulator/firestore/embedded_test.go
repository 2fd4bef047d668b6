package firestore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/must"
)

func TestTransaction(t *testing.T) {
	t.Run("an idle one expires after 60 seconds", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			ref := r.doc(object{"n": 1})
			used, idle := r.begin(), r.begin()
			r.ok(r.read(idle, ref))
			r.ok(r.read(used, r.doc(nil)))
			time.Sleep(40 * time.Second)
			r.ok(r.read(used, r.doc(nil)))
			time.Sleep(19 * time.Second)
			_, err := r.commit(nil, put(ref, 2))
			wantCode(t, err, codes.Aborted)
			r.ok(r.commit(nil, put(ref, 2)))
			_, err = r.commit(idle, put(ref, 3))
			wantCode(t, err, codes.InvalidArgument)
			r.ok(r.commit(used, put(ref, 4)))
			alone := r.begin()
			time.Sleep(60 * time.Second)
			_, err = r.commit(alone, put(ref, 5))
			wantCode(t, err, codes.InvalidArgument)
		})
	})

	t.Run("a cancelled write is not applied later", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			ref := r.doc(object{"n": 1})
			txn := r.begin()
			r.ok(r.read(txn, ref))
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			defer cancel()
			_, err := ref.Set(ctx, object{"n": 2})
			wantCode(t, err, codes.DeadlineExceeded)
			wantCode(t, r.rollback(txn), codes.OK)
			time.Sleep(time.Minute)
			wantData(t, r.get(ref), object{"n": int64(1)})
		})
	})

	t.Run("a deadlock ends at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			ref := r.doc(object{"n": 1})
			first, second, third := r.begin(), r.begin(), r.begin()
			for _, txn := range [][]byte{first, second, third} {
				r.ok(r.read(txn, ref))
			}
			start := time.Now()
			var waiting sync.WaitGroup
			waiting.Go(func() {
				_, err := r.commit(first, put(ref, 2))
				wantCode(t, err, codes.OK)
			})
			synctest.Wait()
			_, err := r.commit(second, put(ref, 3))
			wantCode(t, err, codes.Aborted)
			wantCode(t, r.rollback(third), codes.OK)
			waiting.Wait()
			if waited := time.Since(start); waited != 0 {
				t.Errorf("resolved after %v, want at once", waited)
			}
		})
	})

	t.Run("one that ends while it waits does not commit", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			ref := r.doc(object{"n": 1})
			reader, writer := r.begin(), r.begin()
			r.ok(r.read(reader, ref))
			var waiting sync.WaitGroup
			waiting.Go(func() {
				_, err := r.commit(writer, put(ref, 2))
				wantCode(t, err, codes.InvalidArgument)
			})
			synctest.Wait()
			wantCode(t, r.rollback(writer), codes.OK)
			wantCode(t, r.rollback(reader), codes.OK)
			waiting.Wait()
			wantData(t, r.get(ref), object{"n": int64(1)})
		})
	})
}

func TestCommit(t *testing.T) {
	t.Run("a request over 10 MiB is invalid", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			request := &firestorepb.CommitRequest{Database: r.database}
			for i := range 11 {
				f := fields{"f": textValue(string(make([]byte, 950_000)))}
				request.Writes = append(request.Writes, putFields(r.name(fmt.Sprintf("c/%d", i)), f))
			}
			rest := 10<<20 - proto.Size(request)
			for extra, want := range map[int]codes.Code{0: codes.OK, 1: codes.InvalidArgument} {
				request.Writes[0].GetUpdate().Fields["f"] = textValue(string(make([]byte, 950_000+rest+extra)))
				_, err := r.raw.Commit(r.ctx, request)
				wantCode(t, err, want)
			}
		})
	})

	// Google's emulator accepts this write; the service does not.
	t.Run("it names documents of its database alone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			_, err := r.commit(nil, putFields("projects/other/databases/(default)/documents/c/d", nil))
			wantCode(t, err, codes.InvalidArgument)
		})
	})
}

func TestUnimplemented(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		v := r.client.Collection("v")
		read := func(q client.Query) error { _, err := q.Documents(r.ctx).GetAll(); return err }
		aggregate := func(q *client.AggregationQuery) error { _, err := q.Get(r.ctx); return err }
		nothing := func(context.Context, *client.Transaction) error { return nil }
		at := client.ReadTime(time.Now())
		nearest := v.FindNearest("e", client.Vector32{1}, 1, client.DistanceMeasureDotProduct, nil)
		explained := v.WithRunOptions(client.ExplainOptions{})
		_, found := nearest.Documents(r.ctx).Next()
		_, listened := v.Limit(0).Snapshots(r.ctx).Next()
		_, maximum := r.doc(nil).Set(r.ctx, object{"n": client.FieldTransformMaximum(1)})
		_, dated := v.Doc("a").WithReadOptions(at).Get(r.ctx)
		_, written := r.commit(nil, &firestorepb.Write{})
		for feature, err := range map[string]error{
			"anything but one collection": read(r.client.CollectionGroup("v").Query),
			"find_nearest":                found,
			"explain_options":             read(explained),
			"explain_options is":          aggregate(explained.NewAggregationQuery().WithCount("n")),
			"other than a whole count":    aggregate(v.NewAggregationQuery().WithSum("n", "s")),
			"maximum and minimum":         maximum,
			"read-only transaction":       r.client.RunTransaction(r.ctx, nothing, client.ReadOnly),
			"reading at a time":           dated,
			"a limit or an offset":        listened,
			"neither an update nor":       written,
		} {
			if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), feature) {
				t.Errorf("%v, want Unimplemented with %q", err, feature)
			}
		}
	})
}

func TestOptions_Now(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 999, time.UTC)
	server := firestore.NewServer(firestore.Options{Now: func() time.Time { now = now.Add(-time.Hour); return now }})
	t.Cleanup(server.Close)
	r := newRig(t, dialServer(t, server))
	var last time.Time
	for n := range 5 {
		wrote := must.Get(r.client.Doc("c/d").Set(r.ctx, object{"n": n}))(t).UpdateTime
		read := r.get(r.client.Doc("c/none")).ReadTime
		if !wrote.After(last) || read.Before(wrote) {
			t.Errorf("written at %v after %v, read at %v", wrote, last, read)
		}
		if wrote.Nanosecond()%1000 != 0 {
			t.Errorf("written at %v, finer than a microsecond", wrote)
		}
		last = read
	}
}

// A page of many documents is the same as if all were sorted.
func TestRunQuery_Page(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		const count = 400
		for n := range count {
			r.doc(object{"n": n * 7 % count})
		}
		for _, q := range []struct{ offset, limit int }{{0, 1}, {0, 3}, {5, 10}, {0, 150}, {390, 20}, {0, count}} {
			var want, got []any
			for n := q.offset; n < min(q.offset+q.limit, count); n++ {
				want = append(want, int64(n))
			}
			query := r.client.Collection("c").OrderBy("n", client.Asc).Offset(q.offset).Limit(q.limit)
			found, err := query.Documents(r.ctx).GetAll()
			wantCode(t, err, codes.OK)
			for _, d := range found {
				got = append(got, d.Data()["n"])
			}
			if !slices.Equal(got, want) {
				t.Errorf("offset %d, limit %d: %v, want %v", q.offset, q.limit, got, want)
			}
		}
	})
}

func TestUsage(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, server *firestore.Server) {
		a, c := r.client.Doc("c/a"), r.client.Collection("c")
		var many []*firestorepb.Write
		for i := range 1001 {
			many = append(many, putFields(r.name(fmt.Sprintf("many/%d", i)), nil))
		}
		all := r.client.Collection("many").NewAggregationQuery().WithCount("n")
		create := func() { _, _ = a.Create(r.ctx, object{}) }
		get := func() { _, _ = a.Get(r.ctx) }
		query := func() { _, _ = r.found(c.Query) }
		for _, step := range []struct {
			name          string
			act           func()
			reads, writes int64 // so far
		}{
			{"a get of a missing document", get, 1, 0},
			{"a query of none", query, 2, 0},
			{"a create", create, 2, 1},
			{"a refused create", create, 2, 1},
			{"a get", get, 3, 1},
			{"a second document", func() { _, _ = c.Doc("b").Create(r.ctx, object{}) }, 3, 2},
			{"a query of two", query, 5, 2},
			{"a delete", func() { _, _ = a.Delete(r.ctx) }, 5, 2},
			{"1,001 documents", func() { _, _ = r.commit(nil, many...) }, 5, 1003},
			{"a count of 1,001", func() { _, _ = all.Get(r.ctx) }, 7, 1003},
		} {
			step.act()
			if got := server.Usage(); got.Reads != step.reads || got.Writes != step.writes {
				t.Errorf("after %s: %+v, want %d reads and %d writes", step.name, got, step.reads, step.writes)
			}
		}
	})
}
