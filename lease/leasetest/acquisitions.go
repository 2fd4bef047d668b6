package leasetest

import (
	"errors"
	"fmt"
	"sync"

	"taskguard/lease"
)

// acquisitions are the cases in which no body runs.
func acquisitions[D any](Suite[D]) []testCase[D] {
	return []testCase[D]{
		{name: "AMissingRecordIsNotFound", run: notFound[D]},
		{name: "ItIsHeldThenExpiresThenIsStolenWithAHigherToken", run: steal[D], waits: true},
		{name: "OfTwoAtOnceExactlyOneAcquires", run: func(b *bench[D]) { crowd(b, 2) }},
		{name: "AFinishedRecordIsRefused", run: finishedIsRefused[D]},
		{name: "TheRecordsOwnFieldsChangeWithTheLease", run: ownFields[D]},
		{name: "ReleaseByAnotherLeavesTheLock", run: foreignRelease[D]},
		{name: "ReleaseKeepsTokenAndAttempts", run: releaseKeeps[D]},
		{name: "RefundTakesBackTheAttempt", run: refund[D]},
		{name: "AHeartbeatRevivesAnExpiredLeaseThatNobodyTook", run: revive[D], waits: true},
		{name: "FinishOfASupersededHolderChangesNothing", run: superseded[D]},
		{name: "ExhaustedAttemptsAreRecordedAsFinished", run: exhausted[D]},
	}
}

// crowds are the cases too large for a store's slow way.
func crowds[D any]() []testCase[D] {
	return []testCase[D]{
		{name: "Of128AtOnceOneAcquiresAndTheOthersFindItHeld", run: func(b *bench[D]) { crowd(b, 128) }},
	}
}

func notFound[D any](b *bench[D]) {
	b.wantErr(b.refused("w/1"), lease.ErrNotFound)
	if b.load().Exists {
		b.Error("the record was made")
	}
}

func steal[D any](b *bench[D]) {
	b.created()
	first := b.acquire("w/1")
	l := b.lease()
	if want := (lease.Grant{Owner: "w/1", Token: 1}); first.Grant() != want || l.Grant() != want || l.Attempts != 1 {
		b.Errorf("grant %+v, lease %+v; want %+v, attempt 1", first.Grant(), l, want)
	}
	if got := l.ExpiresAt.Sub(l.HeartbeatAt); got != b.TTL {
		b.Errorf("expires %v after its heartbeat; want %v", got, b.TTL)
	}
	var held *lease.HeldError
	if err := b.refused("w/2"); !errors.As(err, &held) || held.Owner != "w/1" || held.Token != 1 || !same(held.ExpiresAt, l.ExpiresAt) ||
		held.Remaining <= 0 || held.Remaining > b.TTL {
		b.Errorf("refused: %#v; want until %v", err, l.ExpiresAt)
	}
	b.wantLease(b.lease(), l)
	b.expire()
	second := b.acquire("w/2")
	if got := b.lease(); second.Grant().Token != 2 || got.Owner != "w/2" || got.Attempts != 2 {
		b.Errorf("grant %+v, lease %+v; want token 2, attempt 2", second.Grant(), got)
	}
}

func crowd[D any](b *bench[D], n int) {
	b.created()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range errs {
		l := b.lessor(lease.Policy{})
		wg.Go(func() { _, _, errs[i] = l.Acquire(b.Context(), key, fmt.Sprint("w/", i), nil) })
	}
	wg.Wait()
	winner, won := "", 0
	for i, err := range errs {
		var held *lease.HeldError
		switch {
		case err == nil:
			winner = fmt.Sprint("w/", i)
			won++
		case !errors.As(err, &held):
			b.Errorf("w/%d: %v; want a HeldError", i, err)
		}
	}
	if got := b.lease(); won != 1 || got.Owner != winner || got.Token != 1 || got.Attempts != 1 {
		b.Errorf("%d acquired, last %s, then %+v; want one, with token 1", won, winner, got)
	}
}

func finishedIsRefused[D any](b *bench[D]) {
	b.created()
	if err := b.acquire("w/1").Finish(b.Context(), b.Close); err != nil {
		b.Fatalf("finish: %v", err)
	}
	want := lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}
	b.wantLease(b.lease(), want)
	b.wantErr(b.refused("w/2"), lease.ErrFinished)
	b.wantLease(b.lease(), want)
}

func ownFields[D any](b *bench[D]) {
	b.created()
	note := func(s string) func(*D) { return func(d *D) { b.SetNote(d, s) } }
	h, d, err := b.lessor(lease.Policy{}).Acquire(b.Context(), key, "w/1", note("taken"))
	if err != nil || b.Note(d) != "taken" {
		b.Fatalf("acquire: note %q, %v", b.Note(d), err)
	}
	b.wantNote("taken")
	if err := h.Release(b.Context(), note("freed"), false); err != nil {
		b.Fatalf("release: %v", err)
	}
	b.wantNote("freed")
	err = b.acquire("w/2").Finish(b.Context(), func(d *D) { b.SetNote(d, "result"); b.Close(d) })
	if err != nil {
		b.Fatalf("finish: %v", err)
	}
	b.wantNote("result")
}

func foreignRelease[D any](b *bench[D]) {
	h := b.created().acquire("w/1")
	theirs := b.usurp("w/2")
	if err := h.Release(b.Context(), func(d *D) { b.SetNote(d, "released") }, true); err != nil {
		b.Errorf("release: %v; want none", err)
	}
	b.wantLease(b.lease(), theirs)
	b.wantNote("")
	_, err := b.lessor(lease.Policy{}).Resume(b.Context(), key, "w/1")
	b.wantLost(err, lease.Taken)
}

func releaseKeeps[D any](b *bench[D]) {
	b.created()
	if err := b.acquire("w/1").Release(b.Context(), nil, false); err != nil {
		b.Fatalf("release: %v", err)
	}
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1})
	if g := b.acquire("w/2").Grant(); g.Token != 2 {
		b.Errorf("next token = %d; want 2", g.Token)
	}
}

func refund[D any](b *bench[D]) {
	b.created()
	if err := b.acquire("w/1").Release(b.Context(), nil, true); err != nil {
		b.Fatalf("release: %v", err)
	}
	b.wantLease(b.lease(), lease.Lease{Token: 1})
}

func revive[D any](b *bench[D]) {
	h := b.created().acquire("w/1")
	b.expire()
	if err := h.Renew(b.Context(), 0); err != nil {
		b.Fatalf("renew: %v", err)
	}
	c := b.load()
	if l := b.Of(&c.Doc); !l.HeldBy(h.Grant()) || !c.At.Before(l.ExpiresAt) || l.Attempts != 1 {
		b.Errorf("at %v: %+v; want held again", c.At, l)
	}
}

func superseded[D any](b *bench[D]) {
	h := b.created().acquire("w/1")
	theirs := b.usurp("w/2")
	b.wantLost(h.Finish(b.Context(), func(d *D) { b.SetNote(d, "mine"); b.Close(d) }), lease.Taken)
	b.wantLease(b.lease(), theirs)
	b.wantNote("")
	b.wantLost(h.Renew(b.Context(), 0), lease.Taken)
	b.wantLease(b.lease(), theirs)
}

func exhausted[D any](b *bench[D]) {
	b.created()
	l := b.lessor(lease.Policy{MaxAttempts: 2})
	for i := range 2 {
		h, _, err := l.Acquire(b.Context(), key, fmt.Sprint("w/", i), nil)
		if err != nil {
			b.Fatalf("attempt %d: %v", i+1, err)
		}
		if err := h.Release(b.Context(), nil, false); err != nil {
			b.Fatalf("release: %v", err)
		}
	}
	_, _, err := l.Acquire(b.Context(), key, "w/3", func(d *D) {
		b.SetNote(d, "gave up")
		if b.Of(d).Finished {
			b.Close(d)
		}
	})
	b.wantErr(err, lease.ErrExhausted)
	b.wantLease(b.lease(), lease.Lease{Token: 3, Attempts: 2, Finished: true, FinishedBy: "w/3"})
	b.wantNote("gave up")
	b.wantErr(b.refused("w/4"), lease.ErrFinished)
}
