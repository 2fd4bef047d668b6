package doclock

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/lease/iso8601"
	"taskguard/worker/lifecycle"
	"taskguard/worker/taskauth"
)

// Why a request is refused before a lock is asked for.
var (
	// ErrSession is a session cookie that proves nothing: forged, altered, expired.
	ErrSession = errors.New("doclock: invalid session")

	errTwoSessions = errors.New("doclock: two sessions at once")
	errCrossSite   = errors.New("doclock: a request for another site")
	errTooLarge    = errors.New("doclock: the body is too large")
	errNoSweep     = errors.New("doclock: swept in part")
	errRoute       = errors.New("doclock: no such route")
	errMethod      = errors.New("doclock: method not allowed")
)

// requestError is what is wrong with a request, in words that repeat none of it.
type requestError string

func (e requestError) Error() string { return string(e) }

// refusals is the one table from errors to answers: the first that matches counts.
var refusals = []struct {
	err     error
	status  int
	code    string
	message string
}{
	{documentlock.ErrNotLocked, http.StatusNotFound, "lock_not_found", "ロックが見つかりません"},
	{documentlock.ErrNotYours, http.StatusForbidden, "not_locked_by_user", "ロックを保持していません"},
	{errCrossSite, http.StatusForbidden, "cross_site", "the request comes from another site"},
	{ErrSession, http.StatusUnauthorized, "invalid_session", "the session cookie is not valid; load the page again for a new one"},
	{errTwoSessions, http.StatusUnauthorized, "two_sessions", "there are two valid session cookies, one of them set by another site of this domain; delete both"},
	{taskauth.ErrUnauthenticated, http.StatusUnauthorized, "unauthenticated", "a valid bearer token is needed"},
	{taskauth.ErrForbidden, http.StatusForbidden, "forbidden", "this account may not call"},
	{taskauth.ErrNoKeys, http.StatusServiceUnavailable, "unavailable", "tokens cannot be checked now; try again"},
	{errTooLarge, http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 64 KiB"},
	{lifecycle.ErrFull, http.StatusServiceUnavailable, "unavailable", "too many connections here; try again"},
	{lifecycle.ErrStopping, http.StatusServiceUnavailable, "unavailable", "this instance is stopping; try again"},
	{errNoSweep, http.StatusServiceUnavailable, "unavailable", "not all expired locks were swept; try again"},
	{errRoute, http.StatusNotFound, "no_such_route", "no such route"},
	{errMethod, http.StatusMethodNotAllowed, "method_not_allowed", "method not allowed"},
	{lease.ErrUnavailable, http.StatusServiceUnavailable, "unavailable", "the store is out of reach; try again"},
}

// alreadyLocked is what whoever is too late is told.
const alreadyLocked = "already_locked"

// refusal looks err up. What is in no table is ours: 500.
func refusal(err error) (status int, code, message string) {
	var held *documentlock.HeldError
	var wrong requestError
	switch {
	case errors.As(err, &held):
		return http.StatusConflict, alreadyLocked, "他のユーザーが編集中です"
	case errors.As(err, &wrong):
		return http.StatusBadRequest, "bad_request", wrong.Error()
	case errors.Is(err, lease.ErrInvalidKey):
		return http.StatusBadRequest, "bad_request", strings.TrimPrefix(err.Error(), lease.ErrInvalidKey.Error()+": ")
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
	Success  bool       `json:"success"`
	Error    string     `json:"error"`
	Message  string     `json:"message"`
	LockedAt *timestamp `json:"locked_at,omitempty"`
}

// refuse answers err.
func (s *Server) refuse(c echo.Context, err error) error {
	status, code, message := refusal(err)
	body := refused{Error: code, Message: message}
	var held *documentlock.HeldError
	if errors.As(err, &held) {
		body.LockedAt = stamp(held.LockedAt)
	}
	if code == "unauthenticated" {
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
	}
	return c.JSON(status, body)
}

// timestamp is ISO 8601 UTC with exactly three decimals.
type timestamp time.Time

func (t timestamp) MarshalText() ([]byte, error) {
	return []byte(iso8601.Format(time.Time(t))), nil
}

// stamp is nil for the zero time, which JSON shows as null.
func stamp(t time.Time) *timestamp {
	if t.IsZero() {
		return nil
	}
	s := timestamp(t)
	return &s
}

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// withoutInput is err's text without what may be a room's id: what it quotes, and
// all that follows a document's path.
func withoutInput(err error) string {
	text := quoted.ReplaceAllString(err.Error(), `"…"`)
	before, _, path := strings.Cut(text, "/documents/")
	if path {
		return before + "/documents/…"
	}
	return text
}
