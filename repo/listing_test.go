package repo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestList_Malformed(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		b.Put(t, "bad\x01id", doc{"status": "QUEUED", "updatedAt": timeValue(time.Now())})
		b.Put(t, "token", doc{"status": "PROCESSING", "lockToken": "one", "updatedAt": "yesterday", "input": "in"})
		found := must.Get(a.Find(t.Context(), Filter{}, "", 10))(t)
		same(t, "token bad\x01id", ids(found))
		wantErr(t, lease.ErrInvalidKey, found[1].Malformed)
		one := must.Get(a.Summary(t.Context(), "token"))(t)
		wantErr(t, lease.ErrMalformed, one.Malformed)
		same(t, []any{"PROCESSING", nil, false}, []any{one.Status, one.Input, one.ReadAt.IsZero()})
		for id, want := range map[string]error{"none": lease.ErrNotFound, "a/b": lease.ErrInvalidKey} {
			wantErr(t, want, errorOf(a.Summary(t.Context(), id)), id)
		}
	})
}

func TestCount(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		for i, status := range []any{"FAILED", "FAILED", "READY", "ARCHIVED", 7, nil} {
			b.Put(t, fmt.Sprint("a", i), doc{"status": status})
		}
		now := time.Now()
		b.Put(t, "dated", doc{"status": "QUEUED", "updatedAt": now})
		for f, want := range map[Filter]int64{
			{}: 7, {Status: "FAILED"}: 2, {Status: "READY"}: 1, {Status: "QUEUED"}: 1, {Prefix: "a"}: 6,
			{Before: now.Add(time.Hour)}: 1, {Since: now.Add(-time.Hour)}: 1,
			{Status: "FAILED", Since: now.Add(-time.Hour)}: 0,
		} {
			same(t, want, must.Get(a.Count(t.Context(), f))(t))
		}
		same(t, "a0 a1 a2", ids(must.Get(a.Find(t.Context(), Filter{All: true}, "", 3))(t)))
	})
}

// The ages differ by hours, since a slow machine may need long for the test.
func TestUnfinished(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		ago := func(hours int) time.Time { return time.Now().Add(time.Duration(-hours) * time.Hour) }
		put := func(id, status string, updated any, more doc) {
			b.Put(t, id, with(doc{"status": status, "updatedAt": updated}, more))
		}
		put("queued", "QUEUED", timeValue(ago(4)), nil)
		put("stamped", "PROCESSING", ago(3), doc{"lockOwner": "js/1", "lockExpiresAt": ago(2)})
		put("malformed", "QUEUED", timeValue(ago(2)), doc{"lockToken": "7"})
		put("millis", "QUEUED", ago(1).UnixMilli(), nil)
		put("fresh", "QUEUED", nil, doc{"finishedBy": "w/0", "error": code("old"), "lastError": code("flaky")})
		mustAcquire(t, a, "fresh", "w/1")
		for _, status := range []string{"READY", "FAILED", "ARCHIVED"} {
			put(status, status, timeValue(ago(9)), nil)
		}
		b.Put(t, "undated", doc{"status": "QUEUED"})
		found := must.Get(a.Unfinished(t.Context(), 10))(t)
		same(t, "queued stamped malformed millis fresh", ids(found))
		fresh, expired := found[4], found[1]
		if !lease.Held(fresh.Lock, fresh.ReadAt) || lease.Held(expired.Lock, expired.ReadAt) {
			t.Errorf("%+v, %+v; want one that is held and one that has expired", fresh, expired)
		}
		same(t, []any{"w/0", 1, "old", "flaky"}, []any{
			fresh.Lock.FinishedBy, fresh.Attempts, fresh.Error.Code, fresh.LastError.Code,
		})
		// Firestore sorts all values of one type before those of the other: neither hides the other.
		put("stamp", "QUEUED", ago(5), nil)
		same(t, "stamp queued", ids(must.Get(a.Unfinished(t.Context(), 2))(t)))
	})
}

// The number of calls of each list, and a few hundred bytes a document: neither inputs nor results.
func TestList_Cost(t *testing.T) {
	lists := map[string]struct {
		calls int
		read  func(ctx context.Context, a *worker) error
	}{
		"Unfinished": {3, func(ctx context.Context, a *worker) error { return errorOf(a.Unfinished(ctx, 10)) }},
		"Find":       {1, func(ctx context.Context, a *worker) error { return errorOf(a.Find(ctx, Filter{}, "", 10)) }},
		"Orphaned":   {4, func(ctx context.Context, a *worker) error { _, _, err := a.Orphaned(ctx, 10); return err }},
		"Page": {1, func(ctx context.Context, a *worker) error {
			_, _, _, err := a.Page(ctx, Filter{}, "", 10)
			return err
		}},
	}
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		large, old := strings.Repeat("x", 100_000), timeValue(time.Now().Add(-time.Hour))
		for _, id := range []string{"a", "b", "c"} {
			b.Put(t, id, doc{"status": "QUEUED", "updatedAt": old, "input": large, "result": large, "theirs": large})
		}
		m := &meter{}
		a := open(t, b, grpc.WithStatsHandler(m))
		for name, list := range lists {
			moved, calls := m.bytes.Load(), b.Calls.Total()
			check(t, list.read(t.Context(), a))
			same(t, list.calls, b.Calls.Total()-calls, "calls of", name)
			if moved = m.bytes.Load() - moved; moved < 3*100 || moved > 10_000 {
				t.Errorf("%s: %d bytes, want a few hundred a document", name, moved)
			}
		}
	})
}

func TestOldestUnfinished(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		on := func(day int) time.Time { return time.Date(1999, 1, day, 0, 0, 0, 0, time.UTC) }
		put := func(id, status string, created any) {
			b.Put(t, id, doc{"status": status, "createdAt": created, "updatedAt": timeValue(on(20)), "input": "in"})
		}
		put("ready", "READY", timeValue(on(1)))
		put("failed", "FAILED", on(1))
		put("other", "ANALYZING", timeValue(on(1)))
		for i, never := range []any{
			"", "yesterday", math.NaN(), 0, 1.7e9, "1970-01-01T00:00:00Z", time.UnixMilli(0), time.Time{}, "1998-99-99",
		} {
			put(fmt.Sprint("never", i), "QUEUED", never) // each but the text sorts before those that are credible
		}
		b.Put(t, "undated", doc{"status": "QUEUED", "updatedAt": timeValue(on(1))})
		_, found, _ := a.OldestUnfinished(t.Context())
		same(t, false, found)
		created := []any{timeValue(on(9)), on(8), on(7).UnixMilli(), timeValue(on(6)), on(5)}
		for i, at := range created {
			put("a", []string{"QUEUED", "PROCESSING"}[i%2], at)
			put(fmt.Sprint("newer", i), "QUEUED", at)
			d, _, err := a.OldestUnfinished(t.Context())
			must.OK(t, err)
			same(t, []any{"a", on(9 - i), nil, false}, []any{d.ID, d.CreatedAt, d.Input, d.ReadAt.IsZero()}, at)
		}

		for i := range created {
			b.Delete(t, fmt.Sprint("newer", i))
		}
		b.Put(t, "a", doc{"status": "QUEUED", "createdAt": on(5).AddDate(1000, 0, 0), "lockToken": "seven"})
		d, _, err := a.OldestUnfinished(t.Context())
		if time.Since(d.CreatedAt).Abs() > time.Hour || !errors.Is(d.Malformed, lease.ErrMalformed) {
			t.Errorf("%+v, %v; want it malformed, and for a time that is not credible Firestore's", d, err)
		}
	})
}

// Each minute reads them again, and Firestore bills each document.
func TestErrUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a := open(t, b)
		for i := range 5000 {
			b.Put(t, fmt.Sprint(i), doc{"status": "QUEUED", "createdAt": "Nov 29, 2026", "updatedAt": "Nov 29, 2026"})
		}
		b.Put(t, "x", doc{"status": "QUEUED", "createdAt": time.Now(), "updatedAt": time.Now()})

		costs := func(what string, read func() error) {
			before := b.Server.Usage().Reads
			err := read()
			if n := b.Server.Usage().Reads - before; !errors.Is(err, ErrUnread) || n > maxUnread+orphanPage {
				t.Errorf("%s: %d reads, %v", what, n, err)
			}
		}
		costs("the oldest", func() error { _, _, err := a.OldestUnfinished(t.Context()); return err })
		costs("all", func() error {
			found, err := a.Unfinished(t.Context(), 10)
			same(t, "x", ids(found))
			return err
		})
		other := must.Get(a.Backlog(t.Context(), 0))(t)
		same(t, []any{true, true}, []any{other.OldestCreatedAt.IsZero(), other.Waiting > 0})
	})
}

func TestUnknownStatus(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		b.Vocabulary.Final = []string{"VOID"}
		a := open(t, b)
		a.codec.keep = time.Hour // the first token of each is not 1
		for id, status := range map[string]any{
			"lower": "queued", "final": "VOID", "waiting": "WAITING", "number": 7, "empty": "", "null": nil,
			"queued": "QUEUED", "processing": "PROCESSING", "ready": "READY", "failed": "FAILED",
		} {
			b.Put(t, id, doc{"status": status, "input": "x"})
		}
		b.Put(t, "acquired", doc{"status": "ANALYZING", "lockToken": 3})
		b.Put(t, "malformed", doc{"status": "ANALYZING", "lockToken": "3"})
		b.Put(t, "none", doc{})
		var got []string
		for _, d := range must.Get(a.UnknownStatus(t.Context(), 100))(t) {
			got = append(got, d.ID+"="+d.Status)
			same(t, nil, d.Input)
		}
		same(t, []string{"number=(the number 7)", "empty=", "waiting=WAITING", "lower=queued"}, got)
		same(t, 2, len(must.Get(a.UnknownStatus(t.Context(), 2))(t)))
	})
}

func TestUnfound(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		for id, updated := range map[string]any{
			"dated": time.Now(), "far": time.Now().AddDate(9, 0, 0), "text": "23.11.2026", "bool": true, "null": nil,
		} {
			b.Put(t, id, doc{"status": "PROCESSING", "updatedAt": updated, "lockOwner": "w", "lastError": code("c")})
		}
		for id, fields := range map[string]doc{
			"undated": {"status": "QUEUED"}, "ready": {"status": "READY"}, "other": {"status": "ARCHIVED"},
			"none": {}, "none, null": {"status": nil}, "none, token": {"lockToken": "1"}, "ran": {"lockToken": 1},
		} {
			b.Put(t, id, fields)
		}
		found := must.Get(a.Unfound(t.Context(), 100))(t)
		same(t, "bool null text undated none none, null none, token", ids(found))
		same(t, []any{true, "w"}, []any{found[0].LastError == nil, found[0].Lock.Owner}) // its lock, and not its error
		same(t, 5, len(must.Get(a.Unfound(t.Context(), 5))(t)))
		for _, id := range []string{"none", "none, null", "ran", "none, token"} {
			b.Delete(t, id)
		}
		queries := b.Calls.Count("RunQuery")
		same(t, 4, len(must.Get(a.Unfound(t.Context(), 100))(t)))
		same(t, queries+1, b.Calls.Count("RunQuery"), "queries")
		same(t, "dated far", ids(must.Get(a.Unfinished(t.Context(), 100))(t)))
	})
}

// What is held does not hide what is uncertain, or abandoned.
func TestUncertain(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a, now := open(t, b), time.Now()
		for id, expires := range map[string]time.Time{"held": now.Add(time.Hour), "left": now.Add(-time.Hour)} {
			b.Put(t, id, doc{
				"status": "PROCESSING", "updatedAt": timeValue(now.Add(-time.Hour)),
				"lockOwner": "w", "lockExpiresAt": timeValue(expires), "openEffects": 1, "unfinishedEffects": 1,
				"effects": doc{"charge": doc{"state": analysislock.ActStarted, "token": 1}},
			})
		}
		same(t, "left", ids(must.Get(a.Uncertain(t.Context(), 1))(t)))
		same(t, "left", ids(must.Get(a.Abandoned(t.Context(), 1))(t)))
	})
}
