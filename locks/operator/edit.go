package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"taskguard/lease"
)

// view is the state as one session sees it in one edit.
type view struct {
	entries   map[string]entry
	busy      map[string]bool // other sessions' operators
	free      []Operator
	own       string    // the session's operator
	expiresAt time.Time // of its reservation
	now       time.Time
}

// edit removes expired entries, refreshes the session's own one, calls change with the
// others, and writes the state back.
func (p *Pool) edit(ctx context.Context, change func(*view)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()

	var before, after State
	decide := func(c lease.Cell[State]) (State, error) {
		before, after = c.Doc, State{storage: p.live(c.Doc.storage, c.At), rest: c.Doc.rest}
		change(p.view(after.storage, c.At))
		return after, nil
	}
	landed := func(c lease.Cell[State]) bool { return c.Doc.shows(before, after) }
	_, err := lease.Edit(ctx, p.store, p.path, nil, decide, landed)

	switch {
	case errors.Is(err, lease.ErrMalformed):
		return fmt.Errorf("operator: %s is left unchanged: %w", p.path, err)
	case err != nil:
		return fmt.Errorf("operator: %w", err)
	case before.damaged != nil:
		size := len(before.damaged)
		p.o.Log.WarnContext(ctx, "the state file was corrupt; a new one was begun", "path", p.path, "bytes", size)
	}
	return nil
}

// view refreshes the session's entry and returns what the session sees.
func (p *Pool) view(entries map[string]entry, now time.Time) *view {
	v := &view{entries: entries, busy: map[string]bool{}, free: []Operator{}, now: now}
	for session, e := range entries {
		switch {
		case session == p.session:
			e = e.with(now)
			entries[session] = e
			v.own, v.expiresAt = e.data, e.updated.Add(p.o.Timeout)
		case e.data != "":
			v.busy[e.data] = true
		}
	}

	for _, o := range p.operators {
		if !v.busy[o.ID] {
			v.free = append(v.free, o)
		}
	}
	return v
}

// live returns a copy of entries without those that have expired at now, or that
// belong to a dead process.
func (p *Pool) live(entries map[string]entry, now time.Time) map[string]entry {
	live := make(map[string]entry, len(entries))
	for session, e := range entries {
		if e.updated.After(now) {
			e = e.with(now)
		}
		l := lease.Lease{Owner: session, HeartbeatAt: e.updated, ExpiresAt: e.updated.Add(p.o.Timeout)}
		if lease.Held(l, now) && (session == p.session || p.alive(session)) {
			live[session] = e
		}
	}
	return live
}

// alive reports false if session is the ID of a dead process.
func (p *Pool) alive(session string) bool {
	pid, err := strconv.Atoi(session)
	process := err == nil && pid > 0 && pid <= math.MaxInt32 && strconv.Itoa(pid) == session
	return !process || p.o.Alive == nil || p.o.Alive(pid)
}

// SessionID returns the ID that all processes of a terminal session share: its
// ITERM_SESSION_ID, else its TERM_SESSION_ID, else the process ID of their parent,
// the shell. An empty variable counts as unset (SEEDS O4).
func SessionID(getenv func(name string) string, parent func() int) string {
	if id := cmp.Or(getenv("ITERM_SESSION_ID"), getenv("TERM_SESSION_ID")); id != "" {
		return id
	}
	return strconv.Itoa(parent())
}
