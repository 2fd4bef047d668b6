package doclock

import (
	"net/http"
	"net/url"
	"strings"

	"taskguard/worker/taskauth"
)

const (
	// Protocol is the WebSocket subprotocol that a Server speaks. Who sends a
	// token as another has to offer this too: a browser wants one of its own
	// accepted, and the token is never sent back.
	Protocol = "doclock"
	// bearerProtocol and a token are how a browser sends it with a WebSocket,
	// where it can set no header.
	bearerProtocol = "bearer."
)

// Verifier answers the subject of a request's bearer token, or an error of
// taskauth's; taskauth.Verifier is one.
type Verifier interface {
	Subject(r *http.Request) (string, error)
}

// Accounts are sessions that a bearer token proves: in Authorization or, for a
// WebSocket, as the subprotocol bearer.TOKEN beside Protocol.
type Accounts struct {
	Verifier Verifier
}

// Owner is "oidc/" and the token's subject, percent-encoded so that no subject
// looks like another's with a client's name.
func (a Accounts) Owner(_ http.ResponseWriter, r *http.Request, _ bool) (string, error) {
	if len(r.Header["Authorization"]) == 0 {
		if tokens := offered(r); len(tokens) == 1 {
			r = r.WithContext(r.Context()) // a copy, whose header is to be another
			r.Header = http.Header{"Authorization": {"Bearer " + tokens[0]}}
		}
	}
	sub, err := a.Verifier.Subject(r)
	if err != nil {
		return "", err
	}
	if sub == "" {
		return "", taskauth.ErrUnauthenticated
	}
	return "oidc/" + url.PathEscape(sub), nil
}

// Begin does nothing: the page gets its token elsewhere.
func (Accounts) Begin(http.ResponseWriter, *http.Request) {}

// offered are the tokens among the subprotocols that r offers.
func offered(r *http.Request) (tokens []string) {
	for _, line := range r.Header["Sec-Websocket-Protocol"] {
		for name := range strings.SplitSeq(line, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(name), bearerProtocol); ok {
				tokens = append(tokens, token)
			}
		}
	}
	return tokens
}
