package documentlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"taskguard/lease"
)

// Finder finds what a sweep may have to clean up.
type Finder interface {
	// Lapsed are up to limit records whose stored expiry lies before the store's
	// time, the oldest first. Nothing is decided by that.
	Lapsed(ctx context.Context, limit int) ([]Change, error)
}

const (
	sweepBatch   = 1000             // records read at once
	sweepers     = 16               // records deleted at once
	sweepTimeout = 50 * time.Second // the next sweep is due a minute after the last
)

// errAlive ends the sweeping of a room that somebody holds after all.
var errAlive = errors.New("documentlock: alive")

// Sweep deletes the records of rooms that nobody holds any more, for at most 50 s,
// and answers how many (D4). Each delete holds only if the record is as it was
// read: a lock that was extended or taken a moment ago survives. Sweeps may run at
// once. A room that cannot be swept holds up no other; lease.ErrUnavailable ends
// the sweep. The error tells of the first room, and how many failed.
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

// sweepAll sweeps what is found, sweepers at once.
func (l *Locks) sweepAll(ctx context.Context, found []Change) (swept int, err error) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var (
		work   sync.WaitGroup
		slots  = make(chan struct{}, sweepers)
		mu     sync.Mutex
		failed int
	)
	for i := range found {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			defer func() { <-slots }()
			failure := l.sweep(ctx, found[i])
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failure == nil:
				swept++
			case errors.Is(failure, errAlive):
			default:
				if failed++; failed == 1 {
					err = failure
				}
				if errors.Is(failure, lease.ErrUnavailable) {
					giveUp()
				}
			}
		})
	}
	work.Wait()
	if failed > 1 {
		err = fmt.Errorf("documentlock: %d rooms could not be swept, the first: %w", failed, err)
	}
	return swept, err
}

func (l *Locks) sweep(ctx context.Context, r Change) error {
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
