package analysislock

import (
	"context"
	"fmt"
	"time"

	"taskguard/lease"
)

// editTimeout bounds an operator's change; no run depends on it.
const editTimeout = 15 * time.Second

// Get reads one analysis: lease.ErrNotFound if there is none.
func (l *Locks) Get(ctx context.Context, id string) (Analysis, error) {
	if err := CheckID(id); err != nil {
		return Analysis{}, err
	}
	c, err := l.store.Load(ctx, id)
	switch {
	case err != nil:
		return Analysis{}, outOfReach(err)
	case !c.Exists:
		return Analysis{}, fmt.Errorf("%w: %q", lease.ErrNotFound, id)
	}
	return c.Doc, nil
}

// Seen is what an analysis was when an operator decided on a change. The change is
// made of that alone: of any other status or acquisition is lease.ErrConflict, and
// nothing is changed. nil: of whatever is there.
type Seen struct {
	Status string
	Grant  lease.Grant
}

// Unlock takes the lock from whoever holds it and puts PROCESSING back to
// QUEUED: an operator's forced release. Who takes it at that very moment keeps
// it. It returns the analysis as it was.
func (l *Locks) Unlock(ctx context.Context, id string, seen *Seen) (Analysis, error) {
	return l.edit(ctx, id, seen, func(d *Analysis, _ time.Time) error {
		d.Lock = lease.Break(d.Lock)
		requeue(d)
		return nil
	}, func(was, is Analysis) bool {
		if seen != nil { // what others have made of it since is no unlock of ours
			return !is.Lock.Finished && is.Status != Processing && is.Lock.Grant() == lease.Break(was.Lock).Grant()
		}
		return is.Lock.Grant() != was.Lock.Grant()
	})
}

// Requeue opens an analysis again, finished or not, from attempt one. It is a
// *lease.HeldError while locked. A READY one keeps its result until the next.
// It returns the analysis as it was.
func (l *Locks) Requeue(ctx context.Context, id string, seen *Seen) (Analysis, error) {
	return l.edit(ctx, id, seen, func(d *Analysis, now time.Time) error {
		lock, err := lease.Reopen(d.Lock, now)
		if err != nil {
			return err
		}
		d.Lock, d.Status, d.Error, d.LastError = lock, Queued, nil, nil
		return nil
	}, func(was, is Analysis) bool {
		open := is.Status == Queued && is.Error == nil && is.Lock.Owner == "" && is.Lock.Attempts == 0
		taken := is.Lock.Token > was.Lock.Token && (was.Lock.Finished || is.Lock.Attempts < was.Lock.Attempts) // by the next, already
		return open || taken
	})
}

// edit changes an analysis that is what was seen, whoever holds it. landed tells
// from what was changed first, and from what it is now, whether there is nothing
// left to change: a change whose reply was lost, made again, could undo what
// others did since.
func (l *Locks) edit(ctx context.Context, id string, seen *Seen, change func(d *Analysis, now time.Time) error,
	landed func(was, is Analysis) bool,
) (before Analysis, err error) {
	if err := CheckID(id); err != nil {
		return Analysis{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	var first *Analysis
	_, err = lease.Edit(ctx, l.store, id, nil, func(c lease.Cell[Analysis]) (Analysis, error) {
		before = c.Doc
		if first == nil {
			first = &c.Doc
		}
		if !c.Exists {
			return c.Doc, fmt.Errorf("%w: %q", lease.ErrNotFound, id)
		}
		if seen != nil && *seen != (Seen{c.Doc.Status, c.Doc.Lock.Grant()}) {
			return c.Doc, fmt.Errorf("%w: %q is not what was seen any more", lease.ErrConflict, id)
		}
		next := c.Doc
		err := change(&next, c.At)
		return next, err
	}, func(c lease.Cell[Analysis]) bool { return c.Exists && landed(*first, c.Doc) })
	return before, err
}
