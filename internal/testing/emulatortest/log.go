package emulatortest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log collects the output of a program under test. It is safe for concurrent use.
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

// String returns all that has been written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Await returns once text has been written, and fails t after 30 s.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for ; !strings.Contains(l.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q was not written: %s", text, l.String())
		}
	}
}
