package app

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PYTHON")) }

// logLine is one line of the application's log.
type logLine struct {
	Message    string
	Port       int
	AnalysisID string `json:"analysis_id"`
	LockToken  int64  `json:"lock_token"`
	Done       int    // words of an earlier attempt
}

// application is a process of app.py.
type application struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	port  int
}

// start runs app.py on port, or on any free port if it is 0, until the test ends.
func start(t *testing.T, port int, env ...string) *application {
	t.Helper()
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	cmd := exec.Command(python, "app.py")
	cmd.Env = append(append(os.Environ(), "APP_HOST=127.0.0.1", fmt.Sprintf("APP_PORT=%d", port)), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	a := &application{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(a.kill)
	a.port = a.next("serving").Port
	return a
}

// next waits for the next log line, which must have this message.
func (a *application) next(message string) (l logLine) {
	a.t.Helper()
	if !a.lines.Scan() {
		a.t.Fatalf("the application ended before %q: %v", message, a.lines.Err())
	}
	if err := json.Unmarshal(a.lines.Bytes(), &l); err != nil || l.Message != message {
		a.t.Fatalf("the application logged %q, want %q", a.lines.Text(), message)
	}
	return l
}

// kill sends SIGKILL and waits for the end of the process.
func (a *application) kill() {
	_ = a.cmd.Process.Kill() // it may have ended
	_ = a.cmd.Wait()         // killed
}

func (a *application) url() string { return fmt.Sprintf("http://localhost:%d/analyze", a.port) }

// analyze runs the application as the worker's analyzer does.
func (a *application) analyze(job orchestrator.Job) (any, error) {
	a.t.Helper()
	analyzer, err := orchestrator.New(a.url(), orchestrator.Options{})
	if err != nil {
		a.t.Fatal(err)
	}
	return orchestrator.Run(a.t.Context(), analyzer, job)
}

func TestApplication(t *testing.T) {
	a := start(t, 0)
	input := json.RawMessage(`{"text":"the lamp and the moon"}`)
	result, err := a.analyze(orchestrator.Job{AnalysisID: "good", LockToken: 7, Input: input})
	if l := a.next("begins"); l.AnalysisID != "good" || l.LockToken != 7 {
		t.Errorf("the application got %+v, want the analysis good with token 7", l)
	}
	if words, _ := result.(map[string]any); err != nil || words["words"] != int64(5) {
		t.Errorf("%v, %v; want 5 words", result, err)
	}
	_, err = a.analyze(orchestrator.Job{AnalysisID: "bad", Input: json.RawMessage(`{"image":"x"}`)})
	if !errors.As(err, new(*orchestrator.PermanentError)) {
		t.Errorf("a rejected analysis ends with %v", err)
	}
}

// killer is a Reporter that kills the application at its first checkpoint.
type killer struct {
	orchestrator.Reporter
	*application

	checkpoint json.RawMessage
}

func (k *killer) Report(r orchestrator.Report) {
	if k.checkpoint == nil {
		k.checkpoint, _ = json.Marshal(r.Checkpoint)
		_ = k.cmd.Process.Kill()
	}
}

func TestApplication_Kill(t *testing.T) {
	a := start(t, 0, "APP_SECONDS=10")
	text := strings.Repeat("__init__ the lamp ", 10)
	k := &killer{application: a}
	input := json.RawMessage(`{"text":"` + text + `"}`)
	job := orchestrator.Job{AnalysisID: "x", LockToken: 1, Input: input, Reporter: k}
	if _, err := a.analyze(job); err == nil || errors.As(err, new(*orchestrator.PermanentError)) {
		t.Fatalf("the run of a killed application ends with %v", err)
	}
	before := a.next("begins")

	a.kill()
	a = start(t, a.port)
	job.LockToken, job.Resume, job.Reporter = 2, k.checkpoint, nil
	result, err := a.analyze(job)
	after := a.next("begins")
	if before.Done != 0 || after.Done == 0 {
		t.Errorf("%+v after %+v; want words that were done", after, before)
	}
	if after.LockToken != 2 {
		t.Errorf("the second attempt has the token %d, want 2", after.LockToken)
	}
	if words, _ := result.(map[string]any); err != nil || words["words"] != int64(30) {
		t.Errorf("%v, %v; want 30 words", result, err)
	}

	counted, err := a.analyze(orchestrator.Job{
		AnalysisID: "y", Input: json.RawMessage(`{"text":"a a b"}`),
		Resume: json.RawMessage(`{"done":2,"counts":"{\"a\":7}"}`),
	})
	const want = "map[top:[map[count:7 word:a] map[count:1 word:b]] words:8]"
	if got := fmt.Sprint(counted); err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

func job(id string, token int64) orchestrator.Job {
	return orchestrator.Job{AnalysisID: id, LockToken: token, Attempt: 1, Input: json.RawMessage(`{"text":"a"}`)}
}

// begin sends a job that ends with the test, and waits until it has begun.
func (a *application) begin(id string, token int64) {
	a.t.Helper()
	var run sync.WaitGroup
	run.Go(func() {
		if _, err := a.analyze(job(id, token)); err == nil {
			a.t.Error("a job of an hour has ended")
		}
	})
	a.t.Cleanup(run.Wait)
	a.next("begins")
}

func TestApplication_Refusals(t *testing.T) {
	for name, c := range map[string]struct {
		slots, want string
		refused     orchestrator.Job
	}{
		"a lower token":  {"10", "superseded", job("x", 6)},
		"a job too many": {"1", "slots", job("y", 1)},
	} {
		a := start(t, 0, "APP_SECONDS=3600", "APP_SLOTS="+c.slots)
		a.begin("x", 7)
		_, err := a.analyze(c.refused)
		if err == nil || errors.As(err, new(*orchestrator.PermanentError)) {
			t.Errorf("%s: %v, want a refusal for now", name, err)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
