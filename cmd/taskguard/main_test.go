package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/firestore"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// asProgram makes the test binary behave as taskguard itself. Workers and
// analyzers inherit it.
const asProgram = "TASKGUARD_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup; and then by all that is started here
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	os.Exit(emulatortest.Main(m))
}

// vars is an environment.
type vars map[string]string

func (v vars) lookup(name string) (string, bool) {
	value, ok := v[name]
	return value, ok
}

// outcome is what one command came to.
type outcome struct {
	code     int
	out, err string
}

// taskguard runs a command in this process.
func taskguard(t testing.TB, env vars, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, streams{strings.NewReader(""), &out, &errs}, env.lookup)
	return outcome{code, out.String(), errs.String()}
}

// want fails unless the command exited with code and its output holds parts.
func (o outcome) want(t testing.TB, code int, parts ...string) outcome {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit %d, want %d\nstdout: %s\nstderr: %s", o.code, code, o.out, o.err)
	}
	for _, part := range parts {
		if !strings.Contains(o.out+o.err, part) {
			t.Errorf("output lacks %q\nstdout: %s\nstderr: %s", part, o.out, o.err)
		}
	}
	return o
}

// wantKeys fails unless line is a JSON object of just these keys.
func wantKeys(t testing.TB, line string, keys ...string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	var got []string
	for key := range object {
		got = append(got, key)
	}
	slices.Sort(got)
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		t.Errorf("keys %q, want %q", got, keys)
	}
	return object
}

// store is an embedded Firestore on a port.
func store(t testing.TB) vars {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := firestore.NewServer(firestore.Options{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Close(); serving.Wait() })
	return vars{"GOOGLE_CLOUD_PROJECT": "demo-test", "FIRESTORE_EMULATOR_HOST": l.Addr().String()}
}

// analyses opens what env names, as a worker would.
func analyses(t testing.TB, env vars) *repo.Analyses {
	t.Helper()
	a, err := place{project: env["GOOGLE_CLOUD_PROJECT"], emulator: env["FIRESTORE_EMULATOR_HOST"], collection: env["ANALYSES_COLLECTION"]}.open(t.Context(), repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// locked creates the analysis id and takes its lock.
func locked(t testing.TB, a *repo.Analyses, id string) analysislock.Acquisition {
	t.Helper()
	if err := a.Create(t.Context(), id, map[string]any{"text": "x"}); err != nil {
		t.Fatal(err)
	}
	acq, err := a.AcquireAnalysisLock(t.Context(), id, "w/1", 0)
	if err != nil || !acq.Acquired {
		t.Fatalf("acquire: %+v, %v", acq, err)
	}
	return acq
}

// cloud runs `taskguard local` in this process and answers its environment.
func cloud(t testing.TB, env vars) vars {
	t.Helper()
	env, _ = localCloud(t, env)
	return env
}

// localCloud is cloud with flags; what local tells of its progress is in the
// buffer.
func localCloud(t testing.TB, env vars, flags ...string) (vars, *emulatortest.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(firstLine, 1)
	errs := &emulatortest.Log{}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"local", "--port", "0", "--json"}, flags...), streams{strings.NewReader(""), lines, errs}, env.lookup)
		close(lines)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitDone {
			t.Errorf("local: exit %d\n%s", code, errs.String())
		}
	})
	select {
	case line, ok := <-lines:
		if !ok {
			t.Fatalf("local ended: %s", errs.String())
		}
		object := wantKeys(t, line, "environment", "workers", "doclock", "console")
		got := vars{}
		for name, value := range object["environment"].(map[string]any) {
			got[name] = value.(string)
		}
		return got, errs
	case <-time.After(30 * time.Second):
		t.Fatal("local does not come up")
	}
	return nil, nil
}

// firstLine is a Writer that hands over what is written first.
type firstLine chan string

func (f firstLine) Write(p []byte) (int, error) {
	select {
	case f <- string(p):
	default:
	}
	return len(p), nil
}
