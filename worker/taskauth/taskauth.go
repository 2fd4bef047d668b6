package taskauth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
)

// What Check comes to, if not to nil.
var (
	ErrUnauthenticated = errors.New("taskauth: unauthenticated") // no token, or one that proves nothing
	ErrForbidden       = errors.New("taskauth: forbidden")       // a good token of somebody else
	ErrNoKeys          = errors.New("taskauth: no keys")         // nothing can be decided now
)

// Options configures a Verifier. Audience is required, and Accounts or AnyAccount.
type Options struct {
	Audience string   // the one that tokens must be made for, exactly
	Accounts []string // e-mail addresses of the service accounts that may call
	// AnyAccount lets every account pass that has a subject, with an e-mail address
	// or without: for people, who are told apart by Subject. Accounts is empty then.
	AnyAccount bool
	KeysURL    string // http or https; empty: Google's
	// Client fetches the keys. nil means a private one, which follows no redirect.
	Client *http.Client
	// Log gets a WARN for each fetch that came to nothing and an INFO when there
	// are keys (again); nil means silent.
	Log *slog.Logger
}

// Verifier checks requests. Its methods may be called concurrently.
type Verifier struct {
	proof    *proof
	accounts []string
	anyone   bool // accounts do not matter
}

// New returns a Verifier that has no keys until Run gets them. It makes no call.
// An empty audience is refused because the library would skip the check.
func New(ctx context.Context, o Options) (*Verifier, error) {
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
	p, err := newProof(ctx, googleAccounts, o.Audience, source{url: o.KeysURL, client: o.Client, log: o.Log})
	if err != nil {
		return nil, err
	}
	return &Verifier{proof: p, accounts: slices.Clone(o.Accounts), anyone: o.AnyAccount}, nil
}

// Run gets the keys and keeps them fresh until ctx ends, then returns. It is to
// be called once, and is the only goroutine that fetches: without it Check never
// has keys. Calls of Check that wait for a fetch are refused when it returns.
func (v *Verifier) Run(ctx context.Context) { v.proof.keys.run(ctx) }

// Check says whether r may pass: nil, or an error that is ErrUnauthenticated,
// ErrForbidden or ErrNoKeys. Where the token names a key that is not known, it
// waits up to 3 s for the keys, or until r's caller is gone.
func (v *Verifier) Check(r *http.Request) error {
	_, err := v.claims(r)
	return err
}

// Subject is Check, and answers the account's unique id: never empty, at most
// 255 bytes, and never another account's, which an e-mail address may become.
func (v *Verifier) Subject(r *http.Request) (string, error) {
	c, err := v.claims(r)
	if err != nil {
		return "", err
	}
	return c.subject()
}

// claims are those of r's token, if r may pass.
func (v *Verifier) claims(r *http.Request) (claims, error) {
	raw, err := bearer(r)
	if err != nil {
		return nil, err
	}
	c, err := v.proof.claims(r.Context(), raw)
	if err != nil {
		return nil, err
	}
	return c, v.judge(c)
}

// judge decides by the claims of a token that is proved to be for us and for now.
func (v *Verifier) judge(c claims) error {
	if iss := c.text("iss"); iss != "https://accounts.google.com" && iss != "accounts.google.com" {
		return errIssuer
	}
	if v.anyone {
		_, err := c.subject()
		return err
	}
	email := c.text("email")
	switch {
	case email == "":
		return errNoEmail
	case c["email_verified"] != true:
		return errUnverified
	case !slices.Contains(v.accounts, email):
		return errAccount
	}
	return nil
}
