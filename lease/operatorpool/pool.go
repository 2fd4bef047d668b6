package operatorpool

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

// Operator is one of those who are shared.
type Operator struct {
	ID   string `json:"id"`
	Name string `json:"name"` // for people
}

// ErrNoneFree says that other sessions have all operators.
var ErrNoneFree = errors.New("operatorpool: no operator is available")

// UnknownError says that the pool has no operator of that id.
type UnknownError struct{ ID string }

func (e *UnknownError) Error() string { return fmt.Sprintf("operatorpool: no operator %q", e.ID) }

// BusyError says that another session has the operator (O1).
type BusyError struct{ Operator Operator }

func (e *BusyError) Error() string {
	return fmt.Sprintf("operatorpool: operator %q is in use by another session", e.Operator.ID)
}

// What an operator is to a session.
const (
	Available = "available"
	Own       = "own"
	Busy      = "busy" // another session's
)

// Pool are the operators as one session sees them. Each method is one commit, with
// the errors of Storage, and, being a use, refreshes the session's own reservation.
// It is safe for concurrent use.
type Pool struct {
	storage   *Storage[string]
	operators []Operator
	random    func(n int) int
}

// New refuses operators without an id, with the id of another, and none at all.
// random is a number in [0,n), of which any may do; nil: math/rand/v2's.
func New(storage *Storage[string], operators []Operator, random func(n int) int) (*Pool, error) {
	ids := map[string]bool{}
	for _, o := range operators {
		if o.ID == "" || ids[o.ID] || !utf8.ValidString(o.ID) {
			return nil, fmt.Errorf("operatorpool: operator id %q is empty, not UTF-8 or there twice", o.ID)
		}
		ids[o.ID] = true
	}
	if len(operators) == 0 {
		return nil, errors.New("operatorpool: no operators")
	}
	if random == nil {
		random = rand.IntN
	}
	return &Pool{storage: storage, operators: slices.Clone(operators), random: random}, nil
}

// Available are the operators that no other session has, one's own among them (O7).
func (p *Pool) Available(ctx context.Context) (free []Operator, err error) {
	err = p.edit(ctx, func(v *view) { free = v.free })
	return free, err
}

// Assignment is the operator that a session has.
type Assignment struct {
	Operator Operator `json:"operator"`
	Kept     bool     `json:"kept"` // it had it before
}

// Assign gives the session the operator id: a *BusyError if another session has it,
// an *UnknownError if it is none. With an empty id it keeps the one it has or else gets
// any that is available: ErrNoneFree. Whatever the error, it keeps what it had.
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
		case id == "" && v.own != "":
			target = v.own
		case id == "" && len(v.free) == 0:
			refused = ErrNoneFree
		case id == "":
			target = v.free[p.random(len(v.free))].ID
		}
		a = Assignment{}
		if refused == nil {
			a = Assignment{Operator: p.named(target), Kept: target == v.own}
			v.assign(target)
		}
	})
	return a, cmp.Or(err, refused)
}

// Release frees the session's operator, and reports false if it had none.
func (p *Pool) Release(ctx context.Context) (was Operator, wasAssigned bool, err error) {
	err = p.edit(ctx, func(v *view) {
		was, wasAssigned = p.named(v.had), v.had != ""
		delete(v.entries, p.storage.session)
	})
	return was, wasAssigned && err == nil, err
}

// Refresh lets the session keep its operator for another timeout, and reports false
// if it has none.
func (p *Pool) Refresh(ctx context.Context) (own Operator, ok bool, err error) {
	err = p.edit(ctx, func(v *view) { own, ok = p.named(v.had), v.had != "" })
	return own, ok && err == nil, err
}

// Clear frees every session's operator, and answers how many there were.
func (p *Pool) Clear(ctx context.Context) (cleared int, err error) {
	err = p.edit(ctx, func(v *view) {
		cleared = len(v.entries)
		clear(v.entries)
	})
	return cleared, err
}

// Status is what a session sees of the pool: of the others no more than what they
// leave.
type Status struct {
	Operator  Operator        // the session's own; zero: none
	ExpiresAt time.Time       // of its reservation
	Operators []OperatorState // in the order of New
}

// OperatorState is an operator and whether it is Available, Own or Busy.
type OperatorState struct {
	Operator
	State string `json:"state"`
}

// Status is the pool as it is.
func (p *Pool) Status(ctx context.Context) (s Status, err error) {
	err = p.edit(ctx, func(v *view) {
		s = Status{Operators: make([]OperatorState, 0, len(p.operators))}
		if v.had != "" {
			s.Operator, s.ExpiresAt = p.named(v.had), v.expiresAt
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
	entries   map[string]entry[string]
	busy      map[string]bool // what other sessions have
	free      []Operator
	had       string // the session's own
	own       string // the same, unless another session has it too, as only others can have brought about
	expiresAt time.Time
	assign    func(id string)
}

// edit lets change see the pool and change it; the session's own reservation is
// refreshed before.
func (p *Pool) edit(ctx context.Context, change func(*view)) error {
	s := p.storage
	return s.edit(ctx, func(entries map[string]entry[string], now time.Time) {
		s.refresh(entries, now)
		mine := entries[s.session]
		v := &view{entries: entries, busy: map[string]bool{}, free: []Operator{}, had: mine.data, expiresAt: mine.updated.Add(s.o.Timeout)}
		for _, id := range s.others(entries) {
			v.busy[id] = id != ""
		}
		if !v.busy[v.had] {
			v.own = v.had
		}
		for _, o := range p.operators {
			if !v.busy[o.ID] {
				v.free = append(v.free, o)
			}
		}
		v.assign = func(id string) { entries[s.session] = mine.holding(id, quoted(id)).with(now) }
		change(v)
	})
}

// named is the operator of that id; one that the pool does not know bears its id.
func (p *Pool) named(id string) Operator {
	for _, o := range p.operators {
		if o.ID == id {
			return o
		}
	}
	return Operator{ID: id, Name: id}
}
