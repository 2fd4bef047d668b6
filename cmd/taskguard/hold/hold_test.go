//go:build unix

package hold

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/taskguard/cli"
	"taskguard/lease/projectlock"
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

func TestASignalBeforeTheStartPreventsTheStart(t *testing.T) {
	r := &runner{group: &processGroup{path: "/bin/true", args: []string{"true"}}}
	if r.group.signal(syscall.SIGTERM) {
		t.Error("a command that has not started got a signal")
	}
	err := r.exit(t.Context(), r.command(t.Context(), projectlock.Lease{}))
	if coded := (cli.ExitError{}); !errors.As(err, &coded) || coded.Code != 128+15 {
		t.Errorf("%v; want 143", err)
	}
}
