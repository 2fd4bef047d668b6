package projectlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

func TestTheLockIsRenewedWhileFnRunsAlsoAfterItsContextHasEnded(t *testing.T) {
	play(t, true, func(s *stage) {
		ctx, cancel := context.WithCancel(s.Context())
		err := s.WithProjectLock(ctx, projectlock.AcquireOptions{}, func(ctx context.Context, _ projectlock.Lease) error {
			cancel()
			<-ctx.Done()
			time.Sleep(2 * time.Minute) // it takes its time
			return errFn
		})
		if !errors.Is(err, errFn) || errors.As(err, new(*projectlock.Error)) {
			s.Errorf("%v; want fn's own error alone", err)
		}
		if n := s.count(projectlock.Renewed); n != 11 && n != 12 {
			s.Errorf("%d heartbeats in 2 min; want one each 10 s", n)
		}
		s.wantState(projectlock.Idle)
	})
}

// P11.
func TestKeepOnErrorLeavesTheReleaseToTheCaller(t *testing.T) {
	play(t, true, func(s *stage) {
		var ls projectlock.Lease
		run := func(answer error) error {
			return s.WithProjectLock(s.Context(), projectlock.AcquireOptions{KeepOnError: true}, func(_ context.Context, l projectlock.Lease) error {
				ls = l
				return answer
			})
		}
		if err := run(errFn); !errors.Is(err, errFn) {
			s.Error(err)
		}
		if now, held := s.Current(); !held || now.ID != ls.ID || s.count(projectlock.ReleaseRequested) != 0 {
			s.Errorf("held %t; want it kept", held)
		}
		if err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{}); err != nil {
			s.Error(err)
		}
		if err := run(nil); err != nil {
			s.Error(err)
		}
		s.wantState(projectlock.Idle)
	})
}

func TestAKeptLeaseThatNobodyRenewsTurnsReadOnly(t *testing.T) {
	play(t, false, func(s *stage) {
		_ = s.WithProjectLock(s.Context(), projectlock.AcquireOptions{KeepOnError: true}, func(context.Context, projectlock.Lease) error { return errFn })
		time.Sleep(time.Minute)
		s.wantState(projectlock.Readonly)
		if n := s.count(projectlock.ReadonlyEntered); n != 1 {
			s.Errorf("read-only was entered %d times; want once", n)
		}
		s.Reset()
		s.wantNoFile()
	})
}

// P11: what is not retryable is tried once, and reaches the caller as it is.
func TestWithProjectLockRetriesOnlyRetryableErrors(t *testing.T) {
	play(t, true, func(s *stage) {
		ran := false
		fn := func(context.Context, projectlock.Lease) error { ran = true; return nil }
		s.remote.SetPlan(leasetest.Every(leasetest.Load, leasetest.Refuse))
		wantCode(s.T, s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, fn), projectlock.AcquireDenied, false)
		if n := s.remote.Calls(leasetest.Load); n != 1 || ran {
			s.Errorf("%d attempts, fn ran: %t; want one and no", n, ran)
		}
		s.Reset()
		s.remote.SetPlan(nil)
		s.holdRemote()
		wantCode(s.T, s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, fn), projectlock.AcquireDenied, false)
		if n := s.remote.Calls(leasetest.Load); n != 3 || ran {
			s.Errorf("%d attempts, fn ran: %t; want three and no", n, ran)
		}
	})
}

func TestAFailedReleaseIsJoinedToFnsError(t *testing.T) {
	play(t, true, func(s *stage) {
		err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(context.Context, projectlock.Lease) error {
			s.remote.SetPlan(leasetest.Always(leasetest.Refuse))
			return errFn
		})
		wantCode(s.T, err, projectlock.ReleaseFailed, true)
		if !errors.Is(err, errFn) {
			s.Errorf("%v; want fn's error too", err)
		}
		s.wantState(projectlock.Readonly)
	})
}

func TestAPanicReleasesTheLock(t *testing.T) {
	play(t, true, func(s *stage) {
		func() {
			defer func() {
				if recover() == nil {
					s.Error("the panic is gone")
				}
			}()
			_ = s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(context.Context, projectlock.Lease) error { panic("fn's") })
		}()
		s.wantState(projectlock.Idle)
		if err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, nothing); err != nil {
			s.Error(err)
		}
	})
}

// P2.
func TestUnsubscribingTwiceIsUnsubscribing(t *testing.T) {
	play(t, true, func(s *stage) {
		heard := 0
		end := s.Subscribe(func(projectlock.Event) { heard++ })
		var once func()
		alone := 0
		once = s.Subscribe(func(projectlock.Event) { alone++; once() })
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		if heard != 3 || alone != 1 {
			s.Errorf("heard %d and %d; want all 3 events, and 1", heard, alone)
		}
		end()
		end()
		if err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{}); err != nil || heard != 3 {
			s.Errorf("%v; heard %d after unsubscribing", err, heard-3)
		}
		if len(s.told()) != 6 {
			s.Error("the other listener was unsubscribed too")
		}
	})
}

func TestWhatAListenerCausesIsToldAfterwards(t *testing.T) {
	play(t, true, func(s *stage) {
		s.holdRemote()
		var end func()
		end = s.Subscribe(func(e projectlock.Event) {
			if e.Type != projectlock.ReadonlyEntered {
				return
			}
			end()
			s.memory.Delete(room)
			if s.State() != projectlock.Readonly || !s.Reset() {
				s.Error("no reset")
			}
			s.acquired(s.Locker, projectlock.AcquireOptions{})
		})
		var last []projectlock.EventType
		s.Subscribe(func(e projectlock.Event) { last = append(last, e.Type) })
		_, err := s.Acquire(s.Context(), projectlock.AcquireOptions{RetryLimit: 1})
		wantCode(s.T, err, projectlock.AcquireDenied, false)
		want := []projectlock.EventType{projectlock.Attempt, projectlock.Failed, projectlock.ReadonlyEntered, projectlock.Attempt, projectlock.Acquired, projectlock.RenewScheduled}
		if !slices.Equal(last, want) {
			s.Errorf("told %v; want %v", last, want)
		}
	})
}
