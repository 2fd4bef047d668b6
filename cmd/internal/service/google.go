package service

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
)

// googleHost is Google's own endpoint for telemetry, the global or a regional one.
var googleHost = regexp.MustCompile(`^telemetry\.([a-z0-9-]+\.rep\.)?googleapis\.com$`)

// google reports whether endpoint is the https URL of Google's own endpoint. Over http, the token
// could be read on the way.
func google(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && u.Scheme == "https" && googleHost.MatchString(strings.ToLower(u.Hostname()))
}

// client returns a client for Google's own endpoint that sends the token of the service's account
// (Application Default Credentials). For another endpoint it returns nil, for the SDK's client.
func (t Telemetry) client(endpoint string) *http.Client {
	if !google(endpoint) {
		return nil
	}
	transport := cmp.Or(t.transport, http.DefaultTransport)
	return &http.Client{
		Transport: account(sync.OnceValues(func() (http.RoundTripper, error) { return withToken(transport) })),
		Timeout:   10 * time.Second, // the default of the SDK's own client
		// The token is only for Google, so a redirect is a failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// account returns a transport that sends the token of the service's account. It is called for
// each request, not at the start, so that without an account only exports fail.
type account func() (http.RoundTripper, error)

// RoundTrip implements http.RoundTripper.
func (a account) RoundTrip(r *http.Request) (*http.Response, error) {
	transport, err := a()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("no credentials: %w", err)
	}
	return transport.RoundTrip(r)
}

func withToken(transport http.RoundTripper) (http.RoundTripper, error) {
	found, err := credentials.DetectDefault(&credentials.DetectOptions{
		Scopes:              []string{"https://www.googleapis.com/auth/cloud-platform"},
		DisableAsyncRefresh: true,                          // a goroutine that no stop would wait for
		Logger:              slog.New(slog.DiscardHandler), // GOOGLE_SDK_GO_LOGGING_LEVEL=debug shows tokens
	})
	if err != nil {
		return nil, err
	}
	c := &http.Client{Transport: transport}
	err = httptransport.AddAuthorizationMiddleware(c, found)
	return c.Transport, err
}
