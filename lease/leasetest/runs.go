package leasetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"taskguard/lease"
)

// runs are the cases in which a body runs under a lease.
func runs[D any](s Suite[D]) []testCase[D] {
	cases := []testCase[D]{
		{name: "ARunLongerThanTheTTLKeepsItsLease", run: longRun[D], waits: true},
		{name: "ALockRewrittenMidRunCancelsTheRunAndStaysIntact", run: rewrittenMidRun[D], waits: true},
		{name: "ARecordDeletedMidRunIsNotRecreated", run: deletedMidRun[D], waits: true},
		{name: "ARecordFinishedByAnotherMidRunKeepsTheirResult", run: finishedMidRun[D], waits: true},
		{name: "AnUnlockMidRunCancelsTheRun", run: unlockedMidRun[D], waits: true},
	}
	if s.Touch != nil {
		cases = append(cases, testCase[D]{name: "ABusyWriterStarvesNoHeartbeatAndNobodyLosesAWrite", run: busyWriter[D], waits: true})
	}
	return cases
}

func longRun[D any](b *bench[D]) {
	h := b.created().acquire("w/1")
	err := h.Run(b.Context(), func(ctx context.Context, _ D, g lease.Grant) error {
		if g != h.Grant() {
			b.Errorf("grant = %+v; want %+v", g, h.Grant())
		}
		for range 6 {
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
	if err != nil {
		b.Errorf("run: %v", err)
	}
	if err := h.Finish(b.Context(), b.Close); err != nil {
		b.Errorf("finish: %v", err)
	}
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"})
}

// lost runs a body that changes the record and then waits for its end, and
// checks that the lease was lost for this reason, to the body, to Run and to
// all that comes after.
func (b *bench[D]) lost(reason string, change func()) {
	b.Helper()
	h := b.created().acquire("w/1")
	var cause error
	err := h.Run(b.Context(), func(ctx context.Context, _ D, _ lease.Grant) error {
		change()
		cause = b.end(ctx)
		return nil
	})
	b.wantLost(cause, reason)
	b.wantLost(err, reason)
	b.wantLost(h.Finish(b.Context(), func(d *D) { b.SetNote(d, "mine"); b.Close(d) }), reason)
	if err := h.Release(b.Context(), func(d *D) { b.SetNote(d, "mine") }, true); err != nil {
		b.Errorf("release: %v; want none", err)
	}
}

func rewrittenMidRun[D any](b *bench[D]) {
	var theirs lease.Lease
	b.lost(lease.Taken, func() { theirs = b.usurp("w/2") })
	b.wantLease(b.lease(), theirs)
	b.wantNote("")
}

func deletedMidRun[D any](b *bench[D]) {
	b.lost(lease.Deleted, func() { b.Delete(b.T, b.store, key) })
	if b.load().Exists {
		b.Error("the record is back")
	}
}

// finishedMidRun: another program sets the status and knows nothing of the
// rest.
func finishedMidRun[D any](b *bench[D]) {
	var theirs lease.Lease
	b.lost(lease.Finished, func() {
		d := b.rewrite(func(d *D, _ time.Time) {
			b.Of(d).Finished = true
			b.SetNote(d, "theirs")
			b.Close(d)
		})
		theirs = *b.Of(&d)
	})
	b.wantLease(b.lease(), theirs)
	b.wantNote("theirs")
}

func unlockedMidRun[D any](b *bench[D]) {
	b.lost(lease.Taken, func() {
		b.rewrite(func(d *D, _ time.Time) { *b.Of(d) = lease.Break(*b.Of(d)) })
	})
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1})
	if g := b.acquire("w/2").Grant(); g.Token != 2 {
		b.Errorf("next token = %d; want 2", g.Token)
	}
}

// busyWriter: the touches end before the result is written only if the result
// is late: they go on until the run and its finish are over, or for three
// short TTLs.
func busyWriter[D any](b *bench[D]) {
	const every = 100 * time.Millisecond
	b.TTL = min(b.TTL, 6*time.Second)
	h := b.created().acquire("w/1")
	var (
		touches int
		wg      sync.WaitGroup
	)
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
		case <-time.After(b.TTL * 3 / 2):
		}
		return context.Cause(ctx)
	})
	if err != nil {
		b.Errorf("run: %v", err)
	}
	if err := h.Finish(b.Context(), func(d *D) { b.SetNote(d, "result"); b.Close(d) }); err != nil {
		b.Errorf("finish: %v", err)
	}
	cancel()
	wg.Wait()
	if got := b.Touched(b.T, b.store, key); got != touches || touches == 0 {
		b.Errorf("%d touches left of %d", got, touches)
	}
	b.wantLease(b.lease(), lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"})
	b.wantNote("result")
}
