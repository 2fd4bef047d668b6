package main

import (
	"net/http"
	"sync"
	"testing"
	"time"
)

// health requests /health/which and returns the status.
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

func TestAWorkerWithoutFirestoreIsLiveAndNotReady(t *testing.T) {
	t.Parallel()
	host, asked := unresponsive(t)
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

// unresponsive listens as a Firestore that accepts connections and never answers. It
// closes asked at the first connection.
func unresponsive(t testing.TB) (host string, asked <-chan struct{}) {
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
