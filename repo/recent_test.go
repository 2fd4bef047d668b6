package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
)

// recents are what WatchRecent tells until the test ends.
func recents(t *testing.T, a *Analyses, limit int) <-chan Recent {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan Recent, 1000), make(chan error)
	go func() { done <- a.WatchRecent(ctx, limit, func(r Recent) { told <- r }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("WatchRecent ended with %v", err)
		}
	})
	return told
}

// mirror is what somebody knows who has heard all.
type mirror map[string]Analysis

// hear applies one Recent, which must come.
func (m mirror) hear(t *testing.T, told <-chan Recent) Recent {
	t.Helper()
	select {
	case r := <-told:
		if r.All {
			clear(m)
		}
		for _, id := range r.Gone {
			delete(m, id)
		}
		for i := range r.Changed {
			m[r.Changed[i].ID] = r.Changed[i]
		}
		return r
	case <-time.After(time.Minute):
		t.Fatal("nothing is told within a minute")
		return Recent{}
	}
}

// until hears on until want is all there is.
func (m mirror) until(t *testing.T, told <-chan Recent, want string) {
	t.Helper()
	for m.String() != want {
		if r := m.hear(t, told); r.All {
			t.Fatalf("all again: %v", m)
		}
	}
}

func (m mirror) String() string {
	words := make([]string, 0, len(m))
	for id := range m {
		words = append(words, id+"="+m[id].Status)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestWatchRecentTellsTheLatestAndEveryChange(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for i := range 4 {
			b.Put(t, fmt.Sprint("a", i), map[string]any{"status": Ready, "input": "in", "result": "out", "updatedAt": fmt.Sprintf("1999-01-0%dT00:00:00.000Z", i+1)})
		}
		b.Put(t, "undated", map[string]any{"status": Queued})
		m := mirror{}
		told := recents(t, a, 3)
		first := m.hear(t, told)
		if got, want := m.String(), "a1=READY a2=READY a3=READY"; !first.All || got != want || first.At.IsZero() || first.Asked.IsZero() {
			t.Fatalf("first %+v: %s, want %s", first, got, want)
		}
		if d := m["a1"]; d.Input != nil || d.Result != nil || d.ReadAt.IsZero() || d.UpdatedAt.IsZero() {
			t.Errorf("%+v, want it without input and result", d)
		}
		acquire(t, a, "undated", "w/1")
		m.until(t, told, "a2=READY a3=READY undated=PROCESSING") // it has an updatedAt now, and a1 makes room
		if l := m["undated"].Lock; l.Owner != "w/1" || l.Token != 1 || !lease.Held(l, m["undated"].ReadAt) {
			t.Errorf("lock %+v", l)
		}
		b.Delete(t, "a3")
		m.until(t, told, "a1=READY a2=READY undated=PROCESSING") // a1 moves up
		b.Merge(t, "a1", map[string]any{"status": "odd"})
		m.until(t, told, "a1=odd a2=READY undated=PROCESSING")
	})
}

func TestWatchRecentShowsWhatCannotBeMadeOut(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		const at = "2026-01-01T00:00:00.000Z"
		b.Put(t, "token", map[string]any{"status": Processing, "lockToken": "one", "updatedAt": at})
		b.Put(t, "bad\x01id", map[string]any{"status": Queued, "updatedAt": at})
		b.Put(t, "stamped", map[string]any{"updatedAt": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
		m := mirror{}
		m.hear(t, recents(t, a, 10))
		if d := m["token"]; !errors.Is(d.Malformed, lease.ErrMalformed) || d.Status != Processing {
			t.Errorf("%+v, want it malformed and its status", d)
		}
		if d := m["bad\x01id"]; !errors.Is(d.Malformed, lease.ErrInvalidKey) {
			t.Errorf("%+v, want its id refused", d)
		}
		if d, there := m["stamped"]; !there || d.Malformed != nil || d.Status != "" || d.UpdatedAt.IsZero() {
			t.Errorf("%+v, %v", d, there)
		}
	})
}

func TestWatchRecentOfAnEmptyCollectionTellsThatThereIsNothing(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		m := mirror{}
		told := recents(t, a, 3)
		if r := m.hear(t, told); !r.All || len(m) != 0 || r.At.IsZero() {
			t.Errorf("%+v", r)
		}
		b.Put(t, "a", map[string]any{"status": Queued, "updatedAt": "2026-01-01T00:00:00.000Z"})
		m.until(t, told, "a=QUEUED")
	})
}

// ids are those of what was found, in its order.
func ids(found []Analysis) string {
	words := make([]string, len(found))
	for i := range found {
		words[i] = found[i].ID
	}
	return strings.Join(words, " ")
}

// The ages are told apart by hours: a slow machine may take long to come here.
func TestWhatIsUnfinishedIsListedByAgeHoweverItsUpdateIsWritten(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		ago := func(hours int) time.Time { return time.Now().Add(time.Duration(-hours) * time.Hour) }
		b.Put(t, "queued", map[string]any{"status": Queued, "updatedAt": timeValue(ago(4))})
		b.Put(t, "stamped", map[string]any{"status": Processing, "updatedAt": ago(3), "lockOwner": "js/1", "lockExpiresAt": ago(2)})
		b.Put(t, "malformed", map[string]any{"status": Queued, "updatedAt": timeValue(ago(2)), "lockToken": "7"})
		b.Put(t, "millis", map[string]any{"status": Queued, "updatedAt": ago(1).UnixMilli()})
		b.Put(t, "fresh", map[string]any{
			"status": Queued, "finishedBy": "w/0",
			"error": map[string]any{"code": "old"}, "lastError": map[string]any{"code": "flaky"},
		})
		mustAcquire(t, a, "fresh", "w/1")
		for _, status := range []string{Ready, Failed, "ARCHIVED"} {
			b.Put(t, status, map[string]any{"status": status, "updatedAt": timeValue(ago(9))})
		}
		b.Put(t, "undated", map[string]any{"status": Queued})
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
		if found, err = a.Overdue(t.Context(), 10); err != nil || ids(found) != "queued stamped malformed millis" {
			t.Errorf("overdue: %q, %v; want queued stamped malformed millis", ids(found), err)
		}
		if found, err = a.Unfinished(t.Context(), 2); err != nil || len(found) != 2 {
			t.Errorf("of two at most: %q, %v", ids(found), err)
		}
	})
}

// One query each, which changes nothing, and no input crosses the line.
func TestAListIsOneQueryWithoutInputsAndResults(t *testing.T) {
	lists := map[string]func(context.Context, *Analyses) ([]Analysis, error){
		"List":       func(ctx context.Context, a *Analyses) ([]Analysis, error) { return a.List(ctx, 10) },
		"Unfinished": func(ctx context.Context, a *Analyses) ([]Analysis, error) { return a.Unfinished(ctx, 10) },
	}
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		large := strings.Repeat("x", 100_000)
		for _, id := range []string{"a", "b", "c"} {
			b.Put(t, id, map[string]any{"status": Processing, "updatedAt": timeValue(time.Now()), "input": large, "result": large, "theirs": large})
		}
		received := 0
		a := open(t, b, grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &weighed{ClientStream: s, bytes: &received}, err
		}))
		for name, list := range lists {
			received = 0
			total, queries := b.Calls.Total(), b.Calls.Count("RunQuery")
			found, err := list(t.Context(), a)
			if err != nil || ids(found) != "a b c" {
				t.Errorf("%s: %q, %v; want a b c", name, ids(found), err)
			}
			if total, queries = b.Calls.Total()-total, b.Calls.Count("RunQuery")-queries; total != 1 || queries != 1 {
				t.Errorf("%s: %d calls, %d queries; want one query alone", name, total, queries)
			}
			if received == 0 || received > 10_000 {
				t.Errorf("%s: %d bytes received, want a few hundred a document", name, received)
			}
		}
	})
}
