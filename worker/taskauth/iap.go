package taskauth

import (
	"context"
	"log/slog"
	"net/http"
)

// iapHeader is what Identity-Aware Proxy puts its signed word into. A request that
// did not come through the proxy can carry anything there, and the other headers
// that the proxy sets (X-Goog-Authenticated-User-Email) prove nothing.
const iapHeader = "X-Goog-Iap-Jwt-Assertion"

// iapIssuer is who the proxy says it is.
const iapIssuer = "https://cloud.google.com/iap"

// IAPOptions configures an IAP. Audience is required.
type IAPOptions struct {
	// Audience is the resource that the proxy protects, exactly as its page in the
	// console names it: /projects/NUMBER/global/backendServices/ID behind a load
	// balancer, /projects/NUMBER/locations/REGION/services/NAME for a Cloud Run
	// service of its own. With it, what the proxy signed for another resource of
	// the project does not pass.
	Audience string
	KeysURL  string // http or https; empty: Google's
	// Client fetches the keys. nil means a private one, which follows no redirect.
	Client *http.Client
	// Log gets a WARN for each fetch that came to nothing and an INFO when there
	// are keys (again); nil means silent.
	Log *slog.Logger
}

// IAP tells who sent a request that came through Identity-Aware Proxy. Its methods
// may be called concurrently.
type IAP struct{ proof *proof }

// NewIAP returns an IAP that has no keys until Run gets them. It makes no call.
func NewIAP(ctx context.Context, o IAPOptions) (*IAP, error) {
	p, err := newProof(ctx, identityProxy, o.Audience, source{url: o.KeysURL, client: o.Client, log: o.Log})
	if err != nil {
		return nil, err
	}
	return &IAP{proof: p}, nil
}

// Run gets the keys and keeps them fresh until ctx ends, then returns, as
// Verifier.Run does: to be called once.
func (i *IAP) Run(ctx context.Context) { i.proof.keys.run(ctx) }

// Check answers the address of who sent r, never empty without an error; or an
// error that is ErrUnauthenticated or ErrNoKeys. Whom to let in is the proxy's
// own policy, so nothing here is ErrForbidden. Where the assertion names a key
// that is not known, Check waits up to 3 s for the keys, or until r's caller is
// gone.
func (i *IAP) Check(r *http.Request) (email string, err error) {
	raw, err := assertion(r)
	if err != nil {
		return "", err
	}
	c, err := i.proof.claims(r.Context(), raw)
	if err != nil {
		return "", err
	}
	if c.text("iss") != iapIssuer {
		return "", errIssuer
	}
	if email = c.text("email"); email == "" {
		return "", errNoEmail
	}
	return email, nil
}

// assertion returns the one that r carries.
func assertion(r *http.Request) (string, error) {
	values := r.Header[iapHeader]
	switch {
	case len(values) > 1:
		return "", errTwoProxies
	case len(values) == 0 || values[0] == "":
		return "", errNoToken
	case len(values[0]) > maxToken:
		return "", errTooLong
	}
	return values[0], nil
}
