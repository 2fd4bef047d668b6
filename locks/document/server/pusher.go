package server

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"

	"taskguard/internal/clock"
	"taskguard/locks/document"
)

const (
	// maxBody is the size of the largest body of a request, in bytes.
	maxBody = 64 << 10
	// maxChannel is the longest name of a channel that Pusher's clients permit, in bytes.
	maxChannel = 164
	// maxChannels is how many channels one socket may subscribe to.
	maxChannels = 20
	// maxBurst is how many messages of a socket are handled at once. Further ones wait, one
	// messageInterval each: a subscription costs a read of the store.
	maxBurst        = 2 * maxChannels
	messageInterval = 200 * time.Millisecond
	// activityTimeout is the time in seconds without a message after which a client
	// sends a ping.
	activityTimeout = 30
)

// Pusher has the application's key and secret of the Pusher protocol. The key is public;
// the secret signs the subscriptions of private channels. Without a key, all sockets of the
// protocol are refused.
type Pusher struct {
	Key, Secret string
	Channel     string // a public channel's name, with {room}; empty: DefaultChannel
	Namespace   string // stands before the events' names, such as App\Events; empty: none
}

// DefaultChannel is the name of a room's public channel.
const DefaultChannel = "documents.{room}"

// pusherError is an error of the Pusher protocol. Codes from 4000 to 4299 close the
// socket, except 4009 for one channel.
type pusherError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *pusherError) Error() string { return "doclock: " + e.Message }

// The errors of the Pusher protocol. By the code a client decides how it connects again:
// 40xx not at all, 41xx after a second, 42xx at once.
var (
	errUnknownKey   = &pusherError{4001, "the key is not PUSHER_APP_KEY, or that is not set"}
	errUnauthorized = &pusherError{4009, "the subscription is not authorized"}
	errOtherKind    = &pusherError{4009, "presence and encrypted channels are not served; use a private channel"}
	errNoStore      = &pusherError{4100, "the store is out of reach"}
	errStopping     = &pusherError{4200, "this instance is stopping"}
	errMessage      = &pusherError{4200, "invalid message"}
	errNoPong       = &pusherError{4201, "no reply to a ping"}
	errExpired      = &pusherError{4203, "the session or the permission has expired; connect again to prove it"}
	errEvent        = &pusherError{4301, "clients may only subscribe, unsubscribe and ping"}
	errManyChannels = &pusherError{4301, "too many channels of this socket, of this session, or of all sockets of this instance"}
)

// frame is a message of the Pusher protocol from the server; Data is JSON in a string.
type frame struct {
	Event   string `json:"event"`
	Channel string `json:"channel,omitempty"`
	Data    string `json:"data"`
}

// sign returns the authorization of a socket for a private channel. grant is the hash of the
// session that the channel counts for, a colon, and when that expires, in ms since 1970. An
// application that signs has none.
func (p Pusher) sign(socket, channel, grant string) string {
	suffix := ""
	if grant != "" {
		suffix = ":" + grant
	}
	h := hmac.New(sha256.New, []byte(p.Secret))
	h.Write([]byte(socket + ":" + channel + suffix)) // never fails
	return p.Key + ":" + hex.EncodeToString(h.Sum(nil)) + suffix
}

// payerOf returns the hash that stands for a session in an authorization; empty: no session.
func payerOf(session string) string {
	if session == "" {
		return ""
	}
	return document.Hash(session)
}

// otherKind matches the names of channels that Pusher's clients subscribe to otherwise.
var otherKind = regexp.MustCompile(`^(presence|private-encrypted)-`)

var escapedRoom = regexp.MustCompile(`^[A-Za-z0-9_=@,.;-]+$`)

// roomOf returns the room of a channel's name, in which =XX stands for a byte.
func (p Pusher) roomOf(name string) (room string, private bool, err error) {
	if otherKind.MatchString(name) {
		return "", false, errOtherKind
	}
	prefix, suffix, _ := strings.Cut(cmp.Or(p.Channel, DefaultChannel), "{room}")
	public, private := strings.CutPrefix(name, "private-")
	text, begins := strings.CutPrefix(public, prefix)
	text, ends := strings.CutSuffix(text, suffix)
	if !begins || !ends || !escapedRoom.MatchString(text) || len(name) > maxChannel {
		return "", false, errUnauthorized
	}
	room, err = url.PathUnescape(strings.ReplaceAll(text, "=", "%"))
	if err == nil {
		err = document.CheckRoom(room)
	}
	return room, private, err
}

// event returns the name of the event for a message's type: with the namespace, if there is one.
func (p Pusher) event(kind string) string {
	return strings.TrimPrefix(p.Namespace+`\`+kind, `\`)
}

var socketID = regexp.MustCompile(`^[0-9]{1,20}\.[0-9]{1,20}$`)

// authorize handles POST /broadcasting/auth: it signs the subscription of a socket to a
// private channel for a caller with a session. The body is a form or, as axios sends it, JSON.
func (s *Server) authorize(c echo.Context) error {
	r := c.Request()
	if s.o.Pusher.Key == "" {
		return echo.ErrNotFound
	}
	if err := s.checkSite(r); err != nil {
		return err
	}
	caller, err := s.sessions.Caller(c.Response(), r, false)
	if err != nil {
		return err
	}
	if caller.Owner == "" {
		return errNoSession
	}

	var want struct {
		Socket  string `json:"socket_id" form:"socket_id"`
		Channel string `json:"channel_name" form:"channel_name"`
	}
	r.Body = http.MaxBytesReader(c.Response(), r.Body, maxBody)
	_ = c.Bind(&want) // an invalid body names no channel
	room, private, err := s.o.Pusher.roomOf(want.Channel)
	switch {
	case errors.Is(err, errOtherKind):
		return err
	case err != nil || !private || !socketID.MatchString(want.Socket):
		return errForeignChannel
	}
	until, err := s.permit(r, caller, room)
	if err != nil {
		return err
	}
	auth := s.o.Pusher.sign(want.Socket, want.Channel, fmt.Sprintf("%s:%d", payerOf(caller.Owner), until.UnixMilli()))
	return c.JSON(http.StatusOK, map[string]string{"auth": auth})
}

// connect handles GET /app/KEY, a socket of the Pusher protocol. It returns when the
// socket is closed.
func (s *Server) connect(c echo.Context) error {
	r := c.Request()
	if err := s.checkSite(r); err != nil {
		return err
	}
	caller, _ := s.sessions.Caller(c.Response(), r, false) // a socket needs no session
	if err := s.openSocket(r, caller.Owner); err != nil {
		return err
	}
	defer s.closeSocket(caller.Owner, r)

	conn, err := websocket.Accept(c.Response(), r, accepting)
	if err != nil {
		return nil // Accept has answered
	}
	id := fmt.Sprintf("%d.%d", rand.Uint32(), rand.Uint32()) //nolint:gosec // an address, not a secret
	p := &pusher{server: s, conn: conn, request: r, caller: caller, id: id,
		changes: make(chan change, maxBurst), channels: map[string]context.CancelFunc{}}
	if c.Param("key") != s.o.Pusher.Key { // the route has no empty key
		p.close(errUnknownKey)
		return nil
	}
	s.run(conn, time.Time{}, p.read, p.begin, p.close)
	p.forwarding.Wait()
	return nil
}

// pusher is a socket of the Pusher protocol.
type pusher struct {
	server     *Server
	conn       *websocket.Conn
	request    *http.Request // that has opened it
	caller     Caller        // of request: the session that its public channels count for
	id         string
	paced      time.Time // when the last message was due; the reading goroutine's own
	changes    chan change
	channels   map[string]context.CancelFunc // each ends a subscription; apply's own
	forwarding sync.WaitGroup
}

// change is a message that begins or ends a subscription.
type change struct {
	Event string
	Data  json.RawMessage
}

// begin sends the socket's id.
func (p *pusher) begin(context.Context) {
	hello := map[string]any{"socket_id": p.id, "activity_timeout": activityTimeout}
	p.send("pusher:connection_established", "", hello)
}

// close closes the socket with the code for its cause.
func (p *pusher) close(cause error) {
	var known *pusherError
	if !errors.As(cause, &known) {
		_ = p.conn.CloseNow() // closed already
		return
	}

	p.send("pusher:error", "", known)
	if known == errNoPong {
		_ = p.conn.CloseNow() // no peer would answer
		return
	}
	_ = p.conn.Close(websocket.StatusCode(known.Code), known.Message)
}

// send sends an event.
func (p *pusher) send(event, channel string, data any) {
	text, _ := json.Marshal(data) // it has only strings and numbers
	write(p.conn, frame{event, channel, string(text)})
}

// read handles the client's messages until the socket ends.
func (p *pusher) read(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.forwarding.Go(func() { defer stop(); p.apply(ctx) })

	for {
		kind, data, err := p.conn.Read(context.Background()) // ends when conn is closed
		if err != nil {
			return nil // the client has disconnected
		}
		if kind != websocket.MessageText {
			return errMessage
		}

		p.pace(ctx)
		if err := p.told(p.handle(ctx, data)); err != nil {
			return err
		}
	}
}

// told sends the client an error that does not end the socket. It returns any other.
func (p *pusher) told(err error) error {
	var known *pusherError
	if !errors.As(err, &known) || known.Code != errUnauthorized.Code && known.Code != errEvent.Code {
		return err
	}
	p.send("pusher:error", "", known)
	return nil
}

// apply changes the subscriptions, one after another, until ctx ends or one ends the socket. The application
// and the store may take seconds to answer, and the client's pings are answered in that time.
func (p *pusher) apply(ctx context.Context) {
	for {
		select {
		case m := <-p.changes:
			if err := p.told(p.change(ctx, m)); err != nil {
				p.close(err)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// pace waits until the next message may be handled, or ctx ends.
func (p *pusher) pace(ctx context.Context) {
	if earliest := time.Now().Add(-maxBurst * messageInterval); p.paced.Before(earliest) {
		p.paced = earliest
	}
	p.paced = p.paced.Add(messageInterval)
	clock.Sleep(ctx, time.Until(p.paced))
}

// handle handles one message.
func (p *pusher) handle(ctx context.Context, data []byte) error {
	var m change
	if json.Unmarshal(data, &m) != nil {
		return errMessage
	}

	switch m.Event {
	case "pusher:ping":
		p.send("pusher:pong", "", struct{}{})
		return nil
	case "pusher:pong":
		return nil
	case "pusher:subscribe", "pusher:unsubscribe":
		select {
		case p.changes <- m:
		case <-ctx.Done():
		}
		return nil
	}
	return errEvent
}

// change begins or ends a subscription. The data of m is an object, or its JSON in a string.
func (p *pusher) change(ctx context.Context, m change) error {
	var text string
	if json.Unmarshal(m.Data, &text) == nil && text != "" {
		m.Data = json.RawMessage(text)
	}
	var about struct{ Channel, Auth string }
	if json.Unmarshal(m.Data, &about) != nil {
		return errMessage
	}
	if m.Event == "pusher:subscribe" {
		return p.subscribe(ctx, about.Channel, about.Auth)
	}
	p.unsubscribe(about.Channel)
	return nil
}

// subscribe begins to forward the events of a channel's room, the current state first.
func (p *pusher) subscribe(ctx context.Context, channel, auth string) error {
	s := p.server
	room, private, err := s.o.Pusher.roomOf(channel)
	payer, until := payerOf(p.caller.Owner), time.Time{}
	_, grant, _ := strings.Cut(strings.TrimPrefix(auth, s.o.Pusher.Key+":"), ":")
	switch {
	case err != nil:
	case !private:
		until, err = s.permit(p.request, p.caller, room)
	case !hmac.Equal([]byte(auth), []byte(s.o.Pusher.sign(p.id, channel, grant))):
		err = errUnauthorized
	case grant != "":
		sum, expiry, _ := strings.Cut(grant, ":")
		ms, _ := strconv.ParseInt(expiry, 10, 64) // signed by sign
		payer, until = sum, time.UnixMilli(ms)
	}

	refused := errUnauthorized
	errors.As(err, &refused) // else the room's id is wrong, or the application has refused
	switch {
	case errors.Is(err, errNotAsked):
		p.postpone(ctx, channel, until)
		return nil
	case err != nil:
		p.refuse(channel, "AuthError", refused)
		return refused
	}

	p.unsubscribe(channel)
	if len(p.channels) >= maxChannels || !s.openChannel(payer, &channel) {
		p.refuse(channel, "LimitReached", errManyChannels)
		return nil
	}
	sub, err := s.feed.Subscribe(ctx, room)
	if err != nil {
		s.closeChannel(payer, &channel)
		return errNoStore
	}

	ctx, cancel := before(ctx, until)
	p.channels[channel] = cancel
	p.forwarding.Go(func() {
		defer s.closeChannel(payer, &channel)
		defer sub.Close()
		p.forward(ctx, channel, sub, private)
		p.closeIfExpired(ctx)
	})
	return nil
}

// postpone refuses a channel of which the application does not answer whether it is permitted. The other
// channels go on, and the client asks again at until, on a new socket.
func (p *pusher) postpone(ctx context.Context, channel string, until time.Time) {
	status, _, message := refusal(errNotAsked)
	p.refuse(channel, "AuthError", &pusherError{status, message})
	p.unsubscribe(channel)
	if len(p.channels) >= maxChannels {
		return
	}

	ctx, cancel := before(ctx, until)
	p.channels[channel] = cancel
	p.forwarding.Go(func() {
		<-ctx.Done()
		p.closeIfExpired(ctx)
	})
}

// closeIfExpired closes the socket if ctx has expired: a client authorizes its channels again only on a new one.
func (p *pusher) closeIfExpired(ctx context.Context) {
	if errors.Is(context.Cause(ctx), errExpired) {
		p.close(errExpired)
	}
}

// refuse reports that a channel is not subscribed to, so that Echo calls error for it.
func (p *pusher) refuse(channel, kind string, err *pusherError) {
	p.send("pusher:subscription_error", channel, map[string]any{"type": kind, "status": err.Code, "error": err.Message})
}

// forward sends the events of sub until ctx ends.
func (p *pusher) forward(ctx context.Context, channel string, sub *document.Subscription, private bool) {
	p.send("pusher_internal:subscription_succeeded", channel, struct{}{})
	for e := range sub.Events(ctx) {
		m := messageOf(e, private)
		p.send(p.server.o.Pusher.event(m.Type), channel, m)
	}
}

func (p *pusher) unsubscribe(channel string) {
	if end := p.channels[channel]; end != nil {
		end()
		delete(p.channels, channel)
	}
}
