package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// deliverUntilRun repeats a delivery, as Cloud Tasks would, until it runs the analysis or
// finds it finished.
func (p *process) deliverUntilRun(t testing.TB, id string) {
	t.Helper()
	for range 600 {
		code, _, err := p.deliver(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if code == http.StatusOK {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s is never run", id)
}

// After a SIGKILL during a run another worker takes the lock when its TTL has passed, and
// no sooner.
func TestAKilledWorkersAnalysisIsTakenOver(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.create(t, "x")
	lock := []string{"LOCK_TTL=4s", "LOCK_HEARTBEAT=1s"}
	finish := make(chan struct{})
	analyzer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-finish }))
	defer analyzer.Close()
	let := sync.OnceFunc(func() { close(finish) })
	defer let()
	other := c.start(t, append(lock, "ANALYZER="+analyzer.URL)...)
	killed := c.start(t, append(lock, "ANALYZER=exec:sleep 30")...)
	killed.delivered(t, "x")
	c.until(t, "x", "running", running)
	killed.signal(t, syscall.SIGKILL)
	killed.wait(t)

	atOnce, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it would run until finish
	defer cancel()
	code, body, err := other.deliver(atOnce, "x")
	if err != nil || code != http.StatusConflict || !strings.Contains(body, `"reason":"locked"`) {
		t.Fatalf("right after the kill: %d %s %v", code, body, err)
	}
	held := c.get(t, "x")
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		other.deliverUntilRun(t, "x")
	}()
	over := c.until(t, "x", "taken over", func(a analysislock.Analysis) bool { return a.Lock.Token != held.Lock.Token })
	let()
	<-taken
	if over.Lock.Token != held.Lock.Token+1 || over.Lock.Owner == held.Lock.Owner {
		t.Errorf("taken over as %+v from %+v", over.Lock, held.Lock)
	}
	if taken := over.Lock.HeartbeatAt; taken.Before(held.Lock.ExpiresAt) {
		t.Errorf("taken at %v, and held until %v", taken, held.Lock.ExpiresAt)
	}
	c.until(t, "x", "finished", ready)
}

func TestACallerThatHangsUpDoesNotEndTheRun(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.create(t, "y")
	p := c.start(t, "ANALYZER=exec:sleep 1")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _, _ = p.deliver(ctx, "y")
	}()
	c.until(t, "y", "running", running)
	hangUp()
	<-gone
	c.until(t, "y", "finished", ready)
}
