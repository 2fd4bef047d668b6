package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"taskguard/internal/env"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/must"
)

// environment returns the environment of settings such as PORT=1.
func environment(words ...string) *env.Environment {
	set := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		set[k] = v
	}
	return env.NewEnvironment(func(k string) (string, bool) { v, ok := set[k]; return v, ok })
}

func TestReadTelemetry_Endpoint(t *testing.T) {
	const base, own = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/in"
	const traces, metrics = "http://c:4318/v1/traces", "http://c:4318/v1/metrics"
	for _, tc := range []struct {
		env             []string
		traces, metrics string
	}{
		{nil, "", ""},
		{[]string{base}, traces, metrics},
		{
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp/"},
			"https://c/otlp/v1/traces", "https://c/otlp/v1/metrics",
		},
		{[]string{base, own}, "https://t/in", metrics},
		{[]string{own}, "https://t/in", ""},
		{[]string{base, "OTEL_SDK_DISABLED=TRUE"}, "", ""},
		{[]string{base, "OTEL_TRACES_EXPORTER=none"}, "", metrics},
		{[]string{base, "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}, "", ""},
	} {
		e := environment(tc.env...)
		got := readTelemetry(e, "s", true)
		if e.Err() != nil {
			t.Errorf("%s: %v", tc.env, e.Err())
		}
		if got.Traces != tc.traces || got.Metrics != tc.metrics {
			t.Errorf("%s: %q, %q; want %q, %q", tc.env, got.Traces, got.Metrics, tc.traces, tc.metrics)
		}
		if logged := got.Attr().Value.String(); logged != cmp.Or(tc.traces, tc.metrics) {
			t.Errorf("%s: %s is logged", tc.env, logged)
		}
		if got := readTelemetry(environment(tc.env...), "s", false); got.Traces != tc.traces || got.Metrics != "" {
			t.Errorf("%s: %+v of a service without metrics", tc.env, got)
		}
	}
}

// One line names the variable, and does not quote it.
func TestReadTelemetry_Wrong(t *testing.T) {
	for _, setting := range []string{
		"ENDPOINT=c:4318", "ENDPOINT=http://", "ENDPOINT=http://s3cret:x y@c", "ENDPOINT=http://u:s3cret@c",
		"ENDPOINT=http://c/?key=s3cret", "METRICS_ENDPOINT=c", "PROTOCOL=grpc", "TRACES_PROTOCOL=http/json",
		"HEADERS=s3cret", "TRACES_HEADERS=key=%s3cret",
		"OTEL_TRACES_EXPORTER=console", "OTEL_METRICS_EXPORTER=prometheus",
		"OTEL_BSP_MAX_QUEUE_SIZE=-1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=0",
	} {
		if !strings.HasPrefix(setting, "OTEL_") {
			setting = "OTEL_EXPORTER_OTLP_" + setting
		}
		e := environment(setting)
		readTelemetry(e, "s", true)
		name, _, _ := strings.Cut(setting, "=")
		got := fmt.Sprint(e.Err())
		if !strings.HasPrefix(got, name+": ") || strings.Contains(got, "\n") {
			t.Errorf("%s: %s, want one line naming it", setting, got)
		}
		if strings.Contains(got, "s3cret") {
			t.Errorf("%s: %s", setting, got)
		}
	}
}

func TestTelemetry_NoCollector(t *testing.T) {
	x, err := Telemetry{Service: "s"}.Export(t.Context(), slog.New(slog.DiscardHandler))
	must.OK(t, err)
	if x.Tracers != nil || x.Meters != nil {
		t.Errorf("%+v", x)
	}
	x.Stop(t.Context())
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "s3cret")
	_, err = Telemetry{Traces: "http://c"}.Export(t.Context(), slog.New(slog.DiscardHandler))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("malformed attributes: %v", err)
	}
}

// exporting returns an Exports to h, with one span to send.
func exporting(t *testing.T, h http.HandlerFunc, log io.Writer) *Exports {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	const headers, bearer = "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret-word"
	t.Setenv(headers, bearer)
	e := environment("OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL, headers+"="+bearer)
	x, err := readTelemetry(e, "s", true).Export(t.Context(), telemetry.NewLogger(log, "json", 0))
	if err != nil || e.Err() != nil {
		t.Fatal(err, e.Err())
	}
	_, span := x.Tracers.Tracer("").Start(t.Context(), "x")
	span.End()
	return x
}

func TestTelemetry_FailedExport(t *testing.T) {
	var log bytes.Buffer
	sent := make(chan string, 2)
	exporting(t, func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Header.Get("Authorization")
		http.Error(w, "no access with "+r.Header.Get("Authorization"), http.StatusForbidden)
	}, &log).Stop(t.Context())
	if got := <-sent; got != "Bearer s3cret-word" {
		t.Errorf("sent %q", got)
	}
	if strings.Contains(log.String(), "s3cret") {
		t.Errorf("log: %s", &log)
	}
	for _, want := range []string{`"severity":"WARNING"`, "403 Forbidden"} {
		if n := strings.Count(log.String(), want); n != 2 {
			t.Errorf("%d times %s, want 2: %s", n, want, &log)
		}
	}
}

func TestExports_Stop(t *testing.T) {
	release := make(chan struct{})
	var log bytes.Buffer
	x := exporting(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}, &log)
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	x.Stop(ctx)
	if took := time.Since(began); took > time.Second || strings.Count(log.String(), `"telemetry not exported"`) != 2 {
		t.Errorf("took %v: %s", took, &log)
	}
}

func TestSink_Warnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &sink{life: t.Context(), log: telemetry.NewLogger(&log, "json", 0), signal: "traces"}
		for range 60 {
			var own context.Context
			s.export(t.Context(), func(ctx context.Context) error { own = ctx; return errors.New("gone") })
			if own.Err() == nil {
				t.Fatal("the context of an export outlives it")
			}
			time.Sleep(10 * time.Second)
		}
		first, second, _ := strings.Cut(log.String(), "\n")
		if !strings.Contains(first, `"failures":1,`) || !strings.Contains(second, `"failures":30,`) {
			t.Errorf("log: %s", &log)
		}
		if n := strings.Count(second, "\n"); n != 1 {
			t.Errorf("%d more lines, want 1: %s", n, &log)
		}
	})
}

type cumulative struct{ sdkmetric.Exporter }

func (cumulative) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

func TestMetricSink_Temporality(t *testing.T) {
	for kind, want := range map[sdkmetric.InstrumentKind]metricdata.Temporality{
		sdkmetric.InstrumentKindGauge:   metricdata.DeltaTemporality,
		sdkmetric.InstrumentKindCounter: metricdata.CumulativeTemporality,
	} {
		if got := (metricSink{Exporter: cumulative{}}).Temporality(kind); got != want {
			t.Errorf("%v: %v, want %v", kind, got, want)
		}
	}
}

const (
	googles      = "OTEL_EXPORTER_OTLP_ENDPOINT=https://telemetry.googleapis.com"
	accountToken = "t0ken-of-the-account"
)

// arrivals collects the Authorization of each request to an endpoint.
type arrivals struct {
	mu  sync.Mutex
	all []string
}

func (a *arrivals) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, r.Header.Get("Authorization"))
}

// redirected returns a Telemetry whose connections to Google's endpoint lead to h.
func redirected(t *testing.T, h http.Handler) Telemetry {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	trusted := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trusted.ServerName = "example.com" // its certificate's
	dial := func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == "telemetry.googleapis.com:443" {
			to = s.Listener.Addr().String()
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}
	under := &http.Transport{TLSClientConfig: trusted, DialContext: dial}
	t.Cleanup(under.CloseIdleConnections)
	e := environment(googles, "K_REVISION=r")
	to := readTelemetry(e, "s", true)
	if e.Err() != nil {
		t.Fatal(e.Err())
	}
	to.transport = under
	return to
}

// sent sends a span and a count, and returns the log. The stop has half a second.
func sent(t *testing.T, to Telemetry) (log string) {
	t.Helper()
	var logged bytes.Buffer
	x := must.Get(to.Export(t.Context(), telemetry.NewLogger(&logged, "json", 0)))(t)
	_, span := x.Tracers.Tracer("").Start(t.Context(), "x")
	span.End()
	n := must.Get(x.Meters.Meter("").Int64Counter("n"))(t)
	n.Add(t.Context(), 1)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	x.Stop(ctx)
	return logged.String()
}

// metadataServer sets one up that has the account's token, as on Cloud Run.
func metadataServer(t *testing.T) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const token = "/computeMetadata/v1/instance/service-accounts/default/token"
		scope := r.FormValue("scopes")
		if r.URL.Path != token || scope != "https://www.googleapis.com/auth/cloud-platform" {
			t.Errorf("asked for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token": "`+accountToken+`", "expires_in": 3600, "token_type": "Bearer"}`)
	}))
	t.Cleanup(s.Close)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GCE_METADATA_HOST", s.Listener.Addr().String())
}

func TestGoogle_Token(t *testing.T) {
	metadataServer(t)
	theirs, plain := &arrivals{}, &arrivals{}
	bearer := "Bearer " + accountToken
	if log := sent(t, redirected(t, theirs)); log != "" || !slices.Equal(theirs.all, []string{bearer, bearer}) {
		t.Errorf("%q arrived; log: %s", theirs.all, log)
	}
	s := httptest.NewServer(plain)
	defer s.Close()
	log := sent(t, readTelemetry(environment("OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL), "s", true))
	if log != "" || !slices.Equal(plain.all, []string{"", ""}) {
		t.Errorf("%q arrived; log: %s", plain.all, log)
	}
}

func TestGoogle_URL(t *testing.T) {
	metadataServer(t)
	for url, want := range map[string]bool{
		"https://telemetry.googleapis.com/v1/traces":                  true,
		"https://Telemetry.GoogleAPIs.com:443/v1/metrics":             true,
		"https://telemetry.europe-west1.rep.googleapis.com/v1/traces": true,

		"http://telemetry.googleapis.com/v1/traces": false, "https://telemetry.googleapis.com.example.com/": false,
		"https://x.telemetry.googleapis.com/": false, "https://telemetry.a.b.rep.googleapis.com/": false,
		"https://example.com/telemetry.googleapis.com": false, "": false,
	} {
		sender, err := Telemetry{Project: "p", Metrics: url}.resource(t.Context())
		_, named := sender.Set().Value("gcp.project_id")
		c, clientErr := Telemetry{}.client(url)
		must.OK(t, errors.Join(err, clientErr))
		if got := []bool{google(url), named, c != nil}; !slices.Equal(got, []bool{want, want, want}) {
			t.Errorf("%q: is Google's, has a project, has a client: %v, want %v each", url, got, want)
		}
		if want && c.Timeout != 10*time.Second {
			t.Errorf("%q: an export may take %v, want 10s", url, c.Timeout)
		}
	}
}

func TestGoogle_Redirect(t *testing.T) {
	metadataServer(t)
	elsewhere := &arrivals{}
	s := httptest.NewServer(elsewhere)
	defer s.Close()
	log := sent(t, redirected(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, s.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})))
	if len(elsewhere.all) > 0 || strings.Count(log, "307 Temporary Redirect") != 2 {
		t.Errorf("elsewhere got %+v; log: %s", elsewhere.all, log)
	}
}

func TestGoogle_SilentMetadata(t *testing.T) {
	unresponsive := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer unresponsive.Close()
	metadataServer(t)
	t.Setenv("GCE_METADATA_HOST", unresponsive.Addr().String())
	theirs, began := &arrivals{}, time.Now()
	log := sent(t, redirected(t, theirs))
	if took := time.Since(began); took > 10*time.Second { // the library's first call would take minutes
		t.Errorf("start and stop took %v", took)
	}
	if len(theirs.all) > 0 || strings.Count(log, `"message":"telemetry not exported"`) != 2 {
		t.Errorf("%+v arrived; log: %s", theirs.all, log)
	}
}

func TestGoogle_NoCredentials(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "missing.json"))
	const url = "https://telemetry.googleapis.com/"
	for _, to := range []Telemetry{{Traces: url}, {Metrics: url}} {
		_, err := to.Export(t.Context(), slog.New(slog.DiscardHandler))
		if err == nil || !strings.HasPrefix(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT: no credentials: ") {
			t.Errorf("%+v: %v", to, err)
		}
	}
}
