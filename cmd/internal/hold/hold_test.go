//go:build unix

package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

func (failingStore) Load(context.Context, string) (lease.Cell[document.Lock], error) {
	return lease.Cell[document.Lock]{}, lease.ErrUnavailable
}

func (failingStore) Swap(context.Context, string, lease.Cell[document.Lock], document.Lock) (lease.Cell[document.Lock], error) {
	return lease.Cell[document.Lock]{}, lease.ErrUnavailable
}

func TestHoldReportsThatItFallsBackToTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs bytes.Buffer
		c := cli.NewCall(cli.Command{}, nil, cli.Streams{Err: &errs}, nil)
		l, err := project.New(project.Config{Project: "p", Remote: failingStore{}, Dir: t.TempDir()})
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
		if err != nil || !strings.Contains(errs.String(), "Firestore does not answer: the lock is project/.lock") {
			t.Errorf("%v, %q", err, errs.String())
		}
	})
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
