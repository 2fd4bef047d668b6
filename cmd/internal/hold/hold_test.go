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
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

// blockedWriter is a Writer that returns when it is closed.
type blockedWriter chan struct{}

func (w blockedWriter) Write(p []byte) (int, error) { <-w; return len(p), nil }

func TestAnAsyncWriterWithoutAReaderDelaysNothing(t *testing.T) {
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
			t.Errorf("closing took %v; want %v", waited, closeGrace)
		}
		_, _ = fmt.Fprintln(w, "afterwards")
		close(to)
	})
}

// failingStore is a Firestore that does not answer.
type failingStore struct{}

func (failingStore) Load(context.Context, string, lease.Want) (lease.Cell[document.Lock], error) {
	return lease.Cell[document.Lock]{}, lease.ErrUnavailable
}

func (failingStore) Swap(context.Context, string, lease.Cell[document.Lock], document.Lock) (lease.Cell[document.Lock], error) {
	return lease.Cell[document.Lock]{}, lease.ErrUnavailable
}

func TestHoldReportsThatItFallsBackToTheFileOnceAndOnlyIfFirestoreDoesNotAnswer(t *testing.T) {
	for want, remote := range []lease.Store[document.Lock]{nil, failingStore{}} {
		synctest.Test(t, func(t *testing.T) {
			var errs bytes.Buffer
			c := &cli.Call{Streams: cli.Streams{Err: &errs}}
			l, err := project.New(project.Config{Project: "p", Remote: remote, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			subscribe(c, l, options{})
			err = l.WithProjectLock(t.Context(), project.AcquireOptions{}, func(_ context.Context, ls project.Lease) error {
				if ls.Strategy != "file-lock" {
					t.Errorf("the lock is %s", ls.Strategy)
				}
				return nil
			})
			if got := strings.Count(errs.String(), "Firestore does not answer: the lock is project/.lock"); err != nil || got != want {
				t.Errorf("%v, %d notices, want %d: %q", err, got, want, errs.String())
			}
		})
	}
}

func TestASignalBeforeTheStartPreventsTheStart(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &runner{group: &processGroup{path: "/bin/true", args: []string{"true"}, cancel: cancel}}
	r.group.signal(syscall.SIGTERM)
	err := r.exit(ctx, r.command(ctx, project.Lease{}))
	if coded := (cli.ExitError{}); !errors.As(err, &coded) || coded.Code != 128+15 {
		t.Errorf("%v; want 143", err)
	}
}

func TestAReleaseThatFailsKeepsTheExitCodeAndIsReported(t *testing.T) {
	var errs bytes.Buffer
	c := &cli.Call{Streams: cli.Streams{Err: &errs}}
	r := &runner{Call: c, started: true, status: 3 << 8}
	err := r.exit(t.Context(), &project.Error{Code: project.ReleaseFailed, Cause: lease.ErrUnavailable})
	if coded := (cli.ExitError{}); !errors.As(err, &coded) || coded.Code != 3 || !strings.Contains(errs.String(), "release-failed") {
		t.Errorf("%v, %q; want exit 3, and the error in a notice", err, errs.String())
	}
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
	if err := g.start(ctx, nil); err != nil {
		t.Fatal(err)
	}
	for _, err := os.Stat(ready); err != nil; _, err = os.Stat(ready) {
		time.Sleep(pollInterval)
	}
	return g
}

func TestWhatTheCommandLeavesRunningIsKilledAtALoss(t *testing.T) {
	ctx, lose := context.WithCancelCause(t.Context())
	asked, reports := 0, []string{}
	g := started(ctx, t, `trap '' TERM; sleep 1000 & echo >"$0"`)
	status := g.wait(ctx, func(message string) {
		reports = append(reports, message)
		lose(lost{&asked})
	})
	if status.ExitStatus() != 0 || asked != 1 || len(reports) != 1 {
		t.Errorf("status %v, asked %d times how long it may run, %q", status, asked, reports)
	}
}

func TestASignalAfterTheEndReachesNoGroupWithTheSameID(t *testing.T) {
	ctx, lose := context.WithCancelCause(t.Context())
	other, over := started(ctx, t, `echo >"$0"; exec sleep 1000`), started(t.Context(), t, `echo >"$0"`)
	over.wait(t.Context(), func(string) {})
	over.id = other.id
	over.signal(syscall.SIGINT)

	asked, reports := 0, []string{}
	lose(lost{&asked})
	status := other.wait(ctx, func(message string) { reports = append(reports, message) })
	if status.Signal() != syscall.SIGTERM || len(reports) != 1 {
		t.Errorf("%v, %q; want SIGTERM, and one report", status, reports)
	}
}
