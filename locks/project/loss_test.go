package project_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/project"
)

// untilLost runs fn under the lock until its context ends, and returns the cause.
func (s *fixture) untilLost(o project.AcquireOptions) (cause, err error) {
	s.Helper()
	err = s.WithProjectLock(s.Context(), o, func(ctx context.Context, _ project.Lease) error {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return errFn
	})
	if errors.Is(err, errFn) {
		s.Errorf("%v; want only the loss", err)
	}
	return cause, err
}

// count returns the number of events of a type; reported still returns them.
func (s *fixture) count(kind project.EventType) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		if s.events[i].Type == kind {
			n++
		}
	}
	return n
}

func TestALeaseThatAnotherHasTakenIsStale(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		time.AfterFunc(5*time.Second, s.holdRemote)
		began, calls := time.Now(), 0
		cause, err := s.untilLost(project.AcquireOptions{OnReadonly: func(project.ReadonlyInfo) { calls++ }})
		wantCode(s.T, err, project.LeaseStale, false)
		e := theError(err)
		if !errors.Is(cause, e) || !errors.Is(err, lease.ErrLost) || e.KillAfter() != 1250*time.Millisecond {
			s.Errorf("cause %v, error %v, kill after %v", cause, err, e.KillAfter())
		}
		if lived := time.Since(began); lived.Truncate(10*time.Millisecond) != 10*time.Second {
			s.Errorf("after %v; want with the next heartbeat", lived)
		}
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s, attempt web-lock 0",
			"error lease-stale false, readonly-entered lease-stale")
		if calls != 1 {
			s.Errorf("onReadonly called %d times; want once", calls)
		}
		s.wantOwner("other")
	})
}

// R5.
func TestTwoHeartbeatsInARowWithoutSuccessEndInReadOnly(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(leasetest.Always(leasetest.Refuse)) })
		_, err := s.untilLost(project.AcquireOptions{})
		wantCode(s.T, err, project.RenewFailed, true)
		const failed = "attempt web-lock 0, error renew-failed true, waiting 500ms, attempt web-lock 1, error renew-failed true, " +
			"waiting 1s, attempt web-lock 2, error renew-failed true"
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s", failed, "renew-scheduled 8.5s",
			failed, "readonly-entered renew-failed")
	})
}

func TestASuccessfulHeartbeatResetsTheCountOfFailedOnes(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		for range 3 {
			s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse, leasetest.Refuse))
			time.Sleep(time.Second)
			_, err := s.Renew(s.Context(), ls)
			wantCode(s.T, err, project.RenewFailed, true)
			s.renewed(ls)
		}
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		go func() { _, _ = s.Renew(s.Context(), ls) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errFn)
		defer cancel()
		for range 2 { // it waits for the other's turn; it has ended before
			if _, err := s.Renew(ctx, ls); !errors.Is(err, errFn) {
				s.Errorf("%v; want the context's cause", err)
			}
		}
	})
}

// R1: only if it is ours.
func TestAStaleLeasesFileIsRemovedOnlyIfItIsOurs(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		const theirs = `{"uuid":"another","mtime":"2000-01-01T00:00:20.000Z","ttl":30000}`
		check(s, os.WriteFile(s.lockFile(), []byte(theirs), 0o600))
		_, err := s.Renew(s.Context(), ls)
		wantCode(s.T, err, project.LeaseStale, false)
		s.Reset()
		if data, err := os.ReadFile(s.lockFile()); err != nil || string(data) != theirs {
			s.Errorf("%s, %v; want the other's, untouched", data, err)
		}
	})
}

func TestALateHeartbeatIsAWarningAndRenews(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{HeartbeatInterval: 5 * time.Second})
		time.Sleep(10 * time.Second)
		s.reported()
		s.renewed(ls)
		s.wantEvents("attempt web-lock 0, renewed 0, renew-scheduled 5s")
		time.Sleep(10*time.Second + time.Millisecond)
		s.renewed(ls)
		s.wantEvents("warning heartbeat-delayed, attempt web-lock 0, renewed 0, renew-scheduled 5s")
	})
}

func TestNoEventOfAHeartbeatFollowsTheEndOfTrust(t *testing.T) {
	for _, fault := range []leasetest.Fault{leasetest.Refuse, leasetest.Unavailable, leasetest.SlowReply} {
		inBubble(t, true, func(s *fixture) {
			s.remote.Delay = 25 * time.Second // of a reply that comes after the end of trust
			began, stopped := time.Now(), time.Duration(0)
			ls := s.acquired(s.Locker, project.AcquireOptions{RetryLimit: 100, Backoff: 1700 * time.Millisecond,
				OnReadonly: func(project.ReadonlyInfo) { stopped = time.Since(began) }})
			s.remote.SetPlan(leasetest.Always(fault))
			_, err := s.Renew(s.Context(), ls)
			wantCode(s.T, err, project.LeaseStale, false)
			time.Sleep(5 * time.Second) // the removal of the record has given up too
			if stopped != 22500*time.Millisecond {
				s.Errorf("writes stopped after %v; want when trust ended", stopped)
			}
			if all := s.reported(); !slices.Equal(all[len(all)-2:], []string{"error lease-stale false", "readonly-entered lease-stale"}) || strings.Count(strings.Join(all, "\n"), "readonly-entered") != 1 {
				s.Errorf("events %q; want read-only last, and once", all)
			}
		})
	}
}

func TestALossIsReportedWhileAHeartbeatHangs(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		began, stopped := time.Now(), time.Duration(0)
		s.remote.Delay = time.Minute // also beyond the end of its context
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(leasetest.Always(leasetest.SlowFailure)) })
		_, err := s.untilLost(project.AcquireOptions{OnReadonly: func(project.ReadonlyInfo) { stopped = time.Since(began) }})
		wantCode(s.T, err, project.LeaseStale, false)
		if stopped != 22500*time.Millisecond {
			s.Errorf("writes stopped after %v; want when trust ended", stopped)
		}
	})
}

func TestAReleaseWhileFnRunsEndsItsContextBeforeAnotherCanHaveTheLock(t *testing.T) {
	for _, force := range []bool{true, false} {
		inBubble(t, true, func(s *fixture) {
			other := s.another(true)
			err := s.WithProjectLock(s.Context(), project.AcquireOptions{}, func(ctx context.Context, ls project.Lease) error {
				go func() {
					if err := s.Release(context.Background(), ls, project.ReleaseOptions{Force: force}); err != nil {
						s.Error(err)
					}
				}()
				time.Sleep(time.Second)
				s.acquired(other, project.AcquireOptions{})
				if ctx.Err() == nil || errors.As(context.Cause(ctx), new(*project.Error)) {
					s.Errorf("force %t: fn's context ended with %v; want it ended, by the release", force, context.Cause(ctx))
				}
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				s.Errorf("%v; want fn's own error", err)
			}
			s.wantHeld(other)
		})
	}
}

func TestOnReadonlyMayReleaseByForce(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		var ls project.Lease
		var errs []error
		ls = s.acquired(s.Locker, project.AcquireOptions{OnReadonly: func(project.ReadonlyInfo) {
			ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
			defer cancel()
			_, err := s.Renew(ctx, ls)
			errs = append(errs, err, s.Release(ctx, ls, project.ReleaseOptions{Force: true}))
		}})
		s.holdRemote()
		_, err := s.Renew(s.Context(), ls)
		wantCode(s.T, err, project.LeaseStale, false)
		if len(errs) != 2 || theError(errs[0]).Code != project.LeaseStale || errs[1] != nil {
			s.Errorf("in OnReadonly: %v; want the renewal stale, and the lock released by force", errs)
		}
		s.wantState(project.Idle)
	})
}

// KillAfter's promise: a function that ignores the loss has so long.
func TestALeaseWithoutTrustStaysHeldUntilItExpires(t *testing.T) {
	for _, remote := range []bool{true, false} {
		inBubble(t, remote, func(s *fixture) {
			ls := s.acquired(s.Locker, project.AcquireOptions{})
			time.Sleep(time.Until(ls.TrustedUntil) + 10*time.Millisecond)
			other := s.another(remote)
			if _, err := other.Acquire(s.Context(), once()); err == nil {
				s.Errorf("remote %t: another acquired the lock 10 ms after the loss", remote)
			}
			s.wantState(project.Readonly)
			other.Reset()
			time.Sleep(time.Until(ls.ExpiresAt))
			s.acquired(other, project.AcquireOptions{})
			s.reset()
			s.wantHeld(other)
		})
	}
}

func TestResetRemovesTheRecordButNotWhileFnRuns(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		time.Sleep(time.Until(ls.TrustedUntil) + 10*time.Millisecond)
		s.reset()
		s.wantNoFile()
		guard := s.lockFile() + ".guard"
		err := s.WithProjectLock(s.Context(), project.AcquireOptions{}, func(ctx context.Context, _ project.Lease) error {
			if err := errors.Join(os.Remove(guard), os.Mkdir(guard, 0o700)); err != nil { // no heartbeat gets through
				s.Fatal(err)
			}
			<-ctx.Done()
			if err := os.Remove(guard); err != nil || !s.Reset() {
				s.Errorf("%v, or no reset", err)
			}
			if _, err := os.Stat(s.lockFile()); err != nil {
				s.Errorf("while fn runs: %v; want the file still there", err)
			}
			return nil
		})
		wantCode(s.T, err, project.LeaseStale, false)
		s.wantNoFile()
	})
}

// The store answers long after the end of trust, when the Locker has stopped to watch the lease.
func TestARenewalMayOutliveTrust(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		s.remote.Delay = time.Minute
		s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.SlowFailure))
		renewed := make(chan error, 1)
		go func() {
			_, err := s.Renew(s.Context(), ls)
			renewed <- err
		}()
		time.Sleep(2 * time.Minute)
		if err := <-renewed; err == nil || s.State() != project.Readonly {
			t.Errorf("%v, %s", err, s.State())
		}
	})
}

// Such as a full disk.
func TestALossOutOfTimeNamesWhyTheRenewalsFailed(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(leasetest.Always(leasetest.Refuse)) })
		_, err := s.untilLost(project.AcquireOptions{RetryLimit: 100, Backoff: 1700 * time.Millisecond})
		wantCode(s.T, err, project.LeaseStale, false)
		if !errors.Is(err, lease.ErrRefused) || !errors.Is(err, lease.ErrLost) {
			s.Errorf("%v; want also why the last renewal failed", err)
		}

		s.Reset()
		s.remote.SetPlan(nil)
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse)) })
		time.AfterFunc(15*time.Second, s.holdRemote)
		if _, err := s.untilLost(project.AcquireOptions{}); errors.Is(err, lease.ErrRefused) {
			s.Errorf("%v; want nothing of a failure before a renewal that succeeded", err)
		}
	})
}

// The heartbeat still tries when the short TTL ends.
func TestALossWithinAHeartbeatNamesWhyItsTriesFailed(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		time.AfterFunc(time.Second/10, func() { s.remote.SetPlan(leasetest.Always(leasetest.DropBefore)) })
		_, err := s.untilLost(project.AcquireOptions{TTL: 2 * time.Second})
		wantCode(s.T, err, project.LeaseStale, false)
		if !errors.Is(err, leasetest.ErrDropped) || !errors.Is(err, lease.ErrLost) {
			s.Errorf("%v; want also why the tries failed", err)
		}
	})
}
