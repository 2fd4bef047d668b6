package taskauth

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// maxToken is in bytes. Google's are about 1 KB.
	maxToken = 8 << 10
	// skew is how far the signer's clock may be ahead of ours or behind it. A token is used within
	// milliseconds of being made.
	skew = 10 * time.Second
)

// The texts that errors of Check can have, with those of ErrNoKeys and of jwt's validation.
var (
	errNotOne     = refuse("not one token")
	errScheme     = refuse("not a bearer token")
	errTooLong    = refuse("token too long")
	errMalformed  = refuse("malformed token, or another algorithm")
	errUnknownKey = refuse("unknown key")
	errSignature  = refuse("invalid signature or claims")
	errAudiences  = refuse("several audiences")
	errNoExpiry   = refuse("no expiry")
	errIssuer     = refuse("wrong issuer")
	errNoEmail    = refuse("no email")
	errNoSubject  = refuse("no subject")
	errUnverified = refuse("email not verified")
	errAccount    = fmt.Errorf("%w: account not allowed", ErrForbidden)
)

func refuse(why string) error { return fmt.Errorf("%w: %s", ErrUnauthenticated, why) }

// signer is one of Google's signers, with the only algorithm that it uses.
type signer struct {
	algorithm jose.SignatureAlgorithm
	issuers   []string
	page      string // the URL of its keys
}

var (
	// googleAccounts signs ID tokens, of people and of service accounts.
	googleAccounts = signer{
		algorithm: jose.RS256, issuers: []string{"https://accounts.google.com", "accounts.google.com"},
		page: "https://www.googleapis.com/oauth2/v3/certs",
	}
	// identityProxy signs what Identity-Aware Proxy adds to a request.
	identityProxy = signer{
		algorithm: jose.ES256, issuers: []string{"https://cloud.google.com/iap"},
		page: "https://www.gstatic.com/iap/verify/public_key-jwk",
	}
)

// tokenVerifier verifies the tokens that one signer made for one audience.
type tokenVerifier struct {
	signer   signer
	audience string
	keys     *keyring
}

// newTokenVerifier returns a tokenVerifier without keys.
func newTokenVerifier(signer signer, audience string, from KeySource) (*tokenVerifier, error) {
	if strings.TrimSpace(audience) == "" {
		return nil, errors.New("taskauth: the audience is empty")
	}
	from.KeysURL = cmp.Or(from.KeysURL, signer.page)
	return &tokenVerifier{signer: signer, audience: audience, keys: newKeyring(from)}, nil
}

// claims are the claims of a token.
type claims struct {
	jwt.Claims
	Email         string `json:"email"`
	EmailVerified bool   `json:"email_verified"`

	all map[string]any
}

// claims returns the claims of a token, after it has verified the signature, the issuer, the
// audience and the times. If the token names an unknown key, it waits up to 3 s for the keys.
func (p *tokenVerifier) claims(raw string) (c claims, err error) {
	if len(raw) > maxToken {
		return c, errTooLong
	}
	token, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{p.signer.algorithm})
	if err != nil {
		return c, errMalformed
	}
	key, err := p.keys.key(token.Headers[0].KeyID)
	if err != nil {
		return c, err
	}
	if token.Claims(key, &c, &c.all) != nil {
		return c, errSignature
	}

	invalid := c.ValidateWithLeeway(jwt.Expected{AnyAudience: jwt.Audience{p.audience}}, skew)
	switch {
	case invalid != nil: // the text has no claim
		return c, fmt.Errorf("%w: %w", ErrUnauthenticated, invalid)
	case !slices.Contains(p.signer.issuers, c.Issuer):
		return c, errIssuer
	case len(c.Audience) != 1:
		return c, errAudiences
	case c.Expiry == nil:
		return c, errNoExpiry
	}
	return c, nil
}

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
