package server

import (
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/lifecycle"
	"taskguard/internal/taskauth"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/locks/document"
)

// The errors of requests that are refused before a lock is read.
var (
	// ErrSession is a session cookie that is forged, altered or expired.
	ErrSession = errors.New("doclock: invalid session")

	errTwoSessions    = errors.New("doclock: two sessions at once")
	errCrossSite      = errors.New("doclock: cross-site request")
	errNoSession      = errors.New("doclock: no session")
	errForeignChannel = errors.New("doclock: foreign channel")
	errManyLocks      = errors.New("doclock: too many locks of this session")
	errManySockets    = errors.New("doclock: too many sockets of this session")
	errNoSweep        = errors.New("doclock: swept in part")
	errNotPermitted   = errors.New("doclock: not permitted by the application")
	errNotAsked       = errors.New("doclock: the application does not answer whether this is permitted")
)

// requestError describes what is wrong with a request, without repeating its input.
type requestError string

func (e requestError) Error() string { return string(e) }

// refusals maps errors to answers. The first match is used.
var refusals = []struct {
	err     error
	status  int
	code    string
	message string
}{
	{document.ErrNotLocked, http.StatusNotFound, "lock_not_found", "ロックが見つかりません"},
	{document.ErrNotYours, http.StatusForbidden, "not_locked_by_user", "ロックを保持していません"},
	{errCrossSite, http.StatusForbidden, "cross_site", "the request comes from another site"},
	{ErrSession, http.StatusUnauthorized, "invalid_session", "the session cookie is not valid; load the page again for a new one"},
	{errNoSession, http.StatusForbidden, "no_session", "a session is needed"},
	{errForeignChannel, http.StatusForbidden, "forbidden", "want a socket_id, and the channel_name of a room's private channel"},
	{errOtherKind, http.StatusForbidden, "forbidden", errOtherKind.Message},
	{errNotPermitted, http.StatusForbidden, "not_permitted", "the application does not let this session use the room"},
	{errNotAsked, http.StatusServiceUnavailable, "unavailable", "permissions cannot be checked now; try again"},
	{errTwoSessions, http.StatusUnauthorized, "two_sessions", "there are two valid session cookies, one of them set by another site of this domain; delete both"},
	{taskauth.ErrUnauthenticated, http.StatusUnauthorized, "unauthenticated", "a valid bearer token is needed"},
	{taskauth.ErrForbidden, http.StatusForbidden, "forbidden", "this account may not call"},
	{taskauth.ErrNoKeys, http.StatusServiceUnavailable, "unavailable", "tokens cannot be checked now; try again"},
	{errManyLocks, http.StatusTooManyRequests, "too_many_locks", "this session holds too many locks; release one"},
	{errManySockets, http.StatusTooManyRequests, "too_many_sockets", "this session has too many open sockets; close one"},
	{lifecycle.ErrFull, http.StatusServiceUnavailable, "unavailable", "too many connections here; try again"},
	{lifecycle.ErrStopping, http.StatusServiceUnavailable, "unavailable", "this instance is stopping; try again"},
	{errNoSweep, http.StatusServiceUnavailable, "unavailable", "not all expired locks were swept; try again"},
	{echo.ErrNotFound, http.StatusNotFound, "no_such_route", "no such route"},
	{echo.ErrMethodNotAllowed, http.StatusMethodNotAllowed, "method_not_allowed", "method not allowed"},
	{lease.ErrUnavailable, http.StatusServiceUnavailable, "unavailable", "the store is out of reach; try again"},
}

// refusal returns the answer for err; 500 for an error that is not in the table.
func refusal(err error) (status int, code, message string) {
	var held *document.HeldError
	var wrong requestError
	switch {
	case errors.As(err, &held):
		return http.StatusConflict, "already_locked", "他のユーザーが編集中です"
	case errors.As(err, &wrong):
		return http.StatusBadRequest, "bad_request", wrong.Error()
	case errors.Is(err, lease.ErrInvalidKey):
		return http.StatusBadRequest, "bad_request", text.Error(err, lease.ErrInvalidKey)
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.status, r.code, r.message
		}
	}
	return http.StatusInternalServerError, "internal", "internal error"
}

// refused is the body of every refusal.
type refused struct {
	Success  bool    `json:"success"`
	Error    string  `json:"error"`
	Message  string  `json:"message"`
	LockedAt *string `json:"locked_at,omitempty"`
}

// logged makes a handler of next, which answers a request or returns why it is refused. It writes
// the one log line of a request.
func (s *Server) logged(operation string, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		defer s.Track()() // a stop waits for the log line too
		began := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err) // answers
		}
		s.record(c, operation, began, err)
		return nil
	}
}

// record logs a request that was answered. Successful heartbeats and readings have the level
// DEBUG, since there are tens of thousands in an hour.
func (s *Server) record(c echo.Context, operation string, began time.Time, err error) {
	status, outcome, level := c.Response().Status, "ok", slog.LevelInfo
	if err != nil {
		_, outcome, _ = refusal(err)
	} else if operation == "extend" || operation == "show" || operation == "confirm" {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("operation", operation), slog.String("outcome", outcome), slog.Int("status", status),
		slog.Int64("duration_ms", time.Since(began).Milliseconds()),
	}
	if room, ok := c.Get(roomKey).(string); ok {
		attrs = append(attrs, slog.String("room_hash", document.Hash(room)))
	}
	if err != nil && status >= http.StatusInternalServerError {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", withoutInput(err)))
	}
	s.log.LogAttrs(c.Request().Context(), level, "document lock", attrs...)
}

// handleError answers a request with the refusal for err, also one of an unknown route or method.
func (s *Server) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	status, code, message := refusal(err)
	body := refused{Error: code, Message: message}
	var held *document.HeldError
	if errors.As(err, &held) {
		body.LockedAt = stamp(held.LockedAt)
	}
	if code == "unauthenticated" {
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
	}
	_ = c.JSON(status, body) // it fails for a caller that has gone
}

// stamp returns t as ISO 8601 in UTC with three decimals, or nil, which is null in
// JSON, for the zero time.
func stamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := iso8601.Format(t)
	return &s
}

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// withoutInput returns err's text without what may be a room's id: quoted text, and
// all that follows a document's path.
func withoutInput(err error) string {
	text := quoted.ReplaceAllString(err.Error(), `"…"`)
	if prefix, _, found := strings.Cut(text, "/documents/"); found {
		return prefix + "/documents/…"
	}
	return text
}
