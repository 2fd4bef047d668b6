package taskauth

import (
	"context"
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

// Options configures a Verifier. Audience is required, and Accounts or AnyAccount.
type Options struct {
	Audience string   // the only audience that a token may have
	Accounts []string // e-mail addresses of the service accounts that may call
	// AnyAccount lets in every account that has a subject, with or without an e-mail address.
	// Accounts is empty then.
	AnyAccount bool
	NameClaim  string // the claim with the account's display name; empty: none
	KeySource
}

// KeySource configures the fetches of the signer's keys.
type KeySource struct {
	KeysURL string       // http or https; empty: Google's
	Client  *http.Client // nil: a private one, which follows no redirect
	// Log gets a WARN for each failed fetch, and an INFO for the first success and for the first
	// success after a failure; nil: no log.
	Log *slog.Logger
}

// Verifier checks requests. Its methods may be called concurrently.
type Verifier struct {
	tokens   *tokenVerifier
	accounts []string
	anyone   bool // every account may call
	name     string
}

// New returns a Verifier that has no keys until Run fetches them. It makes no call.
func New(o Options) (*Verifier, error) {
	switch {
	case o.AnyAccount && len(o.Accounts) > 0:
		return nil, errors.New("taskauth: both any account and some may call")
	case !o.AnyAccount && len(o.Accounts) == 0:
		return nil, errors.New("taskauth: no account may call")
	}
	for _, account := range o.Accounts {
		if strings.TrimSpace(account) == "" {
			return nil, errors.New("taskauth: an account is empty")
		}
	}
	p, err := newTokenVerifier(googleAccounts, o.Audience, o.KeySource)
	if err != nil {
		return nil, err
	}
	return &Verifier{tokens: p, accounts: slices.Clone(o.Accounts), anyone: o.AnyAccount, name: o.NameClaim}, nil
}

// Run fetches the keys and keeps them fresh until ctx ends, then returns. It is
// called once, and is the only goroutine that fetches: without it Check never has
// keys.
func (v *Verifier) Run(ctx context.Context) { v.tokens.keys.run(ctx) }

// Check returns nil if r may pass, or an error that is ErrUnauthenticated,
// ErrForbidden or ErrNoKeys. If the token names an unknown key, Check waits up to
// 3 s for the keys, or until r's caller is gone.
func (v *Verifier) Check(r *http.Request) error {
	_, err := v.claims(r)
	return err
}

// Subject checks r as Check does, and returns the unique id of its account. Without an error,
// subject has 1 to 255 bytes. Unlike an e-mail address, it is never given to another account.
// name is the text of the claim NameClaim, or empty.
func (v *Verifier) Subject(r *http.Request) (subject, name string, err error) {
	c, err := v.claims(r)
	switch {
	case err != nil:
		return "", "", err
	case !c.identified():
		return "", "", errNoSubject
	}
	name, _ = c.all[v.name].(string)
	return c.Subject, name, nil
}

// claims returns the claims of r's token, or an error if r may not pass.
func (v *Verifier) claims(r *http.Request) (claims, error) {
	raw, err := bearer(r)
	if err != nil {
		return claims{}, err
	}
	c, err := v.tokens.claims(r.Context(), raw)
	switch {
	case err != nil:
		return c, err
	case v.anyone && !c.identified():
		return c, errNoSubject
	case v.anyone:
		return c, nil
	case c.Email == "":
		return c, errNoEmail
	case !c.EmailVerified:
		return c, errUnverified
	case !slices.Contains(v.accounts, c.Email):
		return c, errAccount
	}
	return c, nil
}

// bearer returns the one token that r carries.
func bearer(r *http.Request) (string, error) {
	values := r.Header["Authorization"]
	switch {
	case len(values) > 1:
		return "", errManyTokens
	case len(values) == 0 || values[0] == "":
		return "", errNoToken
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", errScheme
	}
	if token = strings.TrimLeft(token, " "); token == "" {
		return "", errNoToken
	}
	return token, nil
}
