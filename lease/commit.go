package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Change is a change of the record's own fields, which a Hold writes with its next commit: a
// renewal or its End, whose own change is made after it.
type Change[D any] struct {
	// Part names what changes. A later Change of the same Part replaces one that is not written.
	Part string
	// Decide returns the function that sets the change in a record, or the error that ends the
	// change. d is the record as earlier changes will leave it. A nil function means that d needs no
	// change. The writer calls it once, and the function for each try of a commit.
	Decide func(d D) (set func(*D), err error)
	// Delay is how long after the last commit the next may be made. During Start a Change brings
	// the next renewal forward to that time, or to now.
	Delay time.Duration
	// Written is called once with the outcome of this Change, unless it was replaced. Done is called
	// with the outcome of this Change, or of the one that replaced it. Both may be nil, and must not
	// block. They are not called if the hold ends without reaching the store.
	//
	// The outcome is nil once it is committed; ErrRefused if the store had no room for it; ErrLost;
	// or the error of Decide. ErrRefused and ErrLost are ErrUnavailable too if an earlier commit with
	// the change may have been made.
	Written, Done func(err error)
}

// Send adds changes to the next commit. It does not block.
func (h *Hold[D]) Send(changes ...Change[D]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = append(h.sent, changes...)
	notify(h.wake)
}

// pending is a change that the writer has decided on.
type pending[D any] struct {
	part    string
	set     func(*D)
	written func(err error)
	waiting []func(err error)
	unknown bool // a commit with it, or with the one that it replaced, may have been made
}

// receive decides on the changes that were sent.
func (h *Hold[D]) receive() {
	h.mu.Lock()
	sent := h.sent
	h.sent = nil
	h.mu.Unlock()
	for _, c := range sent {
		h.accept(c)
	}
}

func (h *Hold[D]) accept(c Change[D]) {
	draft := h.Doc()
	for _, p := range h.pending {
		p.set(&draft)
	}
	set, err := c.Decide(draft)
	i := slices.IndexFunc(h.pending, func(p pending[D]) bool { return p.part == c.Part })

	switch {
	case err != nil || set == nil && i < 0:
		report(err, c.Written, c.Done)
		return
	case i < 0:
		h.pending = append(h.pending, pending[D]{part: c.Part})
		i = len(h.pending) - 1
	}
	p := &h.pending[i]
	p.waiting = append(p.waiting, c.Done)
	if set == nil {
		return
	}
	p.set, p.written = set, c.Written
	if due := h.committed.Add(c.Delay); h.forward.IsZero() || due.Before(h.forward) {
		h.forward = due
	}
}

// commit makes one commit of e with what is pending. If the store has no room for all of it, the
// commit leaves out what Records.Shed lists.
func (h *Hold[D]) commit(ctx context.Context, e Ending[D]) error {
	h.receive()
	h.committed, h.forward = time.Now(), time.Time{}
	if len(e.changes) == 0 {
		e.changes = []func(*D){func(*D) {}}
	}

	var made []pending[D]
	var c Cell[D]
	err := ErrRefused
	for _, change := range e.changes {
		for _, made = range h.sheddings() {
			c, err = Edit(ctx, h.records.store, h.key, h.write(e, made, change))
			if !errors.Is(err, ErrRefused) {
				return h.committedAs(c, made, err)
			}
		}
	}
	return h.committedAs(c, nil, err)
}

// sheddings returns what the tries of a commit contain: all that is pending, then less and less.
func (h *Hold[D]) sheddings() [][]pending[D] {
	all := [][]pending[D]{h.pending}
	for _, parts := range h.records.Shed {
		rest := slices.DeleteFunc(slices.Clone(h.pending), func(p pending[D]) bool {
			return slices.Contains(parts, p.part)
		})
		if len(rest)+len(parts) == len(h.pending) && len(rest) > 0 { // each of the parts is pending
			all = append(all, rest)
		}
	}
	if len(h.pending) > 0 {
		all = append(all, nil)
	}
	return all
}

// write returns the write of e with the pending changes made, and then change.
func (h *Hold[D]) write(e Ending[D], made []pending[D], change func(*D)) Write[D] {
	inside, from := h.records.lease, h.Cell()
	return Write[D]{
		From: &from,
		Decide: func(c Cell[D]) (D, error) {
			if !c.Exists {
				return c.Doc, &LostError{Reason: Deleted}
			}
			lease, err := e.rule(*inside(&c.Doc), c.Now(), h.grant)
			if err != nil {
				return c.Doc, err
			}
			*inside(&c.Doc) = lease
			for _, p := range made {
				p.set(&c.Doc)
			}
			change(&c.Doc)
			return c.Doc, nil
		},
		Landed: func(c Cell[D]) bool { return c.Exists && e.landed(*inside(&c.Doc), h.grant) },
	}
}

// committedAs tells who waits what has become of a commit of the changes made: err. After an error
// that is no loss, the changes stay pending.
func (h *Hold[D]) committedAs(c Cell[D], made []pending[D], err error) error {
	switch {
	case err == nil:
		h.setCell(c)
		for _, p := range h.pending {
			if !slices.ContainsFunc(made, func(m pending[D]) bool { return m.part == p.part }) {
				p.settle(ErrRefused)
			} else {
				p.settle(nil)
			}
		}
		h.pending = nil
	case errors.Is(err, ErrLost):
		h.setCell(c) // Doc shows why
		h.settle(err)
	default:
		for i := range h.pending {
			h.pending[i].unknown = true
		}
	}
	return err
}

// settle tells all who wait that their changes are lost because of err.
func (h *Hold[D]) settle(err error) {
	for _, p := range h.pending {
		p.settle(err)
	}
	h.pending, h.forward = nil, time.Time{}
}

func (p *pending[D]) settle(err error) {
	lost, ok := errors.AsType[*LostError](err)
	if err != nil && (p.unknown || ok && lost.Unknown) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	report(err, append([]func(error){p.written}, p.waiting...)...)
}

// report calls each function that is not nil.
func report(err error, functions ...func(error)) {
	for _, f := range functions {
		if f != nil {
			f(err)
		}
	}
}
