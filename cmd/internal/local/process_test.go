package local

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

// TestMain makes this program a worker, which writes the log in WORKER_LOG. It ends at once if the
// log is empty, and ignores SIGTERM if a run is in it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" { // without its variable too: the tests must not begin again
		log := os.Getenv("WORKER_LOG")
		if strings.Contains(log, runMessage) {
			signal.Ignore(syscall.SIGTERM)
		}
		fmt.Print(log)
		if log != "" {
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		os.Exit(cli.ExitFailed)
	}
	emulatortest.Isolate()
	os.Exit(m.Run())
}

// logging is a command whose workers write text to their log.
func logging(text string, log func(*process, *record)) command {
	return command{env: append(os.Environ(), "WORKER_LOG="+text), stderr: io.Discard, log: log}
}

const serving = `{"msg":"serving","address":"there:1"}`

func TestProcess_Log(t *testing.T) {
	records := make(chan record, 2)
	text := serving + `{"msg":"serving","stderr":true}{"msg":"run begins","lock_token":4}`
	w := must.Get(startProcess(t.Context(), 5, logging(text, func(_ *process, r *record) { records <- *r })))(t)
	if w.address != "there:1" || w.String() != "worker 5" {
		t.Fatalf("%v at %s", w, w.address)
	}
	for _, want := range []record{{Message: "serving", Stderr: true}, {Message: "run begins", Token: 4}} {
		if got := <-records; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	w.stop(0)
	select {
	case <-w.done:
	default:
		t.Error("stop does not wait for the end")
	}
	if w.cmd.ProcessState == nil || w.cmd.ProcessState.ExitCode() != -1 {
		t.Errorf("%v, want it killed", w.cmd.ProcessState)
	}
}

func TestLocal_SuperviseAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &bytes.Buffer{}
		l := &local{router: router{show: cli.NewProgress(out), command: command{env: []string{"\x00"}}}}
		w := &process{number: 1, done: make(chan struct{})}
		close(w.done)
		ctx, cancel := context.WithTimeout(t.Context(), restartDelay*5/2)
		defer cancel()
		l.supervise(ctx, w)
		if strings.Count(out.String(), "worker 1 ended, and cannot be started again: ") != 2 {
			t.Errorf("%s; want two attempts", out)
		}
	})
}

func TestBounded(t *testing.T) {
	const limit = 64 << 10
	for name, tc := range map[string]struct {
		writes []int
		cut    bool
	}{
		"all":                {[]int{limit / 2, limit / 2}, false},
		"a byte more":        {[]int{limit / 2, limit/2 + 1}, true},
		"more after the end": {[]int{limit, 1, 1, 100 << 10}, true},
	} {
		var shown strings.Builder
		b := &bounded{to: &shown, limit: maxStderr}
		for _, n := range tc.writes {
			if wrote, err := b.Write([]byte(strings.Repeat("x", n))); wrote != n || err != nil {
				t.Errorf("%s: wrote %d, %v", name, wrote, err)
			}
		}
		note, ok := strings.CutPrefix(shown.String(), strings.Repeat("x", limit))
		if notes := strings.Count(note, "… cut"); !ok || (notes == 1) != tc.cut {
			t.Errorf("%s: %d bytes, then %.60q; want 64 KiB, and one note: %t", name, shown.Len(), note, tc.cut)
		}
	}
}

func TestLogTo_Full(t *testing.T) {
	var errs bytes.Buffer
	c := &cli.Call{Name: "worker", Streams: cli.Streams{Out: io.Discard, Err: &errs}}
	log := must.Get(logTo(c, slog.New(slog.DiscardHandler), "/dev/full", slog.LevelInfo))(t)
	log.Info("one")
	log.Info("two")
	if got := errs.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "/dev/full: no space left") {
		t.Errorf("%q; want one warning", got)
	}
}

// reporter is a Reporter of one method.
type reporter struct {
	orchestrator.Reporter

	report func()
}

func (r reporter) Report(orchestrator.Report) { r.report() }

func TestSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var reported []time.Duration
		report := func() { reported = append(reported, time.Since(began)) }
		analyze := func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			for _, progress := range []float64{0.25, 0.75} {
				job.Reporter.Report(orchestrator.Report{Progress: &progress})
			}
			return "done", nil
		}
		run := slowed(orchestrator.AnalyzerFunc(analyze), 8*time.Second)
		result, err := run(t.Context(), orchestrator.Job{Reporter: reporter{report: report}})
		want := []time.Duration{2 * time.Second, 6 * time.Second}
		if took := time.Since(began); !slices.Equal(reported, want) || took != 8*time.Second {
			t.Errorf("reports after %v, the end after %v", reported, took)
		}
		if result != "done" || err != nil {
			t.Errorf("%v, %v", result, err)
		}
	})
}

// workerThat returns a worker that answers each delivery.
func workerThat(t *testing.T, number int, answers http.HandlerFunc) *process {
	t.Helper()
	s := httptest.NewServer(answers)
	t.Cleanup(s.Close)
	return &process{number: number, address: strings.TrimPrefix(s.URL, "http://")}
}

func TestRouter(t *testing.T) {
	var seen []string
	r := &router{observe: func(d *delivery) { seen = append(seen, d.String()) }}
	call := func(body, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/a/b", strings.NewReader(body)))
		if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want) {
			t.Errorf("%s; want %s", got, want)
		}
	}
	const refused = `{"reason":"busy","error":"E","retry_at":"2999-01-01T00:00:00.000Z","rejected":true}`
	call("{}", "503 ")
	r.workers = []*process{
		workerThat(t, 1, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, `{"acquired":true,"status":"READY","it":%q}`, r.URL.Path+string(body))
		}),
		workerThat(t, 2, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, refused, http.StatusConflict) }),
		// The third dies.
		workerThat(t, 3, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9") }),
	}
	call(`{"analysis_id":"x"}`, "409 "+refused+"\n")
	call(`{"analysis_id":"x"}`, "502 ") // the error depends on when the connection ends
	call(`{}`, `200 {"acquired":true,"status":"READY","it":"/a/b{}"}`)
	call("", "409 "+refused+"\n") // recovery
	if want := []string{
		"x: worker 2 answered 409 busy: E; next delivery at 2999-01-01T00:00:00.000Z; the task is deleted",
		"x: worker 3 did not answer; the queue will try again",
		"a task without an analysis_id: worker 1 answered 200 READY",
	}; !slices.Equal(seen, want) {
		t.Errorf("%q; want %q", seen, want)
	}
}

func TestRouter_Full(t *testing.T) {
	a, b := &process{number: 1}, &process{number: 2}
	for limit, want := range map[int]string{2: "2 1 2 1 1 2 1 ", 0: "2 1 2 1 2 1 2 "} {
		r, got := &router{limit: limit, workers: []*process{a, b}}, ""
		for i, n := range []int32{1, 1, 1, 1, 1, 0, 0} {
			if i == 4 {
				a.deliveries.Add(-1)
			}
			got += strings.TrimPrefix(r.pick(n).String(), "worker ") + " "
		}
		if got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
		a.deliveries.Store(0)
		b.deliveries.Store(0)
	}
}
