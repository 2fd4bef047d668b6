package doclock

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease/documentlock"
)

// maxBody is how much of a request is read. Its body says nothing.
const maxBody = 64 << 10

// question is a request that may be answered.
type question struct {
	room, owner string
}

// Bodies of the answers that are 200.
type (
	acquired struct {
		Success   bool       `json:"success"`
		ExpiresAt *timestamp `json:"expires_at"`
		LockedAt  *timestamp `json:"locked_at"`
		TTL       int64      `json:"ttl_ms"`
		Token     int64      `json:"token"`
		Holder    string     `json:"holder"`
	}
	extended struct {
		Success   bool       `json:"success"`
		ExpiresAt *timestamp `json:"expires_at"`
		TTL       int64      `json:"ttl_ms"`
		Token     int64      `json:"token"`
	}
	released struct {
		Success  bool   `json:"success"`
		Released bool   `json:"released"` // false: nobody held it
		Message  string `json:"message"`
	}
	shown struct {
		IsLocked  bool       `json:"is_locked"`
		IsMyLock  bool       `json:"is_my_lock"`
		LockedAt  *timestamp `json:"locked_at"`
		ExpiresAt *timestamp `json:"expires_at"`
	}
	confirmed struct {
		Success   bool       `json:"success"`
		Token     int64      `json:"token"`
		ExpiresAt *timestamp `json:"expires_at"`
		ValidFor  int64      `json:"valid_for_ms"`
	}
)

// lock makes a handler of do: who asks, and whether they may, is decided first,
// and what came of it is one log line.
func (s *Server) lock(operation string, do func(ctx context.Context, q question, c echo.Context) (any, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		began, r := time.Now(), c.Request()
		q, err := s.ask(c)
		if err == nil {
			err = drained(c.Response(), r)
		}
		var body any
		if err == nil {
			defer s.Pass()() // until the answer is written; half a request holds up no stop
			body, err = do(r.Context(), q, c)
		}
		status := http.StatusOK
		if err != nil {
			status, _, _ = refusal(err)
		}
		s.record(r.Context(), operation, q.room, err, status, began)
		if err != nil {
			return s.refuse(c, err)
		}
		return c.JSON(status, body)
	}
}

// ask says who asks for which room, or why they may not. Who proves nothing is
// nobody, with an empty owner, except for POST, which begins a session: so of a
// page's first requests only one does.
func (s *Server) ask(c echo.Context) (q question, err error) {
	r := c.Request()
	if s.sites.Check(r) != nil {
		return q, errCrossSite
	}
	owner, err := s.sessions.Owner(c.Response(), r, r.Method == http.MethodPost)
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
	if owner != "" {
		owner += client
	}
	return question{room: room, owner: owner}, nil
}

// drained reads the body and forgets it, so that the connection can go on.
func drained(w http.ResponseWriter, r *http.Request) error {
	_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return errTooLarge
	case err != nil:
		return requestError("the body did not arrive in full")
	}
	return nil
}

// acquire is POST (D1). To the owner it is a heartbeat.
func (s *Server) acquire(ctx context.Context, q question, _ echo.Context) (any, error) {
	state, err := s.locks.Acquire(ctx, q.room, q.owner)
	l := state.Lock
	return acquired{true, stamp(l.ExpiresAt), stamp(l.LockedAt), ttl(l), l.Token, l.Holder}, err
}

// extend is PUT, the client's heartbeat (D2).
func (s *Server) extend(ctx context.Context, q question, _ echo.Context) (any, error) {
	state, err := s.locks.Extend(ctx, q.room, q.owner)
	return extended{true, stamp(state.Lock.ExpiresAt), ttl(state.Lock), state.Lock.Token}, err
}

// ttl is how long a lock lives after its heartbeat, in milliseconds, so that a
// client need not compare the store's clock with its own: it counts from when it
// sent the request.
func ttl(l documentlock.Lock) int64 { return l.ExpiresAt.Sub(l.HeartbeatAt).Milliseconds() }

// release is DELETE (D3). Who closes a tab does not wait for the answer, so the
// release goes on without them.
func (s *Server) release(ctx context.Context, q question, _ echo.Context) (any, error) {
	was, err := s.locks.Release(context.WithoutCancel(ctx), q.room, q.owner)
	if !was {
		return released{true, false, "ロックは既に解放されています。"}, err
	}
	return released{true, true, "ロックを解放しました"}, err
}

// show is GET.
func (s *Server) show(ctx context.Context, q question, _ echo.Context) (any, error) {
	state, err := s.locks.Get(ctx, q.room, q.owner)
	return shown{state.Locked, state.Mine, stamp(state.Lock.LockedAt), stamp(state.Lock.ExpiresAt)}, err
}

// confirm is GET …/confirm, for the moment of saving.
func (s *Server) confirm(ctx context.Context, q question, c echo.Context) (any, error) {
	token, err := strconv.ParseInt(c.QueryParam("token"), 10, 64)
	if err != nil {
		return nil, requestError("token is not an integer")
	}
	state, err := s.locks.Confirm(ctx, q.room, q.owner, token)
	valid := max(0, time.Until(state.Until))
	return confirmed{true, state.Lock.Token, stamp(state.Lock.ExpiresAt), valid.Milliseconds()}, err
}
