package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"taskguard/lease/analysislock"
	"testing"
	"time"
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
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0; %s", code, p.stderr.String())
	}
	checkReleased(t, c.get(t, "x"))
}

func TestSIGTERMAnswersAndReleases200Runs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 200 programs")
	}
	t.Parallel()
	c := newCloud(t)
	p := c.start(t, "MAX_RUNS=200", "ANALYZER=exec:sleep 30")
	answers := make([]<-chan string, 200)
	for i := range answers {
		c.create(t, fmt.Sprint(i))
		answers[i] = p.delivered(t, fmt.Sprint(i))
	}
	for i := range answers {
		c.until(t, fmt.Sprint(i), "running", running)
	}
	p.stop(t)
	for i, answer := range answers {
		checkStopped(t, <-answer)
		checkReleased(t, c.get(t, fmt.Sprint(i)))
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0; %s", code, p.stderr.String())
	}
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
	between := newCurtain(t, c.host, "")
	spec, started := stubbornAnalyzer(t)
	p := c.start(t, "FIRESTORE_EMULATOR_HOST="+between.host, "ANALYZER="+spec)
	answer := p.delivered(t, "x")
	<-started
	between.draw()
	p.stop(t)
	checkStopped(t, <-answer)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0; %s", code, p.stderr.String())
	}
	if a := c.get(t, "x"); !running(a) {
		t.Errorf("analysis = %+v, and nothing should have come through", a)
	}
	if strings.Contains(p.log.String(), "still going") {
		t.Errorf("the run had ended, and the log says otherwise: %s", p.log.String())
	}
}

// A run that does not end, here because its result cannot be written, is left
// at 8 s with its lock.
func TestSIGTERMLeavesARunThatDoesNotEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 8 s")
	}
	t.Parallel()
	c := newCloud(t)
	c.create(t, "x")
	between := newCurtain(t, c.host, "a result in vain")
	analyzer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		between.draw()
		_, _ = io.WriteString(w, `"a result in vain"`)
	}))
	defer analyzer.Close()
	p := c.start(t, "FIRESTORE_EMULATOR_HOST="+between.host, "ANALYZER="+analyzer.URL)
	answer := p.delivered(t, "x")
	<-between.kept
	p.stop(t)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0; %s", code, p.stderr.String())
	}
	if got := <-answer; !strings.HasPrefix(got, "0 ") {
		t.Errorf("answer: %s", got)
	}
	if a := c.get(t, "x"); !running(a) || a.Status != analysislock.Processing {
		t.Errorf("analysis = %+v", a)
	}
	if !strings.Contains(p.log.String(), "still going") {
		t.Errorf("no warning in the log: %s", p.log.String())
	}
}
