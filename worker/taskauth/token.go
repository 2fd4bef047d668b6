package taskauth

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
)

const (
	// maxToken is in bytes. Google's are about 1 KB.
	maxToken = 8 << 10
	// skew is how far the signer's clock may run ahead of ours: a token is used
	// within milliseconds of being made, so without it a clock that is behind by a
	// second would refuse deliveries for as long as it is. Expiry needs none, as
	// the tokens of Cloud Tasks live for an hour.
	skew = 10 * time.Second
	// maxSubject is OpenID Connect's, in bytes.
	maxSubject = 255
)

// Every text that Check's errors can have.
var (
	errNoToken    = refuse("no token")
	errTwoTokens  = refuse("more than one Authorization header")
	errTwoProxies = refuse("more than one " + iapHeader + " header")
	errScheme     = refuse("not a bearer token")
	errTooLong    = refuse("token too long")
	errMalformed  = refuse("malformed token")
	errNotRS256   = refuse("not signed with RS256")
	errNotES256   = refuse("not signed with ES256")
	errNoKeyID    = refuse("no key id")
	errCritical   = refuse("critical header parameters")
	errUnknownKey = refuse("unknown key")
	errSignature  = refuse("the signature does not hold")
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

// bearer returns the one token that r carries.
func bearer(r *http.Request) (string, error) {
	values := r.Header["Authorization"]
	if len(values) > 1 {
		return "", errTwoTokens
	}
	if len(values) == 0 || values[0] == "" {
		return "", errNoToken
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", errScheme
	}
	token = strings.TrimLeft(token, " ")
	switch {
	case token == "":
		return "", errNoToken
	case len(token) > maxToken:
		return "", errTooLong
	}
	return token, nil
}

// token is what a token says, before anything is proved.
type token struct {
	kid    string
	claims claims
}

// parse reads a token of this signer and refuses what the library must not see:
// it panics on a header of ES256 with a short signature. The header is decoded into the same
// fields by the same rules as the library's, so that both read the same
// algorithm where a name comes twice or in capitals. Base64 is taken in its one
// canonical form, so that no two texts are the same token.
func parse(raw string, of signer) (token, error) {
	segments := strings.Split(raw, ".")
	if len(segments) != 3 {
		return token{}, errMalformed
	}
	var decoded [3][]byte
	for i, segment := range segments {
		if strings.ContainsAny(segment, "\r\n") { // which the decoder would skip
			return token{}, errMalformed
		}
		var err error
		if decoded[i], err = base64.RawURLEncoding.Strict().DecodeString(segment); err != nil {
			return token{}, errMalformed
		}
	}
	var header struct {
		Algorithm string `json:"alg"`
		Type      string `json:"typ"`
		KeyID     string `json:"kid"`
		// Critical names extensions that whoever does not know them must refuse (RFC
		// 7515, 4.1.11). The library ignores it.
		Critical json.RawMessage `json:"crit"`
	}
	t := token{}
	if json.Unmarshal(decoded[0], &header) != nil || json.Unmarshal(decoded[1], &t.claims) != nil {
		return token{}, errMalformed
	}
	switch {
	case header.Algorithm != of.algorithm:
		return token{}, of.errAlgorithm
	case header.KeyID == "":
		return token{}, errNoKeyID
	case header.Critical != nil:
		return token{}, errCritical
	case of.signature > 0 && len(decoded[2]) != of.signature:
		return token{}, errSignature
	}
	t.kid = header.KeyID
	return t, nil
}

// claims are a token's, as encoding/json decodes them; nil if they were null.
type claims map[string]any

// text returns the claim if it is a string, else "".
func (c claims) text(name string) string {
	s, _ := c[name].(string)
	return s
}

// subject is the account's unique id.
func (c claims) subject() (string, error) {
	sub := c.text("sub")
	if sub == "" || len(sub) > maxSubject {
		return "", errNoSubject
	}
	return sub, nil
}

// time returns the claim in seconds since 1970. It is not ok if the claim is there
// and no whole number that a float64 holds exactly.
func (c claims) time(name string) (seconds int64, present, ok bool) {
	v, present := c[name]
	if !present {
		return 0, false, true
	}
	f, number := v.(float64)
	if !number || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, true, false
	}
	return int64(f), true, true
}
