package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// stop sends SIGTERM, and SIGKILL to a worker that does not end. Cloud Run does so after
// 10 s; a slow machine may need more.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	hung := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() { hung.Stop() })
}

// stubbornAnalyzer returns an analyzer that ignores SIGTERM. It closes started when the
// analyzer runs.
func stubbornAnalyzer(t testing.TB) (spec string, started <-chan struct{}) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host, dialled := unresponsive(t)
	return fmt.Sprintf("exec:%s %s %s", program, stubborn, host), dialled
}

func checkStopped(t testing.TB, answer string) {
	t.Helper()
	if !strings.HasPrefix(answer, "500") || !strings.Contains(answer, "shutting_down") {
		t.Errorf("answer: %s", answer)
	}
}

func checkReleased(t testing.TB, a analysislock.Analysis) {
	t.Helper()
	if running(a) || a.Status != analysislock.Queued || a.Lock.Attempts != 0 || a.Lock.Token != 1 {
		t.Errorf("analysis = %+v", a)
	}
}

func TestSIGTERMCancelsTheRunReleasesAndAnswers(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.create(t, "x")
	p := c.start(t, "ANALYZER=exec:sleep 30")
	answer := p.delivered(t, "x")
	c.until(t, "x", "running", running)
	p.stop(t)
	checkStopped(t, <-answer)
	p.exitsCleanly(t)
	checkReleased(t, c.get(t, "x"))
}

// The slowest orderly end: the program is killed 5 s after SIGTERM, then the worker tries
// in vain for 2.5 s to release the lock. Until it has ended, it answers health, and that
// it is not ready. The caller is answered.
func TestAWorkerStopsAndAnswersAlthoughItsProgramAndFirestoreDoNot(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 7 s")
	}
	t.Parallel()
	c := newCloud(t)
	c.create(t, "x")
	between := newBetween(t, c.host)
	spec, started := stubbornAnalyzer(t)
	p := c.start(t, "FIRESTORE_EMULATOR_HOST="+between.host, "ANALYZER="+spec)
	p.untilReady(t, http.StatusOK)
	answer := p.delivered(t, "x")
	<-started
	between.unavailable.Store(true)
	p.stop(t)
	p.untilReady(t, http.StatusServiceUnavailable)
	if code := p.health(t, "live"); code != http.StatusOK || len(answer) > 0 {
		t.Errorf("live answers %d; the run must not have ended", code)
	}
	checkStopped(t, <-answer)
	p.exitsCleanly(t)
	if a := c.get(t, "x"); !running(a) {
		t.Errorf("analysis = %+v, want no change of it", a)
	}
	if strings.Contains(p.log.String(), "still going") {
		t.Errorf("the run had ended; log: %s", p.log.String())
	}
}
