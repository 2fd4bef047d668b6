package taskauth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
)

// googleKeys is where Google publishes its keys, and the only URL at which the
// library looks for those of RS256.
const googleKeys = "https://www.googleapis.com/oauth2/v3/certs"

// A modulus outside of these is weak, or expensive to verify with. In bits.
const minModulus, maxModulus = 2048, 8192

// keySet is a page of public keys reduced to those that can be used.
type keySet struct {
	page []byte // for the library
	kids map[string]bool
}

func (s *keySet) holds(kid string) bool { return s != nil && s.kids[kid] }

// jwk is one RSA key of a page (RFC 7517).
type jwk struct {
	Type      string `json:"kty"`
	Algorithm string `json:"alg,omitempty"`
	Use       string `json:"use,omitempty"`
	ID        string `json:"kid"`
	N         string `json:"n"`
	E         string `json:"e"`
}

var (
	errNotPage  = errors.New("not a page of keys")
	errNoUsable = errors.New("no usable key")
)

// readPage takes the usable keys from a page. What cannot be used, of whatever
// shape, is left out and does not spoil the rest.
func readPage(data []byte) (*keySet, error) {
	var page struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(data, &page) != nil {
		return nil, errNotPage
	}
	set := &keySet{kids: map[string]bool{}}
	var usable struct {
		Keys []jwk `json:"keys"`
	}
	for _, raw := range page.Keys {
		var k jwk
		if json.Unmarshal(raw, &k) == nil && k.usable() && !set.kids[k.ID] {
			set.kids[k.ID] = true
			usable.Keys = append(usable.Keys, k)
		}
	}
	if len(usable.Keys) == 0 {
		return nil, errNoUsable
	}
	var err error
	if set.page, err = json.Marshal(usable); err != nil {
		return nil, errNotPage
	}
	return set, nil
}

// usable reports whether k can verify RS256 as it should. With an exponent of 1
// anybody could sign.
func (k jwk) usable() bool {
	if k.Type != "RSA" || k.ID == "" || k.Use != "" && k.Use != "sig" || k.Algorithm != "" && k.Algorithm != "RS256" {
		return false
	}
	if len(k.N) > maxModulus || len(k.E) > 8 {
		return false
	}
	n, errN := base64.RawURLEncoding.DecodeString(k.N)
	e, errE := base64.RawURLEncoding.DecodeString(k.E)
	if errN != nil || errE != nil {
		return false
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
	bits := modulus.BitLen()
	return minModulus <= bits && bits <= maxModulus && modulus.Bit(0) == 1 &&
		2 <= exponent.BitLen() && exponent.BitLen() <= 31 && exponent.Bit(0) == 1
}

type pageKey struct{}

// withPage carries the page by which one token is judged to pages, so that what
// was found to hold the key is what the library sees.
func withPage(ctx context.Context, page []byte) context.Context {
	return context.WithValue(ctx, pageKey{}, page)
}

// pages is the library's network: it answers a request for Google's keys with the
// page in the request's context, and no other request.
type pages struct{}

func (pages) RoundTrip(r *http.Request) (*http.Response, error) {
	page, ok := r.Context().Value(pageKey{}).([]byte)
	if !ok || r.URL.String() != googleKeys {
		return nil, errNoUsable
	}
	return &http.Response{
		StatusCode: http.StatusOK,
		// An age above max-age has expired before it arrived: without it the
		// library's cache would keep a page until the clock's next tick.
		Header:  http.Header{"Age": {"1"}},
		Body:    io.NopCloser(bytes.NewReader(page)),
		Request: r,
	}, nil
}
