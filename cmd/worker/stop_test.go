package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// stop sends SIGTERM, and SIGKILL to a worker that hangs. Cloud Run does so
// after 10 s; here a slow machine is given more.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	hung := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() { hung.Stop() })
}

// stubbornAnalyzer is an analyzer that ignores SIGTERM; started is closed when
// it does.
func stubbornAnalyzer(t testing.TB) (spec string, started <-chan struct{}) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host, dialled := dark(t)
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

// The slowest orderly end: the program is killed 5 s after SIGTERM, then the
// release is tried for 2.5 s, in vain; the caller is answered all the same.
func TestSIGTERMAnswersThoughTheProgramAndFirestoreDoNot(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 7 s")
	}
	t.Parallel()
	c := newCloud(t)
	c.create(t, "x")
	between := newBetween(t, c.host)
	spec, started := stubbornAnalyzer(t)
	p := c.start(t, "FIRESTORE_EMULATOR_HOST="+between.host, "ANALYZER="+spec)
	answer := p.delivered(t, "x")
	<-started
	between.dark.Store(true)
	p.stop(t)
	checkStopped(t, <-answer)
	p.exitsCleanly(t)
	if a := c.get(t, "x"); !running(a) {
		t.Errorf("analysis = %+v, and nothing should have come through", a)
	}
	if strings.Contains(p.log.String(), "still going") {
		t.Errorf("the run had ended, and the log says otherwise: %s", p.log.String())
	}
}
