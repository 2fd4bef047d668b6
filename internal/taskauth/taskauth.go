package taskauth

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// The errors of Check.
var (
	ErrUnauthenticated = errors.New("taskauth: unauthenticated") // no token, or an invalid one
	ErrForbidden       = errors.New("taskauth: forbidden")       // a valid token of another account
	ErrNoKeys          = errors.New("taskauth: no keys")         // no token can be checked now
)

// maxSubject is OpenID Connect's limit, in bytes.
const maxSubject = 255

// Options configures a Verifier. Audience is required, and either Accounts or AnyAccount.
type Options struct {
	Audience string   // the only audience that a token may have
	Accounts []string // e-mail addresses of the service accounts that may call
	// AnyAccount lets in every account that has a subject, with or without an e-mail address.
	AnyAccount bool
	NameClaim  string // the claim with the account's display name; empty: none
	UserClaim  string // the claim with the id that others are shown; empty: none
	KeySource
}

// KeySource configures the fetches of the signer's keys.
type KeySource struct {
	KeysURL string       // http or https; empty: Google's
	Client  *http.Client // nil: a private one, which follows no redirect
	Log     *slog.Logger // gets a WARN for each fetch that failed; nil: no log
}

// Verifier checks requests. Its methods may be called concurrently.
type Verifier struct {
	options Options
	tokens  *tokenVerifier
}

// New returns a Verifier. It makes no call: the first Check fetches the keys.
func New(o Options) (*Verifier, error) {
	switch {
	case !o.AnyAccount && len(o.Accounts) == 0:
		return nil, errors.New("taskauth: no account may call")
	case o.AnyAccount && len(o.Accounts) > 0:
		return nil, errors.New("taskauth: both any account and some may call")
	case slices.ContainsFunc(o.Accounts, func(account string) bool { return strings.TrimSpace(account) == "" }):
		return nil, errors.New("taskauth: an account is blank")
	}
	p, err := newTokenVerifier(googleAccounts, o.Audience, o.KeySource)
	if err != nil {
		return nil, err
	}
	return &Verifier{options: o, tokens: p}, nil
}

// Check returns nil if r may pass, or an error that is ErrUnauthenticated,
// ErrForbidden or ErrNoKeys. If the token names an unknown key, Check fetches the keys, and waits
// up to 3 s for them.
func (v *Verifier) Check(r *http.Request) error {
	_, err := v.claims(r)
	return err
}

// Subject is the account that a token proves.
type Subject struct {
	ID      string    // 1 to 255 bytes; unlike an e-mail address, never given to another account
	Name    string    // the text of the claim NameClaim, or empty
	User    string    // the text of the claim UserClaim, or empty
	Expires time.Time // after this, by this machine's clock, the token is refused
}

// Subject checks r as Check does, and returns the account of its token.
func (v *Verifier) Subject(r *http.Request) (Subject, error) {
	c, err := v.claims(r)
	if err != nil {
		return Subject{}, err
	}
	s := Subject{ID: c.Subject, Expires: c.Expiry.Time().Add(skew)}
	s.Name, _ = c.all[v.options.NameClaim].(string)
	s.User, _ = c.all[v.options.UserClaim].(string)
	return s, nil
}

// claims returns the claims of r's token, or an error if r may not pass.
func (v *Verifier) claims(r *http.Request) (claims, error) {
	raw, err := bearer(r)
	if err != nil {
		return claims{}, err
	}
	c, err := v.tokens.claims(raw)
	switch {
	case err != nil:
	case v.options.AnyAccount && (c.Subject == "" || len(c.Subject) > maxSubject):
		err = errNoSubject
	case v.options.AnyAccount:
	case c.Email == "":
		err = errNoEmail
	case !c.EmailVerified:
		err = errUnverified
	case !slices.Contains(v.options.Accounts, c.Email):
		err = errAccount
	}
	return c, err
}

// bearer returns the one token that r carries.
func bearer(r *http.Request) (string, error) {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return "", errNotOne
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", errScheme
	}
	return strings.TrimLeft(token, " "), nil
}

const (
	// maxToken is in bytes. Google's are about 1 KB.
	maxToken = 8 << 10
	// skew is how far the signer's clock may be ahead of ours or behind it. A token is used within
	// milliseconds of being made.
	skew = 10 * time.Second
)

// The texts of Check's errors, beside the texts of ErrNoKeys and of jwt's validation.
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

func refuse(reason string) error { return fmt.Errorf("%w: %s", ErrUnauthenticated, reason) }

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
func newTokenVerifier(signer signer, audience string, source KeySource) (*tokenVerifier, error) {
	if strings.TrimSpace(audience) == "" {
		return nil, errors.New("taskauth: the audience is empty")
	}
	source.KeysURL = cmp.Or(source.KeysURL, signer.page)
	return &tokenVerifier{signer: signer, audience: audience, keys: newKeyring(source)}, nil
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
// /projects/NUMBER/locations/REGION/services/NAME for a Cloud Run service without one. An IAP
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
