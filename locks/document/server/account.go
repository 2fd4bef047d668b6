package server

import (
	"net/http"
	"net/url"
	"strings"
)

const (
	// Protocol is the WebSocket subprotocol of a Server. A client that sends a
	// token as a subprotocol has to offer this one too: a browser requires that one
	// is accepted, and the token is never sent back.
	Protocol = "doclock"
	// bearerProtocol is the prefix with which a browser sends a token as a
	// subprotocol of a WebSocket, where it cannot set headers.
	bearerProtocol = "bearer."
)

// Verifier returns the subject of a request's bearer token, which is not empty, and its display
// name or "", or an error of taskauth's; taskauth.Verifier is one.
type Verifier interface {
	Subject(r *http.Request) (subject, name string, err error)
}

// Accounts are sessions proved by a bearer token: in Authorization or, for a
// WebSocket, as the subprotocol bearer.TOKEN together with Protocol.
type Accounts struct {
	Verifier Verifier
}

// Caller returns as the owner "oidc/" and the token's subject, percent-encoded so that no subject
// looks like another subject with a client's name.
func (a Accounts) Caller(_ http.ResponseWriter, r *http.Request, _ bool) (Caller, error) {
	if len(r.Header["Authorization"]) == 0 {
		if tokens := offered(r); len(tokens) == 1 {
			r = r.WithContext(r.Context()) // a copy, whose header is replaced
			r.Header = http.Header{"Authorization": {"Bearer " + tokens[0]}}
		}
	}
	sub, name, err := a.Verifier.Subject(r)
	if err != nil {
		return Caller{}, err
	}
	return Caller{Owner: "oidc/" + url.PathEscape(sub), Name: displayName(name)}, nil
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
