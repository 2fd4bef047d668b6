package doclock

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// CookieName is the session's cookie.
	CookieName = "doclock_session"
	// MinSecret is the least length of the secret that signs it, in bytes.
	MinSecret = 32
	// sessionLife is how long a session lives after it was last renewed, which
	// happens when half of that has passed.
	sessionLife = 30 * 24 * time.Hour
	// sessionVersion is of the cookie's format and goes into its signature.
	sessionVersion = "v1"
)

// Cookies are sessions that a signed cookie proves: version.id.issued.mac, where
// mac is HMAC-SHA256 of what stands before it. Instances that share the secret
// know each other's sessions; nothing is stored.
//
// Who has no cookie is nobody, until a POST or the page begins a session. A cookie
// that is forged, altered or expired is ErrSession, once, and taken away: so nobody
// who believes to hold a lock silently becomes somebody else. Two valid sessions at
// once are refused, and neither is taken away, since the other would be left: one of
// them was set by somebody else, such as a neighbouring subdomain, which a cookie of
// this name cannot keep out. Serve the document lock on a domain whose subdomains
// are all your own.
type Cookies struct {
	secret []byte
}

// NewCookies refuses a secret under 32 bytes.
func NewCookies(secret []byte) (*Cookies, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("doclock: the secret has %d bytes, at least %d are needed", len(secret), MinSecret)
	}
	return &Cookies{secret: secret}, nil
}

// Owner is "session/" and the session's id.
func (k *Cookies) Owner(w http.ResponseWriter, r *http.Request, begin bool) (string, error) {
	id, there, err := k.find(w, r)
	switch {
	case err != nil:
		return "", err
	case id != "":
	case there:
		http.SetCookie(w, &http.Cookie{Name: CookieName, Path: "/", MaxAge: -1})
		return "", ErrSession
	case !begin:
		return "", nil
	default:
		id = rand.Text()
		k.set(w, r, id)
	}
	return "session/" + id, nil
}

// Begin gives who has no valid session a new one.
func (k *Cookies) Begin(w http.ResponseWriter, r *http.Request) {
	if id, _, err := k.find(w, r); id == "" && err == nil {
		k.set(w, r, rand.Text())
	}
}

// find is the id of the one valid session that r carries, renewed if half of its
// life has passed; there says that r carries a session's cookie at all. It reads
// the header itself: net/http drops a cookie with a character that it does not
// like, which would then be none.
func (k *Cookies) find(w http.ResponseWriter, r *http.Request) (id string, there bool, _ error) {
	var age time.Duration
	for _, line := range r.Header["Cookie"] {
		for part := range strings.SplitSeq(line, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if name != CookieName {
				continue
			}
			there = true
			another, since := k.read(value)
			if another != "" && id != "" && another != id {
				return "", true, errTwoSessions
			}
			if another != "" {
				id, age = another, since
			}
		}
	}
	if age >= sessionLife/2 {
		k.set(w, r, id)
	}
	return id, there, nil
}

// read is the id that a cookie's value proves, and since when; empty: it proves
// none.
func (k *Cookies) read(value string) (id string, age time.Duration) {
	end := strings.LastIndexByte(value, '.')
	if end < 0 || !hmac.Equal([]byte(value[end+1:]), []byte(k.mac(value[:end]))) {
		return "", 0
	}
	parts := strings.Split(value[:end], ".") // ours, as the mac says
	if len(parts) != 3 || parts[0] != sessionVersion {
		return "", 0
	}
	issued, err := strconv.ParseInt(parts[2], 10, 64)
	if age = time.Since(time.Unix(issued, 0)); err != nil || age >= sessionLife {
		return "", 0
	}
	return parts[1], age
}

// mac is compared as text: of the base64 of one mac there are several.
func (k *Cookies) mac(signed string) string {
	h := hmac.New(sha256.New, k.secret)
	h.Write([]byte(CookieName + "\n" + signed)) // never fails; the name keeps other uses of the secret apart
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func (k *Cookies) set(w http.ResponseWriter, r *http.Request, id string) {
	signed := sessionVersion + "." + id + "." + strconv.FormatInt(time.Now().Unix(), 10)
	http.SetCookie(w, &http.Cookie{
		Name: CookieName, Value: signed + "." + k.mac(signed), Path: "/", MaxAge: int(sessionLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil || forwardedTLS(r),
	})
}

// forwardedTLS says that the client came to the outermost proxy by https.
func forwardedTLS(r *http.Request) bool {
	proto, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
	return strings.EqualFold(strings.TrimSpace(proto), "https")
}
