package leasetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"taskguard/lease"
)

// leaseCases test leases on the store.
func leaseCases[D any]() []testCase[D] {
	return []testCase[D]{
		{name: "AMissingRecordIsNotFoundAndNotCreated", run: missing[D]},
		{name: "ItIsHeldThenExpiresThenIsStolenWithAHigherToken", run: steal[D], waits: true},
		{name: "OfTwoAtOnceExactlyOneAcquires", run: func(b *fixture[D]) { acquireAtOnce(b, 2) }},
		{name: "TheRecordsOwnFieldsChangeWithTheLease", run: ownFields[D]},
		{name: "ARunLongerThanTheTTLKeepsItsLease", run: longRun[D], waits: true},
		{name: "ALockRewrittenMidRunCancelsTheRunAndStaysIntact", run: takenMidRun[D], waits: true},
		{name: "ARecordDeletedMidRunIsNotRecreated", run: deletedMidRun[D], waits: true},
		{name: "ARecordFinishedByAnotherMidRunKeepsTheirResult", run: finishedMidRun[D], waits: true},
		{name: "ABusyWriterDelaysNoHeartbeatAndNoWriteIsLost", run: busyWriter[D], waits: true},
	}
}

func missing[D any](b *fixture[D]) {
	b.wantErr(b.refused("w/1"), lease.ErrNotFound)
	before := time.Now()
	c := b.load()
	if c.Exists || c.At.IsZero() || c.Asked.Before(before) || c.Asked.After(time.Now()) {
		b.Errorf("cell = %+v; want one that does not exist, with both times", c)
	}
}

func steal[D any](b *fixture[D]) {
	b.created()
	first := b.acquire("w/1")
	l := b.lease()
	if want := (lease.Grant{Owner: "w/1", Token: 1}); first.Grant() != want || l.Grant() != want || l.Attempts != 1 {
		b.Errorf("grant %+v, lease %+v; want %+v, attempt 1", first.Grant(), l, want)
	}
	if got := l.ExpiresAt.Sub(l.HeartbeatAt); got != b.TTL {
		b.Errorf("expires %v after its heartbeat; want %v", got, b.TTL)
	}
	err := b.refused("w/2")
	var held *lease.HeldError
	if !errors.As(err, &held) || held.Owner != "w/1" || held.Token != 1 ||
		millis(held.ExpiresAt) != millis(l.ExpiresAt) || held.Remaining <= 0 || held.Remaining > b.TTL {
		b.Errorf("refused: %#v; want until %v", err, l.ExpiresAt)
	}
	b.wantLease(b.lease(), l)

	b.expire()
	second := b.acquire("w/2")
	if got := b.lease(); second.Grant().Token != 2 || got.Owner != "w/2" || got.Attempts != 2 {
		b.Errorf("grant %+v, lease %+v; want token 2, attempt 2", second.Grant(), got)
	}
}

func acquireAtOnce[D any](b *fixture[D], n int) {
	b.created()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range errs {
		l := b.lessor(lease.Policy{})
		wg.Go(func() { _, _, errs[i] = l.Acquire(b.Context(), key, fmt.Sprint("w/", i), nil) })
	}
	wg.Wait()
	got := b.lease()
	if got.Token != 1 || got.Attempts != 1 {
		b.Errorf("lease = %+v; want token 1, attempt 1", got)
	}
	for i, err := range errs {
		won := got.Owner == fmt.Sprint("w/", i)
		if won != (err == nil) || !won && !errors.As(err, new(*lease.HeldError)) {
			b.Errorf("w/%d: %v; want a HeldError for all but %s", i, err, got.Owner)
		}
	}
}

func ownFields[D any](b *fixture[D]) {
	b.created()
	note := func(s string) func(*D) { return func(d *D) { b.SetNote(d, s) } }
	h, d, err := b.lessor(lease.Policy{}).Acquire(b.Context(), key, "w/1", note("taken"))
	if err != nil || b.Note(d) != "taken" {
		b.Fatalf("acquire: note %q, %v", b.Note(d), err)
	}
	b.wantNote("taken")
	b.wantErr(h.Release(b.Context(), note("freed"), false), nil)
	b.wantNote("freed")
	b.wantErr(b.acquire("w/2").Finish(b.Context(), func(d *D) { b.SetNote(d, "result"); b.Close(d) }), nil)
	b.wantNote("result")
	want := lease.Lease{Token: 2, Attempts: 2, Finished: true, FinishedBy: "w/2"}
	b.wantLease(b.lease(), want)
	b.wantErr(b.refused("w/3"), lease.ErrFinished)
	b.wantLease(b.lease(), want)
}

func longRun[D any](b *fixture[D]) {
	h := b.created().acquire("w/1")
	err := h.Run(b.Context(), func(ctx context.Context, _ D, g lease.Grant) error {
		if g != h.Grant() {
			b.Errorf("grant = %+v; want %+v", g, h.Grant())
		}
		for range 5 {
			time.Sleep(b.TTL / 4)
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if l := b.lease(); !l.HeldBy(g) {
				b.Errorf("lease = %+v; want it held", l)
			}
			if err := b.refused("w/2"); !errors.As(err, new(*lease.HeldError)) {
				b.Errorf("w/2: %v; want a HeldError", err)
			}
		}
		return nil
	})
	b.wantErr(err, nil)
	b.wantErr(h.Finish(b.Context(), b.Close), nil)
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"})
}

// lost runs a body that changes the record and then waits for its cancellation.
// It checks that the body, Run and all later calls report a loss for this reason,
// except Release, which has nothing to do.
func (b *fixture[D]) lost(reason string, change func()) {
	b.Helper()
	h := b.created().acquire("w/1")
	var cause error
	err := h.Run(b.Context(), func(ctx context.Context, _ D, _ lease.Grant) error {
		change()
		<-ctx.Done()
		cause = context.Cause(ctx)
		return nil
	})
	b.wantLost(cause, reason)
	b.wantLost(err, reason)
	b.wantLost(h.Renew(b.Context(), 0), reason)
	b.wantLost(h.Finish(b.Context(), func(d *D) { b.SetNote(d, "mine"); b.Close(d) }), reason)
	b.wantLost(h.Release(b.Context(), func(d *D) { b.SetNote(d, "mine") }, true), reason)
}

func takenMidRun[D any](b *fixture[D]) {
	var theirs lease.Lease
	b.lost(lease.Taken, func() { theirs = b.takeOver("w/2") })
	b.wantLease(b.lease(), theirs)
	b.wantNote("")
}

func deletedMidRun[D any](b *fixture[D]) {
	b.lost(lease.Deleted, func() { b.Delete(b.T, b.store, key) })
	if b.load().Exists {
		b.Error("the record is back")
	}
}

// finishedMidRun: another program sets the status and leaves the lease as it is.
func finishedMidRun[D any](b *fixture[D]) {
	var theirs D
	b.lost(lease.Finished, func() {
		theirs = b.rewrite(func(d *D, _ time.Time) {
			b.Of(d).Finished = true
			b.SetNote(d, "theirs")
			b.Close(d)
		})
	})
	b.wantLease(b.lease(), *b.Of(&theirs))
	b.wantNote("theirs")
}

// busyWriter: another program touches the record until the run has finished it,
// but for three TTLs at most.
func busyWriter[D any](b *fixture[D]) {
	const every = 100 * time.Millisecond
	b.TTL = min(b.TTL, 6*time.Second)
	h := b.created().acquire("w/1")

	touches := 0
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	wg.Go(func() {
		for ; ctx.Err() == nil && touches < int(3*b.TTL/every); touches++ {
			b.Touch(b.T, b.store, key)
			time.Sleep(every)
		}
	})

	err := h.Run(b.Context(), func(ctx context.Context, _ D, _ lease.Grant) error {
		select {
		case <-ctx.Done():
		case <-time.After(b.TTL * 5 / 4):
		}
		return context.Cause(ctx)
	})
	b.wantErr(err, nil)
	b.wantErr(h.Finish(b.Context(), func(d *D) { b.SetNote(d, "result"); b.Close(d) }), nil)
	cancel()
	wg.Wait()

	if got := b.Touched(b.T, b.store, key); got != touches || touches == 0 {
		b.Errorf("the record shows %d touches of %d", got, touches)
	}
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"})
	b.wantNote("result")
}
