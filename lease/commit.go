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
	// Part names what changes. A later Change of the same Part replaces an unwritten one, so it must set
	// the whole Part.
	Part string
	// Set makes the change, in each try of a commit.
	Set func(*D)
	// Decide, if it is not nil, returns Set, or the error that ends the Change. d is the record as
	// earlier changes will leave it, replaced ones included: change nothing in it. A nil
	// Set means that d needs no change. The writer calls Decide once. Another program that changes the
	// Part afterwards is overruled: the holder owns it.
	Decide func(d D) (set func(*D), err error)
	// Delay is how long after the last commit the next may be made. During Start a Change brings
	// the next renewal forward to that time, or to now.
	Delay time.Duration
	// Done is called with the outcome of this Change, or of its replacement. Written is called
	// too, unless this Change was replaced or not needed. Both may be nil, and must not block. They are
	// not called if the hold ends without reaching the store.
	//
	// The outcome is nil once it is committed; ErrRefused if the store had no room for it; ErrLost;
	// or the error of Decide. ErrRefused and ErrLost are ErrUnavailable too if an earlier commit with
	// the change may have been made.
	Written, Done func(err error)
}

// pending is a Change that is not written yet.
type pending[D any] struct {
	Change[D]

	waiting []func(err error) // Done, of this Change and of all that it replaced
	unknown bool              // a commit with one of them may have been made
}

// Send adds changes to the next commit. It does not block. A change without a Decide replaces an
// older one at once, so a run that reports while a commit hangs needs no more memory. Those with a
// Decide are kept until the writer decides on them: each depends on the one before.
func (h *Hold[D]) Send(changes ...Change[D]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		replaces := func(p pending[D]) bool { return p.Part == c.Part && p.Decide == nil && c.Decide == nil }
		h.sent = add(h.sent, pending[D]{Change: c, waiting: waiters(c.Done)}, replaces)
	}
	notify(h.wake)
}

func waiters(done func(error)) []func(error) {
	if done == nil {
		return nil
	}
	return []func(error){done}
}

// add appends p to all, or puts it in the place of the change for which replaces is true.
func add[D any](all []pending[D], p pending[D], replaces func(pending[D]) bool) []pending[D] {
	i := slices.IndexFunc(all, replaces)
	if i < 0 {
		return append(all, p)
	}
	p.waiting = append(all[i].waiting, p.waiting...)
	p.unknown = all[i].unknown
	p.Delay = min(p.Delay, all[i].Delay)
	all[i] = p
	return all
}

// receive decides on the changes that were sent.
func (h *Hold[D]) receive() {
	h.mu.Lock()
	sent := h.sent
	h.sent = nil
	h.mu.Unlock()
	for _, p := range sent {
		h.accept(p)
	}
}

// accept makes p pending. It decides on p by the record as the pending changes will leave it. If that
// needs no change, p succeeds at once, or shares the outcome of the pending change of its Part.
func (h *Hold[D]) accept(p pending[D]) {
	samePart := func(other pending[D]) bool { return other.Part == p.Part }
	if p.Decide != nil {
		draft := h.Doc()
		for _, earlier := range h.pending {
			earlier.Set(&draft)
		}
		var err error
		p.Set, err = p.Decide(draft)
		i := slices.IndexFunc(h.pending, samePart)
		switch {
		case err != nil || p.Set == nil && i < 0:
			p.tell(err)
			return
		case p.Set == nil:
			h.pending[i].waiting = append(h.pending[i].waiting, p.waiting...)
			return
		}
	}

	h.pending = add(h.pending, p, samePart)
	if due := h.lastCommit.Add(p.Delay); h.forward.IsZero() || due.Before(h.forward) {
		h.forward = due
	}
}

// commit makes step, what is pending and one of the alternatives in one commit: the first
// alternative for which the store has room. If it has room for none, commit leaves out pending
// changes, as Records.Shed says. If all is refused, what is pending stays so.
func (h *Hold[D]) commit(ctx context.Context, step step, alternatives ...func(*D)) (err error) {
	h.receive()
	h.lastCommit, h.forward = time.Now(), time.Time{}
	if len(alternatives) == 0 {
		alternatives = append(alternatives, func(*D) {})
	}

	for _, made := range h.sheddings() {
		for _, own := range alternatives {
			var c Cell[D]
			c, err = Edit(ctx, h.records.store, h.key, h.write(step, made, own))
			if !errors.Is(err, ErrRefused) {
				h.conclude(c, made, err)
				return err
			}
		}
	}
	return err
}

// sheddings returns what the tries of a commit contain: all that is pending, then less and less, at
// last nothing. With a progress and a checkpoint pending: both, the progress, nothing. It skips an entry
// of Records.Shed of which a part is not pending, since that would repeat another try. A part is pending
// at most once.
func (h *Hold[D]) sheddings() [][]pending[D] {
	all := [][]pending[D]{h.pending}
	for _, parts := range h.records.Shed {
		rest := slices.DeleteFunc(slices.Clone(h.pending), func(p pending[D]) bool {
			return slices.Contains(parts, p.Part)
		})
		eachWasPending := len(rest)+len(parts) == len(h.pending)
		if eachWasPending && len(rest) > 0 {
			all = append(all, rest)
		}
	}
	if len(h.pending) > 0 {
		all = append(all, nil)
	}
	return all
}

// write returns the write of step, with the pending changes made and then own.
func (h *Hold[D]) write(step step, made []pending[D], own func(*D)) Write[D] {
	inside, from := h.records.lease, h.Cell()
	return Write[D]{
		From: &from,
		Decide: func(c Cell[D]) (D, error) {
			if !c.Exists {
				return c.Doc, &LostError{Reason: Deleted}
			}
			next, err := step.rule(*inside(&c.Doc), c.Now(), h.grant)
			if err != nil {
				return c.Doc, err
			}
			*inside(&c.Doc) = next
			for _, p := range made {
				p.Set(&c.Doc)
			}
			own(&c.Doc)
			return c.Doc, nil
		},
		Landed: func(c Cell[D]) bool { return c.Exists && step.landed(*inside(&c.Doc), h.grant) },
	}
}

// conclude tells those who wait what has become of a commit with the changes made. After an error
// that is no loss, the changes stay pending.
func (h *Hold[D]) conclude(c Cell[D], made []pending[D], err error) {
	switch {
	case err == nil:
		h.setCell(c)
		for _, p := range h.pending {
			if slices.ContainsFunc(made, func(m pending[D]) bool { return m.Part == p.Part }) {
				p.tell(nil)
			} else {
				p.tell(ErrRefused)
			}
		}
		h.pending = nil
	case errors.Is(err, ErrLost):
		h.setCell(c) // Doc shows why
		h.tellAll(err)
	default:
		for i := range h.pending {
			h.pending[i].unknown = true
		}
	}
}

// tellAll tells all who wait that their changes are lost because of err.
func (h *Hold[D]) tellAll(err error) {
	for _, p := range h.pending {
		p.tell(err)
	}
	h.pending, h.forward = nil, time.Time{}
}

func (p *pending[D]) tell(err error) {
	lost, ok := errors.AsType[*LostError](err)
	if err != nil && (p.unknown || ok && lost.Unknown) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for _, f := range append([]func(error){p.Written}, p.waiting...) {
		if f != nil {
			f(err)
		}
	}
}
