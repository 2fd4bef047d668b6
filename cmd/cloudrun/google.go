package cloudrun

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
	"cloud.google.com/go/compute/metadata"
)

// googleHost is Google's own endpoint for telemetry, the world's or a region's.
var googleHost = regexp.MustCompile(`^telemetry\.([a-z0-9-]+\.rep\.)?googleapis\.com$`)

// google reports whether what is sent to a URL goes to Google's own endpoint. With
// plain http a token would be everybody's on the way.
func google(to string) bool {
	u, err := url.Parse(to)
	return err == nil && u.Scheme == "https" && googleHost.MatchString(strings.ToLower(u.Hostname()))
}

// client is one that sends the token of the service's account (Application Default
// Credentials) to Google's own endpoint; for any other, nil: the SDK's own.
//
// The account is looked for once, when something is sent: where there is none, or the
// metadata server is silent, exports fail, and nothing else. Until ends what
// the export's own context does not.
func (t Telemetry) client(until context.Context, to string) *http.Client {
	if !google(to) {
		return nil
	}
	under := t.under
	if under == nil {
		own := &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: tryLasts}).DialContext, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: tryLasts, IdleConnTimeout: 90 * time.Second,
		}
		context.AfterFunc(until, own.CloseIdleConnections)
		under = own
	}
	return &http.Client{
		Transport: account{sync.OnceValues(func() (http.RoundTripper, error) { return withToken(until, under) })},
		Timeout:   t.timeout, // a client that is not the SDK's is not given the SDK's
		// The token is for nobody else; a redirect is an answer like any other failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// account sends as the service's account, from the first request on.
type account struct {
	found func() (http.RoundTripper, error)
}

// RoundTrip implements http.RoundTripper.
func (a account) RoundTrip(r *http.Request) (*http.Response, error) {
	to, err := a.found()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("no credentials: %w", err)
	}
	return to.RoundTrip(r)
}

// withToken finds the account.
func withToken(until context.Context, under http.RoundTripper) (http.RoundTripper, error) {
	if os.Getenv("GOOGLE_APPLICATION_CREDENTIALS") == "" {
		metadata.OnGCEWithContext(until) // which the library asks without an end, and gets this answer
	}
	found, err := credentials.DetectDefault(&credentials.DetectOptions{
		Scopes:              []string{"https://www.googleapis.com/auth/cloud-platform"},
		DisableAsyncRefresh: true,                          // a goroutine that no stop would wait for
		Logger:              slog.New(slog.DiscardHandler), // GOOGLE_SDK_GO_LOGGING_LEVEL=debug shows tokens
	})
	if err != nil {
		return nil, err
	}
	c := &http.Client{Transport: under}
	err = httptransport.AddAuthorizationMiddleware(c, found)
	return c.Transport, err
}

// tryLasts is the SDK's default of OTEL_EXPORTER_OTLP_TIMEOUT.
const tryLasts = 10 * time.Second

// tryTimeout is how long one try to send may take.
func (e *Environment) tryTimeout() time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(e.Text("OTEL_EXPORTER_OTLP_TIMEOUT", "")))
	if err != nil || n <= 0 {
		return tryLasts
	}
	return time.Duration(n) * time.Millisecond
}
