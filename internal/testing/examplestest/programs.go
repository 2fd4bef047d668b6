package examplestest

import (
	"context"
	"net"
	"os/exec"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

// Output runs a command, which must succeed, and returns what it prints, errors too.
func Output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// FreePort returns a port that nothing listens at.
func FreePort(t *testing.T) string {
	t.Helper()
	l := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	must.OK(t, l.Close())
	return port
}

// Serve starts a program, whose command has the context of the test, and which ends with it. It waits until the
// program listens at port, and returns its address.
func Serve(t *testing.T, port string, cmd *exec.Cmd) (url string) {
	t.Helper()
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the context has ended it
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			return "http://127.0.0.1:" + port
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%s does not listen: %v", cmd, err)
		}
	}
}

// Ask runs one analysis with the analyzer of spec, such as exec:python3 analyzer.py. A program gets the variables
// that env names.
func Ask(t *testing.T, spec string, job orchestrator.Job, env ...string) (result any, err error) {
	t.Helper()
	analyzer := must.Get(orchestrator.New(spec, orchestrator.Options{Env: env}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return orchestrator.Run(ctx, analyzer, job)
}
