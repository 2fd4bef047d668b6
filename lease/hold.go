package lease

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Hold is one acquisition. Start begins to renew its lease, Stop ends that, and End frees the
// lease or finishes the record.
//
// A Hold has one writer at any time. From Start to Stop it is a goroutine of the Hold, which makes
// all commits one after another. Otherwise, also after Watch, it is the goroutine that calls Renew,
// Flush or End: call them one after another, and not between Start and Stop. Send and the methods
// without a context are safe for concurrent use.
type Hold[D any] struct {
	records *Records[D]
	key     string
	grant   Grant
	stolen  bool
	term    *term // between Start or Watch and Stop; only the caller of these uses it

	// Only the writer uses these.
	pending    []pending[D] // changes for the next commit, in the order in which they apply
	lastCommit time.Time    // local start of the last commit, whether or not it succeeded
	forward    time.Time    // when a pending change wants the next renewal; zero: none does
	tried      time.Time    // the expiry that the last renewal tried to write, whether or not it succeeded

	mu         sync.Mutex
	cell       Cell[D]       // the record as last read or written
	trust      time.Time     // its local monotonic end
	trustMoved chan struct{} // tells the watchdog
	sent       []pending[D]  // changes that the writer has not received
	wake       chan struct{} // tells the writer
}

// Grant returns the owner and token on which this acquisition's writes are conditional.
func (h *Hold[D]) Grant() Grant { return h.grant }

// Stolen reports whether the acquisition took over an expired lease of another owner.
func (h *Hold[D]) Stolen() bool { return h.stolen }

// Cell returns the record as last read or written.
func (h *Hold[D]) Cell() Cell[D] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cell
}

// Doc returns the record as last read or written.
func (h *Hold[D]) Doc() D { return h.Cell().Doc }

// Now estimates the store's present time, as Cell.Now does.
func (h *Hold[D]) Now() time.Time { return h.Cell().Now() }

// TrustedUntil returns the end of trust in the lease, by the local monotonic clock.
func (h *Hold[D]) TrustedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trust
}

// Adoptable reports whether another program has made the record terminal while the lease was still
// held, by the last reading; see Adopting.
func (h *Hold[D]) Adoptable() bool {
	d := h.Doc()
	_, err := Adopt(*h.records.lease(&d), h.grant)
	return err == nil
}

// Run calls body between Start and Stop, and returns body's error, or a *LostError if the lease was
// lost, whatever body returned. A lease that cannot be trusted any more does not begin the body.
func (h *Hold[D]) Run(ctx context.Context, body func(ctx context.Context) error, renewed Renewed) (err error) {
	ctx = h.Start(ctx, renewed)
	defer func() { // also if body panics
		if lost := h.Stop(); lost != nil {
			err = lost
		}
	}()
	if errors.Is(context.Cause(ctx), ErrLost) {
		return nil // Stop returns the loss
	}
	return body(ctx)
}

// Renew sends one heartbeat: it moves the expiry to one TTL from now. It tries until ctx ends, and
// returns ErrLost or ErrUnavailable. Start renews for you. (SEEDS G6)
func (h *Hold[D]) Renew(ctx context.Context) error {
	return h.commit(ctx, step{
		rule: func(l Lease, now time.Time, g Grant) (Lease, error) {
			l, err := Renew(l, now, g, h.records.policy)
			if err == nil {
				l = Distinct(l, h.tried)
				h.tried = l.ExpiresAt
			}
			return l, err
		},
		landed: func(l Lease, g Grant) bool { return l.HeldBy(g) && l.ExpiresAt.Equal(h.tried) },
	})
}

// Flush renews the lease if a change waits for the next commit.
func (h *Hold[D]) Flush(ctx context.Context) error {
	h.receive()
	if len(h.pending) == 0 {
		return nil
	}
	return h.Renew(ctx)
}

// step is what a commit does to the lease.
type step struct {
	rule   func(l Lease, now time.Time, g Grant) (Lease, error)
	landed func(l Lease, g Grant) bool // whether a later reading shows it
}

// Ending is the last write of an acquisition: one of Finishing, Adopting and Releasing. Its
// alternatives are changes of the record's own fields. The first for which the store has room is made.
type Ending[D any] struct {
	step         step
	timeout      time.Duration
	extendable   bool // a later deadline of the caller counts
	alternatives []func(*D)
}

// Finishing makes the record terminal, and frees the lease.
func Finishing[D any](alternatives ...func(*D)) Ending[D] { return finishing(Finish, alternatives) }

// Adopting is Finishing for an Adoptable record.
func Adopting[D any](alternatives ...func(*D)) Ending[D] { return finishing(Adopt, alternatives) }

func finishing[D any](rule func(Lease, Grant) (Lease, error), alternatives []func(*D)) Ending[D] {
	finish := step{
		rule:   func(l Lease, _ time.Time, g Grant) (Lease, error) { return rule(l, g) },
		landed: func(l Lease, g Grant) bool { return l.FinishedBy == g.Owner },
	}
	return Ending[D]{step: finish, timeout: 60 * time.Second, alternatives: alternatives}
}

// Releasing frees the lease. refund takes back the attempt.
func Releasing[D any](refund bool, alternatives ...func(*D)) Ending[D] {
	release := step{
		rule:   func(l Lease, _ time.Time, g Grant) (Lease, error) { return Release(l, g, refund) },
		landed: func(l Lease, g Grant) bool { return l.Owner == "" && l.Token == g.Token },
	}
	return Ending[D]{step: release, timeout: 2 * time.Second, extendable: true, alternatives: alternatives}
}

// End makes the last write in one commit, which succeeds only if the lease is still held. It
// returns ErrLost if it is not; ErrRefused if the store has no room for any alternative (the lease is
// kept, and the Hold remains usable); ErrMalformed if another program has damaged the record; or
// ErrUnavailable.
//
// A release tries for 2 s, or until the deadline of ctx if that is later, and the others for 60 s;
// all of them also if ctx has been cancelled. (SEEDS G8)
func (h *Hold[D]) End(ctx context.Context, e Ending[D]) error {
	limit := time.Now().Add(e.timeout)
	if deadline, ok := ctx.Deadline(); ok && e.extendable && deadline.After(limit) {
		limit = deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), limit)
	defer cancel()
	return h.commit(ctx, e.step, e.alternatives...)
}

func (h *Hold[D]) setCell(c Cell[D]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cell = c
	if lease := h.records.lease(&c.Doc); lease.HeldBy(h.grant) {
		h.trust = Trusted(*lease, c.At, c.Asked, h.records.policy)
	}
	notify(h.trustMoved)
}

// notify wakes the one goroutine that receives from c, now or at its next receive.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
