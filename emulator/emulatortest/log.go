package emulatortest

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// Log is what a program under test writes. It may be read while it is written.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all that has been written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Await returns once text has been written, and fails t if it never comes.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !strings.Contains(l.String(), text) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%q was never written: %s", text, l.String())
		}
	}
}
