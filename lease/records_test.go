package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// A release tries until its caller's deadline if that is later than 2 s. A caller whose
// context has ended still frees the lease.
func TestAnOperationOnAnUnavailableStoreGivesUpInItsTime(t *testing.T) {
	release := func(given time.Duration) func(w *fixture, h *lease.Hold[job]) error {
		return func(w *fixture, h *lease.Hold[job]) error {
			ctx, cancel := context.WithTimeout(w.Context(), given)
			time.AfterFunc(500*time.Millisecond, cancel)
			return h.End(ctx, lease.Releasing(true, unchanged))
		}
	}
	for name, tc := range map[string]struct {
		want time.Duration
		do   func(w *fixture, h *lease.Hold[job]) error
	}{
		"acquire": {15 * time.Second, func(w *fixture, _ *lease.Hold[job]) error {
			_, _, err := w.records.Acquire(w.Context(), "a", "w/2", lease.OnlyLease, nil)
			return err
		}},
		"resume": {15 * time.Second, func(w *fixture, _ *lease.Hold[job]) error {
			_, err := w.records.Resume(w.Context(), "a", "w/1")
			return err
		}},
		"finish": {time.Minute, func(w *fixture, h *lease.Hold[job]) error { return h.End(w.Context(), lease.Finishing(unchanged)) }},
		"finish with a later deadline": {time.Minute, func(w *fixture, h *lease.Hold[job]) error {
			ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
			defer cancel()
			return h.End(ctx, lease.Finishing(unchanged))
		}},
		"release":                       {2 * time.Second, release(time.Second)},
		"release after the deadline":    {2 * time.Second, release(-time.Second)},
		"release with a later deadline": {7500 * time.Millisecond, release(7500 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				before := w.record()
				w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
				wantErr(w, tc.do(w, h), lease.ErrUnavailable)
				if w.since() != tc.want {
					w.Errorf("gave up after %v; want %v", w.since(), tc.want)
				}
				w.wantSame(before)
			})
		})
	}
}

// The reply to the acquisition is lost, and others change the record before it is read
// again. An owner that has recorded exhausted attempts must not acquire the record after
// it was reopened: a later finish of its own would seem to be written already, since
// FinishedBy names it.
func TestALostReplyToAnAcquisitionIsResolvedFromTheRecord(t *testing.T) {
	exhausted := lease.Lease{Token: 4, Attempts: 2}
	theirs := lease.Lease{Owner: "w/2", Token: 6, Attempts: 1, FinishedBy: "w/1", ExpiresAt: time.Now().Add(time.Hour)}
	for name, tc := range map[string]struct {
		before lease.Lease
		others func(*job)
		want   error // nil: a *HeldError of w/2
		after  job
	}{
		"finished by another": {lease.Lease{}, func(j *job) { j.Lease.Finished = true }, lease.ErrFinished,
			job{lease.Lease{Owner: "w/1", Token: 1, Attempts: 1, Finished: true}, "set"}},
		"exhausted": {exhausted, func(*job) {}, lease.ErrExhausted,
			job{lease.Lease{Token: 5, Attempts: 2, Finished: true, FinishedBy: "w/1"}, "set"}},
		"exhausted and reopened": {exhausted, func(j *job) { j.Lease.Finished, j.Lease.Attempts = false, 0 }, lease.ErrExhausted,
			job{lease.Lease{Token: 5, FinishedBy: "w/1"}, "set"}},
		"exhausted, reopened and acquired by another": {exhausted, func(j *job) { *j = job{Lease: theirs} }, nil,
			job{Lease: lease.Lease{Owner: "w/2", Token: 6, Attempts: 1, FinishedBy: "w/1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, lease.Policy{MaxAttempts: 2})
			w.rewrite(func(j *job) { j.Lease = tc.before })
			w.faulty.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.DropAfter), func(c leasetest.Call) leasetest.Fault {
				if c.Op == leasetest.Load && c.N == 2 {
					w.rewrite(tc.others)
				}
				return leasetest.None
			}))
			_, got, err := w.records.Acquire(t.Context(), "a", "w/1", lease.OnlyLease, w.noting("set"))
			var held *lease.HeldError
			if tc.want != nil {
				wantErr(t, err, tc.want)
			} else if !errors.As(err, &held) || held.Owner != "w/2" || held.Token != 6 {
				t.Errorf("err = %v; want it held by w/2", err)
			}
			w.wantRecord(tc.after)
			w.wantSame(got)
			w.wantFaults(leasetest.DropAfter)
		})
	}
}

func TestAMissingRecordIsNotResumed(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.memory.Delete("a")
		if h, err := w.records.Resume(w.Context(), "a", "w/1"); !errors.Is(err, lease.ErrNotFound) || h != nil {
			w.Errorf("%v, %v; want ErrNotFound", h, err)
		}
	})
}

func TestAnAcquisitionWithoutAnOwnerIsRefused(t *testing.T) {
	inBubble(t, func(w *fixture) {
		if _, _, err := w.records.Acquire(w.Context(), "a", "", lease.OnlyLease, nil); err == nil {
			w.Error("acquired without an owner")
		}
		w.wantSame(job{})
	})
}

func TestWithTTL(t *testing.T) {
	inBubble(t, func(w *fixture) {
		if l, err := w.records.WithTTL(0); err != nil || l != w.records {
			w.Errorf("zero: %p, %v; want the same", l, err)
		}
		if _, err := w.records.WithTTL(time.Millisecond); err == nil {
			w.Error("a millisecond was accepted")
		}
		l, err := w.records.WithTTL(30 * time.Second)
		fatal(w, err)
		same(w, lease.Policy{TTL: 30 * time.Second, Heartbeat: 10 * time.Second}, l.Policy())
	})
}

func TestAKeyIsOnePlainPathSegmentWithinItsLimit(t *testing.T) {
	for _, key := range []string{"a", "é", "a.b", "...", "_", "__", "___", "__a", "a__", "_a_", "%2f", " ", strings.Repeat("k", 8)} {
		if err := lease.CheckKey("room", key, 8); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	for key, problem := range map[string]string{
		"":                     "is empty",
		strings.Repeat("k", 9): "has 9 bytes, at most 8 are possible",
		"a\xff":                "is not UTF-8",
		".":                    "is a path",
		"..":                   "is a path",
		"a/b":                  "has a slash",
		"____":                 "is reserved: __…__",
		"__a__":                "is reserved: __…__",
		"a\ufffd":              "has a replacement character (U+FFFD)",
		"a\x00":                "has a control character",
		"a\u0085":              "has a control character",
	} {
		err := lease.CheckKey("room", key, 8)
		if want := "lease: invalid key: the room id " + problem; !errors.Is(err, lease.ErrInvalidKey) || err.Error() != want {
			t.Errorf("%q: %v; want %s", key, err, want)
		}
	}
}

func TestTheExpiryOfAHeldLeaseIsShownInUTC(t *testing.T) {
	held := &lease.HeldError{Owner: "w/1", ExpiresAt: noon.In(time.FixedZone("", 3600))}
	if got, want := held.Error(), "lease: held by another until 2026-03-04T12:00:00Z"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
}
