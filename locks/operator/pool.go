package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"taskguard/lease"
)

// Operator is one of the pool's operators.
type Operator struct {
	ID   string `json:"id"`   // unique in the pool
	Name string `json:"name"` // shown to people
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
	Corrupt func(bytes int)    // called when a corrupt file of that size was replaced; nil: not
}

// Pool is the operators as one session sees them, in a state that sessions share.
// Each method is one commit of at most 2 s, and extends the session's own reservation to
// one timeout from then. Its errors: lease.ErrUnavailable after that time, with the reason;
// lease.ErrRefused where another attempt cannot help, such as without permission.
// It is safe for concurrent use (SEEDS O5).
type Pool struct {
	store         lease.Store[State]
	path, session string
	operators     []Operator
	o             Options
}

// New returns the Pool of a session in the state at path: the key of store, which is
// a [File] or behaves like a File. It returns an error for operators that Check refuses.
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

	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
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
func (p *Pool) Available(ctx context.Context) ([]Operator, error) {
	s, err := p.Status(ctx)
	free := []Operator{}
	for _, o := range s.Operators {
		if o.State != Busy {
			free = append(free, o.Operator)
		}
	}
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
	err = p.edit(ctx, func(v *view) error {
		assigned, err := v.choose(id)
		if err != nil {
			a = Assignment{}
			return err
		}
		a = Assignment{Operator: assigned, Kept: assigned.ID == v.Operator.ID}
		v.entries[p.session] = v.entries[p.session].set("data", assigned.ID).usedAt(v.now)
		return nil
	})
	return a, err
}

// choose returns the operator that Assign gives to the session.
func (s *Status) choose(id string) (Operator, error) {
	var free []Operator
	for _, o := range s.Operators {
		switch {
		case o.ID == id && o.State == Busy:
			return Operator{}, &BusyError{Operator: o.Operator}
		case o.ID == id, id == "" && o.State == Own:
			return o.Operator, nil
		case o.State == Available:
			free = append(free, o.Operator)
		}
	}

	switch {
	case id != "":
		return Operator{}, &UnknownError{ID: id}
	case len(free) == 0:
		return Operator{}, ErrNoneFree
	}
	return free[rand.IntN(len(free))], nil
}

// Release frees the session's operator, and returns it; zero: there was none.
func (p *Pool) Release(ctx context.Context) (freed Operator, err error) {
	err = p.edit(ctx, func(v *view) error {
		freed = v.Operator
		delete(v.entries, p.session)
		return nil
	})
	return freed, err
}

// Clear frees every session's operator, and returns their number.
func (p *Pool) Clear(ctx context.Context) (cleared int, err error) {
	err = p.edit(ctx, func(v *view) error {
		cleared = len(v.entries)
		clear(v.entries)
		return nil
	})
	return cleared, err
}

// Status is the pool as a session sees it.
type Status struct {
	Operator  Operator  // the session's own; zero: none
	ExpiresAt time.Time // when the reservation expires
	Operators []Listed  // all operators, in the order of New
}

// Listed is an Operator and its State: Available, Own or Busy.
type Listed struct {
	Operator
	State string `json:"state"`
}

// Status returns the current Status.
func (p *Pool) Status(ctx context.Context) (s Status, err error) {
	err = p.edit(ctx, func(v *view) error {
		s = v.Status
		return nil
	})
	return s, err
}

// guard is the suffix of the file for flock. It is not .lock, which is the directory of Node programs.
const guard = ".guard"

// Path returns the path of a host's state file (SEEDS O3).
func Path(hostname string) string { return "/tmp/coeiroink-operators-" + hostname + ".json" }

// File is the state file as a lease.Store whose key is its path. It has the mode
// 0600, and is no symbolic link (SEEDS O9).
type File struct{ *lease.File[State] }

// Open opens the state file at path, which need not exist; its directory must.
func Open(path string) (*File, error) {
	name, err := format{}.Name(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir + string(filepath.Separator)); err != nil { // a file fails too
		return nil, fmt.Errorf("operator: directory of the state file: %w", err)
	}
	return &File{lease.NewFile(dir, name+guard, format{})}, nil
}

// Swap is lease.File's Swap under the lock of Node programs too. It first keeps a corrupt
// file under another name.
func (f *File) Swap(ctx context.Context, path string, prev lease.Cell[State], next State) (lease.Cell[State], error) {
	unlock, err := lockDirectory(ctx, path+".lock")
	if err != nil {
		return lease.Cell[State]{}, fmt.Errorf("operator: locking the state file: %w", err)
	}
	defer unlock()
	if prev.Doc.corrupt > 0 {
		if now, err := f.Load(ctx, path, lease.OnlyLease); err != nil || now.Rev != prev.Rev {
			return lease.Cell[State]{}, cmp.Or(err, lease.ErrConflict) // it was only half written
		}
		if err := os.Link(path, path+".corrupt"); err != nil && !errors.Is(err, fs.ErrExist) {
			return lease.Cell[State]{}, fmt.Errorf("operator: keeping the corrupt state: %w", err)
		}
	}
	return f.File.Swap(ctx, path, prev, next)
}
