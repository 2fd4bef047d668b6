package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"

	"taskguard/internal/lifecycle"
	"taskguard/locks/document"
)

// writeTimeout is the time limit of sending one message.
const writeTimeout = 5 * time.Second

// The causes of a socket's end, besides lifecycle.ErrStopping.
var (
	errReceived   = errors.New("doclock: the client sent a message")
	errUnanswered = errors.New("doclock: the client has not answered a ping")
)

// accepting are the options of a WebSocket whose origin allowed has checked.
var accepting = &websocket.AcceptOptions{Subprotocols: []string{Protocol}, InsecureSkipVerify: true}

// message is an event for clients. It contains nothing secret.
type message struct {
	Type      string  `json:"type"`
	Room      string  `json:"room_id"`
	Holder    *string `json:"holder"`
	Name      string  `json:"holder_name,omitempty"`
	ExpiresAt *string `json:"expires_at"`
	Reason    string  `json:"reason"`
	Version   int64   `json:"version"`
}

// messageOf returns the message for e. The holder's display name is for readers with a
// session (named) only.
func messageOf(e document.Event, named bool) message {
	m := message{Type: "DocumentUnlocked", Room: e.Room, Reason: e.Reason, Version: e.Version}
	if e.Locked {
		m.Type, m.Holder, m.ExpiresAt = "DocumentLocked", &e.Holder, stamp(e.ExpiresAt)
		if named {
			m.Name = e.Name
		}
	}
	return m
}

// subscribe handles GET …/ws. It returns when the socket is closed.
func (s *Server) subscribe(c echo.Context) error {
	began := time.Now()
	q, sub, err := s.openSubscription(c)
	if err != nil {
		s.answer(c, "subscribe", q.room, began, nil, err)
		return nil
	}
	defer s.closeSocket(q.session, c.Request())
	defer sub.Close()
	conn, err := websocket.Accept(c.Response(), c.Request(), accepting)
	if err == nil {
		s.serve(conn, sub, q.owner != "")
	}
	s.record(c, "subscribe", q.room, nil, c.Response().Status, began) // Accept has answered a request that it refuses
	return nil
}

// openSubscription counts a socket and opens its subscription before the upgrade, so that a
// refusal is an HTTP answer.
func (s *Server) openSubscription(c echo.Context) (q target, sub *document.Subscription, err error) {
	r := c.Request()
	if err := s.openSocket(r); err != nil {
		return q, nil, err
	}
	if q, err = s.identify(c); err == nil {
		err = s.takeSocket(q.session, r)
	}
	if err == nil {
		sub, err = s.feed.Subscribe(r.Context(), q.room)
	}
	if err != nil {
		s.closeSocket(q.session, r)
	}
	return q, sub, err
}

// openSocket counts a socket, which End ends, unless r may not open one.
func (s *Server) openSocket(r *http.Request) error {
	switch {
	case !s.allowed(r):
		return errCrossSite
	case !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return requestError("want a WebSocket")
	}
	return s.Begin(s.o.MaxSockets)
}

// allowed reports whether a page of this server or of an allowed origin, or a client other
// than a browser, opens the WebSocket. A browser sends the cookie for pages of any site.
func (s *Server) allowed(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && len(origins) == 1 && u.Host != "" &&
		(strings.EqualFold(u.Host, r.Host) || slices.Contains(s.o.Origins, origins[0]))
}

// serve sends the events of sub until the client disconnects or the process stops. Then
// it closes conn.
func (s *Server) serve(conn *websocket.Conn, sub *document.Subscription, named bool) {
	read := func(context.Context) error { return received(conn) }
	s.run(conn, read, func(ctx context.Context) { send(ctx, conn, sub, named) }, func(cause error) {
		switch {
		case errors.Is(cause, errReceived):
			_ = conn.Close(websocket.StatusPolicyViolation, "messages are not accepted")
		case errors.Is(cause, lifecycle.ErrStopping):
			_ = conn.Close(websocket.StatusGoingAway, "stopping")
		default:
			_ = conn.CloseNow() // closed already, or the peer is dead
		}
	})
}

// run serves a socket until read returns, the client does not answer a ping or the process
// stops; that ends the context of send. Then it closes conn by end, which gets the cause,
// and waits for read, which returns nil if the client has disconnected.
func (s *Server) run(conn *websocket.Conn, read func(ctx context.Context) error, send func(ctx context.Context),
	end func(cause error),
) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stopWaiting := context.AfterFunc(s.work, func() { cancel(lifecycle.ErrStopping) })
	defer stopWaiting()
	var reading, pinging sync.WaitGroup
	reading.Go(func() { cancel(read(ctx)) })
	pinging.Go(func() { cancel(s.ping(ctx, conn)) })
	send(ctx)
	pinging.Wait()
	end(context.Cause(ctx))
	reading.Wait()
}

// received waits until the client closes the socket, or sends a message. The
// library's CloseRead would wait for itself for 15 s.
func received(conn *websocket.Conn) error {
	if _, _, err := conn.Reader(context.Background()); err != nil { // ends when conn is closed
		return nil //nolint:nilerr // the client has disconnected
	}
	return errReceived
}

// send sends the events until ctx ends, the current state first.
func send(ctx context.Context, conn *websocket.Conn, sub *document.Subscription, named bool) {
	for {
		e, err := sub.Next(ctx)
		if err != nil {
			return
		}
		write(conn, messageOf(e, named))
	}
}

// write sends a message. One that has begun keeps its time limit while the process
// stops: cancelling it would cut the socket off. A failure closes conn, which ends its reading.
func write(conn *websocket.Conn, message any) {
	data, _ := json.Marshal(message) // it has only strings and numbers
	writing, done := context.WithTimeout(context.Background(), writeTimeout)
	defer done()
	_ = conn.Write(writing, websocket.MessageText, data)
}

// ping pings the client until ctx ends or there is no answer.
func (s *Server) ping(ctx context.Context, conn *websocket.Conn) error {
	ticker := time.NewTicker(s.o.Ping)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		answering, done := context.WithTimeout(ctx, s.o.Ping)
		err := conn.Ping(answering)
		done()
		if err != nil && ctx.Err() == nil {
			return errUnanswered
		}
	}
}
