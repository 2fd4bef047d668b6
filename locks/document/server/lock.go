package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
	"taskguard/locks/document"
)

// target is the room of a request, and the owner that sent it.
type target struct {
	room, owner string
	session     Caller // without its client; its Owner is empty: none, and owner holds no lock
}

// roomKey is the key of the room's id in an echo.Context.
const roomKey = "room"

// Bodies of the successful answers.
type (
	held struct {
		Success   bool    `json:"success"`
		ExpiresAt *string `json:"expires_at"`
		LockedAt  *string `json:"locked_at"`
		TTL       int64   `json:"ttl_ms"`
		Token     int64   `json:"token"`
		Holder    string  `json:"holder"`
	}
	released struct {
		Success  bool   `json:"success"`
		Released bool   `json:"released"` // false: it was free
		Message  string `json:"message"`
	}
	status struct {
		IsLocked  bool    `json:"is_locked"`
		IsMyLock  bool    `json:"is_my_lock"`
		LockedAt  *string `json:"locked_at"`
		ExpiresAt *string `json:"expires_at"`
		Name      string  `json:"holder_name,omitempty"`
		User      string  `json:"user_id,omitempty"`
	}
	confirmed struct {
		Success   bool    `json:"success"`
		Token     int64   `json:"token"`
		ExpiresAt *string `json:"expires_at"`
		ValidFor  int64   `json:"valid_for_ms"`
	}
)

// operation changes or reads the lock of q, and returns the body of the answer.
type operation func(ctx context.Context, q target, c echo.Context) (any, error)

// lock makes a handler of do, which first identifies the caller. It ignores the body.
func (s *Server) lock(name string, do operation) echo.HandlerFunc {
	return s.logged(name, func(c echo.Context) error {
		q, err := s.identify(c)
		if err != nil {
			return err
		}
		if name != "confirm" && name != "release" { // these ask only if they refuse
			if _, err := s.permit(c.Request(), q.session, q.room); err != nil {
				return err
			}
		}
		body, err := do(c.Request().Context(), q, c)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, body)
	})
}

// checkSite refuses a request that a page of another site makes. A browser also opens WebSockets,
// which are GET requests, for pages of any site, and sends the cookie and the page's origin.
func (s *Server) checkSite(r *http.Request) error {
	if isWebSocket(r) { // checked as a POST, by its origin alone
		r = &http.Request{Method: http.MethodPost, Host: r.Host, Header: http.Header{"Origin": r.Header["Origin"]}}
	}
	if s.sites.Check(r) != nil {
		return errCrossSite
	}
	return nil
}

// identify returns the room and the owner of a request. A POST begins a session, since a page's
// first requests include only one POST.
func (s *Server) identify(c echo.Context) (q target, err error) {
	r := c.Request()
	if err := s.checkSite(r); err != nil {
		return q, err
	}
	caller, err := s.sessions.Caller(c.Response(), r, r.Method == http.MethodPost)
	if err != nil {
		return q, err
	}
	client, err := clientOf(r)
	if err != nil {
		return q, err
	}
	room, err := roomOf(r)
	if err != nil {
		return q, err
	}
	c.Set(roomKey, room)
	return target{room, caller.Owner + client, caller}, nil
}

// roomOf returns the room id in r's path, percent-decoded exactly once. Echo's own
// parameter is decoded or not, depending on how the path is written.
func roomOf(r *http.Request) (string, error) {
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/api/documents/")
	segment, _, _ := strings.Cut(rest, "/")
	room, err := url.PathUnescape(segment)
	if err != nil {
		return "", requestError("the room id is not percent-encoded")
	}
	return room, document.CheckRoom(room)
}

// ClientHeader distinguishes the clients of one session, such as a browser's tabs.
const ClientHeader = "X-Lock-Client"

var clientName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// clientOf returns what the client adds to its session's owner: nothing, or a slash
// and its name.
func clientOf(r *http.Request) (string, error) {
	names := r.Header.Values(ClientHeader)
	switch {
	case len(names) == 0:
		return "", nil
	case len(names) > 1 || !clientName.MatchString(names[0]):
		return "", requestError(ClientHeader + " is not 1 to 64 of A-Z, a-z, 0-9, _ and -")
	}
	return "/" + names[0], nil
}

// acquire handles POST. A POST of the owner is a heartbeat (SEEDS D1).
func (s *Server) acquire(ctx context.Context, q target, _ echo.Context) (any, error) {
	if err := s.beginLock(ctx, q); err != nil {
		return nil, err
	}
	defer s.rooms.end(q.session.Owner, q.room)
	state, err := s.locks.AcquireAs(ctx, q.room, q.owner, q.session.Profile)
	if err == nil || errors.Is(err, lease.ErrUnavailable) { // it may have been acquired
		s.rooms.keep(q.session.Owner, q.room, s.locks.TTL())
	}
	return heldBody(state.Lock), err
}

// extend handles PUT, the client's heartbeat (SEEDS D2).
func (s *Server) extend(ctx context.Context, q target, _ echo.Context) (any, error) {
	state, err := s.locks.Renew(ctx, q.room, q.owner)
	if err == nil {
		s.rooms.keep(q.session.Owner, q.room, s.locks.TTL())
	}
	return heldBody(state.Lock), err
}

// heldBody returns the answer for a lock that the caller holds. A client counts the TTL, the time
// from the heartbeat to the expiry, from the time at which it sent the request, and so need not
// compare its clock with the store's.
func heldBody(l document.Lock) held {
	ttl := l.ExpiresAt.Sub(l.HeartbeatAt)
	return held{true, stamp(l.ExpiresAt), stamp(l.LockedAt), ttl.Milliseconds(), l.Token, l.Holder}
}

// release handles DELETE. A tab that is closed does not wait for the answer, so
// the release does not depend on its request's context (SEEDS D3).
func (s *Server) release(ctx context.Context, q target, c echo.Context) (any, error) {
	freed, err := s.locks.Release(context.WithoutCancel(ctx), q.room, q.owner)
	if !freed { // a holder gives back its lock without a permission, as at the end of its session
		if _, denied := s.permit(c.Request(), q.session, q.room); denied != nil {
			return nil, denied
		}
	}
	if err == nil {
		s.rooms.keep(q.session.Owner, q.room, 0)
	}
	if !freed {
		return released{true, false, "ロックは既に解放されています。"}, err
	}
	return released{true, true, "ロックを解放しました"}, nil
}

// show handles GET.
func (s *Server) show(ctx context.Context, q target, _ echo.Context) (any, error) {
	state, err := s.locks.Get(ctx, q.room, q.owner)
	body := status{state.Locked, state.Mine, stamp(state.Lock.LockedAt), stamp(state.Lock.ExpiresAt), "", ""}
	if q.session.Owner != "" {
		body.Name, body.User = state.Lock.Name, state.Lock.User
	}
	return body, err
}

// confirm handles GET …/confirm, which a client calls right before it saves. Without token, any
// token of the session is confirmed. The holder needs no further permission: its application asks
// while it handles a request, and may handle only one at a time.
func (s *Server) confirm(ctx context.Context, q target, c echo.Context) (any, error) {
	token, err := strconv.ParseInt(c.QueryParam("token"), 10, 64)
	if c.QueryParams().Has("token") && (err != nil || token < 1) {
		return nil, requestError("token is not a positive integer")
	}
	state, err := s.locks.Confirm(ctx, q.room, q.owner, token)
	if err != nil && !state.Mine { // others may not even be told whether the room is locked
		_, denied := s.permit(c.Request(), q.session, q.room)
		err = cmp.Or(denied, err)
	}
	valid := max(0, time.Until(state.Until))
	return confirmed{true, state.Lock.Token, stamp(state.Lock.ExpiresAt), valid.Milliseconds()}, err
}
