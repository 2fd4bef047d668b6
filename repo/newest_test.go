package repo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
)

// newest must be answered.
func newest(t *testing.T, a *Analyses) (written, at time.Time) {
	t.Helper()
	written, at, err := a.Newest(t.Context())
	if err != nil || at.IsZero() || written.After(at) {
		t.Fatalf("written %v, at %v, %v", written, at, err)
	}
	return written, at
}

func TestNewestOfNothingIsTheTimeAlone(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for range 2 {
			if written, at := newest(t, a); !written.IsZero() || time.Since(at).Abs() > time.Minute {
				t.Errorf("written %v, at %v", written, at)
			}
			b.Put(t, "undated", map[string]any{"status": Queued}) // is not in the index
		}
	})
}

// It is the write that counts, also one that leaves updatedAt as it was.
func TestNewestIsTheLastWriteOfTheLatestUpdatedAtWhateverItsType(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		var last time.Time
		rises := func(what string, want bool) {
			t.Helper()
			written, _ := newest(t, a)
			if got := written.After(last); got != want {
				t.Errorf("%s: written %v after %v: %v, want %v", what, written, last, got, want)
			}
			last = written
			time.Sleep(2 * time.Millisecond)
		}
		b.Put(t, "number", map[string]any{"updatedAt": 7})
		rises("a number", true)
		b.Put(t, "stamped", map[string]any{"updatedAt": time.Now()})
		rises("a Timestamp", true)
		b.Put(t, "old", map[string]any{"updatedAt": "1999-01-01T00:00:00.000Z"})
		rises("a string, which sorts after all of them", true)
		b.Put(t, "new", map[string]any{"updatedAt": "2000-01-01T00:00:00.000Z"})
		rises("a later one", true)
		b.Merge(t, "new", map[string]any{"status": "odd"})
		rises("the same updatedAt, written again", true)
		b.Merge(t, "old", map[string]any{"status": "odd"})
		rises("one that is not the latest", false)
		b.Put(t, "undated", map[string]any{"status": Queued})
		rises("one that is not in the index", false)
		b.Delete(t, "new")
		if written, _ := newest(t, a); !written.After(last) {
			t.Errorf("written %v: want the other one's, which was written later", written)
		}
	})
}

// On this the console's judgement rests, whether its stream still speaks.
func TestWhatIsToldIsNeverOlderThanTheNewestThatItHolds(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "a", map[string]any{"status": Queued, "updatedAt": "2026-01-01T00:00:00.000Z"})
		m, told := mirror{}, recents(t, a, 3)
		for i := range 10 {
			written, _ := newest(t, a)
			for at := m.hear(t, told).At; at.Before(written); {
				at = m.hear(t, told).At // it comes, or the test fails
			}
			if want := fmt.Sprint(i); i > 0 && m["a"].Status != want {
				t.Errorf("told of a time since which it is %s: %v", want, m)
			}
			b.Merge(t, "a", map[string]any{"status": fmt.Sprint(i + 1)})
		}
	})
}

func TestNewestIsOneReadOrTwoWhereThereIsNone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for want := int64(2); want > 0; want-- {
			before, calls := b.Server.Usage().Reads, b.Calls.Total()
			newest(t, a)
			if reads, calls := b.Server.Usage().Reads-before, b.Calls.Total()-calls; reads != want || int64(calls) != want {
				t.Errorf("%d reads in %d calls, want %d", reads, calls, want)
			}
			b.Put(t, "a", map[string]any{"updatedAt": "2026-01-01T00:00:00.000Z", "input": "in"})
		}
	})
}

func TestADarkFirestoreDoesNotSayWhatIsNewest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var mu sync.Mutex
		answer := error(nil)
		a := open(t, b, grpc.WithChainStreamInterceptor(func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			mu.Lock()
			defer mu.Unlock()
			if answer != nil {
				return nil, answer
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		began := time.Now()
		if _, _, err := a.Newest(t.Context()); !errors.Is(err, lease.ErrUnavailable) || time.Since(began) > callTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		answer = status.Error(codes.FailedPrecondition, "no index")
		if _, _, err := a.Newest(t.Context()); !errors.Is(err, lease.ErrRefused) || status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%v", err)
		}
	})
}
