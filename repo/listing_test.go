package repo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestAListShowsMalformedAnalyses(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "bad\x01id", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(time.Now())})
		b.Put(t, "token", map[string]any{"status": analysislock.Processing, "lockToken": "one", "updatedAt": "yesterday", "input": "in"})
		found, _, _, err := a.Page(t.Context(), Filter{}, "", 10)
		if err != nil || ids(found) != "token bad\x01id" || !errors.Is(found[1].Malformed, lease.ErrInvalidKey) {
			t.Errorf("%+v, %v; want an id that is refused", found, err)
		}
		one, err := a.Summary(t.Context(), "token")
		if err != nil || !errors.Is(one.Malformed, lease.ErrMalformed) || one.Status != analysislock.Processing || one.Input != nil || one.ReadAt.IsZero() {
			t.Errorf("%+v, %v; want it malformed and its status", one, err)
		}
		if _, err = a.Summary(t.Context(), "none"); !errors.Is(err, lease.ErrNotFound) {
			t.Errorf("none: %v", err)
		}
		if _, err = a.Summary(t.Context(), "a/b"); !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("a/b: %v", err)
		}
	})
}

func TestAllAnalysesAreCountedAndThoseInAState(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for i, status := range []any{analysislock.Failed, analysislock.Failed, analysislock.Ready, "ARCHIVED", 7, nil} {
			b.Put(t, fmt.Sprint("a", i), map[string]any{"status": status})
		}
		b.Put(t, "dated", map[string]any{"status": analysislock.Queued, "updatedAt": time.Now()})
		for f, want := range map[Filter]int64{
			{Status: analysislock.Failed}: 2, {Status: analysislock.Ready}: 1, {Status: analysislock.Queued}: 1, {}: 7,
			{Before: time.Now().Add(time.Hour)}: 1, {Status: analysislock.Failed, Before: time.Now()}: 0, {Since: time.Now().Add(-time.Hour)}: 1, {Prefix: "a"}: 6,
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

// ids returns the ids of found, in its order.
func ids(found []analysislock.Analysis) string {
	words := make([]string, len(found))
	for i := range found {
		words[i] = found[i].ID
	}
	return strings.Join(words, " ")
}

// The ages differ by hours, since a slow machine may need long for the test.
func TestUnfinishedAnalysesAreListedByAgeForEachTypeOfUpdatedAt(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		ago := func(hours int) time.Time { return time.Now().Add(time.Duration(-hours) * time.Hour) }
		b.Put(t, "queued", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(ago(4))})
		b.Put(t, "stamped", map[string]any{"status": analysislock.Processing, "updatedAt": ago(3), "lockOwner": "js/1", "lockExpiresAt": ago(2)})
		b.Put(t, "malformed", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(ago(2)), "lockToken": "7"})
		b.Put(t, "millis", map[string]any{"status": analysislock.Queued, "updatedAt": ago(1).UnixMilli()})
		b.Put(t, "fresh", map[string]any{
			"status": analysislock.Queued, "finishedBy": "w/0",
			"error": map[string]any{"code": "old"}, "lastError": map[string]any{"code": "flaky"},
		})
		mustAcquire(t, a, "fresh", "w/1")
		for _, status := range []string{analysislock.Ready, analysislock.Failed, "ARCHIVED"} {
			b.Put(t, status, map[string]any{"status": status, "updatedAt": timeValue(ago(9))})
		}
		b.Put(t, "undated", map[string]any{"status": analysislock.Queued})
		found, err := a.Unfinished(t.Context(), 10)
		if got, want := ids(found), "queued stamped malformed millis fresh"; err != nil || got != want {
			t.Fatalf("unfinished: %q, %v; want %q", got, err, want)
		}
		if d := found[4]; !lease.Held(d.Lock, d.ReadAt) || d.Lock.Owner != "w/1" || d.Lock.FinishedBy != "w/0" || d.Attempts != 1 || d.Error == nil || d.LastError == nil {
			t.Errorf("%+v, want all that a list shows", d)
		}
		if d := found[1]; lease.Held(d.Lock, d.ReadAt) || d.Lock.Owner != "js/1" || !errors.Is(found[2].Malformed, lease.ErrMalformed) {
			t.Errorf("%+v, %+v; want one that has expired and a malformed one", d, found[2])
		}
		// Firestore sorts all values of one type before those of the other: neither hides the other.
		b.Put(t, "stamp", map[string]any{"status": analysislock.Queued, "updatedAt": ago(5)})
		if found, err = a.Unfinished(t.Context(), 2); err != nil || ids(found) != "stamp queued" {
			t.Errorf("of two at most: %q, %v", ids(found), err)
		}
	})
}

func TestAListIsReadWithoutInputsAndResults(t *testing.T) {
	number := func(all []analysislock.Analysis, err error) (int, error) { return len(all), err }
	lists := map[string]struct {
		calls int
		read  func(ctx context.Context, a *worker) (n int, err error)
	}{
		"Unfinished": {3, func(ctx context.Context, a *worker) (int, error) { return number(a.Unfinished(ctx, 10)) }},
		"Find":       {1, func(ctx context.Context, a *worker) (int, error) { return number(a.Find(ctx, Filter{}, "", 10)) }},
		"Orphaned": {4, func(ctx context.Context, a *worker) (int, error) {
			all, _, err := a.Orphaned(ctx, 10)
			return len(all), err
		}}, // and a read of the time
		"Page": {1, func(ctx context.Context, a *worker) (int, error) {
			all, _, _, err := a.Page(ctx, Filter{}, "", 10)
			return len(all), err
		}},
	}
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		large, old := strings.Repeat("x", 100_000), timeValue(time.Now().Add(-time.Hour))
		for _, id := range []string{"a", "b", "c"} {
			b.Put(t, id, map[string]any{"status": analysislock.Processing, "updatedAt": old, "input": large, "result": large, "theirs": large})
		}
		m := &meter{}
		a := open(t, b, grpc.WithStatsHandler(m))
		for name, list := range lists {
			moved, calls := m.bytes.Load(), b.Calls.Total()
			n, err := list.read(t.Context(), a)
			if calls = b.Calls.Total() - calls; err != nil || n != 3 || calls != list.calls {
				t.Errorf("%s: %d in %d calls, %v; want 3 in %d", name, n, calls, err, list.calls)
			}
			if moved = m.bytes.Load() - moved; moved == 0 || moved > 10_000 {
				t.Errorf("%s: %d bytes, want a few hundred a document", name, moved)
			}
		}
	})
}

func TestTheOldestUnfinishedAnalysisIsFoundForEachTypeOfCreatedAt(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		on := func(day int) time.Time { return time.Date(1999, 1, day, 0, 0, 0, 0, time.UTC) }
		put := func(id, status string, created any) {
			b.Put(t, id, map[string]any{"status": status, "createdAt": created, "updatedAt": timeValue(on(20)), "input": "in"})
		}
		put("ready", analysislock.Ready, timeValue(on(1)))
		put("failed", analysislock.Failed, on(1))
		put("other", "ANALYZING", timeValue(on(1)))
		put("empty", analysislock.Queued, "")
		put("text", analysislock.Queued, "yesterday")
		put("no number", analysislock.Queued, math.NaN())
		for i, never := range []any{0, 1.7e9, "", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", time.UnixMilli(0), time.Time{}, "1998/12/31", "1998-99-99"} {
			put(fmt.Sprint("never", i), analysislock.Queued, never) // each sorts before those that are credible
		}
		b.Put(t, "undated", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(on(1))})
		if d, found, err := a.OldestUnfinished(t.Context()); err != nil || found {
			t.Errorf("%+v, %v, %v; want none", d, found, err)
		}
		created := []any{timeValue(on(9)), on(8), on(7).UnixMilli(), timeValue(on(6)), on(5)}
		for i, at := range created {
			put("a", []string{analysislock.Queued, analysislock.Processing}[i%2], at)
			put(fmt.Sprint("newer", i), analysislock.Queued, at)
			d, found, err := a.OldestUnfinished(t.Context())
			if err != nil || !found || d.ID != "a" || !d.CreatedAt.Equal(on(9-i)) || d.ReadAt.IsZero() || d.Input != nil {
				t.Errorf("%v: %+v, %v, %v; want a without its input, and the time", at, d, found, err)
			}
		}
		before := time.Now().Add(-time.Minute)
		b.Put(t, "a", map[string]any{"status": analysislock.Queued, "createdAt": on(5).AddDate(1000, 0, 0)})
		for i := range created {
			b.Delete(t, fmt.Sprint("newer", i))
		}
		if d, found, err := a.OldestUnfinished(t.Context()); err != nil || !found || d.CreatedAt.Before(before) || d.CreatedAt.After(before.Add(time.Hour)) {
			t.Errorf("%+v, %v, %v; want the time of Firestore for one that is not credible", d, found, err)
		}
		b.Merge(t, "a", map[string]any{"lockToken": "seven"})
		if d, found, err := a.OldestUnfinished(t.Context()); err != nil || !found || !errors.Is(d.Malformed, lease.ErrMalformed) {
			t.Errorf("%+v, %v, %v; want it malformed", d, found, err)
		}
	})
}

// Each minute reads them again, and Firestore bills each document.
func TestTimesThatCannotBeReadCostABoundedNumberOfReads(t *testing.T) {
	b := emulatortest.Embedded(t)
	a := open(t, b)
	for i := range 5000 {
		b.Put(t, fmt.Sprint(i), map[string]any{"status": analysislock.Queued, "createdAt": "Nov 29, 2026", "updatedAt": "Nov 29, 2026"})
	}
	b.Put(t, "x", map[string]any{"status": analysislock.Queued, "createdAt": time.Now(), "updatedAt": time.Now()})

	for name, read := range map[string]func() error{
		"OldestUnfinished": func() error { _, _, err := a.OldestUnfinished(t.Context()); return err },
		"Unfinished": func() error {
			found, err := a.Unfinished(t.Context(), 10)
			if ids(found) != "x" {
				t.Errorf("%q, want those that can be read", ids(found))
			}
			return err
		},
	} {
		before := b.Server.Usage().Reads
		err := read()
		if reads := b.Server.Usage().Reads - before; !errors.Is(err, ErrUnread) || reads > maxUnread+orphanPage {
			t.Errorf("%s: %d reads, %v", name, reads, err)
		}
	}
	if backlog, err := a.Backlog(t.Context(), 0); err != nil || !backlog.OldestCreatedAt.IsZero() || backlog.Waiting == 0 {
		t.Errorf("%+v, %v; want the other numbers", backlog, err)
	}
}

func TestAnUnknownStatusIsFoundUnlessItWasAcquired(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Vocabulary.Final = []string{"VOID"}
		a := open(t, b)
		a.codec.keep = time.Hour // the first token of each is not 1
		for id, fields := range map[string]map[string]any{
			"lower": {"status": "queued", "input": "x"}, "final": {"status": "VOID"}, "waiting": {"status": "WAITING"}, "number": {"status": 7}, "empty": {"status": ""},
			"acquired": {"status": "ANALYZING", "lockToken": 3}, "malformed": {"status": "ANALYZING", "lockToken": "3"},
			"none": {}, "null": {"status": nil}, analysislock.Queued: {"status": analysislock.Queued}, analysislock.Processing: {"status": analysislock.Processing}, analysislock.Ready: {"status": analysislock.Ready}, analysislock.Failed: {"status": analysislock.Failed},
		} {
			b.Put(t, id, fields)
		}
		found, err := a.UnknownStatus(t.Context(), 100)
		fatal(t, err)
		var got []string
		for i := range found {
			got = append(got, found[i].ID+"="+found[i].Status)
			if found[i].Input != nil {
				t.Errorf("%s has its input", found[i].ID)
			}
		}
		if want := []string{"number=(the number 7)", "empty=", "waiting=WAITING", "lower=queued"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if found, err = a.UnknownStatus(t.Context(), 2); err != nil || len(found) != 2 {
			t.Errorf("%d, %v; want 2", len(found), err)
		}
		for id, at := range map[string]any{"dated": time.Now(), "far": time.Now().AddDate(9, 0, 0), "text": "23.11.2026", "bool": true} {
			b.Put(t, id, map[string]any{"status": analysislock.Processing, "updatedAt": at, "lockOwner": "w", "lastError": map[string]any{"code": "c"}})
		}
		b.Put(t, "ran", map[string]any{"lockToken": 1})
		b.Put(t, "token", map[string]any{"lockToken": "1"})
		found, err = a.Unfound(t.Context(), 100)
		if got := ids(found); err != nil || got != "PROCESSING QUEUED bool text none null token" || found[2].LastError != nil || found[2].Lock.Owner != "w" {
			t.Errorf("%q, %v", got, err)
		}
		if found, err = a.Unfound(t.Context(), 5); err != nil || len(found) != 5 {
			t.Errorf("%d, %v; want 5", len(found), err)
		}
		for _, id := range []string{"none", "null", "ran", "token"} {
			b.Delete(t, id)
		}
		queries := b.Calls.Count("RunQuery")
		if found, err = a.Unfound(t.Context(), 100); err != nil || len(found) != 4 || b.Calls.Count("RunQuery") != queries+1 {
			t.Errorf("%d, %v, %d queries; want 4 and one query", len(found), err, b.Calls.Count("RunQuery")-queries)
		}
		if found, err = a.Unfinished(t.Context(), 100); err != nil || ids(found) != "dated far" {
			t.Errorf("unfinished: %q, %v", ids(found), err)
		}
	})
}

func TestWhatIsHeldDoesNotHideWhatIsUncertainOrAbandoned(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a, now := open(t, b), time.Now()
		for id, expires := range map[string]time.Time{"held": now.Add(time.Hour), "left": now.Add(-time.Hour)} {
			b.Put(t, id, map[string]any{
				"status": analysislock.Processing, "updatedAt": timeValue(now.Add(-time.Hour)),
				"lockToken": 1, "lockOwner": "w", "lockExpiresAt": timeValue(expires), "openEffects": 1, "unfinishedEffects": 1,
				"effects": map[string]any{"charge": map[string]any{"state": analysislock.ActStarted, "token": 1}},
			})
		}
		uncertain, err := a.Uncertain(t.Context(), 1)
		abandoned, err2 := a.Abandoned(t.Context(), 1)
		if err = errors.Join(err, err2); err != nil || ids(uncertain) != "left" || ids(abandoned) != "left" {
			t.Errorf("%q are uncertain and %q abandoned, %v", ids(uncertain), ids(abandoned), err)
		}
	})
}
