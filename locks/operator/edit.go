package operator

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"taskguard/lease"
)

// view is the state as one session sees it in one edit.
type view struct {
	Status
	entries map[string]entry // to be changed
	now     time.Time
}

// edit removes expired entries, refreshes the session's own one, calls change with the
// others, and writes the state back, also after an error of change, which it returns.
func (p *Pool) edit(ctx context.Context, change func(*view) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()

	corrupt := 0
	var refused error
	decide := func(c lease.Cell[State]) (State, error) {
		next := State{storage: p.live(c.Doc.storage, c.At), rest: c.Doc.rest}
		corrupt, refused = c.Doc.corrupt, change(p.view(next.storage, c.At))
		return next, nil
	}
	landed := func(lease.Cell[State]) bool { return false } // to make a change twice does no harm
	_, err := lease.Edit(ctx, p.store, p.path, lease.Write[State]{Decide: decide, Landed: landed})
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}

	if corrupt > 0 {
		p.o.Log.WarnContext(ctx, "the state file was corrupt; a new one was begun", "path", p.path, "bytes", corrupt)
	}
	return refused
}

// view refreshes the session's entry and returns what the session sees.
func (p *Pool) view(entries map[string]entry, now time.Time) *view {
	v := &view{entries: entries, now: now}
	busy := map[string]bool{}
	for session, e := range entries {
		if session != p.session {
			busy[e.data] = true
			continue
		}
		e = e.usedAt(now)
		entries[session] = e
		v.Operator, v.ExpiresAt = Operator{ID: e.data, Name: e.data}, e.updated.Add(p.o.Timeout)
	}

	for _, o := range p.operators {
		state := Available
		if o.ID == v.Operator.ID {
			state, v.Operator = Own, o
		}
		if busy[o.ID] {
			state = Busy
		}
		v.Operators = append(v.Operators, Listed{o, state})
	}
	return v
}

// live returns a copy of entries without those that have expired at now, or that
// belong to a dead process.
func (p *Pool) live(entries map[string]entry, now time.Time) map[string]entry {
	live := make(map[string]entry, len(entries))
	for session, e := range entries {
		if e.updated.After(now) {
			e = e.usedAt(now)
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
	return err != nil || pid <= 0 || p.o.Alive == nil || p.o.Alive(pid)
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
