package taskauth

import "net/http"

// iapHeader has the signed assertion of Identity-Aware Proxy. A request that did not
// come through the proxy may have any value there, and the other headers that the
// proxy sets (X-Goog-Authenticated-User-Email) prove nothing.
const iapHeader = "X-Goog-Iap-Jwt-Assertion"

// IAP identifies the sender of a request that came through Identity-Aware Proxy. Its methods may
// be called concurrently.
type IAP struct{ tokens *tokenVerifier }

// NewIAP returns an IAP. It makes no call: the first Identify fetches the keys.
// audience is the resource that the proxy protects, exactly as its page in the console
// names it: /projects/NUMBER/global/backendServices/ID behind a load balancer,
// /projects/NUMBER/locations/REGION/services/NAME for a Cloud Run service of its own. An IAP
// refuses assertions for other resources of the project.
func NewIAP(audience string, keys KeySource) (*IAP, error) {
	p, err := newTokenVerifier(identityProxy, audience, keys)
	if err != nil {
		return nil, err
	}
	return &IAP{tokens: p}, nil
}

// Identify returns the e-mail address of the sender of r, which is not empty, or an error that
// is ErrUnauthenticated or ErrNoKeys. No error is ErrForbidden, since the proxy's own policy
// decides who may pass. If the assertion names an unknown key, Identify waits up to 3 s for the keys.
func (i *IAP) Identify(r *http.Request) (email string, err error) {
	values := r.Header[iapHeader]
	if len(values) != 1 {
		return "", errNotOne
	}
	c, err := i.tokens.claims(values[0])
	if err != nil {
		return "", err
	}
	if c.Email == "" {
		return "", errNoEmail
	}
	return c.Email, nil
}
