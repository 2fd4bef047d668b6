package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"

	"taskguard/internal/clock"
	"taskguard/locks/document"
)

const (
	// writeTimeout is the time limit of sending one message.
	writeTimeout = 5 * time.Second
	// closeExpired is the code that closes a socket of GET …/ws when its session, or the
	// application's permission, has to be proved again.
	closeExpired websocket.StatusCode = 4401
)

// errReceived is the cause of the end of a socket whose client sent a message.
var errReceived = errors.New("doclock: the client sent a message")

// accepting are the options of a WebSocket whose origin checkSite has checked.
var accepting = &websocket.AcceptOptions{Subprotocols: []string{Protocol}, InsecureSkipVerify: true}

// message is an event for clients. It contains nothing secret.
type message struct {
	Type      string  `json:"type"`
	Room      string  `json:"room_id"`
	Holder    *string `json:"holder"`
	Name      string  `json:"holder_name,omitempty"`
	User      string  `json:"user_id,omitempty"`
	ExpiresAt *string `json:"expires_at"`
	Reason    string  `json:"reason"`
	Version   int64   `json:"version"`
}

// messageOf returns the message for e. With named, which is for readers with a session only, it
// contains the holder's profile.
func messageOf(e document.Event, named bool) message {
	m := message{Type: "DocumentUnlocked", Room: e.Room, Reason: e.Reason, Version: e.Version}
	if e.Locked {
		m.Type, m.Holder, m.ExpiresAt = "DocumentLocked", &e.Holder, stamp(e.ExpiresAt)
		if named {
			m.Name, m.User = e.Name, e.User
		}
	}
	return m
}

// subscribe handles GET …/ws. It returns when the socket is closed. A refusal is an HTTP answer,
// before the upgrade.
func (s *Server) subscribe(c echo.Context) error {
	r := c.Request()
	q, err := s.identify(c)
	if err != nil {
		return err
	}
	until, err := s.permit(r, q.session, q.room)
	if err != nil {
		return err
	}
	if err := s.openSocket(r, q.session.Owner); err != nil {
		return err
	}
	defer s.closeSocket(q.session.Owner, r)
	sub, err := s.feed.Subscribe(r.Context(), q.room)
	if err != nil {
		return err
	}
	defer sub.Close()

	conn, err := websocket.Accept(c.Response(), r, accepting)
	if err != nil {
		return nil // Accept has answered
	}
	s.serve(conn, sub, until, q.session.Owner != "")
	return nil
}

// serve sends the events of sub until the client disconnects, until has passed or the process stops.
// Then it closes conn. With named, the messages contain the holder's profile.
func (s *Server) serve(conn *websocket.Conn, sub *document.Subscription, until time.Time, named bool) {
	read := func(context.Context) error { return received(conn) }
	send := func(ctx context.Context) {
		for e := range sub.Events(ctx) {
			write(conn, messageOf(e, named))
		}
	}
	s.run(conn, until, read, send, func(cause error) {
		switch {
		case errors.Is(cause, errExpired):
			_ = conn.Close(closeExpired, errExpired.Message)
		case errors.Is(cause, errReceived):
			_ = conn.Close(websocket.StatusPolicyViolation, "messages are not accepted")
		case errors.Is(cause, errStopping):
			_ = conn.Close(websocket.StatusGoingAway, "stopping")
		default:
			_ = conn.CloseNow() // closed already, or the peer is dead
		}
	})
}

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// openSocket counts a socket of the session, unless r may not open one. See closeSocket.
func (s *Server) openSocket(r *http.Request, session string) error {
	if !isWebSocket(r) {
		return requestError("want a WebSocket")
	}
	if err := s.Begin(s.o.MaxSockets); err != nil {
		return err
	}
	err := s.takeSocket(session, r)
	if err != nil {
		s.End()
	}
	return err
}

// run serves a socket until read returns, the client does not answer a ping, until has passed or the
// process stops; that ends the context of send. Then it closes conn by end, which gets the cause,
// and waits for read, which returns nil if the client has disconnected.
func (s *Server) run(conn *websocket.Conn, until time.Time, read func(ctx context.Context) error,
	send func(ctx context.Context), end func(cause error),
) {
	proved, release := before(context.Background(), until)
	defer release()
	ctx, cancel := context.WithCancelCause(proved)
	stopWaiting := context.AfterFunc(s.work, func() { cancel(errStopping) })
	defer stopWaiting()
	var reading, pinging sync.WaitGroup
	reading.Go(func() { cancel(read(ctx)) })
	pinging.Go(func() { cancel(s.ping(ctx, conn)) })
	send(ctx)
	pinging.Wait()
	end(context.Cause(ctx))
	reading.Wait()
}

// before returns a context that ends with errExpired at until, unless that is zero.
func before(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	if until.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadlineCause(ctx, until, errExpired)
}

// received waits until the client closes the socket, or sends a message. The
// library's CloseRead would wait for itself for 15 s.
func received(conn *websocket.Conn) error {
	if _, _, err := conn.Reader(context.Background()); err != nil { // ends when conn is closed
		return nil //nolint:nilerr // the client has disconnected
	}
	return errReceived
}

// write sends a message. Once begun, a write keeps its time limit while the process
// stops: cancelling it would cut the socket off. A failure closes conn, which ends its reading.
func write(conn *websocket.Conn, message any) {
	data, _ := json.Marshal(message) // it has only strings and numbers
	writing, done := context.WithTimeout(context.Background(), writeTimeout)
	defer done()
	_ = conn.Write(writing, websocket.MessageText, data)
}

// ping pings the client until ctx ends or there is no answer.
func (s *Server) ping(ctx context.Context, conn *websocket.Conn) error {
	for clock.Sleep(ctx, s.o.Ping) {
		answering, done := context.WithTimeout(ctx, s.o.Ping)
		err := conn.Ping(answering)
		done()
		if err != nil && ctx.Err() == nil {
			return errNoPong
		}
	}
	return nil
}
