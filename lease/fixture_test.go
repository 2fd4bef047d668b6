package lease_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// job is a record with a field of its own.
type job struct {
	Lease lease.Lease
	Note  string
}

func leaseOf(j *job) *lease.Lease { return &j.Lease }

func note(s string) func(*job) { return func(j *job) { j.Note = s } }

// completed is the record after w/1, its first holder, has finished it.
func completed(note string) job {
	return job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, note}
}

// fixture is a store with the record "a", directly and behind a faulty connection.
type fixture struct {
	*testing.T
	memory  *lease.Memory[job]
	faulty  *leasetest.Faulty[job]
	records *lease.Records[job] // uses faulty
	start   time.Time

	mu      sync.Mutex
	answers []string // to what was sent
}

// inBubble runs test in virtual time, as a subtest.
func inBubble(t *testing.T, name string, test func(w *fixture)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &fixture{T: t, memory: &lease.Memory[job]{}, start: time.Now()}
			w.faulty = leasetest.NewFaulty(w.memory, nil)
			w.memory.Put("a", job{})
			w.records = w.recordsOn(w.faulty, lease.Policy{})
			test(w)
		})
	})
}

// recordsOn returns Records that use s.
func (w *fixture) recordsOn(s lease.Store[job], p lease.Policy) *lease.Records[job] {
	w.Helper()
	l, err := lease.NewRecords(s, leaseOf, p)
	must.OK(w, err)
	return l
}

// acquire returns w/1's Hold.
func (w *fixture) acquire() *lease.Hold[job] {
	w.Helper()
	h, _, err := w.records.Acquire(w.Context(), "a", "w/1", lease.OnlyLease, nil)
	must.OK(w, err)
	return h
}

// takeOver acquires for another process, whose connection does not fail.
func (w *fixture) takeOver(owner string) (lease.Lease, error) {
	w.Helper()
	_, j, err := w.recordsOn(w.memory, lease.Policy{}).Acquire(w.Context(), "a", owner, lease.OnlyLease, nil)
	return j.Lease, err
}

// steal gives the lease to another owner, whether or not it has expired.
func (w *fixture) steal() {
	w.Helper()
	w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 })
}

// before is a plan that calls happens before the nth call of op.
func before(op leasetest.Op, n int, happens func()) leasetest.Plan {
	return func(c leasetest.Call) leasetest.Fault {
		if c.Op == op && c.N == n {
			happens()
		}
		return leasetest.None
	}
}

// run runs body under the lease, and returns the loss, if any.
func (w *fixture) run(h *lease.Hold[job], body func(ctx context.Context)) error {
	return h.Run(w.Context(), func(ctx context.Context) error { body(ctx); return nil }, nil)
}

// finish and release end the hold, and set the note.
func (w *fixture) finish(h *lease.Hold[job], s string) error {
	return h.End(w.Context(), lease.Finishing(note(s)))
}

func (w *fixture) release(h *lease.Hold[job], s string) error {
	return h.End(w.Context(), lease.Releasing(false, note(s)))
}

// send sends note(s). wantAnswers has its outcome.
func (w *fixture) send(h *lease.Hold[job], s string, delay time.Duration) {
	h.Send(lease.Change[job]{Part: "note", Set: note(s), Delay: delay, Done: w.answer(s)})
}

func (w *fixture) answer(s string) func(error) {
	return func(err error) {
		switch {
		case errors.Is(err, lease.ErrLost):
			s += " lost"
		case err != nil:
			s += " " + err.Error()
		}
		if errors.Is(err, lease.ErrUnavailable) {
			s += " unknown"
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.answers = append(w.answers, s)
	}
}

// wantAnswers compares the outcomes since the last call, such as "sent", "sent lost" and
// "sent lost unknown".
func (w *fixture) wantAnswers(want ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.answers, want) {
		w.Errorf("answers %q; want %q", w.answers, want)
	}
	w.answers = nil
}

// clockAhead returns the nanoseconds by which the store's clock is ahead, to be changed.
func (w *fixture) clockAhead() *atomic.Int64 {
	var ahead atomic.Int64
	w.memory.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	return &ahead
}

// cell loads the record, which may be missing, and record loads its content.
func (w *fixture) cell() lease.Cell[job] {
	w.Helper()
	c, err := w.memory.Load(w.Context(), "a", lease.OnlyLease)
	must.OK(w, err)
	return c
}

func (w *fixture) record() job { return w.cell().Doc }

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

// wantSince checks how long after the start it is.
func (w *fixture) wantSince(want time.Duration) {
	w.Helper()
	if got := w.since(); got != want {
		w.Errorf("after %v; want %v", got, want)
	}
}

// wantCalls checks the number of calls to faulty under this plan.
func (w *fixture) wantCalls(loads, swaps int) {
	w.Helper()
	if l, s := w.faulty.Calls(leasetest.Load), w.faulty.Calls(leasetest.Swap); l != loads || s != swaps {
		w.Errorf("%d loads, %d swaps; want %d, %d", l, s, loads, swaps)
	}
}

// wantFaults checks that the plan made these faults.
func (w *fixture) wantFaults(faults ...leasetest.Fault) {
	w.Helper()
	for _, f := range faults {
		if f != leasetest.None && w.faulty.Faults()[f] == 0 {
			w.Errorf("the fault %q did not happen", f)
		}
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

// wantNote compares the note of the record.
func (w *fixture) wantNote(want string) {
	w.Helper()
	same(w, want, w.record().Note)
}

// check fails the test after an error, and does not end it.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
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
	wantErr(t, err, lease.ErrLost)
	if lost, ok := errors.AsType[*lease.LostError](err); !ok || lost.Reason != reason {
		t.Errorf("err = %v; want the reason %s", err, reason)
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
