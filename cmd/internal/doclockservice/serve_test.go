package doclockservice

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

func TestServe(t *testing.T) {
	t.Run("it answers until it is stopped", answersUntilStopped)

	t.Run("it returns the listener's error", func(t *testing.T) {
		t.Setenv("FIRESTORE_EMULATOR_HOST", listen(t).Addr().String()) // accepts, and never answers
		i := start(t, "unavailable", "")
		_ = i.l.Close()
		if err := i.wait(t); !errors.Is(err, net.ErrClosed) {
			t.Errorf("error = %v, want the listener's", err)
		}
	})

	t.Run("a part that is refused ends it", func(t *testing.T) {
		t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "malformed")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, spoil := range map[string]func(c *Config){
			"TTL":     func(c *Config) { c.TTL = -1 },
			"tasks":   func(c *Config) { c.Tasks.Mode = "oidc" },
			"people":  func(c *Config) { c.Sessions = authOIDC },
			"cookies": func(c *Config) { c.Secret = "" },
			"traces":  func(c *Config) { c.Telemetry.Traces = "http://127.0.0.1:1" },
		} {
			cfg, l := must.Get(parse(cookies+" GOOGLE_CLOUD_PROJECT=p"))(t), listen(t)
			spoil(&cfg)
			err := Serve(ended, cfg, l, slog.New(slog.DiscardHandler))
			if closed := l.Close(); err == nil || !errors.Is(closed, net.ErrClosed) {
				t.Errorf("%s: %v; want an error, and the listener closed", name, err)
			}
		}
	})

	t.Run("it sweeps by itself", func(t *testing.T) {
		i := start(t, embedded(t), "DOCUMENT_LOCK_TTL=1s SWEEP_INTERVAL=50ms")
		i.want(t, client(t), http.StatusOK, http.MethodPost, lockPath)
		i.await(t, `"swept":1`)
	})

	t.Run("the application permits rooms", func(t *testing.T) {
		app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("room") != "mine" {
				w.WriteHeader(http.StatusForbidden)
			}
		}))
		defer app.Close()
		i, c := start(t, embedded(t), "AUTHORIZE_URL="+app.URL), client(t)
		i.want(t, c, http.StatusOK, http.MethodPost, "/api/documents/mine/lock")
		i.want(t, c, http.StatusForbidden, http.MethodPost, "/api/documents/theirs/lock")
	})

	t.Run("the application alone makes sessions", func(t *testing.T) {
		i := start(t, embedded(t), "SESSION_AUTH=application SWEEP_INTERVAL=0")
		i.want(t, client(t), http.StatusForbidden, http.MethodPost, lockPath)
	})
}

func answersUntilStopped(t *testing.T) {
	i := start(t, embedded(t), "LOCKS_PER_SESSION=2 SOCKETS_PER_SESSION=1")
	c := client(t)
	for status := 0; status != http.StatusOK; {
		status, _ = i.ask(t, c, http.MethodGet, "/health/ready")
	}
	for room, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		i.want(t, c, want, http.MethodPost, fmt.Sprintf("/api/documents/%d/lock", room))
	}
	conn, _, err := i.dial(t, c) //nolint:bodyclose // the library closes it
	must.OK(t, err)
	//nolint:bodyclose // the library has read it
	if _, resp, err := i.dial(t, c); err == nil || resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a second socket: %v", err)
	}

	i.stop()
	time.AfterFunc(200*time.Millisecond, func() { _ = conn.CloseNow() }) // nothing reads the server's close
	must.OK(t, i.wait(t))
	for text, want := range map[string]bool{
		`"operation":"subscribe","outcome":"ok"`: true, "0123456789abcdef": false, "cut off": false,
		`"pusher":false`: true, "anybody who reaches this process may call": true,
	} {
		if strings.Contains(i.log.String(), text) != want {
			t.Errorf("the log has %s: %v, want %v: %s", text, !want, want, i.log)
		}
	}
}

func TestServe_Tokens(t *testing.T) {
	firestore := embedded(t)
	for name, c := range map[string]struct {
		settings string
		path     string // of a request with a token
		sweep    int    // the status of a sweep without one
	}{
		"people": {"SESSION_AUTH=oidc SESSION_SECRET= SESSION_AUDIENCE=a", lockPath, http.StatusOK},
		"tasks": {
			"TASK_AUTH=oidc TASK_AUDIENCE=a TASK_SERVICE_ACCOUNTS=a@b.c", "/internal/sweep", http.StatusUnauthorized,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var fetched atomic.Int64
			keys := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
			defer keys.Close()
			i := start(t, firestore, c.settings+" TASK_JWKS_URL="+keys.URL)
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+c.path, http.NoBody))(t)
			r.Header.Set("Authorization", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.AAAA")
			resp, err := client(t).Do(r)
			must.OK(t, err)
			must.OK(t, resp.Body.Close())
			if resp.StatusCode != http.StatusServiceUnavailable || fetched.Load() == 0 {
				t.Errorf("with a token and no key: %d after %d fetches", resp.StatusCode, fetched.Load())
			}
			i.await(t, "keys not fetched")
			i.want(t, client(t), c.sweep, http.MethodPost, "/internal/sweep")
			i.stop()
			must.OK(t, i.wait(t))
		})
	}
}

// Two instances share nothing but Firestore. The sweep is an hour away: an expiry is reported by the
// instances' own timers.
func TestTwoInstances(t *testing.T) {
	const ttl = time.Second
	const settings = "DOCUMENT_LOCK_TTL=1s SWEEP_INTERVAL=1h"
	project := embedded(t)
	one, two := start(t, project, settings), start(t, project, settings)
	editor, reader := client(t), client(t)
	conn, _, err := two.dial(t, reader) //nolint:bodyclose // the library closes it
	must.OK(t, err)
	defer func() { _ = conn.CloseNow() }()

	last := int64(0)
	event := func(reason string) (expires time.Time) {
		t.Helper()
		var m struct {
			Expires time.Time `json:"expires_at"`
			Reason  string
			Version int64
		}
		_, data, err := conn.Read(t.Context())
		must.OK(t, errors.Join(err, json.Unmarshal(data, &m)))
		if m.Reason != reason || m.Version <= last {
			t.Fatalf("got %s, want %s after %d", data, reason, last)
		}
		last = m.Version
		return m.Expires
	}
	event("current")
	one.want(t, editor, http.StatusOK, http.MethodPost, lockPath)
	event("acquired")
	two.want(t, reader, http.StatusConflict, http.MethodPost, lockPath)
	one.want(t, editor, http.StatusOK, http.MethodDelete, lockPath)
	event("released")
	one.want(t, editor, http.StatusOK, http.MethodPost, lockPath)
	expires := event("acquired")
	event("expired")
	late := time.UnixMicro(last).Sub(expires) // the editor sends no heartbeat
	if late < 0 || late > ttl {               // a new stream would come up to 30 s later
		t.Errorf("the expiry was reported %v after it", late)
	}
	two.want(t, reader, http.StatusOK, http.MethodPost, lockPath)
	event("acquired")
}

// The process exits 2 for a wrong configuration, and 0 for SIGTERM.
func TestMain_Exit(t *testing.T) {
	for _, env := range [][]string{nil, {secret, "FIRESTORE_EMULATOR_HOST=127.0.0.1:1"}} { // and no project
		if code, err := Main(t.Context(), environ(env...), &emulatortest.Log{}); code != 2 || err == nil {
			t.Errorf("%v: exit %d, %v", env, code, err)
		}
	}

	t.Setenv("DOCUMENT_LOCK_TLT", "30s")
	project := embedded(t)
	i := &instance{log: &emulatortest.Log{}}
	exited := make(chan string, 1)
	go func() {
		code, err := Main(t.Context(), environ(secret, "FIRESTORE_EMULATOR_HOST="+os.Getenv("FIRESTORE_EMULATOR_HOST"),
			"GOOGLE_CLOUD_PROJECT="+project, "PORT=0"), i.log)
		exited <- fmt.Sprint(code, err)
	}()
	i.await(t, `"serving"`)
	must.OK(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	if exit := <-exited; exit != "0 <nil>" {
		t.Errorf("exit %s", exit)
	}
	if log := i.log.String(); !strings.Contains(log, `"severity":"INFO"`) || strings.Contains(log, "0123456789abcdef") {
		t.Errorf("not Cloud Logging's, or with the secret: %s", log)
	} else if !strings.Contains(log, "DOCUMENT_LOCK_TLT") {
		t.Errorf("no warning of the misspelt variable: %s", log)
	}
}

// A request's log line is of the caller's trace. Its span, which a collector gets, has only a link to that,
// whatever sampling the caller requests. There are no metrics.
func TestTelemetry(t *testing.T) {
	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	var received tracecollector.ExportTraceServiceRequest
	var paths []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		body, err := io.ReadAll(r.Body)
		if err := errors.Join(err, proto.Unmarshal(body, &received)); err != nil {
			t.Error(err)
		}
	}))
	defer collector.Close()
	i := start(t, embedded(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/internal/sweep", http.NoBody))(t)
	r.Header.Set("traceparent", "00-"+trace+"-"+caller+"-00")
	resp, err := http.DefaultClient.Do(r)
	must.OK(t, err)
	must.OK(t, resp.Body.Close())
	i.stop()
	must.OK(t, i.wait(t))
	if !slices.Equal(paths, []string{"/v1/traces"}) || len(received.ResourceSpans) != 1 {
		t.Fatalf("requests %v, want one of traces", paths)
	}

	span := received.ResourceSpans[0].ScopeSpans[0].Spans[0]
	if hex.EncodeToString(span.TraceId) == trace || len(span.ParentSpanId) > 0 {
		t.Errorf("%v is of the caller's trace", span)
	}
	links := ""
	for _, link := range span.Links {
		links += hex.EncodeToString(link.TraceId) + "/" + hex.EncodeToString(link.SpanId)
	}
	if span.Name != "request" || links != trace+"/"+caller {
		t.Errorf("the links of %s are %s", span.Name, links)
	}
	if who := received.ResourceSpans[0].Resource.String(); !strings.Contains(who, `"taskguard-doclock"`) {
		t.Errorf("resource = %s", who)
	}
	want := `"logging.googleapis.com/trace":"` + trace + `","logging.googleapis.com/spanId":"` + caller + `"`
	if text := i.log.String(); strings.Count(text, want) != 1 {
		t.Errorf("log: %s\nwant one line with %s", text, want)
	}
}
