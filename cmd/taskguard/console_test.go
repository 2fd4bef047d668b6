package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// consoleOf runs `taskguard console` in this process and answers its address; the
// function that it returns ends it.
func consoleOf(t *testing.T, env vars, flags ...string) (address string, log *emulatortest.Log, stop func() outcome) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &emulatortest.Log{}
	ended := make(chan outcome, 1)
	go func() {
		var out emulatortest.Log
		code := run(ctx, append([]string{"console"}, flags...), streams{strings.NewReader(""), &out, log}, env.lookup)
		ended <- outcome{code, out.String(), log.String()}
	}()
	stop = func() outcome { cancel(); o := <-ended; ended <- o; return o }
	t.Cleanup(func() { stop() })
	said := regexp.MustCompile(`the console: (http://\S+)/ `)
	eventually(t, "it serves", func() bool { return said.MatchString(log.String()) || len(ended) > 0 })
	found := said.FindStringSubmatch(log.String())
	if found == nil {
		t.Fatalf("no console: %s", log)
	}
	return found[1], log, stop
}

// browse makes a request of a page of that address.
func browse(t *testing.T, method, target, body string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// confirm sends the form of a page of confirmation.
func confirm(t *testing.T, address, verb, id string) (code int, text string) {
	t.Helper()
	target := address + "/" + verb + "?id=" + url.QueryEscape(id)
	_, text = browse(t, http.MethodGet, target, "")
	return browse(t, http.MethodPost, target, formOf(text).Encode())
}

// formOf are the hidden fields of a page.
func formOf(text string) url.Values {
	form := url.Values{}
	for _, f := range regexp.MustCompile(`type="hidden" name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Set(f[1], f[2])
	}
	return form
}

func TestTheConsoleShowsWhatFirestoreHoldsAndChangesNothing(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	locked(t, a, "it's <a>")
	address, log, stop := consoleOf(t, env, "--port", "0")
	code, text := browse(t, http.MethodGet, address+"/", "")
	for _, part := range []string{"it&#39;s &lt;a&gt;", "PROCESSING", "w/1", "read only", "demo-test / (default) / analyses"} {
		if code != http.StatusOK || !strings.Contains(text, part) {
			t.Errorf("%d, no %q in %s", code, part, text)
		}
	}
	if _, text = browse(t, http.MethodGet, address+"/analysis?show=all&id="+url.QueryEscape("it's <a>"), ""); !strings.Contains(text, "&#34;text&#34;: &#34;x&#34;") {
		t.Errorf("no input in %s", text)
	}
	if code, _ = confirm(t, address, "unlock", "it's <a>"); code != http.StatusForbidden {
		t.Errorf("unlock without --write: %d", code)
	}
	stop().want(t, exitDone)
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("it has complained: %s", log)
	}
}

func TestTheConsoleUnlocksAndRequeuesAsTheCommandsDo(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	locked(t, a, "x")
	address, log, _ := consoleOf(t, env, "--port", "0", "--write")
	if code, text := confirm(t, address, "requeue", "x"); code != http.StatusConflict || !strings.Contains(text, "locked by w/1") {
		t.Errorf("requeue of a locked one: %d %s", code, text)
	}
	if code, text := confirm(t, address, "unlock", "x"); code != http.StatusOK || !strings.Contains(text, "Unlocked. No delivery is booked, because no queue is configured") {
		t.Errorf("unlock: %d %s", code, text)
	}
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Lock.Owner != "" || d.Status != analysislock.Queued || d.Attempts != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if code, text := confirm(t, address, "requeue", "x"); code != http.StatusOK || !strings.Contains(text, "Requeued.") {
		t.Errorf("requeue: %d %s", code, text)
	}
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Attempts != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, part := range []string{"command=unlock", "command=requeue", "analysis_id=x", "by=" + operator(), "lock_owner=w/1", "level=WARN"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %q in %s", part, log)
		}
	}
}

func TestLocalServesTheConsole(t *testing.T) {
	env, progress := localCloud(t, vars{})
	found := regexp.MustCompile(`the console, with all analyses: (http://\S+)/`).FindStringSubmatch(progress.String())
	if found == nil {
		t.Fatalf("no console in %s", progress)
	}
	a := analyses(t, env)
	locked(t, a, "x")
	if code, text := confirm(t, found[1], "unlock", "x"); code != http.StatusOK || !strings.Contains(text, "Unlocked. A delivery is booked.") {
		t.Errorf("%d %s", code, text)
	}
	eventually(t, "the delivery is made", func() bool {
		d, err := a.Get(t.Context(), "x")
		return err == nil && d.Status == analysislock.Ready
	})
	if !strings.Contains(progress.String(), "changed by an operator") {
		t.Errorf("nothing is logged: %s", progress)
	}
}

func TestCtrlCEndsTheConsole(t *testing.T) {
	address, _, stop := consoleOf(t, store(t), "--port", "0")
	if code, text := browse(t, http.MethodGet, address+"/", ""); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	stop().want(t, exitDone)
}

func TestTheConsoleListensToThisMachineAloneUnlessAProxyIsInFront(t *testing.T) {
	env := store(t)
	for args, want := range map[string]string{
		"--listen 0.0.0.0":                   "it needs --iap-audience",
		"--listen ::":                        "it needs --iap-audience",
		"--listen 192.168.0.1 --write":       "it needs --iap-audience",
		"--listen example.com":               "want an IP address",
		"--listen 127.0.0.1:80":              "want an IP address",
		"--port -1":                          "--port -1: want 0 to 65535",
		"--port 65536":                       "--port 65536: want 0 to 65535",
		"--limit 0":                          "--limit 0: want 1 to 200",
		"--limit 201":                        "--limit 201: want 1 to 200",
		"--iap-audience= --listen 127.0.0.1": "--iap-audience is empty",
		"--iap-audience= --listen 0.0.0.0":   "--iap-audience is empty",
		"x":                                  "unexpected argument",
	} {
		taskguard(t, env, append([]string{"console"}, strings.Fields(args)...)...).want(t, exitUsage, "taskguard console: ", want)
	}
	env["PORT"] = "http"
	taskguard(t, env, "console", "--listen", "127.0.0.1").want(t, exitUsage, `PORT: "http" is not a port`)
	taskguard(t, vars{}, "console").want(t, exitUsage, "GOOGLE_CLOUD_PROJECT: must be set")
	taskguard(t, vars{"GOOGLE_CLOUD_PROJECT": "p", firestoreEmulator: closedPort(t)}, "console", "--port", "0").want(t, exitFailed, "nothing answers at ")
}

func TestTheConsoleTakesThePortOfCloudRun(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	env := store(t)
	env["PORT"] = strconv.Itoa(port)
	address, _, stop := consoleOf(t, env, "--listen", "127.0.0.1")
	if !strings.HasSuffix(address, ":"+env["PORT"]) {
		t.Errorf("%s, want the port %s", address, env["PORT"])
	}
	stop()
	address, _, stop = consoleOf(t, env, "--port", "0")
	if strings.HasSuffix(address, ":"+env["PORT"]) {
		t.Errorf("%s, although --port names another", address)
	}
	o := taskguard(t, env, "console", "--listen", "localhost", "--port", address[strings.LastIndex(address, ":")+1:])
	o.want(t, exitFailed, "is taken; choose others with --port")
	stop()
}

func TestBehindTheProxyNobodyIsLetInWithoutItsWord(t *testing.T) {
	env := store(t)
	locked(t, analyses(t, env), "secret-id")
	address, _, _ := consoleOf(t, env, "--listen", "0.0.0.0", "--port", "0", "--write", "--iap-audience", "/projects/1/locations/r/services/s")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/analysis?id=secret-id", "/unlock?id=secret-id", "/console.css"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if code, text := browse(t, method, "http://127.0.0.1:"+port+path, ""); code != http.StatusUnauthorized || strings.Contains(text, "secret-id") {
				t.Errorf("%s %s: %d %s", method, path, code, text)
			}
		}
	}
}

func TestLocalHandsTelemetryOnToItsWorkers(t *testing.T) {
	env := vars{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_HEADERS": "a=b", "OTEL_SERVICE_NAME": "s",
		"OTEL_RESOURCE_ATTRIBUTES": "c=d", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5",
	}
	l := &locality{c: newCall(command{}, nil, streams{}, env.lookup), place: place{project: "p", emulator: "127.0.0.1:1"}, route: route{target: "http://127.0.0.1:3", tasks: "127.0.0.1:2"}}
	command, err := l.command()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range env {
		if got, _ := valueIn(command.Env, name); got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
}

func TestTheConsoleTellsOfAnAnalysisByTheRulesOfItsLock(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	locked(t, a, "x")
	cl := &client{analyses: a}
	w, err := watched{cl}.Get(t.Context(), "x", true)
	if err != nil || !lease.Held(w.Lock, w.At) || w.Attempts != 1 || string(w.Input) != `{"text":"x"}` || w.Result != nil || time.Since(w.Asked) > time.Minute {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err = (watched{cl}).Get(t.Context(), "x", false); err != nil || w.Input != nil {
		t.Errorf("%+v, %v; want it without its input", w, err)
	}
	if _, err = (watched{cl}).Get(t.Context(), "none", true); !errors.Is(err, lease.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
}
