package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// following is an analysis x in a Firestore that refuses to be read with the code,
// unless that is OK.
type following struct {
	*emulatortest.Backend

	code   atomic.Uint32
	out    emulatortest.Log
	follow func(ctx context.Context) error
}

func newFollowing(t *testing.T) *following {
	f := &following{Backend: emulatortest.Embedded(t)}
	cl := clientOf(t, f.Backend, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if c := codes.Code(f.code.Load()); c != codes.OK {
				return nil, status.Error(c, "as the test wants")
			}
			return open(ctx, d, cc, method, opts...)
		}))
	f.Put(t, "x", map[string]any{"status": analysislock.Queued})
	c := &cli.Call{Streams: cli.Streams{In: strings.NewReader(""), Out: &f.out, Err: &f.out}}
	f.follow = func(ctx context.Context) error {
		return follow(ctx, c, cl, c.Progress(), []*submitted{{ID: "x", Name: "x"}})
	}
	return f
}

// during returns what follow prints while steps change the analysis, which is READY afterwards.
func (f *following) during(t *testing.T, steps func()) string {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f.follow(t.Context()) }()
	steps()
	f.Put(t, "x", map[string]any{"status": "READY", "result": 3, "progress": map[string]any{"fraction": 1}})
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return f.out.String()
}

// wantOnce fails unless each part is once in text.
func wantOnce(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if n := strings.Count(text, part); n != 1 {
			t.Errorf("%q %d times, want once, in\n%s", part, n, text)
		}
	}
}

func TestWaitingOutlivesAnOutageOfFirestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowing(t)
		text := f.during(t, func() {
			time.Sleep(time.Minute)
			f.code.Store(uint32(codes.Unavailable))
			time.Sleep(time.Hour)
			f.code.Store(uint32(codes.OK))
			time.Sleep(time.Minute)
		})
		wantOnce(t, text, "Firestore does not answer; still waiting\n", "Firestore answers again\n", "x READY 3\n")
	})
}

func TestWaitingEndsWhereFirestoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowing(t)
		late := errors.New("too late")
		for _, patience := range []time.Duration{0, time.Minute} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), patience, late)
			if err := f.follow(ctx); !errors.Is(err, late) || !strings.Contains(f.out.String(), "goes on without this command") {
				t.Errorf("after %v: %v\n%s", patience, err, &f.out)
			}
			cancel()
		}
		f.code.Store(uint32(codes.PermissionDenied))
		if err := f.follow(t.Context()); status.Code(err) != codes.PermissionDenied || strings.Contains(f.out.String(), "waiting") {
			t.Errorf("%v\n%s", err, &f.out)
		}
	})
}

// The cause of a failure stands at the end of its message.
func TestEachAttemptAndTheCauseOfTheLastFailureAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowing(t)
		why := map[string]any{"code": "analyzer_failed", "message": "python ended with exit status 1: Traceback" + strings.Repeat(" frame", 100) + " KeyError: 'text'"}
		at := func(ahead time.Duration) string { return iso8601.Format(time.Now().Add(ahead)) }
		expired, next, crashed := at(45*time.Second), at(time.Minute), map[string]any{"attempt": 2, "startedAt": at(0)}
		text := f.during(t, func() {
			for _, fields := range []map[string]any{
				{"status": "PROCESSING", "attempts": 1, "lockOwner": "w/1", "lockToken": 1, "lockExpiresAt": at(time.Hour)},
				{"status": "QUEUED", "attempts": 1, "lastError": why},
				{"status": "QUEUED", "attempts": 1, "nextAttemptAt": next},
				{"status": "PROCESSING", "attempts": 2, "lockOwner": "w/1", "lockToken": 2, "lockExpiresAt": expired, "history": []any{crashed}},
				{"status": "PROCESSING", "attempts": 3, "lockOwner": "w/2", "lockToken": 3, "lockExpiresAt": at(time.Hour), "history": []any{crashed, crashed}},
			} {
				time.Sleep(10 * time.Second)
				f.Put(t, "x", fields)
			}
			time.Sleep(10 * time.Second)
		})
		var states []string
		for line := range strings.Lines(text) {
			_, state, _ := strings.Cut(strings.TrimSpace(line), "  x ")
			states = append(states, state)
		}
		failed := "; the last attempt failed temporarily: analyzer_failed: " + cli.Shorten(why["message"].(string), 100)
		want := []string{
			"QUEUED", "PROCESSING, attempt 1", "QUEUED, attempt 1" + failed, "QUEUED, attempt 1; the next attempt is at " + next, "PROCESSING, attempt 2",
			"PROCESSING, attempt 2; its worker is lost: the lock expired at " + expired, "PROCESSING, attempt 3; the worker of attempt 2 was lost", "READY 3",
		}
		if !slices.Equal(states, want) || !strings.HasSuffix(failed, "KeyError: 'text'") {
			t.Errorf("%q, want %q", states, want)
		}
	})
}

// Of the last state nothing is reported but checkpoints.
func TestWaitingShowsAChangedProgressAtMostEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowing(t)
		text := f.during(t, func() {
			for i := range 30 {
				time.Sleep(3 * time.Second)
				progress := map[string]any{"at": iso8601.Format(time.Now())}
				if i < 20 {
					progress["fraction"], progress["message"] = float64(i)/1000, fmt.Sprintf("page %d\x1b[2J", i)
				}
				f.Put(t, "x", map[string]any{"status": "PROCESSING", "attempts": 1 + i/20, "progress": progress})
			}
			time.Sleep(time.Hour)
		})
		wantOnce(t, text, "x PROCESSING, attempt 1; 0 %, page 0\\x1b[2J\n", "x PROCESSING, attempt 2\n", "x READY 3\n")
		if n := strings.Count(text, "page"); n < 5 || n > 7 || strings.Contains(text, "; \n") {
			t.Errorf("%d lines with a progress, want one each 10 s:\n%s", n, text)
		}
	})
}
