package repo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestList_Malformed(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		b.Put(t, "bad\x01id", doc{"status": "QUEUED", "updatedAt": timeValue(time.Now())})
		b.Put(t, "token", doc{"status": "PROCESSING", "lockToken": "one", "updatedAt": "yesterday", "input": "in"})
		found, _, _, err := a.Page(t.Context(), Filter{}, "", 10)
		if ids(found) != "token bad\x01id" || !errors.Is(found[1].Malformed, lease.ErrInvalidKey) {
			t.Errorf("%+v, %v; want an id that is refused", found, err)
		}
		one, err := a.Summary(t.Context(), "token")
		if err != nil || !errors.Is(one.Malformed, lease.ErrMalformed) {
			t.Errorf("%+v, %v; want it malformed", one, err)
		}
		same(t, []any{"PROCESSING", nil, false}, []any{one.Status, one.Input, one.ReadAt.IsZero()})
		for id, want := range map[string]error{"none": lease.ErrNotFound, "a/b": lease.ErrInvalidKey} {
			if _, err = a.Summary(t.Context(), id); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", id, err, want)
			}
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
			{Before: now.Add(time.Hour)}: 1, {Since: now.Add(-1)}: 1, {Status: "FAILED", Since: now.Add(-1)}: 0,
		} {
			if n, err := a.Count(t.Context(), f); err != nil || n != want {
				t.Errorf("%+v: %d, %v; want %d", f, n, err, want)
			}
		}
		if found, err := a.Find(t.Context(), Filter{All: true}, "", 3); err != nil || ids(found) != "a0 a1 a2" {
			t.Errorf("%q, %v; want the first three ids", ids(found), err)
		}
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
		found, err := a.Unfinished(t.Context(), 10)
		if got, want := ids(found), "queued stamped malformed millis fresh"; err != nil || got != want {
			t.Fatalf("unfinished: %q, %v; want %q", got, err, want)
		}
		fresh, expired := found[4], found[1]
		if !lease.Held(fresh.Lock, fresh.ReadAt) || lease.Held(expired.Lock, expired.ReadAt) {
			t.Errorf("%+v, %+v; want one that is held and one that has expired", fresh, expired)
		}
		same(t, []any{"w/0", 1, "old", "flaky"}, []any{
			fresh.Lock.FinishedBy, fresh.Attempts, fresh.Error.Code, fresh.LastError.Code,
		})
		// Firestore sorts all values of one type before those of the other: neither hides the other.
		put("stamp", "QUEUED", ago(5), nil)
		if found, err = a.Unfinished(t.Context(), 2); err != nil || ids(found) != "stamp queued" {
			t.Errorf("of two at most: %q, %v", ids(found), err)
		}
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
			err := list.read(t.Context(), a)
			if calls = b.Calls.Total() - calls; err != nil || calls != list.calls {
				t.Errorf("%s: %d calls, %v; want %d", name, calls, err, list.calls)
			}
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
		if d, found, err := a.OldestUnfinished(t.Context()); err != nil || found {
			t.Errorf("%+v, %v, %v; want none", d, found, err)
		}
		created := []any{timeValue(on(9)), on(8), on(7).UnixMilli(), timeValue(on(6)), on(5)}
		for i, at := range created {
			put("a", []string{"QUEUED", "PROCESSING"}[i%2], at)
			put(fmt.Sprint("newer", i), "QUEUED", at)
			d, _, err := a.OldestUnfinished(t.Context())
			if d.ID != "a" || !d.CreatedAt.Equal(on(9-i)) {
				t.Errorf("%v: %+v, %v; want a", at, d, err)
			}
			if d.ReadAt.IsZero() || d.Input != nil {
				t.Errorf("%+v; want the time of the reading, and no input", d)
			}
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
		if ids(found) != "x" {
			t.Errorf("%q, want those that can be read", ids(found))
		}
		return err
	})
	d, err := a.Backlog(t.Context(), 0)
	if !d.OldestCreatedAt.IsZero() || d.Waiting == 0 {
		t.Errorf("%+v, %v; want the other numbers", d, err)
	}
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
		found, err := a.UnknownStatus(t.Context(), 100)
		fatal(t, err)
		var got []string
		for i := range found {
			got = append(got, found[i].ID+"="+found[i].Status)
			if found[i].Input != nil {
				t.Errorf("%s has its input", found[i].ID)
			}
		}
		same(t, []string{"number=(the number 7)", "empty=", "waiting=WAITING", "lower=queued"}, got)
		if found, err = a.UnknownStatus(t.Context(), 2); err != nil || len(found) != 2 {
			t.Errorf("%d, %v; want 2", len(found), err)
		}
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
		found, err := a.Unfound(t.Context(), 100)
		if got := ids(found); got != "bool null text undated none none, null none, token" {
			t.Fatalf("%q, %v", got, err)
		}
		if found[0].LastError != nil || found[0].Lock.Owner != "w" {
			t.Errorf("%+v; want its lock, and not its error", found[0])
		}
		if found, err = a.Unfound(t.Context(), 5); err != nil || len(found) != 5 {
			t.Errorf("%d, %v; want 5", len(found), err)
		}
		for _, id := range []string{"none", "none, null", "ran", "none, token"} {
			b.Delete(t, id)
		}
		queries := b.Calls.Count("RunQuery")
		found, err = a.Unfound(t.Context(), 100)
		if n := b.Calls.Count("RunQuery") - queries; len(found) != 4 || n != 1 {
			t.Errorf("%d, %v, %d queries; want 4 and one query", len(found), err, n)
		}
		if found, err = a.Unfinished(t.Context(), 100); err != nil || ids(found) != "dated far" {
			t.Errorf("unfinished: %q, %v", ids(found), err)
		}
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
		uncertain, err := a.Uncertain(t.Context(), 1)
		check(t, err)
		abandoned, err := a.Abandoned(t.Context(), 1)
		check(t, err)
		same(t, []string{"left", "left"}, []string{ids(uncertain), ids(abandoned)})
	})
}
