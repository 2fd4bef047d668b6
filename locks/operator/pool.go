package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
	"unicode/utf8"
)

// Operator is one of the pool's operators.
type Operator struct {
	ID   string `json:"id"`   // unique in the pool
	Name string `json:"name"` // for people
}

// ErrNoneFree is the error of Assign when other sessions have all operators.
var ErrNoneFree = errors.New("operator: no operator is available")

// UnknownError is the error for an ID that is not in the pool.
type UnknownError struct{ ID string }

func (e *UnknownError) Error() string { return fmt.Sprintf("operator: no operator %q", e.ID) }

// BusyError is the error for an Operator that another session has (O1).
type BusyError struct{ Operator Operator }

func (e *BusyError) Error() string {
	return fmt.Sprintf("operator: operator %q is in use by another session", e.Operator.ID)
}

// The states of an operator, as a session sees it.
const (
	Available = "available"
	Own       = "own"
	Busy      = "busy" // another session's
)

// Pool is the operators as one session sees them. Each method is one commit, with
// Storage's errors, and refreshes the session's own reservation. It is safe for
// concurrent use.
type Pool struct {
	storage   *Storage
	operators []Operator
	random    func(n int) int
}

// New refuses operators without an ID, two with the same ID, and an empty list.
// random returns a number in [0,n); nil: math/rand/v2's.
func New(storage *Storage, operators []Operator, random func(n int) int) (*Pool, error) {
	ids := map[string]bool{}
	for _, o := range operators {
		if o.ID == "" || ids[o.ID] || !utf8.ValidString(o.ID) {
			return nil, fmt.Errorf("operator: operator id %q is empty, not UTF-8 or a duplicate", o.ID)
		}
		ids[o.ID] = true
	}
	if len(operators) == 0 {
		return nil, errors.New("operator: no operators")
	}
	if random == nil {
		random = rand.IntN
	}
	return &Pool{storage: storage, operators: slices.Clone(operators), random: random}, nil
}

// Available returns the operators that no other session has (O7).
func (p *Pool) Available(ctx context.Context) (free []Operator, err error) {
	err = p.edit(ctx, func(v *view) { free = v.free })
	return free, err
}

// Assignment is the outcome of Assign.
type Assignment struct {
	Operator Operator `json:"operator"` // the session's now
	Kept     bool     `json:"kept"`     // the session had it before
}

// Assign gives the session the operator id: *BusyError if another session has it,
// *UnknownError if the pool has no such operator. With an empty id the session keeps its operator
// or, without one, gets any that is available: ErrNoneFree. After an error it has the
// operator that it had.
func (p *Pool) Assign(ctx context.Context, id string) (a Assignment, err error) {
	if id != "" && !slices.ContainsFunc(p.operators, func(o Operator) bool { return o.ID == id }) {
		return a, &UnknownError{ID: id}
	}
	var refused error
	err = p.edit(ctx, func(v *view) {
		target := id
		refused = nil
		switch {
		case v.busy[id]:
			refused = &BusyError{Operator: p.named(id)}
		case id == "" && v.own != "" && !v.busy[v.own]:
			target = v.own
		case id == "" && len(v.free) == 0:
			refused = ErrNoneFree
		case id == "":
			target = v.free[p.random(len(v.free))].ID
		}
		a = Assignment{}
		if refused == nil {
			a = Assignment{Operator: p.named(target), Kept: target == v.own}
			mine := v.entries[p.storage.session]
			v.entries[p.storage.session] = mine.holding(target).with(v.now)
		}
	})
	return a, cmp.Or(err, refused)
}

// Release frees the session's operator. It returns false if there was none.
func (p *Pool) Release(ctx context.Context) (was Operator, wasAssigned bool, err error) {
	err = p.edit(ctx, func(v *view) {
		was, wasAssigned = p.named(v.own), v.own != ""
		delete(v.entries, p.storage.session)
	})
	return was, wasAssigned && err == nil, err
}

// Refresh extends the session's reservation to one timeout from now. It returns false
// if there is none.
func (p *Pool) Refresh(ctx context.Context) (own Operator, ok bool, err error) {
	err = p.edit(ctx, func(v *view) { own, ok = p.named(v.own), v.own != "" })
	return own, ok && err == nil, err
}

// Clear frees every session's operator, and returns their number.
func (p *Pool) Clear(ctx context.Context) (cleared int, err error) {
	err = p.edit(ctx, func(v *view) {
		cleared = len(v.entries)
		clear(v.entries)
	})
	return cleared, err
}

// Status is the pool as a session sees it.
type Status struct {
	Operator  Operator        // the session's own; zero: none
	ExpiresAt time.Time       // of its reservation
	Operators []OperatorState // in the order of New
}

// OperatorState is an Operator and its State: Available, Own or Busy.
type OperatorState struct {
	Operator
	State string `json:"state"`
}

// Status returns the current Status.
func (p *Pool) Status(ctx context.Context) (s Status, err error) {
	err = p.edit(ctx, func(v *view) {
		s = Status{Operators: make([]OperatorState, 0, len(p.operators))}
		if v.own != "" {
			s.Operator, s.ExpiresAt = p.named(v.own), v.expiresAt
		}
		for _, o := range p.operators {
			state := Available
			if v.busy[o.ID] {
				state = Busy
			} else if o.ID == v.own {
				state = Own
			}
			s.Operators = append(s.Operators, OperatorState{o, state})
		}
	})
	return s, err
}

// view is the state of the pool in one edit.
type view struct {
	entries   map[string]entry
	busy      map[string]bool // other sessions' operators
	free      []Operator
	own       string    // the session's operator
	expiresAt time.Time // of its reservation
	now       time.Time
}

// edit refreshes the session's reservation, and lets change see and change the pool.
func (p *Pool) edit(ctx context.Context, change func(*view)) error {
	s := p.storage
	return s.edit(ctx, func(entries map[string]entry, now time.Time) {
		s.refresh(entries, now)
		mine := entries[s.session]
		v := &view{entries: entries, busy: map[string]bool{}, free: []Operator{}, own: mine.data, now: now}
		v.expiresAt = mine.updated.Add(s.o.Timeout)
		for _, id := range s.others(entries) {
			v.busy[id] = id != ""
		}
		for _, o := range p.operators {
			if !v.busy[o.ID] {
				v.free = append(v.free, o)
			}
		}
		change(v)
	})
}

// named returns the operator of that ID, also for an ID that is not in the pool.
func (p *Pool) named(id string) Operator {
	if i := slices.IndexFunc(p.operators, func(o Operator) bool { return o.ID == id }); i >= 0 {
		return p.operators[i]
	}
	return Operator{ID: id, Name: id}
}
