package operatorpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"taskguard/lease"
)

const (
	// DefaultTimeout is how long a value lives after its session's last use (O6).
	DefaultTimeout = 4 * time.Hour
	// wait bounds an operation, and so how long it waits for other programs (O8).
	wait = 2 * time.Second
)

var errWaited = fmt.Errorf("gave up after %v", wait)

// Options are what may be left to the defaults.
type Options struct {
	Timeout time.Duration      // zero: DefaultTimeout
	Alive   func(pid int) bool // whether a process of this host lives (O9); nil: all do
	Log     *slog.Logger       // nil: silent
}

// Storage is one session's timed value in a state that sessions share. Each method
// is one commit of at most 2 s, after which the error is lease.ErrUnavailable and
// says what was in the way; lease.ErrRefused where asking again is of no use, such
// as for want of permission. It is safe for concurrent use.
type Storage[T any] struct {
	store         lease.Store[State[T]]
	path, session string
	o             Options
}

// NewStorage is for the session of that name and the state at path: the key of
// store, which is a [File] or behaves as one.
func NewStorage[T any](store lease.Store[State[T]], path, session string, o Options) (*Storage[T], error) {
	switch {
	case session == "" || !utf8.ValidString(session):
		return nil, fmt.Errorf("operatorpool: session %q is empty or not UTF-8", session)
	case o.Timeout < 0:
		return nil, fmt.Errorf("operatorpool: negative timeout %v", o.Timeout)
	case o.Timeout == 0:
		o.Timeout = DefaultTimeout
	}
	if o.Alive == nil {
		o.Alive = func(int) bool { return true }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Storage[T]{store: store, path: path, session: session, o: o}, nil
}

// Store makes v the session's value, as of now.
func (s *Storage[T]) Store(ctx context.Context, v T) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("operatorpool: value: %w", err)
	}
	return s.edit(ctx, func(entries map[string]entry[T], now time.Time) {
		entries[s.session] = entries[s.session].holding(v, raw).with(now)
	})
}

// Remove removes the session's value, and reports false if it had none.
func (s *Storage[T]) Remove(ctx context.Context) (removed bool, err error) {
	err = s.edit(ctx, func(entries map[string]entry[T], _ time.Time) {
		_, removed = entries[s.session]
		delete(entries, s.session)
	})
	return removed && err == nil, err
}

// OtherEntries are the values of the other sessions.
func (s *Storage[T]) OtherEntries(ctx context.Context) (map[string]T, error) {
	var others map[string]T
	err := s.edit(ctx, func(entries map[string]entry[T], _ time.Time) { others = s.others(entries) })
	return others, err
}

// Restore is the session's value, and false if it has none.
func (s *Storage[T]) Restore(ctx context.Context) (v T, ok bool, err error) {
	err = s.edit(ctx, func(entries map[string]entry[T], _ time.Time) {
		v, ok = entries[s.session].data, entries[s.session].known
	})
	return v, ok && err == nil, err
}

// Refresh lets the session's value live for another timeout from now, and reports
// false if it has none.
func (s *Storage[T]) Refresh(ctx context.Context) (refreshed bool, err error) {
	err = s.edit(ctx, func(entries map[string]entry[T], now time.Time) { refreshed = s.refresh(entries, now) })
	return refreshed && err == nil, err
}

func (s *Storage[T]) refresh(entries map[string]entry[T], now time.Time) bool {
	e, ok := entries[s.session]
	if ok {
		entries[s.session] = e.with(now)
	}
	return ok
}

func (s *Storage[T]) others(entries map[string]entry[T]) map[string]T {
	others := map[string]T{}
	for session, e := range entries {
		if session != s.session && e.known {
			others[session] = e.data
		}
	}
	return others
}

// edit cleans up, lets change make its change to the entries that are left, and
// writes the state back.
func (s *Storage[T]) edit(ctx context.Context, change func(entries map[string]entry[T], now time.Time)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	var was, next State[T]
	_, err := lease.Edit(ctx, s.store, s.path, nil, func(c lease.Cell[State[T]]) (State[T], error) {
		was, next = c.Doc, State[T]{storage: s.live(c.Doc.storage, c.At), rest: c.Doc.rest}
		change(next.storage, c.At)
		return next, nil
	}, func(c lease.Cell[State[T]]) bool { return c.Doc.shows(was, next) })
	switch {
	case errors.Is(err, lease.ErrMalformed):
		return fmt.Errorf("operatorpool: %s is left as it is: %w", s.path, err)
	case err != nil:
		return fmt.Errorf("operatorpool: %w", err)
	case was.damaged != nil:
		s.o.Log.WarnContext(ctx, "the state file held no state: it was begun anew", "path", s.path, "bytes", len(was.damaged))
	}
	return nil
}

// live is a copy of what of entries has not timed out by now and whose process, if
// that is what the session is named after, is not dead.
func (s *Storage[T]) live(entries map[string]entry[T], now time.Time) map[string]entry[T] {
	live := make(map[string]entry[T], len(entries))
	for session, e := range entries {
		if e.updated.After(now) {
			e = e.with(now)
		} else if e.unsound {
			e = e.with(e.updated)
		}
		l := lease.Lease{Owner: session, HeartbeatAt: e.updated, ExpiresAt: e.updated.Add(s.o.Timeout)}
		if lease.Held(l, now) && (session == s.session || s.alive(session)) {
			live[session] = e
		}
	}
	return live
}

func (s *Storage[T]) alive(session string) bool {
	pid, ok := processID(session)
	return !ok || s.o.Alive(pid)
}
