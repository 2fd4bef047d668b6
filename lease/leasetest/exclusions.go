package leasetest

import (
	"sync"
	"time"

	"taskguard/lease"
)

// exclusions are the cases of Exclude.
func exclusions[D any]() []testCase[D] {
	return []testCase[D]{
		{name: "ExcludeWritesWhatWasDecided", run: excludeWrites[D]},
		{name: "ExcludeAnswersADecisionsErrorUnchanged", run: excludeRefuses[D]},
		{name: "ExcludeOfAMissingRecordShowsItMissing", run: excludeMissing[D]},
		{name: "ExcludeLosesNoneOfManyWrites", run: excludeMany[D]},
	}
}

func (b *bench[D]) exclude(decide func(lease.Cell[D]) (D, error)) (lease.Cell[D], error) {
	b.Helper()
	x, ok := b.store.(lease.Excluder[D])
	if !ok {
		b.Fatalf("%T is no Excluder", b.store)
	}
	return x.Exclude(b.Context(), key, decide)
}

func excludeWrites[D any](b *bench[D]) {
	before := b.created().load()
	c, err := b.exclude(func(c lease.Cell[D]) (D, error) { return b.owned(c, "w/1"), nil })
	if err != nil || !c.Exists || c.At.Before(before.At) || c.Asked.Before(before.Asked) {
		b.Fatalf("exclude: %+v, %v", c, err)
	}
	b.wantLease(*b.Of(&c.Doc), b.lease())
	if c, err = b.store.Swap(b.Context(), key, c, b.owned(c, "w/2")); err != nil || b.Of(&c.Doc).Token != 2 {
		b.Errorf("swap of the cell it answered: %+v, %v", c, err)
	}
}

func excludeRefuses[D any](b *bench[D]) {
	b.created()
	want := &lease.HeldError{Owner: "w/1", ExpiresAt: time.UnixMilli(1)}
	_, err := b.exclude(func(c lease.Cell[D]) (D, error) { return b.owned(c, "w/2"), want })
	if got, ok := err.(*lease.HeldError); !ok || got != want { //nolint:errorlint // unchanged means not even wrapped
		b.Errorf("err = %#v; want the very %#v", err, want)
	}
	b.wantLease(b.lease(), lease.Lease{})
}

func excludeMissing[D any](b *bench[D]) {
	_, err := b.exclude(func(c lease.Cell[D]) (D, error) {
		if c.Exists || c.At.IsZero() {
			b.Errorf("cell = %+v; want one that does not exist, with its time", c)
		}
		return c.Doc, lease.ErrNotFound
	})
	b.wantErr(err, lease.ErrNotFound)
}

func excludeMany[D any](b *bench[D]) {
	b.created()
	const n = 3
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := lease.Edit(b.Context(), exclusive(b.store), key, nil,
				func(c lease.Cell[D]) (D, error) { return b.owned(c, "w/1"), nil },
				func(lease.Cell[D]) bool { return false })
			if err != nil {
				b.Errorf("edit: %v", err)
			}
		})
	}
	wg.Wait()
	if got := b.lease().Token; got != n {
		b.Errorf("token = %d; want %d", got, n)
	}
}

// exclusive is s with every decision made in Exclude, if s is an Excluder.
func exclusive[D any](s lease.Store[D]) lease.Store[D] {
	x, ok := s.(lease.Excluder[D])
	if !ok {
		return s
	}
	return NewFaultyExcluder(x, Every(Swap, Conflict))
}
