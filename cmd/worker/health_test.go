package main

import (
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// health is the status of /health/ and which.
func (p *process) health(t testing.TB, which string) int {
	t.Helper()
	resp, err := http.Get(p.url + "/health/" + which)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// untilReady polls /health/ready until it answers want.
func (p *process) untilReady(t testing.TB, want int) {
	t.Helper()
	for range 3000 {
		if p.health(t, "ready") == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("/health/ready never answers %d", want)
}

func TestAWorkerOnADarkFirestoreIsLiveAndNotReady(t *testing.T) {
	t.Parallel()
	host, asked := dark(t)
	p := newCloud(t).start(t, "FIRESTORE_EMULATOR_HOST="+host)
	if code := p.health(t, "live"); code != http.StatusOK {
		t.Errorf("live answers %d", code)
	}
	<-asked
	for range 20 {
		if code := p.health(t, "ready"); code != http.StatusServiceUnavailable {
			t.Fatalf("ready answers %d", code)
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.stop(t)
	p.exitsCleanly(t)
}

// A worker that is stopping still answers health, and that it is not ready.
func TestAStoppingWorkerIsNotReady(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.create(t, "x")
	spec, started := stubbornAnalyzer(t) // the run goes on for 5 s after SIGTERM
	p := c.start(t, "ANALYZER="+spec)
	p.untilReady(t, http.StatusOK)
	answer := p.delivered(t, "x")
	<-started
	p.signal(t, syscall.SIGTERM)
	p.untilReady(t, http.StatusServiceUnavailable)
	if code := p.health(t, "live"); code != http.StatusOK {
		t.Errorf("live answers %d", code)
	}
	select {
	case got := <-answer:
		t.Errorf("the run had ended already: %s", got)
	default:
	}
}

// dark listens as a Firestore that accepts connections and never answers. asked is
// closed at the first one.
func dark(t testing.TB) (host string, asked <-chan struct{}) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	first := make(chan struct{})
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			t.Cleanup(func() { _ = conn.Close() })
			if n == 0 {
				close(first)
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
	})
	return l.Addr().String(), first
}
