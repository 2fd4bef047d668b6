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

// writeTimeout is how long a client may take for one message.
const writeTimeout = 5 * time.Second

// Why a socket ends, besides lifecycle.ErrStopping.
var (
	errGone  = errors.New("doclock: the client is gone")
	errSpoke = errors.New("doclock: the client said something")
)

// message is what a socket is told: all of it may be seen by everybody.
type message struct {
	Type      string     `json:"type"`
	Room      string     `json:"room_id"`
	Holder    *string    `json:"holder"`
	ExpiresAt *timestamp `json:"expires_at"`
	Reason    string     `json:"reason"`
	Version   int64      `json:"version"`
}

func messageOf(e documentlock.Event) message {
	m := message{Type: "DocumentUnlocked", Room: e.Room, Reason: e.Reason, Version: e.Version}
	if e.Locked {
		m.Type, m.Holder, m.ExpiresAt = "DocumentLocked", &e.Holder, stamp(e.ExpiresAt)
	}
	return m
}

// subscribe is GET …/ws. It returns when the socket is closed.
func (s *Server) subscribe(c echo.Context) error {
	began, ctx := time.Now(), c.Request().Context()
	q, sub, err := s.attend(c)
	if err != nil {
		status, _, _ := refusal(err)
		s.record(ctx, "subscribe", q.room, err, status, began)
		return s.refuse(c, err)
	}
	defer s.End()
	defer sub.Close()
	conn, err := websocket.Accept(c.Response(), c.Request(), &websocket.AcceptOptions{Subprotocols: []string{Protocol}})
	if err == nil {
		s.serve(conn, sub)
	}
	s.record(ctx, "subscribe", q.room, nil, c.Response().Status, began) // what Accept refused it has answered
	return nil
}

// attend counts a socket and opens its subscription, before the upgrade: so who
// cannot be served learns why by HTTP.
func (s *Server) attend(c echo.Context) (q question, sub *documentlock.Subscription, err error) {
	r := c.Request()
	switch {
	case !sameHost(r):
		return q, nil, errCrossSite
	case !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return q, nil, requestError("want a WebSocket")
	}
	if q, err = s.ask(c); err != nil {
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

// sameHost says whether a WebSocket is asked for by a page of ours, or by no page:
// a browser sends the cookie whoever's page asks.
func sameHost(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && len(origins) == 1 && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// serve tells conn what sub has until either ends, the client is gone or the
// process stops. conn is closed then.
func (s *Server) serve(conn *websocket.Conn, sub *documentlock.Subscription) {
	ctx, end := context.WithCancelCause(context.Background())
	unhook := context.AfterFunc(s.work, func() { end(lifecycle.ErrStopping) })
	defer unhook()
	var reading, pinging sync.WaitGroup
	reading.Go(func() { end(heard(conn)) })
	pinging.Go(func() { end(s.ping(ctx, conn)) })
	end(s.tell(ctx, conn, sub))
	pinging.Wait()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errGone):
		_ = conn.CloseNow() // it is closed already, or nobody is there
	case errors.Is(cause, errSpoke):
		_ = conn.Close(websocket.StatusPolicyViolation, "nothing is to be said here") // its error is the client's
	case errors.Is(cause, lifecycle.ErrStopping):
		_ = conn.Close(websocket.StatusGoingAway, "stopping")
	default:
		_ = conn.Close(websocket.StatusTryAgainLater, "no events")
	}
	reading.Wait()
}

// heard waits for the client to go or to say something. It is not the library's
// CloseRead, which then waits for itself for 15 s.
func heard(conn *websocket.Conn) error {
	if _, _, err := conn.Reader(context.Background()); err != nil { // it ends with conn
		return errGone
	}
	return errSpoke
}

// tell writes the events, the current state first.
func (s *Server) tell(ctx context.Context, conn *websocket.Conn, sub *documentlock.Subscription) error {
	for {
		e, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		data, err := json.Marshal(messageOf(e))
		if err != nil {
			return err
		}
		if !sent(conn, data) {
			return errGone
		}
	}
}

// sent gives the client its time for a message, also while the process stops: to
// give up in between would cut the socket off.
func sent(conn *websocket.Conn, data []byte) bool {
	ctx, done := context.WithTimeout(context.Background(), writeTimeout)
	defer done()
	return conn.Write(ctx, websocket.MessageText, data) == nil
}

// ping asks from time to time whether the client is there, until ctx ends or it is
// not.
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
			return errGone
		}
	}
}
