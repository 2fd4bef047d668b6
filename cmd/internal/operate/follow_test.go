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
	"taskguard/lease"
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
	cl := clientOf(t, f.Backend, streams(func(open openStream) (grpc.ClientStream, error) {
		if code := codes.Code(f.code.Load()); code != codes.OK {
			return nil, status.Error(code, "as the test wants")
		}
		return open()
	}))
	f.Put(t, "x", doc{"status": analysislock.Queued})
	c := &cli.Call{Streams: cli.Streams{In: strings.NewReader(""), Out: &f.out, Err: &f.out}}
	f.follow = func(ctx context.Context) error {
		return follow(ctx, c, cl, c.Progress(), []*submitted{{ID: "x", Name: "x"}})
	}
	return f
}

// during returns the lines that follow prints while steps change the analysis, which is READY afterwards.
func (f *following) during(t *testing.T, steps func()) (lines []string) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f.follow(t.Context()) }()
	steps()
	f.Put(t, "x", doc{"status": "READY", "result": 3, "progress": doc{"fraction": 1}})
	ok(t, <-ended)
	for line := range strings.Lines(f.out.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), "s  ") // after the time
		lines = append(lines, text)
	}
	return lines
}

func TestFollow_Outage(t *testing.T) {
	t.Run("it is outlived", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFollowing(t)
			lines := f.during(t, func() {
				time.Sleep(time.Minute)
				f.code.Store(uint32(codes.Unavailable))
				time.Sleep(time.Hour)
				f.code.Store(uint32(codes.OK))
				time.Sleep(time.Minute)
			})
			if len(lines) != 4 || lines[3] != "x READY 3" { // QUEUED, a line for its begin, and one for its end
				t.Errorf("%q", lines)
			}
		})
	})
	t.Run("a refusal or the end of the patience ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFollowing(t)
			late := errors.New("too late")
			for _, patience := range []time.Duration{0, time.Minute} {
				ctx, cancel := context.WithTimeoutCause(t.Context(), patience, late)
				err := f.follow(ctx)
				cancel()
				if told := strings.Contains(f.out.String(), "taskguard status"); !errors.Is(err, late) || !told {
					t.Errorf("after %v: %v\n%s", patience, err, &f.out)
				}
			}
			f.code.Store(uint32(codes.PermissionDenied))
			if err := f.follow(t.Context()); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%v\n%s", err, &f.out)
			}
		})
	})
}

// The cause of a failure stands at the end of its message.
func TestFollow_State(t *testing.T) {
	now := time.Now()
	message := "python ended: Traceback" + strings.Repeat(" frame", 100) + " KeyError: 'text'"
	failed := &analysislock.Error{Code: "c", Message: message}
	attempts := []analysislock.Attempt{{Number: 2}, {Number: 3}}
	held := lease.Lease{Owner: "w/1", ExpiresAt: now.Add(time.Hour)}
	lost := lease.Lease{Owner: "w/1", ExpiresAt: now.Add(-time.Second)}
	for want, a := range map[string]analysislock.Analysis{
		"QUEUED":                     {Status: "QUEUED"},
		"PROCESSING, attempt 1":      {Status: "PROCESSING", Attempts: 1, Lock: held},
		"; the next attempt is at 2": {Status: "QUEUED", NextAttemptAt: now},
		"lock expired at " + iso8601.Format(lost.ExpiresAt): {Status: "PROCESSING", Lock: lost},
		"; the worker of attempt 2 was lost":                {Status: "PROCESSING", Lock: held, History: attempts},
		"READY 3":                                           {Status: "READY", Result: 3},
		"FAILED c: " + message:                              {Status: "FAILED", Error: failed},
	} {
		a.ReadAt = now
		if got := state(&a); !strings.Contains(got, want) || !strings.HasPrefix(got, a.Status) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	got := lastFailure(&analysislock.Analysis{LastError: failed})
	if want := "c: " + cli.Shorten(message, 100); !strings.HasSuffix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An error is printed again only if it differs: each attempt has several states.
func TestFollow_Error(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowing(t)
		lines := f.during(t, func() {
			for attempt, message := range []string{"down", "down", "busy", "busy"} {
				for _, status := range []string{"QUEUED", "PROCESSING"} {
					last := doc{"code": "c", "message": message}
					f.Put(t, "x", doc{"status": status, "attempts": 1 + attempt, "lastError": last})
					time.Sleep(time.Minute)
				}
			}
		})
		for part, want := range map[string]int{"c: down": 1, "c: busy": 1, "attempt 2": 2, "attempt 4": 2} {
			if got := strings.Count(strings.Join(lines, "\n"), part); got != want {
				t.Errorf("%q is printed %d times, want %d: %q", part, got, want, lines)
			}
		}
	})
}

// Of the last state nothing is reported but checkpoints.
func TestFollow_Progress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowing(t)
		lines := f.during(t, func() {
			for i := range 30 {
				time.Sleep(3 * time.Second)
				progress := doc{"at": at(0)}
				if i < 20 {
					progress["fraction"], progress["message"] = float64(i)/1000, fmt.Sprintf("page %d\x1b[2J", i)
				}
				f.Put(t, "x", doc{"status": "PROCESSING", "attempts": 1 + i/20, "progress": progress})
			}
			time.Sleep(time.Hour)
		})
		for _, once := range []string{
			`x PROCESSING, attempt 1; 0 %, page 0\x1b[2J`, "x PROCESSING, attempt 2", "x READY 3",
		} {
			if at := slices.Index(lines, once); at < 0 || slices.Contains(lines[at+1:], once) {
				t.Errorf("want %q once in %q", once, lines)
			}
		}
		if n := strings.Count(strings.Join(lines, ""), "page"); n < 5 || n > 7 {
			t.Errorf("%d lines with a progress, want one each 10 s: %q", n, lines)
		}
	})
}
