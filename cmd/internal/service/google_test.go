package service

import (
	"bytes"
	"context"
	"errors"
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
	"time"

	"taskguard/internal/telemetry"
)

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
	under := &http.Transport{TLSClientConfig: trusted, DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == "telemetry.googleapis.com:443" {
			to = s.Listener.Addr().String()
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}}
	t.Cleanup(under.CloseIdleConnections)
	e := environment(googles, "K_REVISION=r")
	to := ReadTelemetry(e, "s", true)
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
	x, err := to.Export(t.Context(), telemetry.NewLogger(&logged, "json", 0))
	if err != nil {
		t.Fatal(err)
	}
	_, span := x.Tracers.Tracer("").Start(t.Context(), "x")
	span.End()
	n, err := x.Meters.Meter("").Int64Counter("n")
	if err != nil {
		t.Fatal(err)
	}
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
		if r.URL.String() != "/computeMetadata/v1/instance/service-accounts/default/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform" {
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

func TestOnlyGooglesEndpointGetsTheAccountsToken(t *testing.T) {
	metadataServer(t)
	theirs, plain := &arrivals{}, &arrivals{}
	if log := sent(t, redirected(t, theirs)); log != "" || !slices.Equal(theirs.all, []string{"Bearer " + accountToken, "Bearer " + accountToken}) {
		t.Errorf("%q arrived; log: %s", theirs.all, log)
	}
	s := httptest.NewServer(plain)
	defer s.Close()
	log := sent(t, ReadTelemetry(environment("OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL), "s", true))
	if log != "" || !slices.Equal(plain.all, []string{"", ""}) {
		t.Errorf("%q arrived; log: %s", plain.all, log)
	}
}

func TestGooglesEndpointIsFoundByItsHostAndByHTTPSOnly(t *testing.T) {
	metadataServer(t)
	for url, want := range map[string]bool{
		"https://telemetry.googleapis.com/v1/traces": true, "https://Telemetry.GoogleAPIs.com:443/v1/metrics": true,
		"https://telemetry.europe-west1.rep.googleapis.com/v1/traces": true,

		"http://telemetry.googleapis.com/v1/traces": false, "https://telemetry.googleapis.com.example.com/": false,
		"https://x.telemetry.googleapis.com/": false, "https://telemetry.a.b.rep.googleapis.com/": false,
		"https://example.com/telemetry.googleapis.com": false, "": false,
	} {
		sender, err := Telemetry{Project: "p", Metrics: url}.resource(t.Context())
		_, named := sender.Set().Value("gcp.project_id")
		c, clientErr := Telemetry{}.client(url)
		if google(url) != want || named != want || (c != nil) != want || want && c.Timeout != 10*time.Second || errors.Join(err, clientErr) != nil {
			t.Errorf("%q: project %v, client %v, %v, %v", url, named, c, err, clientErr)
		}
	}
}

func TestARedirectIsAFailureAndGetsNoToken(t *testing.T) {
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

func TestAnUnresponsiveMetadataServerDelaysNeitherStartNorStop(t *testing.T) {
	unresponsive, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

func TestGooglesEndpointNeedsCredentials(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "missing.json"))
	for _, to := range []Telemetry{{Traces: "https://telemetry.googleapis.com/"}, {Metrics: "https://telemetry.googleapis.com/"}} {
		if _, err := to.Export(t.Context(), slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT: no credentials: ") {
			t.Errorf("%+v: %v", to, err)
		}
	}
}
