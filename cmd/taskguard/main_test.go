package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gcp "cloud.google.com/go/firestore"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// asProgram makes the test binary behave as taskguard itself. Workers inherit it.
const asProgram = "TASKGUARD_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup, and then by all that is started here
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	emulatortest.Isolate()
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // the tests mostly wait for processes
		panic(err)
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil { // such as a connection that a command has left open
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	queueName = "projects/demo-taskguard/locations/local/queues/analyses"
	caller    = "tasks@demo-taskguard.iam.gserviceaccount.com"
	loopback  = "127.0.0.1:0"
)

// vars is an environment.
type vars map[string]string

func (v vars) lookup(name string) (string, bool) {
	value, ok := v[name]
	return value, ok
}

func (v vars) with(name, value string) vars {
	v = maps.Clone(v)
	v[name] = value
	return v
}

func (v vars) without(names ...string) vars {
	v = maps.Clone(v)
	for _, name := range names {
		delete(v, name)
	}
	return v
}

// outcome is the result of one command.
type outcome struct {
	code     int
	out, err string
}

// taskguard runs a command in this process.
func taskguard(t testing.TB, env vars, args ...string) outcome {
	t.Helper()
	return taskguardWith(t.Context(), env, "", args...)
}

// taskguardWith runs a command with a standard input, until ctx ends.
func taskguardWith(ctx context.Context, env vars, in string, args ...string) outcome {
	var out, errs emulatortest.Log // written to at the same time, as a file may be
	code := cli.Run(ctx, commands(), args, cli.Streams{In: strings.NewReader(in), Out: &out, Err: &errs}, env.lookup)
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

// wantOneErrorLine fails unless the output is one line on standard error.
func (o outcome) wantOneErrorLine(t testing.TB) {
	t.Helper()
	if o.out != "" || strings.Count(o.err, "\n") != 1 {
		t.Errorf("want one line on standard error alone\nstdout: %s\nstderr: %s", o.out, o.err)
	}
}

// wantKeys fails unless line is a JSON object of just these keys.
func wantKeys(t testing.TB, line string, keys ...string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	got := slices.Sorted(maps.Keys(object))
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		t.Errorf("keys %q, want %q", got, keys)
	}
	return object
}

// store is an embedded Firestore on a port.
func store(t testing.TB) vars {
	t.Helper()
	l := listen(t)
	s := firestore.NewServer(firestore.Options{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Close(); serving.Wait() })
	return vars{"GOOGLE_CLOUD_PROJECT": "demo-test", "FIRESTORE_EMULATOR_HOST": l.Addr().String()}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	return must(net.Listen("tcp", loopback))(t)
}

// closedPort is an address at which nothing listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().String()
}

// analyses opens what env names, as a worker would.
func analyses(t testing.TB, env vars) *repo.Analyses {
	t.Helper()
	a := must(repo.Open(t.Context(), env["GOOGLE_CLOUD_PROJECT"], repo.Options{Emulator: env["FIRESTORE_EMULATOR_HOST"]}))(t)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// create creates the analysis id.
func create(t testing.TB, a *repo.Analyses, id string) {
	t.Helper()
	check(t, a.Create(t.Context(), id, map[string]any{"text": "x"}, repo.CreateOptions{}))
}

// locked creates the analysis id and takes its lock.
func locked(t testing.TB, a *repo.Analyses, id string) analysislock.Acquisition {
	t.Helper()
	create(t, a, id)
	acq, err := a.AcquireAnalysisLock(t.Context(), id, "w/1", 0, analysislock.AcquireOptions{})
	if err != nil || !acq.Acquired {
		t.Fatalf("acquire: %+v, %v", acq, err)
	}
	return acq
}

// awaitReady waits until the analysis id is READY.
func awaitReady(t testing.TB, a *repo.Analyses, id string) {
	t.Helper()
	eventually(t, id+" is READY", func() bool {
		d, err := a.Get(t.Context(), id)
		return err == nil && d.Status == analysislock.Ready
	})
}

// put writes a document as another program may: an analysis by its id, another by its path.
func put(t *testing.T, env vars, id string, fields map[string]any) {
	t.Helper()
	must(fieldsOf(t, env, id).Set(t.Context(), fields))(t)
}

// document is one as another program sees it.
func fieldsOf(t *testing.T, env vars, id string) *gcp.DocumentRef {
	t.Helper()
	conn := must(grpc.NewClient(env["FIRESTORE_EMULATOR_HOST"], grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	client := must(gcp.NewClient(t.Context(), env["GOOGLE_CLOUD_PROJECT"], option.WithGRPCConn(conn)))(t)
	t.Cleanup(func() { _ = client.Close() })
	if !strings.Contains(id, "/") {
		id = "analyses/" + id
	}
	return client.Doc(id)
}

// write writes a file.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// eventually polls for at most 30 s.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// localCloud runs `taskguard local` in this process and returns its environment and its
// progress.
func localCloud(t testing.TB, env vars, flags ...string) (vars, *emulatortest.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(firstLine, 1)
	errs := &emulatortest.Log{}
	ended := make(chan int, 1)
	go func() {
		args := append([]string{"local", "--port", "0", "--json"}, flags...)
		ended <- cli.Run(ctx, commands(), args, cli.Streams{In: strings.NewReader(""), Out: lines, Err: errs}, env.lookup)
		close(lines)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != cli.ExitDone || !strings.Contains(errs.String(), "stopping the workers") {
			t.Errorf("local: exit %d\n%s", code, errs.String())
		}
	})
	select {
	case line, ok := <-lines:
		if !ok {
			t.Fatalf("local ended: %s", errs.String())
		}
		pages := []string{"console"}
		if slices.Contains(flags, "--documents") {
			pages = append(pages, "doclock")
		}
		object, got := wantKeys(t, line, append([]string{"environment"}, pages...)...), vars{}
		for _, page := range pages {
			got[page] = object[page].(string)
		}
		for name, value := range object["environment"].(map[string]any) {
			got[name] = value.(string)
		}
		return got, errs
	case <-time.After(30 * time.Second):
		t.Fatal("local does not start")
	}
	return nil, nil
}

// firstLine is a Writer that sends what is written first.
type firstLine chan string

func (f firstLine) Write(p []byte) (int, error) {
	select {
	case f <- string(p):
	default:
	}
	return len(p), nil
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}
