package projectlock_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

// untilLost runs fn under the lock until its context ends, and answers why.
func (s *stage) untilLost(o projectlock.AcquireOptions) (cause, err error) {
	s.Helper()
	err = s.WithProjectLock(s.Context(), o, func(ctx context.Context, _ projectlock.Lease) error {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return errFn
	})
	if errors.Is(err, errFn) {
		s.Errorf("%v; want the loss alone", err)
	}
	return cause, err
}

// count is how many events of a type were told; they stay told.
func (s *stage) count(kind projectlock.EventType) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		if s.events[i].Type == kind {
			n++
		}
	}
	return n
}

func TestALeaseThatAnotherHasTakenIsStaleAtOnce(t *testing.T) {
	play(t, true, func(s *stage) {
		time.AfterFunc(5*time.Second, s.holdRemote)
		began, calls := time.Now(), 0
		cause, err := s.untilLost(projectlock.AcquireOptions{OnReadonly: func(projectlock.ReadonlyInfo) { calls++ }})
		wantCode(s.T, err, projectlock.LeaseStale, false)
		e := theError(err)
		if !errors.Is(cause, e) || !errors.Is(err, lease.ErrLost) || e.KillAfter() != 1250*time.Millisecond {
			s.Errorf("cause %v, error %v, kill after %v", cause, err, e.KillAfter())
		}
		if lived := time.Since(began); lived.Truncate(10*time.Millisecond) != 10*time.Second {
			s.Errorf("after %v; want with the next heartbeat", lived)
		}
		s.wantTold("attempt web-lock 0", "acquired web-lock", "renew-scheduled 10s",
			"attempt web-lock 0", "error lease-stale false", "readonly-entered lease-stale")
		if calls != 1 {
			s.Errorf("onReadonly called %d times; want once", calls)
		}
		if c, err := s.memory.Load(s.Context(), room); err != nil || c.Doc.Owner != "other" {
			s.Errorf("%+v, %v; want the other's lease untouched", c.Doc, err)
		}
	})
}

// R5.
func TestTwoHeartbeatsInARowWithoutSuccessEndInReadOnly(t *testing.T) {
	play(t, true, func(s *stage) {
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(leasetest.Always(leasetest.Refuse)) })
		_, err := s.untilLost(projectlock.AcquireOptions{})
		wantCode(s.T, err, projectlock.RenewFailed, true)
		three := func(last ...string) []string {
			return append([]string{"attempt web-lock 0", "error renew-failed true", "waiting 500ms",
				"attempt web-lock 1", "error renew-failed true", "waiting 1s", "attempt web-lock 2", "error renew-failed true"}, last...)
		}
		want := append([]string{"attempt web-lock 0", "acquired web-lock", "renew-scheduled 10s"}, three("renew-scheduled 8.4s")...)
		s.wantTold(append(want, three("readonly-entered renew-failed")...)...)
	})
}

func TestARenewalCountsTheFailuresOfTheHeartbeatBefore(t *testing.T) {
	play(t, true, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse, leasetest.Refuse))
		time.Sleep(time.Second)
		_, err := s.Renew(s.Context(), ls)
		wantCode(s.T, err, projectlock.RenewFailed, true)
		if now, _ := s.Current(); now.RenewAttempt != 3 {
			s.Errorf("%+v; want three failed attempts", now)
		}
		s.told()
		if _, err := s.Renew(s.Context(), ls); err != nil {
			s.Error(err)
		}
		s.wantTold("attempt web-lock 0", "renewed 3", "renew-scheduled 10s")
	})
}

func TestTrustEndsAMarginBeforeTheLeaseAlthoughNoCallComesBack(t *testing.T) {
	play(t, true, func(s *stage) {
		s.remote.Delay = 31 * time.Second
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(leasetest.Always(leasetest.Deaf)) })
		began := time.Now()
		var after time.Duration
		err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, _ projectlock.Lease) error {
			<-ctx.Done()
			after = time.Since(began)
			return nil
		})
		wantCode(s.T, err, projectlock.LeaseStale, false)
		if after != 22500*time.Millisecond {
			s.Errorf("fn ended after %v; want when trust did", after)
		}
		if n := s.count(projectlock.ReadonlyEntered); n != 1 {
			s.Errorf("read-only was entered %d times; want once", n)
		}
	})
}

// A pause of 31 s, as of a suspended machine, with the timers coming late.
func TestAfterAPauseOf31SecondsNothingIsWrittenAndReadOnlyIsEnteredOnce(t *testing.T) {
	for _, remote := range []bool{true, false} {
		play(t, remote, func(s *stage) {
			ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
			time.Sleep(31 * time.Second)
			synctest.Wait()
			_, err := s.Renew(s.Context(), ls)
			wantCode(s.T, err, projectlock.LeaseStale, false)
			if _, held := s.Current(); held || s.count(projectlock.ReadonlyEntered) != 1 {
				s.Errorf("held %t, read-only entered %d times", held, s.count(projectlock.ReadonlyEntered))
			}
			if !s.Reset() {
				s.Error("no reset")
			}
			s.wantNoFile() // R1: it was ours
			s.acquired(s.another(remote), projectlock.AcquireOptions{})
		})
	}
}

// R1: only if it is ours.
func TestAStaleLeasesFileIsRemovedOnlyIfItIsOurs(t *testing.T) {
	play(t, false, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		const theirs = `{"uuid":"another","mtime":"2000-01-01T00:00:20.000Z","ttl":30000}`
		if err := os.WriteFile(s.lockFile(), []byte(theirs), 0o600); err != nil {
			s.Fatal(err)
		}
		_, err := s.Renew(s.Context(), ls)
		wantCode(s.T, err, projectlock.LeaseStale, false)
		s.Reset()
		if data, err := os.ReadFile(s.lockFile()); err != nil || string(data) != theirs {
			s.Errorf("%s, %v; want the other's, untouched", data, err)
		}
	})
}

func TestAHeartbeatThatBeginsAnIntervalLateIsWarnedOfAndRenews(t *testing.T) {
	play(t, true, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{HeartbeatInterval: 5 * time.Second})
		time.Sleep(10 * time.Second)
		s.told()
		if _, err := s.Renew(s.Context(), ls); err != nil {
			s.Fatal(err)
		}
		s.wantTold("attempt web-lock 0", "renewed 0", "renew-scheduled 5s")
		time.Sleep(10*time.Second + time.Millisecond)
		if _, err := s.Renew(s.Context(), ls); err != nil {
			s.Fatal(err)
		}
		s.wantTold("warning heartbeat-delayed", "attempt web-lock 0", "renewed 0", "renew-scheduled 5s")
	})
}

func TestARenewalIsAbortedByItsContextAndCountsForNothing(t *testing.T) {
	play(t, true, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		s.remote.SetPlan(leasetest.Always(leasetest.Dark))
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		if _, err := s.Renew(ctx, ls); !errors.Is(err, context.DeadlineExceeded) {
			s.Error(err)
		}
		s.wantState(projectlock.HeartbeatQueued)
		if _, held := s.Current(); !held {
			s.Error("the lease is gone")
		}
	})
}

func TestAHeartbeatThatSucceedsForgivesTheOneBefore(t *testing.T) {
	play(t, true, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		for range 3 {
			s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse, leasetest.Refuse))
			time.Sleep(time.Second)
			_, err := s.Renew(s.Context(), ls)
			wantCode(s.T, err, projectlock.RenewFailed, true)
			if _, err := s.Renew(s.Context(), ls); err != nil {
				s.Fatal(err)
			}
		}
	})
}

func TestNothingIsToldOfAHeartbeatAfterTrustHasEnded(t *testing.T) {
	for _, fault := range []leasetest.Fault{leasetest.Refuse, leasetest.Dark} {
		play(t, true, func(s *stage) {
			began, stopped := time.Now(), time.Duration(0)
			ls := s.acquired(s.Locker, projectlock.AcquireOptions{RetryLimit: 100, Backoff: 1700 * time.Millisecond,
				OnReadonly: func(projectlock.ReadonlyInfo) { stopped = time.Since(began) }})
			s.remote.SetPlan(leasetest.Always(fault))
			_, err := s.Renew(s.Context(), ls)
			wantCode(s.T, err, projectlock.LeaseStale, false)
			time.Sleep(5 * time.Second) // also the removal of what was left has given up
			if stopped != 22500*time.Millisecond {
				s.Errorf("writes stopped after %v; want when trust ended", stopped)
			}
			if all := s.told(); all[len(all)-1] != "readonly-entered lease-stale" || strings.Count(strings.Join(all, "\n"), "readonly-entered") != 1 {
				s.Errorf("told %q; want read-only last, and once", all)
			}
		})
	}
}

// Another could start while what ran under the lock still does.
func TestALostLeaseIsRemovedOnceFnHasReturned(t *testing.T) {
	for _, busy := range []time.Duration{0, 5 * time.Second} {
		play(t, false, func(s *stage) { s.loseWhile(busy) })
	}
}

// loseWhile loses a lock while fn has work to do for so long, and the listener
// for a second.
func (s *stage) loseWhile(busy time.Duration) {
	guard := s.lockFile() + ".guard"
	told := false
	o := projectlock.AcquireOptions{OnReadonly: func(projectlock.ReadonlyInfo) { time.Sleep(time.Second); told = true }}
	err := s.WithProjectLock(s.Context(), o, func(ctx context.Context, _ projectlock.Lease) error {
		if err := errors.Join(os.Remove(guard), os.Mkdir(guard, 0o700)); err != nil { // no heartbeat gets through
			s.Fatal(err)
		}
		<-ctx.Done()
		if err := os.Remove(guard); err != nil {
			s.Fatal(err)
		}
		time.Sleep(busy)
		if _, err := os.Stat(s.lockFile()); err != nil {
			s.Errorf("while fn runs: %v; want the file still there", err)
		}
		return nil
	})
	wantCode(s.T, err, projectlock.LeaseStale, false)
	if !told || s.count(projectlock.ReadonlyEntered) != 1 {
		s.Errorf("told: %t, %d times; want it told when WithProjectLock returns", told, s.count(projectlock.ReadonlyEntered))
	}
	s.wantNoFile()
}
