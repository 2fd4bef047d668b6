//go:build unix

package hold

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	maxPending = 256         // writes that wait for a slow reader; more are dropped
	closeGrace = time.Second // how long close waits for them
)

// asyncWriter writes in a goroutine of its own, so that a reader that is slow, stopped
// or gone delays neither the lock nor the end of the command.
type asyncWriter struct {
	pending chan []byte
	done    chan struct{}

	mu     sync.Mutex
	closed bool
}

func newAsyncWriter(out io.Writer) *asyncWriter {
	w := &asyncWriter{pending: make(chan []byte, maxPending), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for p := range w.pending {
			_, _ = out.Write(p) // an error of standard error cannot be reported
		}
	}()
	return w
}

// Write never blocks. It drops p if too many writes are pending, and after close.
func (w *asyncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && len(w.pending) < maxPending {
		w.pending <- bytes.Clone(p)
	}
	return len(p), nil
}

// close waits at most closeGrace for the pending writes.
func (w *asyncWriter) close() {
	w.mu.Lock()
	w.closed = true
	close(w.pending)
	w.mu.Unlock()
	select {
	case <-w.done:
	case <-time.After(closeGrace):
	}
}
