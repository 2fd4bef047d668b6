package leasetest

import (
	"errors"
	"testing"
	"time"

	"taskguard/lease"
)

// fixture holds the store of one test case, and helpers.
type fixture[D any] struct {
	*testing.T
	Suite[D]
	store  lease.Store[D] // as other programs use it
	leased lease.Store[D] // as Records use it
}

// key names the record of a test case.
const key = "record-1"

// created creates the record and returns b.
func (b *fixture[D]) created() *fixture[D] {
	b.Helper()
	b.Create(b.T, b.store, key)
	return b
}

func (b *fixture[D]) load() lease.Cell[D] {
	b.Helper()
	c, err := b.store.Load(b.Context(), key, lease.OnlyLease)
	if err != nil {
		b.Fatalf("load: %v", err)
	}
	return c
}

// lease loads the record's lease. The record must exist.
func (b *fixture[D]) lease() lease.Lease {
	b.Helper()
	c := b.load()
	if !c.Exists {
		b.Fatal("the record is missing")
	}
	return *b.Lease(&c.Doc)
}

// owned returns c's record leased to owner.
func (b *fixture[D]) owned(c lease.Cell[D], owner string) D {
	b.take(&c.Doc, c.At, owner)
	return c.Doc
}

// take leases d to owner, whatever its present owner is, as another program does once a
// lease has expired.
func (b *fixture[D]) take(d *D, now time.Time, owner string) {
	l := b.Lease(d)
	l.Owner = owner
	l.Token++
	l.Attempts++
	l.HeartbeatAt = now.Truncate(time.Millisecond)
	l.ExpiresAt = l.HeartbeatAt.Add(b.TTL)
}

// rewrite changes the record as another program would, and returns it.
func (b *fixture[D]) rewrite(change func(d *D, now time.Time)) D {
	b.Helper()
	for {
		c := b.load()
		if !c.Exists {
			b.Fatal("the record is missing")
		}
		next := c.Doc
		change(&next, c.At)
		c, err := b.store.Swap(b.Context(), key, c, next)
		if err == nil {
			return c.Doc
		}
		if !errors.Is(err, lease.ErrConflict) {
			b.Fatalf("rewrite: %v", err)
		}
	}
}

// takeOver gives the lease to another owner, and returns it.
func (b *fixture[D]) takeOver(owner string) lease.Lease {
	b.Helper()
	d := b.rewrite(func(d *D, now time.Time) { b.take(d, now, owner) })
	return *b.Lease(&d)
}

// records returns new Records, which stand for one more process.
func (b *fixture[D]) records() *lease.Records[D] {
	b.Helper()
	r, err := lease.NewRecords(b.leased, b.Lease, lease.Policy{TTL: b.TTL})
	if err != nil {
		b.Fatalf("records: %v", err)
	}
	return r
}

// acquire acquires the lease for owner with new Records.
func (b *fixture[D]) acquire(owner string) *lease.Hold[D] {
	b.Helper()
	h, _, err := b.records().Acquire(b.Context(), key, owner, lease.OnlyLease, nil)
	if err != nil {
		b.Fatalf("acquire as %s: %v", owner, err)
	}
	return h
}

// refused tries to acquire the lease for owner with new Records, and returns the error.
func (b *fixture[D]) refused(owner string) error {
	b.Helper()
	_, _, err := b.records().Acquire(b.Context(), key, owner, lease.OnlyLease, nil)
	if err == nil {
		b.Fatalf("acquire as %s: got the lease", owner)
	}
	return err
}

// expire waits until the lease has expired by the store's clock.
func (b *fixture[D]) expire() {
	b.Helper()
	for {
		c := b.load()
		left := b.Lease(&c.Doc).ExpiresAt.Sub(c.At)
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

// wantLease compares two leases: times to the millisecond, all else exactly.
func (b *fixture[D]) wantLease(got, want lease.Lease) {
	b.Helper()
	for _, l := range []*lease.Lease{&got, &want} {
		l.HeartbeatAt, l.ExpiresAt = millis(l.HeartbeatAt), millis(l.ExpiresAt)
	}
	if got != want {
		b.Errorf("lease = %+v; want %+v", got, want)
	}
}

// millis returns t in whole milliseconds, so that times can be compared by ==.
func millis(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// wantLost checks that err reports the loss of the lease to another owner.
func (b *fixture[D]) wantLost(err error) {
	b.Helper()
	var lost *lease.LostError
	if !errors.As(err, &lost) || lost.Reason != lease.Taken {
		b.Errorf("err = %v; want %v (%s)", err, lease.ErrLost, lease.Taken)
	}
}

func (b *fixture[D]) wantErr(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("err = %v; want %v", err, want)
	}
}

// wantNote checks the record's own field.
func (b *fixture[D]) wantNote(want string) {
	b.Helper()
	if got := b.Note(b.load().Doc); got != want {
		b.Errorf("note = %q; want %q", got, want)
	}
}
