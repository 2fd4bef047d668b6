package taskauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/api/idtoken"
	"google.golang.org/api/option"
)

// signer is one of Google's, and the only way in which it signs.
type signer struct {
	algorithm    string
	errAlgorithm error
	signature    int            // in bytes; 0 where the key's own length decides
	page         string         // where its keys are, and the only URL at which the library looks for them
	usable       func(jwk) bool // of the keys there
	keys         string         // what logs call them
}

var (
	// googleAccounts signs ID tokens, of people and of service accounts.
	googleAccounts = signer{
		algorithm: "RS256", errAlgorithm: errNotRS256, usable: verifiesRS256,
		page: "https://www.googleapis.com/oauth2/v3/certs", keys: "task keys",
	}
	// identityProxy signs what Identity-Aware Proxy adds to a request.
	identityProxy = signer{
		algorithm: "ES256", errAlgorithm: errNotES256, signature: 64, usable: verifiesES256,
		page: "https://www.gstatic.com/iap/verify/public_key-jwk", keys: "proxy keys",
	}
)

// proof tells the tokens that one signer made for one audience from all others.
type proof struct {
	of        signer
	audience  string
	validator *idtoken.Validator
	keys      *keyring
}

// newProof makes no call. The signer's own page is the default of from.url.
// An empty audience is refused because the library would skip the check.
func newProof(ctx context.Context, of signer, audience string, from source) (*proof, error) {
	if strings.TrimSpace(audience) == "" {
		return nil, errors.New("taskauth: the audience is empty")
	}
	if from.url == "" {
		from.url = of.page
	}
	if u, err := url.Parse(from.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("taskauth: the keys' URL is not an http or https URL")
	}
	validator, err := idtoken.NewValidator(ctx, option.WithHTTPClient(&http.Client{Transport: pages(of.page)}))
	if err != nil {
		return nil, fmt.Errorf("taskauth: %w", err)
	}
	return &proof{of: of, audience: audience, validator: validator, keys: newKeyring(of, from)}, nil
}

// claims are those of a token whose signature holds and which is for us and for
// now. Where it names a key that is not known, claims waits up to 3 s for the
// keys, or until ctx ends.
func (p *proof) claims(ctx context.Context, raw string) (claims, error) {
	t, err := parse(raw, p.of)
	if err != nil {
		return nil, err
	}
	keys, err := p.keys.holding(ctx, t.kid)
	if err != nil {
		return nil, err
	}
	// The library asks pages, which answers from this context: no I/O follows, so
	// there is nothing to cancel.
	payload, err := p.validator.Validate(withPage(context.Background(), keys.page), raw, p.audience)
	if err != nil {
		return nil, p.refusal(t.claims)
	}
	return payload.Claims, p.intended(payload.Claims, time.Now())
}

// refusal finds words for what the library refused; it checks the claims before
// the signature, and its own words may hold a claim.
func (p *proof) refusal(unproved claims) error {
	err := p.intended(unproved, time.Now())
	if err == nil {
		err = errSignature
	}
	return err
}

// intended decides whether the token is for us and for now.
func (p *proof) intended(c claims, now time.Time) error {
	if c.text("aud") != p.audience {
		return errAudience
	}
	exp, present, ok := c.time("exp")
	switch {
	case !ok:
		return errMalformed
	case !present:
		return errNoExpiry
	case now.Unix() > exp:
		return errExpired
	}
	for _, name := range []string{"nbf", "iat"} {
		since, present, ok := c.time(name)
		if !ok {
			return errMalformed
		}
		if present && since > now.Add(skew).Unix() {
			return errNotYet
		}
	}
	return nil
}
