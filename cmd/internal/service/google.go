package service

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
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
// (Application Default Credentials). For another endpoint the client is nil: it is the SDK's.
func (t Telemetry) client(endpoint string) (c *http.Client, err error) {
	if !google(endpoint) {
		return nil, nil
	}
	found, err := credentials.DetectDefault(&credentials.DetectOptions{
		Scopes:              []string{"https://www.googleapis.com/auth/cloud-platform"},
		DisableAsyncRefresh: true,                          // a goroutine that no stop would wait for
		Logger:              slog.New(slog.DiscardHandler), // GOOGLE_SDK_GO_LOGGING_LEVEL=debug shows tokens
	})
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: no credentials: %w", err)
	}

	c = &http.Client{
		Transport: cmp.Or(t.transport, http.DefaultTransport),
		Timeout:   10 * time.Second, // the default of the SDK's own client
		// The token is only for Google, so a redirect is a failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, httptransport.AddAuthorizationMiddleware(c, found)
}
