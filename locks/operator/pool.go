package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"
	"unicode/utf8"

	"taskguard/lease"
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

// BusyError is the error for an Operator that another session has.
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

const (
	// DefaultTimeout is the time from a session's last use to the expiry of its reservation (SEEDS O6).
	DefaultTimeout = 4 * time.Hour
	// wait bounds an operation, including the wait for other programs.
	wait = 2 * time.Second
)

var errWaited = fmt.Errorf("gave up after %v", wait)

// Options configure a Pool; the zero value is the default.
type Options struct {
	Timeout time.Duration      // zero: DefaultTimeout
	Alive   func(pid int) bool // whether a process of this host is alive; nil: all are
	Random  func(n int) int    // a number in [0,n); nil: math/rand/v2's
	Log     *slog.Logger       // nil: none
}

// Pool is the operators as one session sees them, in a state that sessions share.
// Each method is one commit of at most 2 s, and refreshes the session's own
// reservation. Its errors: lease.ErrUnavailable after that time, with the reason;
// lease.ErrRefused where another attempt cannot help, such as without permission.
// It is safe for concurrent use (SEEDS O5).
type Pool struct {
	store         lease.Store[State]
	path, session string
	operators     []Operator
	o             Options
}

// New returns the Pool of a session in the state at path: the key of store, which is
// a [File] or behaves as one. The operators are those that Check accepts.
func New(store lease.Store[State], path, session string, operators []Operator, o Options) (*Pool, error) {
	switch {
	case session == "" || !utf8.ValidString(session):
		return nil, fmt.Errorf("operator: session %q is empty or not UTF-8", session)
	case o.Timeout < 0:
		return nil, fmt.Errorf("operator: negative timeout %v", o.Timeout)
	}
	if err := Check(operators); err != nil {
		return nil, err
	}

	if o.Random == nil {
		o.Random = rand.IntN
	}
	o.Timeout, o.Log = cmp.Or(o.Timeout, DefaultTimeout), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Pool{store: store, path: path, session: session, operators: slices.Clone(operators), o: o}, nil
}

// Check refuses operators without an ID, two with the same ID, and an empty list.
func Check(operators []Operator) error {
	ids := map[string]bool{}
	for _, o := range operators {
		if o.ID == "" || ids[o.ID] || !utf8.ValidString(o.ID) {
			return fmt.Errorf("operator: operator id %q is empty, not UTF-8 or a duplicate", o.ID)
		}
		ids[o.ID] = true
	}
	if len(operators) == 0 {
		return errors.New("operator: no operators")
	}
	return nil
}

// Available returns the operators that no other session has.
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
// *UnknownError if the pool has no such operator. With an empty id the session keeps its
// operator or, without one, gets any that is available: ErrNoneFree if there is none.
// After an error it has the operator that it had.
func (p *Pool) Assign(ctx context.Context, id string) (a Assignment, err error) {
	if id != "" && !slices.ContainsFunc(p.operators, func(o Operator) bool { return o.ID == id }) {
		return a, &UnknownError{ID: id}
	}

	var refused error
	err = p.edit(ctx, func(v *view) {
		a, refused = Assignment{}, nil

		target := id
		switch {
		case v.busy[id]:
			refused = &BusyError{Operator: p.named(id)}
		case id == "" && v.own != "" && !v.busy[v.own]:
			target = v.own
		case id == "" && len(v.free) == 0:
			refused = ErrNoneFree
		case id == "":
			target = v.free[p.o.Random(len(v.free))].ID
		}
		if refused != nil {
			return
		}

		a = Assignment{Operator: p.named(target), Kept: target == v.own}
		v.entries[p.session] = v.entries[p.session].holding(target).with(v.now)
	})
	return a, cmp.Or(err, refused)
}

// Release frees the session's operator. It returns false if there was none.
func (p *Pool) Release(ctx context.Context) (freed Operator, ok bool, err error) {
	err = p.edit(ctx, func(v *view) {
		freed, ok = p.named(v.own), v.own != ""
		delete(v.entries, p.session)
	})
	return freed, ok && err == nil, err
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
	Operator  Operator  // the session's own; zero: none
	ExpiresAt time.Time // of its reservation
	Operators []Listed  // in the order of New
}

// Listed is an Operator and its State: Available, Own or Busy.
type Listed struct {
	Operator
	State string `json:"state"`
}

// Status returns the current Status.
func (p *Pool) Status(ctx context.Context) (s Status, err error) {
	err = p.edit(ctx, func(v *view) {
		s = Status{Operators: make([]Listed, 0, len(p.operators))}
		if v.own != "" {
			s.Operator, s.ExpiresAt = p.named(v.own), v.expiresAt
		}
		for _, o := range p.operators {
			state := Available
			switch {
			case v.busy[o.ID]:
				state = Busy
			case o.ID == v.own:
				state = Own
			}
			s.Operators = append(s.Operators, Listed{o, state})
		}
	})
	return s, err
}

// named returns the operator of that ID, also for an ID that is not in the pool.
func (p *Pool) named(id string) Operator {
	if i := slices.IndexFunc(p.operators, func(o Operator) bool { return o.ID == id }); i >= 0 {
		return p.operators[i]
	}
	return Operator{ID: id, Name: id}
}
