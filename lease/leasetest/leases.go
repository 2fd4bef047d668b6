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
		{name: "Lease/a missing record is not found, and not created", run: missing[D]},
		{name: "Lease/it is held, then expires, then is stolen with a higher token", run: steal[D], waits: true},
		{name: "Lease/of two at once exactly one acquires", run: func(b *fixture[D]) { acquireAtOnce(b, 2) }},
		{name: "Lease/the record's own fields change with the lease", run: ownFields[D]},
		{name: "Lease/a lock rewritten during a run cancels it, and stays", run: takenMidRun[D], waits: true},
		{name: "Lease/a busy writer delays no heartbeat, and no write is lost", run: busyWriter[D], waits: true},
	}
}

func missing[D any](b *fixture[D]) {
	b.wantErr(b.refused("w/1"), lease.ErrNotFound)
	before := time.Now()
	c := b.load()
	during := !c.Asked.Before(before) && !c.Asked.After(time.Now())
	if known := c.Exists || c.At.IsZero(); known || !during {
		b.Errorf("cell = %+v; want one that does not exist, with both times", c)
	}
}

func steal[D any](b *fixture[D]) {
	b.created()
	holder := b.acquire("w/1")
	l := b.lease()
	want := lease.Grant{Owner: "w/1", Token: 1}
	if both := holder.Grant() == want && l.Grant() == want; !both || l.Attempts != 1 {
		b.Errorf("grant %+v, lease %+v; want %+v, attempt 1", holder.Grant(), l, want)
	}
	if got := l.ExpiresAt.Sub(l.HeartbeatAt); got != b.TTL {
		b.Errorf("expires %v after its heartbeat; want %v", got, b.TTL)
	}
	err := b.refused("w/2")
	var held *lease.HeldError
	if !errors.As(err, &held) {
		b.Fatalf("refused: %v; want a HeldError", err)
	}
	if got := (lease.Grant{Owner: held.Owner, Token: held.Token}); got != want {
		b.Errorf("held by %+v; want %+v", got, want)
	}
	soon := held.Remaining > 0 && held.Remaining <= b.TTL
	if !soon || millis(held.ExpiresAt) != millis(l.ExpiresAt) {
		b.Errorf("refused: %#v; want until %v", err, l.ExpiresAt)
	}
	b.wantLease(b.lease(), l)

	b.expire()
	thief := b.acquire("w/2")
	got := b.lease()
	if stolen := got.Owner == "w/2" && got.Attempts == 2; !stolen || thief.Grant().Token != 2 {
		b.Errorf("grant %+v, lease %+v; want token 2, attempt 2", thief.Grant(), got)
	}
}

func acquireAtOnce[D any](b *fixture[D], n int) {
	b.created()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range errs {
		r := b.records()
		wg.Go(func() { _, _, errs[i] = r.Acquire(b.Context(), key, fmt.Sprint("w/", i), lease.OnlyLease, nil) })
	}
	wg.Wait()
	got := b.lease()
	if got.Token != 1 || got.Attempts != 1 {
		b.Errorf("lease = %+v; want token 1, attempt 1", got)
	}
	for i, err := range errs {
		won := got.Owner == fmt.Sprint("w/", i)
		if held := errors.As(err, new(*lease.HeldError)); won != (err == nil) || won == held {
			b.Errorf("w/%d: %v; want a HeldError for all but %s", i, err, got.Owner)
		}
	}
}

func ownFields[D any](b *fixture[D]) {
	b.created()
	note := func(s string) func(*D) { return func(d *D) { b.SetNote(d, s) } }
	policy := lease.Policy{TTL: b.TTL}
	h, d, err := b.records().Acquire(b.Context(), key, "w/1", lease.OnlyLease, func(d *D, now time.Time) (err error) {
		b.SetNote(d, "taken")
		*b.Lease(d), err = lease.Acquire(*b.Lease(d), now, "w/1", policy)
		return err
	})
	if err != nil || b.Note(d) != "taken" {
		b.Fatalf("acquire: note %q, %v", b.Note(d), err)
	}
	b.wantNote("taken")
	b.wantErr(h.End(b.Context(), lease.Releasing(false, note("freed"))), nil)
	b.wantNote("freed")
	finish := lease.Finishing(func(d *D) { b.SetNote(d, "result"); b.Close(d) })
	b.wantErr(b.acquire("w/2").End(b.Context(), finish), nil)
	b.wantNote("result")
	want := lease.Lease{Token: 2, Attempts: 2, Finished: true, FinishedBy: "w/2"}
	b.wantLease(b.lease(), want)
	b.wantErr(b.refused("w/3"), lease.ErrFinished)
	b.wantLease(b.lease(), want)
}

// takenMidRun: the body, Run and all later calls report the loss, and change nothing.
func takenMidRun[D any](b *fixture[D]) {
	h := b.created().acquire("w/1")
	var theirs lease.Lease
	var cause error
	err := h.Run(b.Context(), func(ctx context.Context) error {
		theirs = b.takeOver("w/2")
		<-ctx.Done()
		cause = context.Cause(ctx)
		return nil
	}, nil)
	b.wantLost(cause)
	b.wantLost(err)
	b.wantLost(h.Renew(b.Context()))
	b.wantLost(h.End(b.Context(), lease.Finishing(func(d *D) { b.SetNote(d, "mine"); b.Close(d) })))
	b.wantLost(h.End(b.Context(), lease.Releasing(true, func(d *D) { b.SetNote(d, "mine") })))
	b.wantLease(b.lease(), theirs)
	b.wantNote("")
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

	err := h.Run(b.Context(), func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(b.TTL * 5 / 4):
		}
		return context.Cause(ctx)
	}, nil)
	b.wantErr(err, nil)
	b.wantErr(h.End(b.Context(), lease.Finishing(func(d *D) { b.SetNote(d, "result"); b.Close(d) })), nil)
	cancel()
	wg.Wait()

	if got := b.Touched(b.T, b.store, key); got != touches || touches == 0 {
		b.Errorf("the record shows %d touches of %d", got, touches)
	}
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"})
	b.wantNote("result")
}
