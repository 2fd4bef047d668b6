package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// hang is when a test gives up on something that should come at once.
const hang = 30 * time.Second

// line is one of the application's log.
type line struct {
	Message    string
	Port       int
	AnalysisID string `json:"analysis_id"`
	LockToken  int64  `json:"lock_token"`
}

// application is a process of app.py.
type application struct {
	t       *testing.T
	port    int
	process *os.Process
	lines   chan line // closed when the process has ended
	wait    func() error
}

// start runs app.py on port, 0 for any free one, with these variables besides. It
// is killed at the end of the test.
func start(t *testing.T, port int, env ...string) *application {
	t.Helper()
	path, err := python()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "app.py")
	cmd.Env = append(append(os.Environ(), "APP_HOST=127.0.0.1", fmt.Sprintf("APP_PORT=%d", port), "APP_SLOTS=10", "APP_SECONDS=0"), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &application{t: t, process: cmd.Process, lines: make(chan line, 100)}
	var reading sync.WaitGroup
	reading.Go(func() { a.read(out) })
	a.wait = sync.OnceValue(func() error {
		reading.Wait() // all of the pipe, before Wait closes it
		return cmd.Wait()
	})
	t.Cleanup(a.kill)
	a.port = a.next("serving").Port
	return a
}

func (a *application) read(out io.Reader) {
	defer close(a.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			a.t.Errorf("the application says %q", s.Text())
		}
		a.lines <- l
	}
}

// next waits for the next line, which is to have this message.
func (a *application) next(message string) line {
	a.t.Helper()
	select {
	case l, open := <-a.lines:
		if !open || l.Message != message {
			a.t.Fatalf("the application said %+v (ended: %t), want %s", l, !open, message)
		}
		return l
	case <-time.After(hang):
		a.t.Fatalf("the application never said %s", message)
	}
	panic("unreachable")
}

// kill is SIGKILL, and returns when the process is gone.
func (a *application) kill() {
	_ = a.process.Kill() // it may be gone
	_ = a.wait()         // says that it was killed
}

func (a *application) url(path string) string {
	return fmt.Sprintf("http://localhost:%d%s", a.port, path)
}

// post is a job as the worker sends it.
func (a *application) post(analysis string, token int, input string) (status int, said string) {
	a.t.Helper()
	ctx, done := context.WithTimeout(a.t.Context(), hang)
	defer done()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url("/analyze"), strings.NewReader(job(analysis, token, input)))
	if err != nil {
		a.t.Fatal(err)
	}
	return answer(a.t, r)
}

func job(analysis string, token int, input string) string {
	return fmt.Sprintf(`{"analysis_id":%q,"lock_token":%d,"attempt":1,"input":%s}`, analysis, token, input)
}

func answer(t *testing.T, r *http.Request) (status int, body string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(data)
}
