//go:build linux || darwin

package orchestrator

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
)

// stopped is an intake whose goroutine has ended, and the other end of its pipe.
func stopped(t *testing.T, take func([]byte)) (*intake, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(r, w) })
	i := &intake{pipe: r, take: take, done: make(chan struct{})}
	close(i.done)
	return i, w
}

func TestSettleTakesWhatThePipeStillHoldsAndNoMore(t *testing.T) {
	var taken string
	i, w := stopped(t, func(b []byte) { taken += string(b) })
	if _, err := w.WriteString("in time"); err != nil {
		t.Fatal(err)
	}
	i.settle()
	if _, err := w.WriteString("too late"); err != nil {
		t.Fatal(err)
	}
	closeAll(w)
	<-i.done
	i.end()
	if taken != "in time" {
		t.Errorf("took %q, want %q", taken, "in time")
	}
}

func TestDrainEndsThoughTheWriterDoesNot(t *testing.T) {
	i, w := stopped(t, func([]byte) {})
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
			}
		})
	}
	i.drain()
	closeAll(i.pipe, w)
	writers.Wait()
}

func TestTooMuchOutputIsPermanentWhateverTheExit(t *testing.T) {
	c := &child{out: output{tooLarge: true}}
	_, err := (&program{args: []string{"tool"}}).outcome(c, syscall.WaitStatus(1<<8))
	var refused *PermanentError
	if !errors.As(err, &refused) || refused.Code != CodeResultTooLarge {
		t.Errorf("got %v, want %s", err, CodeResultTooLarge)
	}
}
