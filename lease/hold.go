package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Hold is one acquisition. Its methods are called one after another, by one
// goroutine: Run, then Finish or Release, which end it.
type Hold[D any] struct {
	lessor *Lessor[D]
	key    string
	grant  Grant
	stolen bool
	moved  chan struct{} // notifies the watchdog that trust has changed
	wake   chan struct{} // notifies the heartbeat that carried has changed
	offset time.Duration // 1 ms for each renewal since the last that succeeded

	mu      sync.Mutex
	cell    Cell[D]   // the record as last read or written
	trust   time.Time // its local monotonic end
	tried   time.Time // local start of the last commit
	carried carried[D]
}

// Grant returns the owner and token on which this acquisition's writes are conditional.
func (h *Hold[D]) Grant() Grant { return h.grant }

// Stolen reports whether the acquisition took over an expired lease of another owner.
func (h *Hold[D]) Stolen() bool { return h.stolen }

// Run runs body while it renews the lease, and returns when both have ended. It
// returns body's error, or a *LostError if the lease was lost, whatever body returned.
// On loss body's context ends with that *LostError as its cause; KillAfter is for a
// body that ignores it. When ctx ends, body's context ends too, and the lease is
// renewed until body has returned. Run calls every function of renewed after each renewal.
func (h *Hold[D]) Run(ctx context.Context, body func(ctx context.Context, doc D, g Grant) error,
	renewed ...Renewed,
) error {
	beat := func(ctx context.Context, k *keeper[D]) { k.beat(ctx, renewed) }
	return h.run(ctx, func(ctx context.Context) error { return body(ctx, h.Doc(), h.grant) }, beat)
}

// RunBy is like Run, but heartbeat, a function of the caller's, calls Renew. RunBy calls
// heartbeat after wait, and again after each duration that heartbeat returns. If heartbeat
// returns ErrLost, the run ends as in Run. The watchdog is the same.
func (h *Hold[D]) RunBy(ctx context.Context, body func(ctx context.Context) error,
	wait time.Duration, heartbeat func(ctx context.Context) (wait time.Duration, err error),
) error {
	return h.run(ctx, body, func(ctx context.Context, k *keeper[D]) {
		for sleep(ctx, wait) {
			var err error
			var lost *LostError
			if wait, err = heartbeat(ctx); errors.As(err, &lost) {
				k.lose(lost)
			}
		}
	})
}

func (h *Hold[D]) run(ctx context.Context, body func(ctx context.Context) error,
	beat func(ctx context.Context, k *keeper[D]),
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	k := h.keep(context.WithoutCancel(ctx), cancel, beat)
	var err error
	func() {
		defer k.stop() // also when body panics
		if k.loss() == nil {
			err = body(ctx)
		}
	}()

	if lost := k.loss(); lost != nil {
		h.take().settle(lost)
		return lost
	}
	return err
}

// Finish makes the record terminal, with set's changes, and frees the lease, in
// one commit that succeeds only if the lease is still held. It tries for 60 s, also
// after ctx has ended. It returns ErrLost if nothing was written; ErrRefused if the
// store cannot store set's changes (the lease is kept and the Hold remains usable); or
// ErrUnavailable. (SEEDS G8)
func (h *Hold[D]) Finish(ctx context.Context, set func(*D)) error {
	return h.finish(ctx, Finish, set)
}

func (h *Hold[D]) finish(ctx context.Context, rule func(Lease, Grant) (Lease, error), set func(*D)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	next := func(l Lease, _ time.Time) (Lease, error) { return rule(l, h.grant) }
	_, err := h.write(ctx, next, set, func(l Lease) bool { return l.FinishedBy == h.grant.Owner })
	return err
}

// Adoptable reports whether another program has made the record terminal while the lease was
// still held, by the last reading; see Adopt.
func (h *Hold[D]) Adoptable() bool {
	d := h.Doc()
	_, err := Adopt(*h.lessor.lease(&d), h.grant)
	return err == nil
}

// Adopt is like Finish for an Adoptable record: it frees the lease with set's changes.
func (h *Hold[D]) Adopt(ctx context.Context, set func(*D)) error {
	return h.finish(ctx, Adopt, set)
}

// Release frees the lease with set's changes if it is still held. Otherwise it changes
// nothing and returns ErrLost. refund subtracts the attempt. It tries for 2 s, or until
// the deadline of ctx if that is later, also if ctx has been cancelled. (SEEDS G8)
func (h *Hold[D]) Release(ctx context.Context, set func(*D), refund bool) error {
	limit := time.Now().Add(releaseTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.After(limit) {
		limit = deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), limit)
	defer cancel()

	drop := func(l Lease, _ time.Time) (Lease, error) {
		return Drop(l, h.grant, refund), loss(l, h.grant)
	}
	_, err := h.write(ctx, drop, set, func(l Lease) bool { return l.Owner == "" && l.Token == h.grant.Token })
	return err
}

// Renew sends one heartbeat: it moves the expiry to one ttl from now, or one TTL of the
// Policy if ttl is zero. It tries until ctx ends, and returns ErrLost, ErrUnavailable, or
// Check's error about ttl. Run renews by itself. (SEEDS G6)
func (h *Hold[D]) Renew(ctx context.Context, ttl time.Duration) error {
	lessor, err := h.lessor.WithTTL(ttl)
	if err != nil {
		return err
	}

	// The expiry identifies a renewal: none has that of an earlier one, which may have been
	// written although it failed.
	offset := h.offset
	h.offset += time.Millisecond
	var expiry time.Time
	extend := func(l Lease, now time.Time) (Lease, error) {
		l, err := Extend(l, now.Add(offset), h.grant, lessor.policy)
		expiry = l.ExpiresAt
		return l, err
	}
	landed := func(l Lease) bool { return l.HeldBy(h.grant) && l.ExpiresAt.Equal(expiry) }

	c, err := h.write(ctx, extend, nil, landed)
	if err == nil {
		h.offset = 0
		h.update(c, lessor.policy)
	}
	return err
}

// write edits the record, beginning with the current Cell. It also writes what is
// carried, as far as the store can hold it beside set.
func (h *Hold[D]) write(ctx context.Context, rule func(l Lease, now time.Time) (Lease, error),
	set func(*D), landed func(Lease) bool,
) (Cell[D], error) {
	carried := h.take()
	var c Cell[D]
	var err, refused error
	for _, change := range append(slices.Clip(carried.sets), nil) {
		c, err = h.edit(ctx, rule, func(d *D) { apply(change, d); apply(set, d) }, landed)
		if !errors.Is(err, ErrRefused) {
			break
		}
		refused = err
	}

	switch {
	case err == nil:
		carried.settle(refused)
	case errors.Is(err, ErrLost):
		h.mu.Lock()
		h.cell = c // Doc shows why
		h.mu.Unlock()
		carried.settle(err)
	default:
		h.restore(carried)
	}
	return c, err
}

func (h *Hold[D]) edit(ctx context.Context, rule func(l Lease, now time.Time) (Lease, error),
	set func(*D), landed func(Lease) bool,
) (Cell[D], error) {
	inside, cell := h.lessor.lease, h.current()
	decide := func(c Cell[D]) (D, error) {
		if !c.Exists {
			return c.Doc, &LostError{Reason: Deleted}
		}
		next, err := rule(*inside(&c.Doc), c.Now())
		if err != nil {
			return c.Doc, err
		}
		*inside(&c.Doc) = next
		set(&c.Doc)
		return c.Doc, nil
	}
	return Edit(ctx, h.lessor.store, h.key, &cell, decide, func(c Cell[D]) bool {
		return c.Exists && landed(*inside(&c.Doc))
	})
}

// Now estimates the store's present time, as Cell.Now does.
func (h *Hold[D]) Now() time.Time { return h.current().Now() }

// Doc returns the record as the Hold last read or wrote it.
func (h *Hold[D]) Doc() D { return h.current().Doc }

// Cell returns the record as the Hold last read or wrote it.
func (h *Hold[D]) Cell() Cell[D] { return h.current() }

func (h *Hold[D]) current() Cell[D] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cell
}

// update stores a Cell that shows the lease as held by h.
func (h *Hold[D]) update(c Cell[D], p Policy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cell = c
	h.trust = Trusted(*h.lessor.lease(&c.Doc), c.At, c.Asked, p)
	select {
	case h.moved <- struct{}{}:
	default:
	}
}

// TrustedUntil returns the end of trust in the lease, by the local monotonic clock.
func (h *Hold[D]) TrustedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trust
}

// carried holds the changes that the next commit of a Hold writes besides the lease.
type carried[D any] struct {
	sets []func(*D) // the first that the store can hold is written; none: nothing
	done func(error)
	due  time.Time // local: the next renewal is due then; zero: as usual
	sent bool      // a commit with a part of it failed, and may have been made
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
// ErrRefused if the commit was made without it, or with ErrLost; both are ErrUnavailable too if an
// earlier commit with set may have been made. It is not called for a change that was replaced, nor if
// the hold ends without reaching the store. Carry is
// safe for concurrent use, also with the methods that commit.
func (h *Hold[D]) Carry(every time.Duration, done func(error), set func(*D), less ...func(*D)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := h.tried.Add(every)
	if earlier := h.carried.due; !earlier.IsZero() && earlier.Before(due) {
		due = earlier
	}
	h.carried = carried[D]{append([]func(*D){set}, less...), done, due, h.carried.sent}
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
	h.carried.sent = h.carried.sent || c.sets != nil
}

// settle reports the outcome of a commit to the caller of Carry.
func (c carried[D]) settle(err error) {
	lost := (*LostError)(nil)
	if err != nil && (c.sent || errors.As(err, &lost) && lost.Unknown) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if c.done != nil {
		c.done(err)
	}
}
