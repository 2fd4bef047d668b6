package leasetest_test

import (
	"context"

	"taskguard/lease"
)

// excluder is a Memory that can keep other writers waiting.
type excluder struct {
	*lease.Memory[job]
	turn chan struct{}
}

var _ lease.Excluder[job] = (*excluder)(nil)

func newExcluder(m *lease.Memory[job]) *excluder {
	return &excluder{Memory: m, turn: make(chan struct{}, 1)}
}

func (x *excluder) Swap(ctx context.Context, key string, prev lease.Cell[job], next job) (lease.Cell[job], error) {
	x.turn <- struct{}{}
	defer func() { <-x.turn }()
	return x.Memory.Swap(ctx, key, prev, next)
}

func (x *excluder) Exclude(ctx context.Context, key string, decide func(lease.Cell[job]) (job, error)) (lease.Cell[job], error) {
	x.turn <- struct{}{}
	defer func() { <-x.turn }()
	c, err := x.Load(ctx, key)
	if err != nil {
		return c, err
	}
	next, err := decide(c)
	if err != nil {
		return c, err
	}
	return x.Memory.Swap(ctx, key, c, next)
}

// Exclusive implements lease.Excluder.
func (*excluder) Exclusive() bool { return false }
