package leasetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"taskguard/lease"
)

// swaps are the cases of Load and Swap.
func swaps[D any](s Suite[D]) []testCase[D] {
	cases := []testCase[D]{
		{name: "AMissingRecordIsNoError", run: missing[D]},
		{name: "TheStoresTimeNeverRunsBackwardsAndKeepsPaceWithAsked", run: pace[D], waits: true},
		{name: "SwapOfAStaleCellIsAConflictAndChangesNothing", run: stale[D]},
		{name: "SwapDoesNotRecreateADeletedRecord", run: deleted[D]},
		{name: "ADeletedAndRecreatedRecordIsAnotherRevision", run: recreated[D]},
		{name: "ASwapThatChangesNothingOfAStaleCellIsAConflict", run: idle[D]},
		{name: "OfManySwapsAtOnceOneWins", run: manySwaps[D]},
		{name: "SwapAnswersWhatLoadThenReads", run: swapAnswers[D]},
		{name: "TheNextSwapNeedsNoLoad", run: chain[D]},
		{name: "EveryPartOfALeaseIsKept", run: roundTrip[D]},
		{name: "AnEndedContextIsAnError", run: ended[D]},
	}
	if s.Touch != nil {
		cases = append(cases, testCase[D]{name: "AnothersWriteBetweenLoadAndSwapIsAConflictAndIsKept", run: touchBetween[D]})
	}
	return cases
}

func missing[D any](b *bench[D]) {
	before := time.Now()
	c := b.load()
	if c.Exists || c.At.IsZero() || c.Asked.Before(before) || c.Asked.After(time.Now()) {
		b.Errorf("cell = %+v; want one that does not exist, with both times", c)
	}
}

// pace: the store's time of a reply lies between the start of its call and the
// reply, by a clock that runs as fast as ours and may be set otherwise.
func pace[D any](b *bench[D]) {
	const slack = 250 * time.Millisecond
	b.created()
	first := b.load()
	replied := time.Now()
	last := first
	check := func(what string, c lease.Cell[D], err error) {
		b.Helper()
		if err != nil {
			b.Fatalf("%s: %v", what, err)
		}
		if c.At.Before(last.At) {
			b.Errorf("%s: the store's time went from %v back to %v", what, last.At, c.At)
		}
		if c.Asked.Before(last.Asked) || c.Asked.After(time.Now()) {
			b.Errorf("%s: asked at %v, after %v and before %v", what, c.Asked, last.Asked, time.Now())
		}
		passed := c.At.Sub(first.At)
		if least := c.Asked.Sub(replied) - slack; passed < least {
			b.Errorf("%s: %v passed in the store, and here at least %v", what, passed, least)
		}
		if most := time.Since(first.Asked) + slack; passed > most {
			b.Errorf("%s: %v passed in the store, and here at most %v", what, passed, most)
		}
		last = c
	}
	for i := range 4 {
		c, err := b.store.Load(b.Context(), key)
		check("load", c, err)
		c, err = b.store.Swap(b.Context(), key, c, b.owned(c, fmt.Sprint("w/", i)))
		check("swap", c, err)
		time.Sleep(400 * time.Millisecond)
	}
}

func stale[D any](b *bench[D]) {
	old := b.created().load()
	won, err := b.store.Swap(b.Context(), key, old, b.owned(old, "w/1"))
	if err != nil {
		b.Fatalf("swap: %v", err)
	}
	_, err = b.store.Swap(b.Context(), key, old, b.with(old, func(d *D) {
		b.take(d, old.At, "w/2")
		b.SetNote(d, "stale")
	}))
	b.wantErr(err, lease.ErrConflict)
	b.wantLease(b.lease(), *b.Of(&won.Doc))
	b.wantNote("")
}

func deleted[D any](b *bench[D]) {
	c := b.created().load()
	b.Delete(b.T, b.store, key)
	_, err := b.store.Swap(b.Context(), key, c, b.owned(c, "w/1"))
	b.wantErr(err, lease.ErrConflict)
	if b.load().Exists {
		b.Error("the record is back")
	}
}

func recreated[D any](b *bench[D]) {
	c := b.created().load()
	b.Delete(b.T, b.store, key)
	b.Create(b.T, b.store, key)
	_, err := b.store.Swap(b.Context(), key, c, b.owned(c, "w/1"))
	b.wantErr(err, lease.ErrConflict)
	b.wantLease(b.lease(), lease.Lease{})
}

func idle[D any](b *bench[D]) {
	old := b.created().load()
	if _, err := b.store.Swap(b.Context(), key, old, old.Doc); err != nil {
		b.Errorf("of a fresh cell: %v", err)
	}
	old = b.load()
	b.usurp("w/1")
	_, err := b.store.Swap(b.Context(), key, old, old.Doc)
	b.wantErr(err, lease.ErrConflict)
}

func manySwaps[D any](b *bench[D]) {
	c := b.created().load()
	var (
		errs [16]error
		wg   sync.WaitGroup
	)
	for i := range errs {
		wg.Go(func() { _, errs[i] = b.store.Swap(b.Context(), key, c, b.owned(c, fmt.Sprint("w/", i))) })
	}
	wg.Wait()
	var winners []string
	for i, err := range errs {
		if err == nil {
			winners = append(winners, fmt.Sprint("w/", i))
			continue
		}
		b.wantErr(err, lease.ErrConflict)
	}
	if got := b.lease(); len(winners) != 1 || got.Owner != winners[0] || got.Token != 1 {
		b.Errorf("winners %q, then %+v", winners, got)
	}
}

func swapAnswers[D any](b *bench[D]) {
	c := b.created().load()
	before := time.Now()
	got, err := b.store.Swap(b.Context(), key, c, b.with(c, func(d *D) {
		b.take(d, c.At, "w/1")
		b.SetNote(d, "mine")
	}))
	if err != nil {
		b.Fatalf("swap: %v", err)
	}
	if !got.Exists || got.At.Before(c.At) || got.Asked.Before(before) || b.Note(got.Doc) != "mine" {
		b.Errorf("cell = %+v", got)
	}
	b.wantLease(*b.Of(&got.Doc), b.lease())
	b.wantNote("mine")
}

func chain[D any](b *bench[D]) {
	c := b.created().load()
	for i := range 3 {
		var err error
		if c, err = b.store.Swap(b.Context(), key, c, b.owned(c, fmt.Sprint("w/", i))); err != nil {
			b.Fatalf("swap %d: %v", i, err)
		}
	}
	if got := b.lease(); got.Token != 3 || got.Owner != "w/2" {
		b.Errorf("lease = %+v", got)
	}
}

func roundTrip[D any](b *bench[D]) {
	now := b.created().load().At.Truncate(time.Millisecond)
	for name, l := range map[string]lease.Lease{
		"of a long owner":  {Owner: strings.Repeat("worker-00042-abc/é漢/", 20), Token: 1, Attempts: 1, HeartbeatAt: now, ExpiresAt: now.Add(b.TTL)},
		"of a big token":   {Owner: "w/1", Token: 1 << 53, Attempts: 1<<31 - 1, HeartbeatAt: now, ExpiresAt: now.Add(12*time.Hour + time.Millisecond)},
		"without times":    {Owner: "w/1", Token: 7, Attempts: 2},
		"with an old time": {Owner: "w/1", Token: 7, Attempts: 2, HeartbeatAt: time.UnixMilli(1), ExpiresAt: time.UnixMilli(2)},
		"freed":            {Token: 8, Attempts: 3},
		"finished":         {Token: 9, Attempts: 3, Finished: true, FinishedBy: "w/9"},
		"finished early":   {Owner: "w/1", Token: 9, Finished: true, HeartbeatAt: now, ExpiresAt: now.Add(b.TTL)},
	} {
		b.Delete(b.T, b.store, key)
		b.Create(b.T, b.store, key)
		d := b.rewrite(func(d *D, _ time.Time) {
			*b.Of(d) = l
			if l.Finished {
				b.Close(d)
			}
		})
		b.Log("a lease", name)
		b.wantLease(*b.Of(&d), l)
		b.wantLease(b.lease(), l)
	}
	b.Delete(b.T, b.store, key)
	b.Create(b.T, b.store, key)
	b.wantLease(b.lease(), lease.Lease{})
}

func ended[D any](b *bench[D]) {
	c := b.created().load()
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if _, err := b.store.Load(ctx, key); err == nil || errors.Is(err, lease.ErrRefused) {
		b.Errorf("load: %v; want an error that is no refusal", err)
	}
	if _, err := b.store.Swap(ctx, key, c, b.owned(c, "w/1")); err == nil || errors.Is(err, lease.ErrRefused) {
		b.Errorf("swap: %v; want an error that is no refusal", err)
	}
}

func touchBetween[D any](b *bench[D]) {
	c := b.created().load()
	b.Touch(b.T, b.store, key)
	_, err := b.store.Swap(b.Context(), key, c, b.owned(c, "w/1"))
	b.wantErr(err, lease.ErrConflict)
	c = b.load()
	if _, err = b.store.Swap(b.Context(), key, c, b.owned(c, "w/1")); err != nil {
		b.Fatalf("swap: %v", err)
	}
	b.Touch(b.T, b.store, key)
	if got := b.Touched(b.T, b.store, key); got != 2 || b.lease().Owner != "w/1" {
		b.Errorf("%d touches, lease %+v; want 2, and w/1's", got, b.lease())
	}
}
