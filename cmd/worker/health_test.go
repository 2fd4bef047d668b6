package main

import (
	"net/http"
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

func TestReadyOnceFirestoreHasAnswered(t *testing.T) {
	t.Parallel()
	p := newCloud(t).start(t)
	p.untilReady(t, http.StatusOK)
	if code := p.health(t, "live"); code != http.StatusOK {
		t.Errorf("live answers %d", code)
	}
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
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
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
