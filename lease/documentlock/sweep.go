package documentlock

import (
	"context"
	"errors"

	"taskguard/lease"
)

// Finder finds what a sweep may have to clean up.
type Finder interface {
	// Lapsed are up to limit records whose stored expiry lies before the store's
	// time, the oldest first. Nothing is decided by that.
	Lapsed(ctx context.Context, limit int) ([]Found, error)
}

// Found is a record as a Finder read it.
type Found struct {
	Room string
	Cell lease.Cell[Lock]
}

// sweepLimit bounds one sweep: with one a minute, 1,000 rooms a minute may lapse.
const sweepLimit = 1000

// errAlive ends the sweeping of a room that somebody holds after all.
var errAlive = errors.New("documentlock: alive")

// Sweep deletes the records of rooms that nobody holds any more, and answers how
// many (D4). Each delete holds only if the record is as it was read: a lock that
// was extended or taken a moment ago survives. Sweeps may run at once. An error
// ends the sweep of its room alone; they are joined.
func (l *Locks) Sweep(ctx context.Context, f Finder) (swept int, err error) {
	found, err := f.Lapsed(ctx, sweepLimit)
	if err != nil {
		return 0, err
	}
	var failed []error
	for i := range found {
		switch err := l.sweep(ctx, found[i]); {
		case err == nil:
			swept++
		case !errors.Is(err, errAlive):
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return swept, errors.Join(failed...)
}

func (l *Locks) sweep(ctx context.Context, r Found) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := lease.Edit(ctx, l.store, r.Room, &r.Cell, func(c lease.Cell[Lock]) (Lock, error) {
		if !c.Exists || lease.Held(c.Doc.Lease, c.At) {
			return c.Doc, errAlive
		}
		return Lock{}, nil
	}, func(c lease.Cell[Lock]) bool { return !c.Exists })
	return err
}
