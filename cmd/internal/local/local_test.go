package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/oidc"
	"taskguard/worker"
)

// execute runs a command whose standard output is out, without any environment.
func execute(ctx context.Context, command cli.Command, out io.Writer, args ...string) error {
	cmd := command(lookup(nil))
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{}, args...))
	return cmd.ExecuteContext(ctx)
}

// callTo returns a call whose standard output is out, without any environment.
func callTo(out io.Writer) *cli.Call {
	return &cli.Call{Streams: cli.Streams{In: strings.NewReader(""), Out: out, Err: io.Discard}, Lookup: lookup(nil)}
}

// writer is a Writer that is a function.
type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

var errFull = errors.New("full")

func full([]byte) error { return errFull }

func TestTheEmulatorPrintsItsEnvironmentAsJSONAndEndsWithoutAnOutput(t *testing.T) {
	for _, args := range [][]string{{"--port", "0"}, {"--port", "0", "--json"}} {
		if err := execute(t.Context(), Emulator, writer(full), args...); !errors.Is(err, errFull) {
			t.Errorf("%q: %v; want the error of its output", args, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got struct {
		Environment map[string]string
		Health      string
	}
	err := execute(ctx, Emulator, writer(func(p []byte) error { cancel(); return json.Unmarshal(p, &got) }), "--port", "0", "--json")
	if err != nil || got.Environment[cli.FirestoreEmulator] == "" || !strings.HasSuffix(got.Health, "/health") {
		t.Errorf("%v, %+v", err, got)
	}
	if got := outcome(cloudtasks.Delivery{Err: errFull}); got != "no answer: full" {
		t.Error(got)
	}
}

func TestTheDemoReportsWhyItDoesNotBegin(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errFull)
	for args, want := range map[string]string{"no-such-file": "no-such-file: ", "": errFull.Error()} {
		err := execute(ctx, Demo, io.Discard, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("demo %s: %v; want %q", args, err, want)
		}
	}
	docs, err := demoDocuments(nil)
	if err != nil || len(docs) != 5 || docs[0].Name != "clocks.txt" {
		t.Errorf("%+v, %v", docs, err)
	}
}

func TestTheDemoEndsWithTheCauseOfItsEnd(t *testing.T) {
	t.Setenv("WORKER_LOG", `{"msg":"serving","address":"127.0.0.1:1"}`) // where nothing listens
	ctx, cancel := context.WithCancelCause(t.Context())
	deliveries := 0
	err := execute(ctx, Demo, writer(func(p []byte) error {
		if strings.Contains(string(p), "did not answer") {
			if deliveries++; deliveries == 5 { // the file has been submitted
				cancel(errFull)
			}
		}
		return nil
	}), "local_test.go")
	if !errors.Is(err, errFull) {
		t.Errorf("%v; want the cause", err)
	}
}

func TestAnUnknownFlagIsAnError(t *testing.T) {
	for name, command := range map[string]cli.Command{"emulator": Emulator, "local": Local, "demo": Demo, "worker": Worker} {
		if err := execute(t.Context(), command, io.Discard, "--x"); err == nil || !strings.Contains(err.Error(), "-x") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLocalEndsWithTheErrorOfItsStart(t *testing.T) {
	for bad, want := range []string{
		"the embedded Firestore", "the embedded Cloud Tasks", "the workers' address", "the page of the tokens' keys",
		"the document lock", "the console", "worker 1 ended at once", errFull.Error(),
	} {
		t.Setenv("WORKER_LOG", serving)
		if bad == 6 {
			t.Setenv("WORKER_LOG", "")
		}
		l := &local{c: callTo(writer(full)), router: router{show: cli.NewProgress(io.Discard)}}
		err := l.serveAll(t.Context(), func(i int) string {
			if i == bad {
				return "127.0.0.1:65536"
			}
			return "127.0.0.1:0"
		}, 1, time.Hour)
		if l.close(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestLocalAndTheEmulatorListenAtTheirPort(t *testing.T) {
	for _, command := range []cli.Command{Local, Emulator} {
		if err := execute(t.Context(), command, io.Discard, "--port", "65536"); err == nil || !strings.Contains(err.Error(), "65536") {
			t.Errorf("%v; want the port refused", err)
		}
	}
}

func TestAPageThatEndsIsReported(t *testing.T) {
	out := &bytes.Buffer{}
	l := &local{router: router{show: cli.NewProgress(out)}}
	_, err := l.servePage("a page", "127.0.0.1:0", func(_ context.Context, listener net.Listener) error { return errors.Join(listener.Close(), errFull) })
	if l.close(); err != nil || !strings.Contains(out.String(), "a page: ended: full\n") {
		t.Errorf("%v, %s", err, out)
	}
}

func TestACloudStopsAllServersAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop, ended, refused := &cloud{}, make(chan struct{}), false, false
		serve := func(l net.Listener) error {
			defer func() { ended = true }()
			<-stop
			time.Sleep(time.Second)
			return l.Close()
		}
		if at, err := c.serve("a server", "0.0.0.0:0", serve, func() { close(stop) }); err != nil || !strings.HasPrefix(at, "127.0.0.1:") {
			t.Fatalf("%s, %v", at, err)
		}
		if _, err := c.serve("a server", "127.0.0.1:65536", serve, func() { refused = true }); err == nil || !refused {
			t.Errorf("%v, stopped: %t", err, refused)
		}
		if c.close(); !ended {
			t.Error("a server runs on")
		}
	})
	if at, next, free := address("h", 7, 0), address("h", 7, 2), address("h", 0, 2); at != "h:7" || next != "h:9" || free != "h:0" {
		t.Error(at, next, free)
	}
}

func TestWorkersHaveTheCloudsVariablesAndDefaultsAsShortAsItsQueues(t *testing.T) {
	t.Setenv("ANALYZER", "exec:another")
	c := &workerCloud{cloud: cloud{firestore: "127.0.0.1:1", tasks: "127.0.0.1:2", page: "127.0.0.1:3"}, target: "http://127.0.0.1:4"}
	for given, want := range map[string]string{"": "500ms 2s", "RETRY_MIN=1s": "1s 1s", "RETRY_MAX=3s": "3s 3s"} {
		more := map[string]string{"LOCK_TTL": "7s"}
		if name, value, ok := strings.Cut(given, "="); ok {
			more[name] = value
		}
		env, err := c.workerEnvironment(more)
		if err != nil {
			t.Fatal(err)
		}
		vars := map[string]string{}
		for _, line := range env {
			name, value, _ := strings.Cut(line, "=")
			vars[name] = value
		}
		cfg, err := workerservice.ParseConfig(lookup(vars))
		if got := vars["RETRY_MIN"] + " " + vars["RETRY_MAX"]; err != nil || got != want || vars["ANALYZER"] != "" ||
			cfg.Options.Emulator != c.firestore || cfg.Options.Queue.EmulatorHost != c.tasks || vars["LOCK_TTL"] != "7s" || vars["TASK_AUDIENCE"] != c.target {
			t.Errorf("%s: %s, want %s; %v, %v", given, got, want, err, vars)
		}
	}
	if _, err := c.workerEnvironment(map[string]string{"LOCK_TTL": "soon"}); !errors.As(err, new(cli.EnvironmentError)) {
		t.Errorf("%v of a bad TTL", err)
	}
	job := map[string]string{"ANALYZER": "job:projects/p/locations/l/jobs/j"}
	_, err := c.workerEnvironment(job)
	if err == nil || !strings.HasPrefix(err.Error(), "ANALYZER: local cannot start Cloud Run jobs") {
		t.Errorf("%v of a job", err)
	}
	retry := quickQueue(9)
	if least, most := retry.RetryConfig.MinBackoff.AsDuration(), retry.RetryConfig.MaxBackoff.AsDuration(); least != 500*time.Millisecond || most != 2*time.Second {
		t.Errorf("%v to %v", least, most)
	}
}

func TestRecoveryIsCalledWithAToken(t *testing.T) {
	issuer := oidc.NewIssuer()
	code, text := http.StatusOK, `{"found":2,"booked":1}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/internal/tasks/recover" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ey") {
			t.Errorf("%s with %q", r.URL, r.Header)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}))
	l := &local{workerCloud: workerCloud{cloud: cloud{issuer: issuer}, target: s.URL}}
	if r, err := l.recoverOnce(t.Context()); err != nil || r.Found != 2 || r.Booked != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	text = "{"
	if _, err := l.recoverOnce(t.Context()); err == nil {
		t.Error("an answer that is not JSON is taken")
	}
	code = http.StatusBadGateway
	if _, err := l.recoverOnce(t.Context()); err == nil || err.Error() != "answered 502 {" {
		t.Errorf("%v of an answer 502", err)
	}
	s.Close()
	for _, l.target = range []string{s.URL, ":"} {
		if r, err := l.recoverOnce(t.Context()); err == nil || r != (worker.Recovery{}) {
			t.Errorf("%s: %+v, %v; want an error", l.target, r, err)
		}
	}
}

func TestLocalPrintsHowToGoOn(t *testing.T) {
	defer func(program string) { os.Args[0] = program }(os.Args[0])
	for program, want := range map[string]string{"/go-build1/exe/taskguard": "  go run ./cmd/taskguard submit FILE", "/my tools/taskguard": "  '/my tools/taskguard' submit FILE"} {
		os.Args[0] = program
		var out bytes.Buffer
		if err := (&local{c: callTo(&out)}).printEnvironment("", ""); err != nil || !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "export TASK_QUEUE=") {
			t.Errorf("%v, %s; want %q", err, out.String(), want)
		}
	}
	for _, asJSON := range []bool{false, true} {
		c := callTo(writer(full))
		c.JSON = asJSON
		if err := (&local{c: c}).printEnvironment("", ""); !errors.Is(err, errFull) {
			t.Errorf("%v; want the error of its output", err)
		}
	}
}
