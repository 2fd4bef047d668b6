package doclock_test

import (
	"context"
	"errors"
	"fmt"

	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/worker/doclock"
)

// refusing is a store that cannot be read.
type refusing struct {
	lease.Store[documentlock.Lock]
	err error
}

func (r refusing) Load(context.Context, string) (lease.Cell[documentlock.Lock], error) {
	return lease.Cell[documentlock.Lock]{}, r.err
}

// dark are locks whose store is out of reach.
type dark struct{ doclock.Locks }

func (dark) Get(context.Context, string, string) (documentlock.State, error) {
	return documentlock.State{}, fmt.Errorf("%w: no connection", lease.ErrUnavailable)
}

// deaf is a change stream that never works.
type deaf struct{}

var errDeaf = errors.New("no stream")

func (deaf) Watch(context.Context, func(documentlock.Snapshot)) error { return errDeaf }

func (deaf) Current(context.Context) (documentlock.Snapshot, error) {
	return documentlock.Snapshot{}, errDeaf
}
