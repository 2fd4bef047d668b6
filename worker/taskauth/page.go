package taskauth

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"slices"
)

// A modulus outside of these is weak, or expensive to verify with. In bits.
const minModulus, maxModulus = 2048, 8192

// keySet is a page of public keys reduced to those that can be used.
type keySet struct {
	page []byte // for the library
	kids map[string]bool
}

func (s *keySet) holds(kid string) bool { return s != nil && s.kids[kid] }

// jwk is one key of a page (RFC 7517), of RSA or of an elliptic curve.
type jwk struct {
	Type      string `json:"kty"`
	Algorithm string `json:"alg,omitempty"`
	Use       string `json:"use,omitempty"`
	ID        string `json:"kid"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
	Curve     string `json:"crv,omitempty"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
}

var (
	errNotPage  = errors.New("not a page of keys")
	errNoUsable = errors.New("no usable key")
)

// readPage takes the usable keys from a page. What cannot be used, of whatever
// shape, is left out and does not spoil the rest.
func readPage(data []byte, usable func(jwk) bool) (*keySet, error) {
	var page struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(data, &page) != nil {
		return nil, errNotPage
	}
	set := &keySet{kids: map[string]bool{}}
	var kept struct {
		Keys []jwk `json:"keys"`
	}
	for _, raw := range page.Keys {
		var k jwk
		if json.Unmarshal(raw, &k) == nil && usable(k) && !set.kids[k.ID] {
			set.kids[k.ID] = true
			kept.Keys = append(kept.Keys, k)
		}
	}
	if len(kept.Keys) == 0 {
		return nil, errNoUsable
	}
	var err error
	if set.page, err = json.Marshal(kept); err != nil {
		return nil, errNotPage
	}
	return set, nil
}

// signs reports whether k is a named key of this type, for signatures of this
// algorithm or of any.
func (k jwk) signs(keyType, algorithm string) bool {
	return k.Type == keyType && k.ID != "" && (k.Use == "" || k.Use == "sig") && (k.Algorithm == "" || k.Algorithm == algorithm)
}

// verifiesRS256 reports whether k does so as it should. With an exponent of 1
// anybody could sign.
func verifiesRS256(k jwk) bool {
	if !k.signs("RSA", "RS256") {
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

// verifiesES256 reports whether k is a point of the curve P-256, both of whose
// coordinates are written in full.
func verifiesES256(k jwk) bool {
	const field = 32 // bytes
	if !k.signs("EC", "ES256") || k.Curve != "P-256" {
		return false
	}
	x, errX := base64.RawURLEncoding.DecodeString(k.X)
	y, errY := base64.RawURLEncoding.DecodeString(k.Y)
	if errX != nil || errY != nil || len(x) != field || len(y) != field {
		return false
	}
	_, err := ecdh.P256().NewPublicKey(slices.Concat([]byte{4}, x, y)) // 4: neither coordinate is compressed
	return err == nil
}

type pageKey struct{}

// withPage carries the page by which one token is judged to pages, so that what
// was found to hold the key is what the library sees.
func withPage(ctx context.Context, page []byte) context.Context {
	return context.WithValue(ctx, pageKey{}, page)
}

// pages is the library's network: it answers a request for the page at this URL
// with the one in the request's context, and no other request.
type pages string

func (at pages) RoundTrip(r *http.Request) (*http.Response, error) {
	page, ok := r.Context().Value(pageKey{}).([]byte)
	if !ok || r.URL.String() != string(at) {
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
