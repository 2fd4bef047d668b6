//go:build unix

package hold

import (
	"bytes"
	"io"
	"time"
)

const (
	maxPending = 256         // writes that wait for a slow reader; more are dropped
	closeGrace = time.Second // how long close waits for them
)

// asyncWriter writes in its own goroutine. So a slow, stopped or missing reader delays neither the
// lock nor the end of the command.
type asyncWriter struct {
	pending chan []byte
	closed  chan struct{}
	done    chan struct{}
}

func newAsyncWriter(out io.Writer) *asyncWriter {
	w := &asyncWriter{make(chan []byte, maxPending), make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(w.done)
		for open := true; open || len(w.pending) > 0; {
			select {
			case p := <-w.pending:
				_, _ = out.Write(p) // an error of standard error cannot be reported
			case <-w.closed:
				open = false
			}
		}
	}()
	return w
}

// Write never blocks. It drops p if too many writes are pending.
func (w *asyncWriter) Write(p []byte) (int, error) {
	select {
	case w.pending <- bytes.Clone(p):
	default:
	}
	return len(p), nil
}

// close waits at most closeGrace for the pending writes. Later ones are dropped.
func (w *asyncWriter) close() {
	close(w.closed)
	select {
	case <-w.done:
	case <-time.After(closeGrace):
	}
}
