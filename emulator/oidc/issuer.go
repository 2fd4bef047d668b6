// Package oidc is a local issuer of the ID tokens that Cloud Tasks and Cloud
// Scheduler send, for tests and local runs: it signs the same claims with the same
// algorithm, and serves the public keys that a verifier fetches. It makes new keys
// at each start, so only a verifier that fetches them trusts it.
//
// It does not authenticate its callers: Token signs for any account.
package oidc

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer signs tokens and serves its public keys. Its methods may be called
// concurrently.
type Issuer struct {
	mu   sync.Mutex
	keys []jose.JSONWebKey // private; the first one signs
}

// NewIssuer makes an issuer with one key, which takes some 100 ms.
func NewIssuer() *Issuer {
	i := &Issuer{}
	i.Rotate()
	return i
}

// Rotate makes a new key, which signs from now on. As with Google's keys, the previous
// one is served until the next Rotate.
func (i *Issuer) Rotate() {
	private, _ := rsa.GenerateKey(rand.Reader, 2048) // it refuses only a small key
	id := sha256.Sum256(private.N.Bytes())
	key := jose.JSONWebKey{Key: private, KeyID: hex.EncodeToString(id[:20]), Algorithm: string(jose.RS256), Use: "sig"}

	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append([]jose.JSONWebKey{key}, i.keys[:min(1, len(i.keys))]...)
}

// Token returns the ID token that Cloud Tasks would send for the service account
// email. It is valid for an hour.
func (i *Issuer) Token(email, audience string) (string, error) {
	now := time.Now()
	hash := sha256.Sum256([]byte(email))
	sub := fmt.Sprintf("1%020d", binary.BigEndian.Uint64(hash[:])) // 21 digits, the same for the same email
	return i.Sign(map[string]any{
		"iss": "https://accounts.google.com", "aud": audience, "sub": sub, "azp": sub,
		"email": email, "email_verified": true,
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	})
}

// Sign signs any claims that have a JSON.
func (i *Issuer) Sign(claims map[string]any) (string, error) {
	i.mu.Lock()
	key := jose.SigningKey{Algorithm: jose.RS256, Key: i.keys[0]}
	i.mu.Unlock()
	signer, _ := jose.NewSigner(key, new(jose.SignerOptions).WithType("JWT")) // it accepts any key of Rotate
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		return "", fmt.Errorf("oidc: %w", err)
	}
	return token, nil
}

// ServeHTTP serves the public keys (a JWKS), at any path.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var page jose.JSONWebKeySet
	i.mu.Lock()
	for n := range i.keys {
		page.Keys = append(page.Keys, i.keys[n].Public())
	}
	i.mu.Unlock()
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.Header().Set("Cache-Control", "public, max-age=3600, must-revalidate")
	_ = json.NewEncoder(w).Encode(page) // fails only if the caller has disconnected
}
