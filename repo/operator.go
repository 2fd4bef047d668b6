package repo

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
)

// editTimeout bounds an operator's change; no run depends on it.
const editTimeout = 15 * time.Second

// Create makes a QUEUED analysis with input, a value as orchestrator.Storable
// returns it: ErrExists if the id is taken, lease.ErrRefused if Firestore
// cannot hold the input. After lease.ErrUnavailable it may exist all the same.
func (a *Analyses) Create(ctx context.Context, id string, input any) error {
	if err := CheckID(id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	now := time.Now().Truncate(time.Millisecond) // for people; nothing is decided by it
	_, err := a.store.collection.Doc(id).Create(ctx, map[string]any{
		"status": Queued, "input": input, "attempts": 0, "createdAt": timeValue(now), "updatedAt": timeValue(now),
	})
	switch {
	case status.Code(err) == codes.AlreadyExists:
		// Also the answer to a creation whose reply was lost and which the client
		// sent again.
		if d, err := a.Get(ctx, id); err == nil && d.CreatedAt.Equal(now) && reflect.DeepEqual(d.Input, input) {
			return nil
		}
		return fmt.Errorf("%w: %q", ErrExists, id)
	case err != nil:
		return outOfReach(storeError("create", id, err))
	}
	return nil
}

// Get reads one analysis: lease.ErrNotFound if there is none.
func (a *Analyses) Get(ctx context.Context, id string) (Analysis, error) {
	if err := CheckID(id); err != nil {
		return Analysis{}, err
	}
	c, err := a.store.Load(ctx, id)
	switch {
	case err != nil:
		return Analysis{}, outOfReach(err)
	case !c.Exists:
		return Analysis{}, fmt.Errorf("%w: %q", lease.ErrNotFound, id)
	}
	return c.Doc, nil
}

// List reads up to limit analyses, by id. One that is malformed is listed with
// what could be read of it.
func (a *Analyses) List(ctx context.Context, limit int) ([]Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	docs := a.store.collection.OrderBy(firestore.DocumentID, firestore.Asc).Limit(limit).Documents(ctx)
	defer docs.Stop()
	var all []Analysis
	for {
		snap, err := docs.Next()
		if errors.Is(err, iterator.Done) {
			return all, nil
		}
		if err != nil {
			return nil, outOfReach(fmt.Errorf("repo: list analyses: %w", err))
		}
		doc, err := a.store.codec.decode(snap)
		if err != nil && !errors.Is(err, lease.ErrMalformed) {
			return nil, err
		}
		doc.Malformed = err
		all = append(all, doc)
	}
}

// Unlock takes the lock from whoever holds it and puts PROCESSING back to
// QUEUED: an operator's forced release. Who takes it at that very moment keeps
// it. It returns the analysis as it was.
func (a *Analyses) Unlock(ctx context.Context, id string) (Analysis, error) {
	return a.edit(ctx, id, func(d *Analysis, _ time.Time) error {
		d.Lock = lease.Break(d.Lock)
		requeue(d)
		return nil
	}, func(was, is Analysis) bool { return is.Lock.Grant() != was.Lock.Grant() })
}

// Requeue opens an analysis again, finished or not, from attempt one. It is a
// *lease.HeldError while locked. A READY one keeps its result until the next.
// It returns the analysis as it was.
func (a *Analyses) Requeue(ctx context.Context, id string) (Analysis, error) {
	return a.edit(ctx, id, func(d *Analysis, now time.Time) error {
		l, err := lease.Reopen(d.Lock, now)
		if err != nil {
			return err
		}
		d.Lock, d.Status, d.Error = l, Queued, nil
		return nil
	}, func(was, is Analysis) bool {
		open := is.Status == Queued && is.Error == nil && is.Lock.Owner == "" && is.Lock.Attempts == 0
		taken := is.Lock.Token > was.Lock.Token && (was.Lock.Finished || is.Lock.Attempts < was.Lock.Attempts) // by the next, already
		return open || taken
	})
}

// edit changes an analysis whoever holds it. landed tells from what was changed
// first, and from what it is now, whether there is nothing left to change: a
// change whose reply was lost, made again, could undo what others did since.
func (a *Analyses) edit(ctx context.Context, id string, change func(d *Analysis, now time.Time) error,
	landed func(was, is Analysis) bool,
) (before Analysis, err error) {
	if err := CheckID(id); err != nil {
		return Analysis{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	var first *Analysis
	_, err = lease.Edit(ctx, a.store, id, nil, func(c lease.Cell[Analysis]) (Analysis, error) {
		before = c.Doc
		if first == nil {
			first = &c.Doc
		}
		if !c.Exists {
			return c.Doc, fmt.Errorf("%w: %q", lease.ErrNotFound, id)
		}
		next := c.Doc
		err := change(&next, c.At)
		return next, err
	}, func(c lease.Cell[Analysis]) bool { return c.Exists && landed(*first, c.Doc) })
	return before, err
}

// Ping reports whether Firestore answers.
func (a *Analyses) Ping(ctx context.Context) error {
	_, err := a.store.Load(ctx, "ready")
	if err != nil && !errors.Is(err, lease.ErrMalformed) {
		return outOfReach(err)
	}
	return nil
}

// outOfReach marks the error of a single call as lease.ErrUnavailable unless
// the store has refused it.
func outOfReach(err error) error {
	if errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrMalformed) {
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
}
