package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// A release tries until its caller's deadline if that is later than 2 s. A caller whose
// context has ended still frees the lease.
func TestUnavailable(t *testing.T) {
	end := func(given time.Duration, e lease.Ending[job]) func(w *fixture, h *lease.Hold[job]) error {
		return func(w *fixture, h *lease.Hold[job]) error {
			ctx, cancel := context.WithTimeout(w.Context(), given)
			time.AfterFunc(500*time.Millisecond, cancel)
			return h.End(ctx, e)
		}
	}
	releasing, finishing := lease.Releasing(true, unchanged), lease.Finishing(unchanged)
	for name, c := range map[string]struct {
		limit time.Duration
		do    func(w *fixture, h *lease.Hold[job]) error
	}{
		"acquire": {15 * time.Second, func(w *fixture, _ *lease.Hold[job]) error {
			_, _, err := w.records.Acquire(w.Context(), "a", "w/2", lease.OnlyLease, nil)
			return err
		}},
		"resume": {15 * time.Second, func(w *fixture, _ *lease.Hold[job]) error {
			_, err := w.records.Resume(w.Context(), "a", "w/1")
			return err
		}},
		"finish":                        {time.Minute, end(time.Second, finishing)},
		"finish with a later deadline":  {time.Minute, end(time.Hour, finishing)},
		"release":                       {2 * time.Second, end(time.Second, releasing)},
		"release after the deadline":    {2 * time.Second, end(-time.Second, releasing)},
		"release with a later deadline": {7500 * time.Millisecond, end(7500*time.Millisecond, releasing)},
	} {
		inBubble(t, name, func(w *fixture) {
			h := w.acquire()
			before := w.record()
			w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
			wantErr(w, c.do(w, h), lease.ErrUnavailable)
			w.wantSince(c.limit)
			w.wantSame(before)
		})
	}
}

// The reply to the acquisition is lost, and others change the record before it is read
// again. An owner that has recorded exhausted attempts must not acquire the record after
// it was reopened: a later finish of its own would seem to be written already, since
// FinishedBy names it.
func TestRecords_AcquireUnknown(t *testing.T) {
	exhausted := lease.Lease{Token: 4, Attempts: 2}
	theirs := lease.Lease{Owner: "w/2", Token: 6, Attempts: 1, FinishedBy: "w/1"}
	take := func(j *job) {
		*j = job{Lease: theirs}
		j.Lease.ExpiresAt = time.Now().Add(time.Hour)
	}
	for name, c := range map[string]struct {
		before lease.Lease
		others func(*job)
		want   error // nil: a *HeldError of w/2
		after  job
	}{
		"finished by another": {
			lease.Lease{}, func(j *job) { j.Lease.Finished = true },
			lease.ErrFinished, job{lease.Lease{Owner: "w/1", Token: 1, Attempts: 1, Finished: true}, "set"},
		},
		"exhausted": {
			exhausted, unchanged,
			lease.ErrExhausted, job{lease.Lease{Token: 5, Attempts: 2, Finished: true, FinishedBy: "w/1"}, "set"},
		},
		"exhausted and reopened": {
			exhausted, func(j *job) { j.Lease.Finished, j.Lease.Attempts = false, 0 },
			lease.ErrExhausted, job{lease.Lease{Token: 5, FinishedBy: "w/1"}, "set"},
		},
		"exhausted, reopened and acquired by another": {exhausted, take, nil, job{Lease: theirs}},
	} {
		inBubble(t, name, func(w *fixture) {
			w.records = w.recordsOn(w.faulty, lease.Policy{MaxAttempts: 2})
			w.rewrite(func(j *job) { j.Lease = c.before })
			dropped := leasetest.On(leasetest.Swap, leasetest.ReplyLost)
			w.faulty.SetPlan(leasetest.Any(dropped, before(leasetest.Load, 2, func() { w.rewrite(c.others) })))
			_, got, err := w.records.Acquire(w.Context(), "a", "w/1", lease.OnlyLease, w.noting("set"))
			if held, ok := errors.AsType[*lease.HeldError](err); ok {
				same(w, theirs.Grant(), lease.Grant{Owner: held.Owner, Token: held.Token})
			} else {
				wantErr(w, err, c.want)
			}
			w.wantRecord(c.after)
			w.wantSame(got)
			w.wantFaults(leasetest.ReplyLost)
		})
	}
}

func TestRecords(t *testing.T) {
	inBubble(t, "a missing record is not resumed", func(w *fixture) {
		w.memory.Delete("a")
		_, err := w.records.Resume(w.Context(), "a", "w/1")
		wantErr(w, err, lease.ErrNotFound)
	})
	inBubble(t, "a record of another owner is not resumed", func(w *fixture) {
		w.acquire()
		_, err := w.records.Resume(w.Context(), "a", "w/2")
		wantLost(w, err, lease.Taken)
	})
	inBubble(t, "an acquisition without an owner is refused", func(w *fixture) {
		if _, _, err := w.records.Acquire(w.Context(), "a", "", lease.OnlyLease, nil); err == nil {
			w.Error("acquired without an owner")
		}
		w.wantSame(job{})
	})
	inBubble(t, "another TTL has a heartbeat within a third of it", func(w *fixture) {
		if l, err := w.records.WithTTL(0); err != nil || l != w.records {
			w.Errorf("zero: %p, %v; want the same", l, err)
		}
		if _, err := w.records.WithTTL(time.Millisecond); err == nil {
			w.Error("a millisecond was accepted")
		}
		l, err := w.records.WithTTL(30 * time.Second)
		must.OK(w, err)
		same(w, lease.Policy{TTL: 30 * time.Second, Heartbeat: 10 * time.Second}, l.Policy())
	})
}

// A key is one plain path segment within its limit.
func TestCheckKey(t *testing.T) {
	for _, key := range []string{"é", "a.b", "...", "___", "__a", "a__", "%2f", " ", strings.Repeat("k", 8)} {
		check(t, lease.CheckKey("room", key, 8))
	}
	for key, problem := range map[string]string{
		"": "empty", strings.Repeat("k", 9): "9 bytes", "a\xff": "UTF-8", ".": "path", "..": "path", "a/b": "slash",
		"____": "reserved", "__a__": "reserved", "a\ufffd": "replacement", "a\x00": "control", "a\u0085": "control",
	} {
		err := lease.CheckKey("room", key, 8)
		wantErr(t, err, lease.ErrInvalidKey)
		for _, word := range []string{"room", problem} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v; want %s", key, err, word)
			}
		}
	}
}

func TestHeldError(t *testing.T) {
	held := &lease.HeldError{Owner: "w/1", ExpiresAt: noon.In(time.FixedZone("", 3600))}
	if !strings.Contains(held.Error(), "2026-03-04T12:00:00Z") {
		t.Errorf("%q; want the expiry in UTC", held)
	}
}

// The time of a reading judges the expiry, and not an estimate of the present time.
func TestRecords_AcquireFrom(t *testing.T) {
	inBubble(t, "a lease that has expired since the reading is still held", func(w *fixture) {
		w.acquire()
		read := w.cell()
		time.Sleep(time.Hour)
		_, _, err := w.records.AcquireFrom(w.Context(), &read, "a", "w/2", lease.OnlyLease, nil)
		if !errors.As(err, new(*lease.HeldError)) {
			w.Errorf("%v, want a HeldError", err)
		}
	})
}
