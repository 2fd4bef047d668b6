package document

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/lease"
)

// Finder finds the records that a sweep may delete.
type Finder interface {
	// Lapsed returns up to limit records whose stored expiry is before the
	// store's time, the oldest first. The sweep judges each one again.
	Lapsed(ctx context.Context, limit int) ([]Change, error)
}

const (
	sweepBatch      = 1000             // records read at once
	parallelDeletes = 16               // records deleted at once
	sweepTimeout    = 50 * time.Second // the next sweep is due a minute after the last
)

// errHeld ends the sweep of a room that is held, or that has no record any more.
var errHeld = errors.New("document: held")

// Sweep deletes the records of rooms that are no longer held, for at most 50 s, and
// returns how many. Each delete holds only if the record is as it was read:
// a lock that has just been extended or taken survives. Sweeps may run at once. A
// room that cannot be swept does not stop the others, but lease.ErrUnavailable ends
// the sweep. The error is the error of the first room that failed (SEEDS D4).
func (l *Locks) Sweep(ctx context.Context, f Finder) (swept int, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	for {
		found, err := f.Lapsed(ctx, sweepBatch)
		if err != nil {
			return swept, err
		}
		n, err := l.sweepAll(ctx, found)
		swept += n
		if err != nil || n == 0 || len(found) < sweepBatch {
			return swept, err
		}
	}
}

// sweepAll sweeps the rooms of found, several at once.
func (l *Locks) sweepAll(ctx context.Context, found []Change) (swept int, err error) {
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(parallelDeletes)
	var mu sync.Mutex // guards swept and err
	for i := range found {
		if ctx.Err() != nil {
			break
		}
		work.Go(func() error {
			failed := l.sweep(ctx, found[i])

			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed == nil:
				swept++
			case !errors.Is(failed, errHeld):
				err = cmp.Or(err, failed)
			}
			if errors.Is(failed, lease.ErrUnavailable) {
				return failed // ends the sweep
			}
			return nil
		})
	}
	_ = work.Wait() // err is the first
	return swept, err
}

// sweep deletes the record of r, or returns errHeld.
func (l *Locks) sweep(ctx context.Context, r Change) error {
	_, err := l.edit(ctx, r.Room, &r.Cell, func(c cell) (Lock, error) {
		if !c.Exists || lease.Held(c.Doc.Lease, c.At) {
			return c.Doc, errHeld
		}
		return Lock{}, nil
	}, func(lock Lock) bool { return !lock.Kept() })
	return err
}
