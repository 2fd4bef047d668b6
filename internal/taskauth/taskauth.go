package taskauth

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
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

// Subject checks r as Check does, and returns the unique id of its account. Without an error,
// subject has 1 to 255 bytes. Unlike an e-mail address, it is never given to another account.
// name is the text of the claim NameClaim, or empty.
func (v *Verifier) Subject(r *http.Request) (subject, name string, err error) {
	c, err := v.claims(r)
	if err != nil {
		return "", "", err
	}
	name, _ = c.all[v.options.NameClaim].(string)
	return c.Subject, name, nil
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
