package cloudrun

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

const (
	googles      = "OTEL_EXPORTER_OTLP_ENDPOINT=https://telemetry.googleapis.com"
	accountToken = "t0ken-of-the-account"
)

// arrival is what came to an endpoint: the header, and who sends.
type arrival struct {
	authorization string
	from          map[string]string
}

// arrivals gathers them.
type arrivals struct {
	t   *testing.T
	mu  sync.Mutex
	all []arrival
}

func (a *arrivals) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var traces tracecollector.ExportTraceServiceRequest
	var metrics metricscollector.ExportMetricsServiceRequest
	var attrs []*commonpb.KeyValue
	if r.URL.Path == "/v1/traces" {
		err = errors.Join(err, proto.Unmarshal(body, &traces))
		attrs = traces.GetResourceSpans()[0].GetResource().GetAttributes()
	} else {
		err = errors.Join(err, proto.Unmarshal(body, &metrics))
		attrs = metrics.GetResourceMetrics()[0].GetResource().GetAttributes()
	}
	if err != nil {
		a.t.Error(err)
	}
	one := arrival{r.Header.Get("Authorization"), map[string]string{}}
	for _, kv := range attrs {
		one.from[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, one)
}

// atHome is a Telemetry whose connections to Google's endpoint end at h.
func atHome(t *testing.T, h http.Handler, env ...string) Telemetry {
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
	e := environment(append([]string{googles, "OTEL_EXPORTER_OTLP_TIMEOUT=5000"}, env...)...)
	to := e.Telemetry("s", true)
	if e.Err() != nil {
		t.Fatal(e.Err())
	}
	to.under = under
	return to
}

// sent is what the log says once to has sent a span and a count, and how long the
// start and the stop took, of which the stop has half a second.
func sent(t *testing.T, to Telemetry) (log string, start, stop time.Duration) {
	t.Helper()
	var said bytes.Buffer
	began := time.Now()
	x, err := to.Export(t.Context(), NewLogger(&said, "json", 0))
	if err != nil {
		t.Fatal(err)
	}
	start = time.Since(began)
	_, span := x.Tracers().Tracer("").Start(t.Context(), "x")
	span.End()
	n, err := x.Meters().Meter("").Int64Counter("n")
	if err != nil {
		t.Fatal(err)
	}
	n.Add(t.Context(), 1)
	began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	x.Stop(ctx)
	return said.String(), start, time.Since(began)
}

// tokens gives the account's to whoever asks for path.
func tokens(t *testing.T, path string) (address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != path {
			t.Errorf("asked for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token": "`+accountToken+`", "expires_in": 3600, "token_type": "Bearer"}`)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// metadataServer is Cloud Run's, for a process without a key file.
func metadataServer(t *testing.T) {
	t.Helper()
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GCE_METADATA_HOST", tokens(t,
		"/computeMetadata/v1/instance/service-accounts/default/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform"))
}

// keyFile is a service account's.
func keyFile(t *testing.T) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "of-the-key", "private_key_id": "1", "client_email": "worker@my-project.iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": "http://" + tokens(t, "/"),
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
}

func TestGooglesEndpointAloneIsSentTheAccountsToken(t *testing.T) {
	for name, credentials := range map[string]func(*testing.T){"metadata server": metadataServer, "key file": keyFile} {
		t.Run(name, func(t *testing.T) {
			credentials(t)
			theirs, plain := &arrivals{t: t}, &arrivals{t: t}
			if log, _, _ := sent(t, atHome(t, theirs, "GOOGLE_CLOUD_PROJECT=my-project")); log != "" || len(theirs.all) != 2 {
				t.Errorf("%d arrived; log: %s", len(theirs.all), log)
			}
			for _, a := range theirs.all {
				if a.authorization != "Bearer "+accountToken || a.from["gcp.project_id"] != "my-project" {
					t.Errorf("%+v", a)
				}
			}
			s := httptest.NewServer(plain)
			defer s.Close()
			log, _, _ := sent(t, environment("OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL, "GOOGLE_CLOUD_PROJECT=my-project").Telemetry("s", true))
			if log != "" || len(plain.all) != 2 {
				t.Errorf("%d arrived; log: %s", len(plain.all), log)
			}
			for _, a := range plain.all {
				if _, told := a.from["gcp.project_id"]; a.authorization != "" || told {
					t.Errorf("a collector got %+v", a)
				}
			}
		})
	}
}

func TestGooglesEndpointIsKnownByItsHostAndReachedByHTTPSAlone(t *testing.T) {
	to := environment("OTEL_EXPORTER_OTLP_TIMEOUT=700").Telemetry("s", true)
	for url, want := range map[string]bool{
		"https://telemetry.googleapis.com/v1/traces": true, "https://Telemetry.GoogleAPIs.com:443/v1/metrics": true,
		"https://telemetry.europe-west1.rep.googleapis.com/v1/traces": true,

		"http://telemetry.googleapis.com/v1/traces": false, "http://telemetry.europe-west1.rep.googleapis.com/v1/traces": false,
		"https://telemetry.googleapis.com.example.com/": false, "https://x.telemetry.googleapis.com/": false, "https://storage.googleapis.com/": false,
		"https://telemetry.a.b.rep.googleapis.com/": false, "https://telemetry.rep.googleapis.com/": false, "https://telemetry-googleapis.com/": false,
		"https://example.com/telemetry.googleapis.com": false, "": false,
	} {
		c := to.client(t.Context(), url)
		if (c != nil) != want {
			t.Errorf("%q: %v", url, c)
		}
		if c != nil && c.Timeout != 700*time.Millisecond {
			t.Errorf("%q: a try may take %v", url, c.Timeout)
		}
	}
}

func TestARedirectElsewhereIsAFailureAndCarriesNothingThere(t *testing.T) {
	metadataServer(t)
	elsewhere := &arrivals{t: t}
	s := httptest.NewServer(elsewhere)
	defer s.Close()
	log, _, _ := sent(t, atHome(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, s.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})))
	if len(elsewhere.all) > 0 || strings.Count(log, "307 Temporary Redirect") != 2 {
		t.Errorf("elsewhere got %+v; log: %s", elsewhere.all, log)
	}
}

// By this variable Google's libraries write their calls to standard error.
func TestATokenIsNotWrittenForDebuggingEither(t *testing.T) {
	keyFile(t)
	t.Setenv("GOOGLE_SDK_GO_LOGGING_LEVEL", "debug")
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func(was *os.File) { os.Stderr = was }(os.Stderr)
	os.Stderr = f
	theirs := &arrivals{t: t}
	log, _, _ := sent(t, atHome(t, theirs))
	written, err := os.ReadFile(f.Name())
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if len(written) > 0 || log != "" || len(theirs.all) != 2 {
		t.Errorf("%d arrived; log: %s; standard error: %s", len(theirs.all), log, written)
	}
}

// Neither is a reason not to start, or to stop late.
func TestMissingCredentialsAndASilentMetadataServerAreTheWarning(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, set := range map[string][2]string{
		"no credentials":           {"GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "missing.json")},
		"a silent metadata server": {"GCE_METADATA_HOST", silent.Addr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
			t.Setenv("HOME", t.TempDir())
			t.Setenv(set[0], set[1])
			theirs := &arrivals{t: t}
			log, start, stop := sent(t, atHome(t, theirs))
			if start > 200*time.Millisecond || stop > time.Second {
				t.Errorf("start after %v, stop after %v", start, stop)
			}
			if len(theirs.all) > 0 || strings.Count(log, `"message":"telemetry not exported"`) != 2 {
				t.Errorf("%+v arrived; log: %s", theirs.all, log)
			}
		})
	}
}

func TestWhoSendsToGoogleMayBeSaidByTheEnvironment(t *testing.T) {
	metadataServer(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "gcp.project_id=another,cloud.region=europe-west1")
	theirs := &arrivals{t: t}
	if log, _, _ := sent(t, atHome(t, theirs, "GOOGLE_CLOUD_PROJECT=my-project")); log != "" || len(theirs.all) != 2 {
		t.Fatalf("%d arrived; log: %s", len(theirs.all), log)
	}
	if a := theirs.all[0]; a.from["gcp.project_id"] != "another" || a.from["cloud.region"] != "europe-west1" {
		t.Errorf("%+v", a)
	}
}
