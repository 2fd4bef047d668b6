package projectlock_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

// A user's button, while an autosave runs.
func TestAReleaseWhileFnRunsEndsItsContextBeforeAnotherCanHaveTheLock(t *testing.T) {
	for _, force := range []bool{true, false} {
		play(t, true, func(s *stage) {
			other := s.another(true)
			err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, ls projectlock.Lease) error {
				go func() {
					if err := s.Release(context.Background(), ls, projectlock.ReleaseOptions{Force: force}); err != nil {
						s.Error(err)
					}
				}()
				time.Sleep(time.Second)
				s.acquired(other, projectlock.AcquireOptions{})
				if ctx.Err() == nil || errors.As(context.Cause(ctx), new(*projectlock.Error)) {
					s.Errorf("force %t: fn's context ended with %v; want it ended, by the release", force, context.Cause(ctx))
				}
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				s.Errorf("%v; want fn's own error", err)
			}
			if _, held := other.Current(); !held {
				s.Error("the other's lock was touched")
			}
		})
	}
}

func TestFnThatReleasesUnderItsOwnContextIsNotAbortedByIt(t *testing.T) {
	play(t, true, func(s *stage) {
		err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, ls projectlock.Lease) error {
			s.remote.SetPlan(leasetest.On(leasetest.Load, leasetest.Refuse)) // so that there is a second attempt
			return s.Release(ctx, ls, projectlock.ReleaseOptions{})
		})
		if err != nil || s.count(projectlock.Released) != 1 {
			s.Errorf("%v, released %d times", err, s.count(projectlock.Released))
		}
		s.wantState(projectlock.Idle)
	})
}

func TestOnReadonlyMayReleaseByForce(t *testing.T) {
	play(t, true, func(s *stage) {
		var ls projectlock.Lease
		var errs []error
		ls = s.acquired(s.Locker, projectlock.AcquireOptions{OnReadonly: func(projectlock.ReadonlyInfo) {
			ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
			defer cancel()
			_, err := s.Renew(ctx, ls)
			errs = append(errs, err, s.Release(ctx, ls, projectlock.ReleaseOptions{Force: true}))
		}})
		s.holdRemote()
		_, err := s.Renew(s.Context(), ls)
		wantCode(s.T, err, projectlock.LeaseStale, false)
		if len(errs) != 2 || theError(errs[0]).Code != projectlock.LeaseStale || errs[1] != nil {
			s.Errorf("in OnReadonly: %v; want the renewal stale, and the lock released by force", errs)
		}
		s.wantState(projectlock.Idle)
	})
}

// KillAfter's promise: what ignores the loss has so long.
func TestALeaseThatTimeHasEndedIsNobodyElsesBeforeItExpires(t *testing.T) {
	for _, remote := range []bool{true, false} {
		play(t, remote, func(s *stage) {
			ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
			time.Sleep(time.Until(ls.TrustedUntil) + 10*time.Millisecond)
			other := s.another(remote)
			if _, err := other.Acquire(s.Context(), once(0)); err == nil {
				s.Errorf("remote %t: another acquired the lock 10 ms after the loss", remote)
			}
			s.wantState(projectlock.Readonly)
			other.Reset()
			time.Sleep(time.Until(ls.ExpiresAt))
			s.acquired(other, projectlock.AcquireOptions{})
			if !s.Reset() {
				s.Error("no reset")
			}
			if _, held := other.Current(); !held {
				s.Error("the other's lock was touched")
			}
		})
	}
}

func TestResetRemovesWhatIsLeftButNotWhileFnRuns(t *testing.T) {
	play(t, false, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		time.Sleep(time.Until(ls.TrustedUntil) + 10*time.Millisecond)
		if !s.Reset() {
			s.Error("no reset")
		}
		s.wantNoFile()
		guard := s.lockFile() + ".guard"
		err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, _ projectlock.Lease) error {
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
		wantCode(s.T, err, projectlock.LeaseStale, false)
		s.wantNoFile()
	})
}

// What a failed acquisition may have written is removed, as for an aborted one.
func TestAnAcquisitionThatFailsLeavesNothingBehind(t *testing.T) {
	play(t, true, func(s *stage) {
		other := s.another(false)
		s.acquired(other, projectlock.AcquireOptions{})
		// The writes arrive, their replies do not, until the file has been found held.
		s.remote.SetPlan(func(c leasetest.Call) leasetest.Fault {
			switch {
			case c.Op == leasetest.Swap:
				return leasetest.DropAfter
			case c.N > 1 && s.count(projectlock.FallbackEngaged) == 0:
				return leasetest.Dark
			}
			return leasetest.None
		})
		_, err := s.Acquire(s.Context(), projectlock.AcquireOptions{RetryLimit: 1})
		wantCode(s.T, err, projectlock.FallbackConflict, false)
		if c, err := s.memory.Load(s.Context(), room); err != nil || c.Doc.Owner != "" {
			s.Errorf("left behind: %+v, %v", c.Doc, err)
		}
	})
}
