package leasetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/lease"
)

// bench is what a case works at.
type bench[D any] struct {
	*testing.T
	Suite[D]
	store  lease.Store[D] // as other programs see it
	leased lease.Store[D] // as Lessors see it
}

// key is the record of a case.
const key = "record-1"

// created is b with its record made.
func (b *bench[D]) created() *bench[D] {
	b.Helper()
	b.Create(b.T, b.store, key)
	return b
}

func (b *bench[D]) load() lease.Cell[D] {
	b.Helper()
	c, err := b.store.Load(b.Context(), key)
	if err != nil {
		b.Fatalf("load: %v", err)
	}
	return c
}

// lease is the record's, which must exist.
func (b *bench[D]) lease() lease.Lease {
	b.Helper()
	c := b.load()
	if !c.Exists {
		b.Fatal("the record is missing")
	}
	return *b.Of(&c.Doc)
}

// with is c's record, changed.
func (b *bench[D]) with(c lease.Cell[D], change func(*D)) D {
	change(&c.Doc)
	return c.Doc
}

// owned is c's record, leased to owner.
func (b *bench[D]) owned(c lease.Cell[D], owner string) D {
	return b.with(c, func(d *D) { b.take(d, c.At, owner) })
}

// take leases d to owner whoever has it, as a program that follows the same
// rules would if the lease had expired.
func (b *bench[D]) take(d *D, now time.Time, owner string) {
	l := b.Of(d)
	l.Owner = owner
	l.Token++
	l.Attempts++
	l.HeartbeatAt = now.Truncate(time.Millisecond)
	l.ExpiresAt = l.HeartbeatAt.Add(b.TTL)
}

// rewrite changes the record as another program would, and is what it then
// holds.
func (b *bench[D]) rewrite(change func(d *D, now time.Time)) D {
	b.Helper()
	for {
		c := b.load()
		if !c.Exists {
			b.Fatal("the record is missing")
		}
		c, err := b.store.Swap(b.Context(), key, c, b.with(c, func(d *D) { change(d, c.At) }))
		switch {
		case err == nil:
			return c.Doc
		case !errors.Is(err, lease.ErrConflict):
			b.Fatalf("rewrite: %v", err)
		}
	}
}

// usurp gives the lease to another, and is that lease.
func (b *bench[D]) usurp(owner string) lease.Lease {
	b.Helper()
	d := b.rewrite(func(d *D, now time.Time) { b.take(d, now, owner) })
	return *b.Of(&d)
}

// lessor is one more process.
func (b *bench[D]) lessor(p lease.Policy) *lease.Lessor[D] {
	b.Helper()
	if p.TTL == 0 {
		p.TTL = b.TTL
	}
	l, err := lease.NewLessor(b.leased, b.Of, p)
	if err != nil {
		b.Fatalf("lessor: %v", err)
	}
	return l
}

// acquire takes the lease for owner in a process of its own.
func (b *bench[D]) acquire(owner string) *lease.Hold[D] {
	b.Helper()
	h, _, err := b.lessor(lease.Policy{}).Acquire(b.Context(), key, owner, nil)
	if err != nil {
		b.Fatalf("acquire as %s: %v", owner, err)
	}
	return h
}

// refused is the error with which owner, in a process of its own, is refused.
func (b *bench[D]) refused(owner string) error {
	b.Helper()
	_, _, err := b.lessor(lease.Policy{}).Acquire(b.Context(), key, owner, nil)
	if err == nil {
		b.Fatalf("acquire as %s: got the lease", owner)
	}
	return err
}

// expire waits until the lease has expired by the store's clock.
func (b *bench[D]) expire() {
	b.Helper()
	for {
		c := b.load()
		left := b.Of(&c.Doc).ExpiresAt.Sub(c.At)
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

// end waits until ctx has ended, as a body does that is to be cancelled, and
// is why it ended.
func (b *bench[D]) end(ctx context.Context) error {
	b.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * b.TTL):
		b.Error("the run was not cancelled within ten TTLs")
	}
	return context.Cause(ctx)
}

// wantLease compares two leases: times to the millisecond, all else exactly.
func (b *bench[D]) wantLease(got, want lease.Lease) {
	b.Helper()
	if !same(got.ExpiresAt, want.ExpiresAt) || !same(got.HeartbeatAt, want.HeartbeatAt) {
		b.Errorf("heartbeat, expiry = %v, %v; want %v, %v", got.HeartbeatAt, got.ExpiresAt, want.HeartbeatAt, want.ExpiresAt)
	}
	got.ExpiresAt, got.HeartbeatAt = want.ExpiresAt, want.HeartbeatAt
	if got != want {
		b.Errorf("lease = %+v; want %+v", got, want)
	}
}

func same(a, b time.Time) bool {
	return a.Truncate(time.Millisecond).Equal(b.Truncate(time.Millisecond))
}

// wantLost checks that err says the lease was lost, and why.
func (b *bench[D]) wantLost(err error, reason string) {
	b.Helper()
	var lost *lease.LostError
	if !errors.As(err, &lost) || !errors.Is(err, lease.ErrLost) || lost.Reason != reason {
		b.Errorf("err = %v; want %v (%s)", err, lease.ErrLost, reason)
	}
}

// wantErr checks what err is.
func (b *bench[D]) wantErr(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("err = %v; want %v", err, want)
	}
}

// wantNote checks the record's own field.
func (b *bench[D]) wantNote(want string) {
	b.Helper()
	if got := b.Note(b.load().Doc); got != want {
		b.Errorf("note = %q; want %q", got, want)
	}
}
