package lease_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// job is a record with a field of its own.
type job struct {
	Lease lease.Lease
	Note  string
}

func leaseOf(j *job) *lease.Lease { return &j.Lease }

func note(s string) func(*job) { return func(j *job) { j.Note = s } }

// fixture is a store with the record "a", directly and behind a faulty connection.
type fixture struct {
	*testing.T
	memory  *lease.Memory[job]
	faulty  *leasetest.Faulty[job]
	records *lease.Records[job] // uses faulty
	start   time.Time
}

func newFixture(t *testing.T, p lease.Policy) *fixture {
	t.Helper()
	w := &fixture{T: t, memory: &lease.Memory[job]{}, start: time.Now()}
	w.faulty = leasetest.NewFaulty(w.memory, nil)
	w.memory.Put("a", job{})
	w.records = w.recordsOn(w.faulty, p)
	return w
}

// recordsOn returns Records that uses s.
func (w *fixture) recordsOn(s lease.Store[job], p lease.Policy) *lease.Records[job] {
	w.Helper()
	l, err := lease.NewRecords(s, leaseOf, p)
	fatal(w, err)
	return l
}

// acquire returns w/1's Hold.
func (w *fixture) acquire() *lease.Hold[job] {
	w.Helper()
	h, _, err := w.records.Acquire(w.Context(), "a", "w/1", lease.OnlyLease, nil)
	fatal(w, err)
	return h
}

// takeOver acquires for another process, whose connection does not fail.
func (w *fixture) takeOver(owner string) lease.Lease {
	w.Helper()
	if _, _, err := w.recordsOn(w.memory, lease.Policy{}).Acquire(w.Context(), "a", owner, lease.OnlyLease, nil); err != nil {
		w.Fatalf("take over: %v", err)
	}
	return w.record().Lease
}

// clockAhead returns the nanoseconds by which the store's clock is ahead, to be changed.
func (w *fixture) clockAhead() *atomic.Int64 {
	var ahead atomic.Int64
	w.memory.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	return &ahead
}

// record loads the record.
func (w *fixture) record() job {
	w.Helper()
	c, err := w.memory.Load(w.Context(), "a", lease.OnlyLease)
	if err != nil || !c.Exists {
		w.Fatalf("load: exists %v, %v", c.Exists, err)
	}
	return c.Doc
}

// rewrite changes the record as another program would.
func (w *fixture) rewrite(change func(*job)) {
	w.Helper()
	j := w.record()
	change(&j)
	w.memory.Put("a", j)
}

// at waits until d after the start.
func (w *fixture) at(d time.Duration) { time.Sleep(d - w.since()) }

func (w *fixture) since() time.Duration { return time.Since(w.start) }

// wantCalls checks the number of calls to faulty under this plan.
func (w *fixture) wantCalls(loads, swaps int) {
	w.Helper()
	if l, s := w.faulty.Calls(leasetest.Load), w.faulty.Calls(leasetest.Swap); l != loads || s != swaps {
		w.Errorf("%d loads, %d swaps; want %d, %d", l, s, loads, swaps)
	}
}

// wantRecord compares the record without its times.
func (w *fixture) wantRecord(want job) {
	w.Helper()
	got := w.record()
	got.Lease.HeartbeatAt, got.Lease.ExpiresAt = time.Time{}, time.Time{}
	same(w, want, got)
}

// wantSame checks that the record is still exactly want.
func (w *fixture) wantSame(want job) {
	w.Helper()
	same(w, want, w.record())
}

// check fails the test after an error, and fatal ends it.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("err = %v; want %v", err, want)
	}
}

func wantLost(t testing.TB, err error, reason string) {
	t.Helper()
	var lost *lease.LostError
	if !errors.As(err, &lost) || lost.Reason != reason || !errors.Is(err, lease.ErrLost) {
		t.Errorf("err = %v; want %v: %s", err, lease.ErrLost, reason)
	}
}

// same compares two values.
func same(t testing.TB, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// noting is the rule of an acquisition by w/1, which also sets the note.
func (w *fixture) noting(s string) func(*job, time.Time) error {
	return func(j *job, now time.Time) error {
		next, err := lease.Acquire(j.Lease, now, "w/1", w.records.Policy())
		if err == nil || errors.Is(err, lease.ErrExhausted) {
			j.Lease, j.Note = next, s
		}
		return err
	}
}

// unchanged changes nothing.
func unchanged(*job) {}
