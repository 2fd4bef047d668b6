//go:build unix

package main

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	voicePending = 256         // writes that wait for a slow reader; more are dropped
	voiceGrace   = time.Second // for the last of them
)

// voice is a Writer whose goroutine does the writing, so that a reader that is
// slow, stopped or gone holds up neither the lock nor the command's end. What
// there is no room for is dropped.
type voice struct {
	said chan []byte
	done chan struct{}

	mu     sync.Mutex
	closed bool
}

func newVoice(to io.Writer) *voice {
	v := &voice{said: make(chan []byte, voicePending), done: make(chan struct{})}
	go func() {
		defer close(v.done)
		for p := range v.said {
			_, _ = to.Write(p) // what does not arrive on standard error can be told nowhere
		}
	}()
	return v
}

// Write takes p, at once; after close in vain.
func (v *voice) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return len(p), nil
	}
	select {
	case v.said <- bytes.Clone(p):
	default:
	}
	return len(p), nil
}

// close waits a moment for what was said to be written.
func (v *voice) close() {
	v.mu.Lock()
	v.closed = true
	close(v.said)
	v.mu.Unlock()
	select {
	case <-v.done:
	case <-time.After(voiceGrace):
	}
}
