package taskauth

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// maxToken is in bytes. Google's are about 1 KB.
	maxToken = 8 << 10
	// skew is how far the signer's clock may run ahead of ours: a token is used
	// within milliseconds of being made. Expiry needs none, because the tokens of
	// Cloud Tasks live for an hour.
	skew = 10 * time.Second
)

// The texts that errors of Check can have, with those of ErrNoKeys.
var (
	errNoToken    = refuse("no token")
	errManyTokens = refuse("more than one token")
	errScheme     = refuse("not a bearer token")
	errTooLong    = refuse("token too long")
	errMalformed  = refuse("malformed token, or another algorithm")
	errUnknownKey = refuse("unknown key")
	errSignature  = refuse("invalid signature or claims")
	errAudience   = refuse("wrong audience")
	errNoExpiry   = refuse("no expiry")
	errExpired    = refuse("expired")
	errNotYet     = refuse("not valid yet")
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
	page      string                     // the URL of its keys
	usable    func(jose.JSONWebKey) bool // reports whether the algorithm can use the key
	keys      string                     // the name of its keys in logs
}

var (
	// googleAccounts signs ID tokens, of people and of service accounts.
	googleAccounts = signer{
		algorithm: jose.RS256, issuers: []string{"https://accounts.google.com", "accounts.google.com"},
		page: "https://www.googleapis.com/oauth2/v3/certs", keys: "task keys",
		usable: func(k jose.JSONWebKey) bool {
			public, ok := k.Key.(*rsa.PublicKey)
			return ok && public.N.BitLen() >= 2048
		},
	}
	// identityProxy signs what Identity-Aware Proxy adds to a request.
	identityProxy = signer{
		algorithm: jose.ES256, issuers: []string{"https://cloud.google.com/iap"},
		page: "https://www.gstatic.com/iap/verify/public_key-jwk", keys: "proxy keys",
		usable: func(k jose.JSONWebKey) bool {
			public, ok := k.Key.(*ecdsa.PublicKey)
			return ok && public.Curve == elliptic.P256()
		},
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
	u, err := url.Parse(from.KeysURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("taskauth: the keys' URL is not an http or https URL")
	}
	return &tokenVerifier{signer: signer, audience: audience, keys: newKeyring(signer, from)}, nil
}

// claims are the claims of a token.
type claims struct {
	jwt.Claims
	Email         string `json:"email"`
	EmailVerified bool   `json:"email_verified"`

	all map[string]any
}

// identified reports whether c has a subject of a valid length.
func (c claims) identified() bool { return c.Subject != "" && len(c.Subject) <= maxSubject }

// claims returns the claims of a token, after it has verified the signature, the audience and
// the times. If the token names an unknown key, it waits up to 3 s for the keys, or until ctx
// ends.
func (p *tokenVerifier) claims(ctx context.Context, raw string) (c claims, err error) {
	if len(raw) > maxToken {
		return c, errTooLong
	}
	token, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{p.signer.algorithm})
	if err != nil {
		return c, errMalformed
	}
	key, err := p.keys.key(ctx, token.Headers[0].KeyID)
	if err != nil {
		return c, err
	}
	if token.Claims(key, &c, &c.all) != nil {
		return c, errSignature
	}
	return c, p.accept(c, time.Now())
}

// accept checks the token's issuer, audience and times.
func (p *tokenVerifier) accept(c claims, now time.Time) error {
	latest := now.Add(skew).Unix()
	switch {
	case !slices.Contains(p.signer.issuers, c.Issuer):
		return errIssuer
	case !slices.Equal(c.Audience, jwt.Audience{p.audience}):
		return errAudience
	case c.Expiry == nil:
		return errNoExpiry
	case c.NotBefore != nil && int64(*c.NotBefore) > latest, c.IssuedAt != nil && int64(*c.IssuedAt) > latest:
		return errNotYet
	}
	if last := int64(*c.Expiry); now.Unix() > last {
		return errExpired
	}
	return nil
}
