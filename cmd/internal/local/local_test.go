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
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/emulator/oidc"
	"taskguard/internal/testing/must"
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

func analyzer(spec string) func(string) (string, bool) {
	return lookup(map[string]string{"ANALYZER": spec})
}

// writer is a Writer that is a function.
type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

var errFull = errors.New("full")

func full([]byte) error { return errFull }

func TestEmulator(t *testing.T) {
	for args, hint := range map[string]bool{"--port 0": true, "--port 0 --target http://h:1": false} {
		ctx, cancel := context.WithCancel(t.Context())
		var script string
		collect := func(p []byte) error { cancel(); script += string(p); return nil }
		err := execute(ctx, Emulator, writer(collect), strings.Fields(args)...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
		}
		for part, want := range map[string]bool{
			"\n# To submit, also set TASK_TARGET_URL ": hint, "\nexport TASK_TARGET_URL=http://h:1\n": !hint,
		} {
			if strings.Contains(script, part) != want {
				t.Errorf("%s: %s; want %q: %t", args, script, part, want)
			}
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	var got struct {
		Environment map[string]string
		Health      string
	}
	decode := func(p []byte) error { cancel(); return json.Unmarshal(p, &got) }
	err := execute(ctx, Emulator, writer(decode), "--port", "0", "--json")
	if host := got.Environment[cli.FirestoreEmulator]; err != nil || host == "" {
		t.Errorf("%v, %+v", err, got)
	}
	if !strings.HasSuffix(got.Health, "/health") {
		t.Errorf("health at %s", got.Health)
	}

	if err := execute(t.Context(), Emulator, writer(full), "--port", "0"); !errors.Is(err, errFull) {
		t.Errorf("%v; want the error of its output", err)
	}
}

func TestLocal_NoStart(t *testing.T) {
	for bad, want := range []string{
		"the embedded Firestore", "the embedded Cloud Tasks", "the workers' address", "the page of the tokens' keys",
		"the document lock", "the console", "worker 1 ended at once", errFull.Error(),
	} {
		t.Setenv("WORKER_LOG", serving)
		if bad == 6 {
			t.Setenv("WORKER_LOG", "")
		}
		l := &local{documents: true, c: callTo(writer(full)), router: router{show: cli.NewProgress(io.Discard)}}
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

func TestCloud_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop, ended, refused := &cloud{}, make(chan struct{}), false, false
		serve := func(l net.Listener) error {
			defer func() { ended = true }()
			<-stop
			time.Sleep(time.Second)
			return l.Close()
		}
		at, err := c.serve("a server", "0.0.0.0:0", serve, func() { close(stop) })
		if err != nil || !strings.HasPrefix(at, "127.0.0.1:") {
			t.Fatalf("%s, %v", at, err)
		}
		if _, err := c.serve("a server", "127.0.0.1:65536", serve, func() { refused = true }); err == nil || !refused {
			t.Errorf("%v, stopped: %t", err, refused)
		}
		if c.close(); !ended {
			t.Error("a server runs on")
		}
	})
	if got := address("h", 7, 0) + " " + address("h", 7, 2) + " " + address("h", 0, 2); got != "h:7 h:9 h:0" {
		t.Error(got)
	}
}

func TestWorkerCloud_Environment(t *testing.T) {
	t.Setenv("ANALYZER", "exec:another")
	c := &workerCloud{target: "http://127.0.0.1:4"}
	c.firestore, c.tasks, c.page = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	for given, want := range map[string]string{"": "500ms 2s", "RETRY_MIN=1s": "1s 1s", "RETRY_MAX=3s": "3s 3s"} {
		more := map[string]string{"LOCK_TTL": "7s"}
		if name, value, ok := strings.Cut(given, "="); ok {
			more[name] = value
		}
		env := must.Get(c.workerEnvironment(more))(t)
		vars := map[string]string{}
		for _, line := range env {
			name, value, _ := strings.Cut(line, "=")
			vars[name] = value
		}
		cfg, err := workerservice.ParseConfig(lookup(vars))
		if got := vars["RETRY_MIN"] + " " + vars["RETRY_MAX"]; got != want || err != nil {
			t.Errorf("%s: %s, want %s; %v, %v", given, got, want, err, vars)
		}
		servers := []string{cfg.Options.Emulator, cfg.Options.Queue.EmulatorHost, vars["TASK_AUDIENCE"]}
		if !slices.Equal(servers, []string{c.firestore, c.tasks, c.target}) {
			t.Errorf("%s: it uses %q", given, servers)
		}
		if vars["LOCK_TTL"] != "7s" || vars["ANALYZER"] != "" {
			t.Errorf("%s: %v; want what is given, and no analyzer of this environment", given, vars)
		}
	}
	_, err := c.workerEnvironment(map[string]string{"LOCK_TTL": "soon"})
	if !errors.As(err, new(cli.EnvironmentError)) {
		t.Errorf("%v of a bad TTL", err)
	}
	job := map[string]string{"ANALYZER": "job:projects/p/locations/l/jobs/j"}
	if _, err := c.workerEnvironment(job); err == nil || !strings.HasPrefix(err.Error(), "ANALYZER: ") {
		t.Errorf("%v of a job", err)
	}
	retry := quickQueue(9).RetryConfig
	least, most := retry.MinBackoff.AsDuration(), retry.MaxBackoff.AsDuration()
	if least != 500*time.Millisecond || most != 2*time.Second {
		t.Errorf("%v to %v", least, most)
	}
}

func TestLocal_Recovery(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "{}", http.StatusBadGateway)
	}))
	t.Cleanup(s.Close)
	l := &local{workerCloud: workerCloud{cloud: cloud{issuer: oidc.NewIssuer()}, target: s.URL}}
	if _, err := l.recoverOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("%v of an answer 502", err)
	}
}

func TestLocal_Head(t *testing.T) {
	defer func(program string) { os.Args[0] = program }(os.Args[0])
	os.Args[0] = "bin/taskguard"
	for spec, input := range map[string]string{"": `'{"text": "one two two"}'`, "exec:x": "JSON"} {
		var out strings.Builder
		c := callTo(&out)
		c.Lookup = analyzer(spec)
		must.OK(t, (&local{c: c, documents: true, locks: "http://h:4/", console: "http://h:5/"}).printHead())
		submit := "  bin/taskguard submit --input " + input + " --wait\n"
		for _, want := range []string{submit, "http://h:4/", "http://h:5/", "\nexport TASK_QUEUE="} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s lacks %s", &out, want)
			}
		}
	}

	// The tutorial shows it without the document lock.
	var out strings.Builder
	c := callTo(&out)
	c.Lookup = analyzer("exec:python3 count.py")
	l := &local{c: c, console: "http://127.0.0.1:8585/"}
	l.firestore, l.tasks = "127.0.0.1:8580", "127.0.0.1:8581"
	page, err := os.ReadFile("../../../docs/tutorial.md")
	must.OK(t, errors.Join(err, l.printHead()))
	head, _, _ := strings.Cut(out.String(), "export GOOGLE_CLOUD_PROJECT")
	head = strings.ReplaceAll("    "+strings.ReplaceAll(head, "\n", "\n    "), "    \n", "\n")
	if !strings.Contains(string(page), head+"…\n") {
		t.Errorf("docs/tutorial.md lacks\n%s", head)
	}

	if err := (&local{c: callTo(writer(full))}).printHead(); !errors.Is(err, errFull) {
		t.Errorf("%v; want the error of its output", err)
	}
}

func TestLocal_AnalyzerWarning(t *testing.T) {
	var asked []string
	answering := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	t.Cleanup(answering.Close)
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx            context.Context
		analyzer, want string
	}{
		"none":               {t.Context(), "", ""},
		"a program":          {t.Context(), "exec:sh", ""},
		"one that answers":   {t.Context(), answering.URL + "/analyze?key=secret", ""},
		"one that is gone":   {t.Context(), gone.URL + "/analyze?key=secret", gone.URL + " (dial tcp "},
		"one that is silent": {t.Context(), "http://" + silent.Addr().String(), " (no answer within 3s)"},
		"at the end":         {ended, gone.URL, ""},
	} {
		var errs bytes.Buffer
		c := &cli.Call{Streams: cli.Streams{Err: &errs}, Lookup: analyzer(tc.analyzer)}
		(&local{c: c}).warnOfAnalyzer(tc.ctx)
		got := errs.String()
		if !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%s: %q; want %q", name, got, tc.want)
		}
		if strings.Count(got, "\n") > 1 || strings.Contains(got, "secret") {
			t.Errorf("%s: %q; want one line without the key", name, got)
		}
	}
	if len(asked) != 1 || asked[0] != "HEAD /" {
		t.Errorf("%q; want only the root asked, since the analyzer's path may begin work", asked)
	}
}

// Otherwise the console and the commands would judge by other limits than the workers: with a LOCK_HEARTBEAT of 10 s,
// they would show a dead worker as running for 130 s instead of 40 s.
func TestVariables(t *testing.T) {
	read := map[string]bool{}
	_, err := worker.FromEnv(func(name string) (string, bool) { read[name] = true; return "", false })
	if err == nil || !read["LOCK_HEARTBEAT"] {
		t.Fatalf("%v, %v", err, read)
	}
	all := func(string) (string, bool) { return "x", true }
	got := (&local{c: &cli.Call{Lookup: all}}).variables()
	ofWorkers := []string{
		"TASK_AUTH", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS", "TASK_JWKS_URL", "FIRESTORE_DATABASE",
		"K_SERVICE", "SMOKE_INPUT",
	}
	for name := range read {
		if _, ok := got[name]; !ok && !slices.Contains(ofWorkers, name) {
			t.Errorf("the programs do not get %s", name)
		}
	}
	if got["ANALYZER"] != "" {
		t.Error("they get the analyzer")
	}
}
