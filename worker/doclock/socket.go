package doclock

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"

	"taskguard/lease/documentlock"
	"taskguard/worker/lifecycle"
)

// writeTimeout is the time limit of sending one message.
const writeTimeout = 5 * time.Second

// The causes of a socket's end, besides lifecycle.ErrStopping.
var (
	errDisconnected = errors.New("doclock: the client has disconnected")
	errReceived     = errors.New("doclock: the client sent a message")
)

// message is an event for clients. It contains nothing secret.
type message struct {
	Type      string  `json:"type"`
	Room      string  `json:"room_id"`
	Holder    *string `json:"holder"`
	ExpiresAt *string `json:"expires_at"`
	Reason    string  `json:"reason"`
	Version   int64   `json:"version"`
}

func messageOf(e documentlock.Event) message {
	m := message{Type: "DocumentUnlocked", Room: e.Room, Reason: e.Reason, Version: e.Version}
	if e.Locked {
		m.Type, m.Holder, m.ExpiresAt = "DocumentLocked", &e.Holder, stamp(e.ExpiresAt)
	}
	return m
}

// subscribe handles GET …/ws. It returns when the socket is closed.
func (s *Server) subscribe(c echo.Context) error {
	began := time.Now()
	q, sub, err := s.openSubscription(c)
	if err != nil {
		return s.answer(c, "subscribe", q.room, began, nil, err)
	}
	defer s.End()
	defer sub.Close()
	conn, err := websocket.Accept(c.Response(), c.Request(), &websocket.AcceptOptions{Subprotocols: []string{Protocol}})
	if err == nil {
		s.serve(conn, sub)
	}
	s.record(c, "subscribe", q.room, nil, c.Response().Status, began) // Accept has answered a request that it refuses
	return nil
}

// openSubscription counts a socket and opens its subscription before the upgrade, so that a
// refusal is an HTTP answer.
func (s *Server) openSubscription(c echo.Context) (q target, sub *documentlock.Subscription, err error) {
	r := c.Request()
	switch {
	case !sameHost(r):
		return q, nil, errCrossSite
	case !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return q, nil, requestError("want a WebSocket")
	}
	if q, err = s.identify(c); err != nil {
		return q, nil, err
	}
	if err := s.Begin(s.o.MaxSockets); err != nil {
		return q, nil, err
	}
	if sub, err = s.feed.Subscribe(r.Context(), q.room); err != nil {
		s.End()
	}
	return q, sub, err
}

// sameHost reports whether a page of this server, or a client other than a browser, opens
// the WebSocket. A browser sends the cookie for pages of any site.
func sameHost(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && len(origins) == 1 && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// serve sends the events of sub until sub ends, the client disconnects or the process
// stops. Then it closes conn.
func (s *Server) serve(conn *websocket.Conn, sub *documentlock.Subscription) {
	ctx, end := context.WithCancelCause(context.Background())
	stopWaiting := context.AfterFunc(s.work, func() { end(lifecycle.ErrStopping) })
	defer stopWaiting()
	var reading, pinging sync.WaitGroup
	reading.Go(func() { end(received(conn)) })
	pinging.Go(func() { end(s.ping(ctx, conn)) })
	end(send(ctx, conn, sub))
	pinging.Wait()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errDisconnected):
		_ = conn.CloseNow() // closed already, or the peer is dead
	case errors.Is(cause, errReceived):
		_ = conn.Close(websocket.StatusPolicyViolation, "messages are not accepted")
	case errors.Is(cause, lifecycle.ErrStopping):
		_ = conn.Close(websocket.StatusGoingAway, "stopping")
	default:
		_ = conn.Close(websocket.StatusTryAgainLater, "no events")
	}
	reading.Wait()
}

// received waits until the client closes the socket or sends a message. The
// library's CloseRead would wait for itself for 15 s.
func received(conn *websocket.Conn) error {
	if _, _, err := conn.Reader(context.Background()); err != nil { // ends when conn is closed
		return errDisconnected
	}
	return errReceived
}

// send sends the events, the current state first. A message that has begun keeps
// its time limit while the process stops: cancelling it would cut the socket off.
func send(ctx context.Context, conn *websocket.Conn, sub *documentlock.Subscription) error {
	for {
		e, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		data, err := json.Marshal(messageOf(e))
		if err != nil {
			return err
		}
		writing, done := context.WithTimeout(context.Background(), writeTimeout)
		err = conn.Write(writing, websocket.MessageText, data)
		done()
		if err != nil {
			return errDisconnected
		}
	}
}

// ping pings the client until ctx ends or there is no answer.
func (s *Server) ping(ctx context.Context, conn *websocket.Conn) error {
	ticker := time.NewTicker(s.o.Ping)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		answering, done := context.WithTimeout(ctx, s.o.Ping)
		err := conn.Ping(answering)
		done()
		if err != nil && ctx.Err() == nil {
			return errDisconnected
		}
	}
}
