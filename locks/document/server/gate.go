package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	askTimeout   = 3 * time.Second
	remembered   = 10 * time.Second // how long an answer counts for further requests
	permittedFor = time.Minute      // how long an answer counts for a socket, which is then closed
	maxAsked     = 100              // connections to the application
)

// gate asks the application whether a session may use a room: GET url?room=ROOM with the
// caller's cookies and token. Without a URL everybody may.
type gate struct {
	url       string
	transport *http.Transport
	answers   sync.Map // of func() error, for each session and room
}

// newGate returns the gate of a URL. Its connections are bounded, so that a slow application gets no more of them.
func newGate(url string) *gate {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: askTimeout}).DialContext,
		TLSHandshakeTimeout: askTimeout, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
		MaxConnsPerHost: maxAsked, MaxIdleConnsPerHost: maxAsked,
	}
	return &gate{url: url, transport: t}
}

// check returns nil, errNotPermitted or errNotAsked. No answer is kept for callers without a
// session, which may be different users.
func (g *gate) check(r *http.Request, session, room string) error {
	ask := func() error { return g.ask(r, room) }
	if session == "" {
		return ask()
	}

	q := [2]string{session, room}
	kept, found := g.answers.LoadOrStore(q, sync.OnceValue(ask)) // all callers wait for one request
	if !found {
		time.AfterFunc(remembered, func() { g.answers.Delete(q) })
	}
	err := kept.(func() error)()
	if errors.Is(err, errNotAsked) {
		g.answers.Delete(q)
	}
	return err
}

// ask makes the request, which outlives r: others may wait for its answer.
func (g *gate) ask(r *http.Request, room string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAsked, err)
	}
	query := request.URL.Query()
	query.Set("room", room)
	request.URL.RawQuery = query.Encode()
	request.Header = http.Header{
		"Accept": {"application/json"}, // Laravel then answers 401 instead of a redirect
		"Cookie": r.Header["Cookie"], "Authorization": withToken(r).Header["Authorization"],
	}

	// A redirect is not followed: it leads to a login page, which is answered 200.
	resp, err := g.transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAsked, err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody) // so that the connection is used again
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusNotFound:
		return errNotPermitted
	case code < 200 || code > 299:
		return fmt.Errorf("%w: status %d", errNotAsked, code)
	}
	return nil
}

// permit asks whether the caller may use the room, and returns until when a socket may rely on the
// answer and on the session; zero: for ever.
func (s *Server) permit(r *http.Request, caller Caller, room string) (until time.Time, err error) {
	if s.gate.url == "" {
		return caller.Until, nil
	}
	until = time.Now().Add(permittedFor)
	if !caller.Until.IsZero() && caller.Until.Before(until) {
		until = caller.Until
	}
	return until, s.gate.check(r, caller.Owner, room)
}
