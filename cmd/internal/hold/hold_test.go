//go:build unix

package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

// blockedWriter is a Writer that returns when it is closed.
type blockedWriter chan struct{}

func (w blockedWriter) Write(p []byte) (int, error) { <-w; return len(p), nil }

func TestAsyncWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := make(blockedWriter)
		w := newAsyncWriter(to)
		began := time.Now()
		for range 3 * maxPending {
			_, _ = fmt.Fprintln(w, "line")
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("writing took %v", waited)
		}
		w.close()
		if waited := time.Since(began); waited != closeGrace {
			t.Errorf("closing took %v, want %v", waited, closeGrace)
		}
		_, _ = fmt.Fprintln(w, "afterwards")
		close(to)
	})
}

// failingStore is a Firestore that does not answer.
type failingStore struct{ lease.Store[document.Lock] }

func (failingStore) Load(context.Context, string, lease.Want) (lease.Cell[document.Lock], error) {
	return lease.Cell[document.Lock]{}, lease.ErrUnavailable
}

// A project without a Firestore has always the file.
func TestFallbackNotice(t *testing.T) {
	for want, remote := range []lease.Store[document.Lock]{nil, failingStore{}} {
		synctest.Test(t, func(t *testing.T) {
			var errs bytes.Buffer
			c := &cli.Call{Streams: cli.Streams{Err: &errs}}
			l, err := project.New(project.Config{Project: "p", Remote: remote, Dir: t.TempDir()})
			must.OK(t, err)
			subscribe(c, l, options{})
			var strategy project.Strategy
			noted := func(_ context.Context, ls project.Lease) error { strategy = ls.Strategy; return nil }
			err = l.WithProjectLock(t.Context(), project.AcquireOptions{}, noted)
			if err != nil || strategy != "file-lock" {
				t.Errorf("the lock is %s, %v", strategy, err)
			}
			if got := strings.Count(errs.String(), "Firestore does not answer"); got != want {
				t.Errorf("%d notices, want %d: %q", got, want, errs.String())
			}
		})
	}
}

func wantExit(t *testing.T, err error, code int) {
	t.Helper()
	if coded := (cli.ExitError{}); !errors.As(err, &coded) || coded.Code != code {
		t.Errorf("%v, want exit %d", err, code)
	}
}

func TestRunner_Exit(t *testing.T) {
	t.Run("a signal before the start prevents it", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := &runner{group: &processGroup{path: "/bin/true", args: []string{"true"}, cancel: cancel}}
		r.group.signal(syscall.SIGTERM)
		wantExit(t, r.exit(ctx, r.command(ctx, project.Lease{})), 128+15)
	})
	t.Run("a release that fails keeps the exit code, and is reported", func(t *testing.T) {
		var errs bytes.Buffer
		r := &runner{Call: &cli.Call{Streams: cli.Streams{Err: &errs}}, started: true, status: 3 << 8}
		wantExit(t, r.exit(t.Context(), &project.Error{Code: project.ReleaseFailed, Cause: lease.ErrUnavailable}), 3)
		if !strings.Contains(errs.String(), "release-failed") {
			t.Errorf("%q", errs.String())
		}
	})
}

// lost is the cause of a loss, after which a process may run for no time. It counts who asks.
type lost struct{ asked *int }

func (lost) Error() string              { return "lost" }
func (l lost) KillAfter() time.Duration { *l.asked++; return 0 }

// started starts a script in a group, and returns when the script's child runs.
func started(ctx context.Context, t *testing.T, script string) *processGroup {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	g := &processGroup{path: "/bin/sh", args: []string{"sh", "-c", script, ready}}
	must.OK(t, g.start(ctx, nil))
	for _, err := os.Stat(ready); err != nil; _, err = os.Stat(ready) {
		time.Sleep(pollInterval)
	}
	return g
}

func TestProcessGroup(t *testing.T) {
	t.Run("what the command leaves running is killed at a loss", func(t *testing.T) {
		ctx, lose := context.WithCancelCause(t.Context())
		asked, reports := 0, 0
		g := started(ctx, t, `trap '' TERM; sleep 1000 & echo >"$0"`)
		status := g.wait(ctx, func(string) {
			reports++
			lose(lost{&asked})
		})
		if asked != 1 || reports != 1 {
			t.Errorf("asked %d times how long it may run, %d reports", asked, reports)
		}
		if status.ExitStatus() != 0 {
			t.Errorf("status %v", status)
		}
	})
	t.Run("a signal after the end reaches no group with the same id", func(t *testing.T) {
		ctx, lose := context.WithCancelCause(t.Context())
		other, over := started(ctx, t, `echo >"$0"; exec sleep 1000`), started(t.Context(), t, `echo >"$0"`)
		over.wait(t.Context(), func(string) {})
		over.id = other.id
		over.signal(syscall.SIGINT)

		asked, reports := 0, 0
		lose(lost{&asked})
		status := other.wait(ctx, func(string) { reports++ })
		if status.Signal() != syscall.SIGTERM || reports != 1 {
			t.Errorf("%v, %d reports, want SIGTERM, and one", status, reports)
		}
	})
}
