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

// google reports whether a URL is Google's own endpoint, by https: without, the token
// would be readable on the way.
func google(to string) bool {
	u, err := url.Parse(to)
	return err == nil && u.Scheme == "https" && googleHost.MatchString(strings.ToLower(u.Hostname()))
}

// client returns a client that sends the token of the service's account (Application
// Default Credentials) to Google's own endpoint; for another URL nil, the SDK's own.
func (t Telemetry) client(to string) *http.Client {
	if !google(to) {
		return nil
	}
	transport := cmp.Or(t.transport, http.DefaultTransport)
	return &http.Client{
		Transport: &account{find: sync.OnceValues(func() (http.RoundTripper, error) { return withToken(transport) })},
		Timeout:   10 * time.Second, // the SDK's default, which it does not give to another client
		// The token is only for Google, so a redirect is a failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// account sends requests with the token of the service's account. It searches for the
// account at the first request: without one, only exports fail.
type account struct {
	find func() (http.RoundTripper, error)
}

// RoundTrip implements http.RoundTripper.
func (a *account) RoundTrip(r *http.Request) (*http.Response, error) {
	transport, err := a.find()
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
