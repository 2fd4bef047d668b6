package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
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
	w, err := startProcess(t.Context(), 5, logging(text, func(_ *process, r *record) { records <- *r }))
	must.OK(t, err)
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

func TestProcess_NoStart(t *testing.T) {
	ends := logging("", func(*process, *record) {})
	for want, c := range map[string]command{"exit status 1": ends, "worker 1: ": {env: []string{"\x00"}}} {
		if _, err := startProcess(t.Context(), 1, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	enough, begun := errors.New("enough"), make(chan *process, 1)
	end := func(w *process, _ *record) { cancel(enough); begun <- w }
	_, err := startProcess(ctx, 1, logging(`{"msg":"slow"}`, end))
	if !errors.Is(err, enough) {
		t.Errorf("%v; want the cause of the end", err)
	}
	<-(<-begun).done
}

func TestLocal_Supervise(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &emulatortest.Log{}
	l := &local{router: router{show: cli.NewProgress(out), command: logging(serving, func(*process, *record) {})}}
	must.OK(t, l.startWorkers(ctx, 1))
	w, ended := l.pick(1), make(chan struct{})
	go func(first *process) { defer close(ended); l.supervise(ctx, first) }(w)
	for range 2 {
		w.kill()
		for dead := w; w == dead; time.Sleep(10 * time.Millisecond) {
			w = l.pick(1)
		}
		out.Await(t, fmt.Sprintf("worker 1 ended; it serves again on there:1, process %d\n", w.pid()))
	}
	cancel()
	<-ended
	l.stopWorkers()
	select {
	case <-w.done:
	default:
		t.Error("it does not wait for the end of the workers")
	}
	if s := w.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGTERM {
		t.Errorf("a worker ended by %v; want it asked to", s.Signal())
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
