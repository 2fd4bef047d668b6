package server

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"taskguard/internal/lifecycle"
	"taskguard/internal/taskauth"
	"taskguard/locks/document"
)

const (
	// CookieName is the session's cookie.
	CookieName = "doclock_session"
	// MinSecret is the minimum length of the secret that signs it, in bytes.
	MinSecret = 32
	// sessionLife is the time from a session's last renewal to its end. A session is
	// renewed when half of it has passed.
	sessionLife = 30 * 24 * time.Hour
	// sessionVersion is the version of the cookie's format. The signature covers it.
	sessionVersion = "v1"
)

// Cookies are sessions proved by a signed cookie: version.id.issued.mac, or
// version.id.issued.name.mac with a display name in unpadded URL-safe base64, or
// version.id.issued.name.user.mac with the id that others see, in the same encoding. mac is the
// HMAC-SHA256 of CookieName, a line feed and what precedes ".mac". An application that has the
// secret may make the cookie itself, with the user's id, in which all but [A-Za-z0-9_-] is
// percent-encoded; with a name or such an id it is not renewed. Instances that share the secret
// accept each other's sessions; nothing is stored.
//
// A caller without a cookie has no session until a POST or the page begins one, unless
// the application makes all sessions: then a POST is refused. A cookie that is forged,
// altered or expired is ErrSession, and is deleted: so a caller that assumes it holds a
// lock does not become another owner unnoticed. Two valid sessions at once are refused, and
// neither is deleted, since the other would remain: one of them was set by another site, such
// as a neighbouring subdomain, which a cookie of this name cannot prevent. Serve the document
// lock on a domain whose subdomains are all your own.
type Cookies struct {
	Application bool // the application makes all sessions; none is begun or renewed here
	secret      []byte
}

// NewCookies returns an error for a secret of less than MinSecret bytes.
func NewCookies(secret []byte) (*Cookies, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("doclock: the secret has %d bytes, at least %d are needed", len(secret), MinSecret)
	}
	return &Cookies{secret: secret}, nil
}

// session holds what a valid cookie proves.
type session struct {
	id      string
	profile document.Profile
	age     time.Duration
}

// Caller returns as the owner "session/" and the session's id, percent-encoded so that it
// never looks like another id with a client's name. It renews a session that this server has begun
// if half of its life has passed.
func (k *Cookies) Caller(w http.ResponseWriter, r *http.Request, begin bool) (Caller, error) {
	var valid session
	cookies := r.CookiesNamed(CookieName)
	for _, cookie := range cookies {
		next := k.read(cookie.Value)
		if next.id != "" && valid.id != "" && next.id != valid.id {
			return Caller{}, errTwoSessions
		}
		if next.id != "" {
			valid = next
		}
	}

	switch {
	case valid.id == "" && len(cookies) > 0:
		http.SetCookie(w, &http.Cookie{Name: CookieName, Path: "/", MaxAge: -1})
		return Caller{}, ErrSession
	case valid.id == "" && !begin:
		return Caller{}, nil
	case valid.id == "" && k.Application:
		return Caller{}, errNoSession
	case valid.id == "":
		valid.id = rand.Text()
		k.set(w, r, valid.id)
	case valid.age >= sessionLife/2 && valid.profile == (document.Profile{}) && !k.Application:
		k.set(w, r, valid.id)
	}
	until := time.Now().Add(sessionLife - valid.age)
	return Caller{"session/" + url.PathEscape(valid.id), until, shown(valid.profile)}, nil
}

// read returns the session that a cookie's value proves. An invalid cookie has an empty id.
func (k *Cookies) read(value string) session {
	end := strings.LastIndexByte(value, '.')
	if end < 0 || !hmac.Equal([]byte(value[end+1:]), []byte(k.mac(value[:end]))) {
		return session{}
	}
	parts := strings.Split(value[:end], ".") // ours: the mac is valid
	if len(parts) < 3 || len(parts) > 5 || parts[0] != sessionVersion {
		return session{}
	}

	id, err := url.PathUnescape(parts[1])
	issued, timeErr := strconv.ParseInt(parts[2], 10, 64)
	age := time.Since(time.Unix(issued, 0))
	if err != nil || timeErr != nil || age >= sessionLife {
		return session{}
	}
	var published [2]string // the name and the user; signed by the application
	for i, part := range parts[3:] {
		text, _ := base64.RawURLEncoding.DecodeString(part)
		published[i] = string(text)
	}
	return session{id, document.Profile{Name: published[0], User: published[1]}, age}
}

// mac returns the MAC as base64. Callers compare this text and do not decode it, since
// several base64 texts decode to the same bytes.
func (k *Cookies) mac(signed string) string {
	h := hmac.New(sha256.New, k.secret)
	h.Write([]byte(CookieName + "\n" + signed)) // never fails; the name separates other uses of the secret
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func (k *Cookies) set(w http.ResponseWriter, r *http.Request, id string) {
	escaped := strings.ReplaceAll(url.PathEscape(id), ".", "%2E")
	signed := fmt.Sprintf("%s.%s.%d", sessionVersion, escaped, time.Now().Unix())
	http.SetCookie(w, &http.Cookie{
		Name: CookieName, Value: signed + "." + k.mac(signed), Path: "/", MaxAge: int(sessionLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: lifecycle.TLS(r),
	})
}

const (
	// Protocol is the WebSocket subprotocol of a Server. A client that sends a
	// token as a subprotocol has to offer this one too: a browser requires that one
	// is accepted, and the token is never sent back.
	Protocol = "doclock"
	// bearerProtocol is the prefix with which a browser sends a token as a
	// subprotocol of a WebSocket, where it cannot set headers.
	bearerProtocol = "bearer."
)

// Verifier returns the account of a request's bearer token, whose ID is not empty, or an error of
// taskauth's; taskauth.Verifier is one.
type Verifier interface {
	Subject(r *http.Request) (taskauth.Subject, error)
}

// Accounts are sessions proved by a bearer token: in Authorization or, for a
// WebSocket, as the subprotocol bearer.TOKEN together with Protocol.
type Accounts struct {
	Verifier Verifier
}

// Caller returns as the owner "oidc/" and the token's subject, percent-encoded so that no subject
// looks like another subject with a client's name.
func (a Accounts) Caller(_ http.ResponseWriter, r *http.Request, _ bool) (Caller, error) {
	sub, err := a.Verifier.Subject(withToken(r))
	if err != nil {
		return Caller{}, err
	}
	profile := shown(document.Profile{Name: sub.Name, User: sub.User})
	return Caller{"oidc/" + url.PathEscape(sub.ID), sub.Expires, profile}, nil
}

// withToken returns r with the token that it offers as a subprotocol in Authorization.
func withToken(r *http.Request) *http.Request {
	tokens := offered(r)
	if len(r.Header["Authorization"]) > 0 || len(tokens) != 1 {
		return r
	}
	r = r.WithContext(r.Context()) // a copy, whose header is replaced
	r.Header = http.Header{"Authorization": {"Bearer " + tokens[0]}}
	return r
}

// offered returns the tokens among the subprotocols that r offers.
func offered(r *http.Request) (tokens []string) {
	for name := range strings.SplitSeq(strings.Join(r.Header["Sec-Websocket-Protocol"], ","), ",") {
		if token, ok := strings.CutPrefix(strings.TrimSpace(name), bearerProtocol); ok {
			tokens = append(tokens, token)
		}
	}
	return tokens
}
