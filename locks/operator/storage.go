package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"taskguard/lease"
)

const (
	// DefaultTimeout is the time from a session's last use to the expiry of its value (O6).
	DefaultTimeout = 4 * time.Hour
	// wait bounds an operation, including the wait for other programs (O8).
	wait = 2 * time.Second
)

var errWaited = fmt.Errorf("gave up after %v", wait)

// Options configure a Storage; the zero value is the default.
type Options struct {
	Timeout time.Duration      // zero: DefaultTimeout
	Alive   func(pid int) bool // whether a process of this host is alive (O9); nil: all are
	Log     *slog.Logger       // nil: none
}

// Storage is one session's value, with a timeout, in a state that sessions share.
// Each method is one commit of at most 2 s. Its errors: lease.ErrUnavailable after
// that time, with the reason; lease.ErrRefused where another attempt cannot help,
// such as without permission. It is safe for concurrent use.
type Storage struct {
	store         lease.Store[State]
	path, session string
	o             Options
}

// NewStorage returns the Storage of a session in the state at path: the key of
// store, which is a [File] or behaves as one.
func NewStorage(store lease.Store[State], path, session string, o Options) (*Storage, error) {
	switch {
	case session == "" || !utf8.ValidString(session):
		return nil, fmt.Errorf("operator: session %q is empty or not UTF-8", session)
	case o.Timeout < 0:
		return nil, fmt.Errorf("operator: negative timeout %v", o.Timeout)
	case o.Timeout == 0:
		o.Timeout = DefaultTimeout
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Storage{store: store, path: path, session: session, o: o}, nil
}

// Store makes v the session's value.
func (s *Storage) Store(ctx context.Context, v string) error {
	return s.edit(ctx, func(entries map[string]entry, now time.Time) {
		entries[s.session] = entries[s.session].holding(v).with(now)
	})
}

// Remove removes the session's value. It returns false if there was none.
func (s *Storage) Remove(ctx context.Context) (removed bool, err error) {
	err = s.edit(ctx, func(entries map[string]entry, _ time.Time) {
		_, removed = entries[s.session]
		delete(entries, s.session)
	})
	return removed && err == nil, err
}

// OtherEntries returns the values of the other sessions, by session.
func (s *Storage) OtherEntries(ctx context.Context) (map[string]string, error) {
	var others map[string]string
	err := s.edit(ctx, func(entries map[string]entry, _ time.Time) { others = s.others(entries) })
	return others, err
}

// Restore returns the session's value, and false if it has none.
func (s *Storage) Restore(ctx context.Context) (v string, ok bool, err error) {
	err = s.edit(ctx, func(entries map[string]entry, _ time.Time) {
		v, ok = entries[s.session].data, entries[s.session].valid
	})
	return v, ok && err == nil, err
}

// Refresh extends the session's value to one timeout from now. It returns false if
// there is none.
func (s *Storage) Refresh(ctx context.Context) (refreshed bool, err error) {
	err = s.edit(ctx, func(entries map[string]entry, now time.Time) { refreshed = s.refresh(entries, now) })
	return refreshed && err == nil, err
}

func (s *Storage) refresh(entries map[string]entry, now time.Time) bool {
	e, ok := entries[s.session]
	if ok {
		entries[s.session] = e.with(now)
	}
	return ok
}

func (s *Storage) others(entries map[string]entry) map[string]string {
	others := map[string]string{}
	for session, e := range entries {
		if session != s.session && e.valid {
			others[session] = e.data
		}
	}
	return others
}

// edit removes expired entries, calls change with the others, and writes the state
// back.
func (s *Storage) edit(ctx context.Context, change func(entries map[string]entry, now time.Time)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	var was, next State
	_, err := lease.Edit(ctx, s.store, s.path, nil, func(c lease.Cell[State]) (State, error) {
		was, next = c.Doc, State{storage: s.live(c.Doc.storage, c.At), rest: c.Doc.rest}
		change(next.storage, c.At)
		return next, nil
	}, func(c lease.Cell[State]) bool { return c.Doc.shows(was, next) })
	switch {
	case errors.Is(err, lease.ErrMalformed):
		return fmt.Errorf("operator: %s is left unchanged: %w", s.path, err)
	case err != nil:
		return fmt.Errorf("operator: %w", err)
	case was.damaged != nil:
		s.o.Log.WarnContext(ctx, "the state file was corrupt; a new one was begun", "path", s.path, "bytes", len(was.damaged))
	}
	return nil
}

// live returns a copy of entries without those that have expired at now, or that
// belong to a dead process (O9).
func (s *Storage) live(entries map[string]entry, now time.Time) map[string]entry {
	live := make(map[string]entry, len(entries))
	for session, e := range entries {
		if e.updated.After(now) {
			e = e.with(now)
		}
		l := lease.Lease{Owner: session, HeartbeatAt: e.updated, ExpiresAt: e.updated.Add(s.o.Timeout)}
		if lease.Held(l, now) && (session == s.session || s.alive(session)) {
			live[session] = e
		}
	}
	return live
}

// alive reports false if session is the ID of a dead process.
func (s *Storage) alive(session string) bool {
	pid, err := strconv.Atoi(session)
	process := err == nil && pid > 0 && pid <= math.MaxInt32 && strconv.Itoa(pid) == session
	return !process || s.o.Alive == nil || s.o.Alive(pid)
}

// SessionID returns the ID that all processes of a terminal session share: its
// ITERM_SESSION_ID, else its TERM_SESSION_ID, else the process ID of their parent,
// the shell (O4). An empty variable counts as unset.
func SessionID(getenv func(name string) string, parent func() int) string {
	if id := cmp.Or(getenv("ITERM_SESSION_ID"), getenv("TERM_SESSION_ID")); id != "" {
		return id
	}
	return strconv.Itoa(parent())
}
