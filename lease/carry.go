package lease

import "time"

// carried holds the changes that the next commit of a Hold writes besides the lease.
type carried[D any] struct {
	sets []func(*D) // the first that the store can hold is written; none: nothing
	done func(error)
	due  time.Time // local: the next renewal is due then; zero: as usual
}

func apply[D any](set func(*D), d *D) {
	if set != nil {
		set(d)
	}
}

// Carry adds set, a change of the record's own fields, to the next commit of the hold:
// a renewal, Release or Finish, whose own change is made after it. If the store cannot hold
// set, the commit is made with the first of less that it can hold, or with none. All are
// pure and may be called again. A later Carry replaces a change that has not been written.
// During Run, Carry brings the next renewal forward: to now, or to the time that is every
// after the last commit.
//
// done, which must not block, is called with nil when set has been committed, with
// ErrRefused if the commit was made without it, or with ErrLost. It is not called for a
// change that was replaced, nor if the hold ends without having reached the store. Carry is
// safe for concurrent use, also with the methods that commit.
func (h *Hold[D]) Carry(every time.Duration, done func(error), set func(*D), less ...func(*D)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := h.tried.Add(every)
	if earlier := h.carried.due; !earlier.IsZero() && earlier.Before(due) {
		due = earlier
	}
	h.carried = carried[D]{append([]func(*D){set}, less...), done, due}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Carries reports whether a change waits for the next commit.
func (h *Hold[D]) Carries() bool { return h.pending().sets != nil }

// pending returns what is carried.
func (h *Hold[D]) pending() carried[D] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.carried
}

// take removes what is carried, to be written.
func (h *Hold[D]) take() carried[D] {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.carried
	h.carried, h.tried = carried[D]{}, time.Now()
	return c
}

// restore undoes take after a commit that failed, unless Carry was called since. It
// brings no renewal forward.
func (h *Hold[D]) restore(c carried[D]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.carried.sets == nil {
		c.due = time.Time{}
		h.carried = c
	}
}

// settle reports the outcome of a commit to the caller of Carry.
func (c carried[D]) settle(err error) {
	if c.done != nil {
		c.done(err)
	}
}
