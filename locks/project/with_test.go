package project_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

func TestTheLockIsRenewedWhileFnRunsAlsoAfterItsContextHasEnded(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ctx, cancel := context.WithCancel(s.Context())
		err := s.WithProjectLock(ctx, project.AcquireOptions{}, func(ctx context.Context, _ project.Lease) error {
			cancel()
			<-ctx.Done()
			time.Sleep(2 * time.Minute) // it takes its time
			return errFn
		})
		if !errors.Is(err, errFn) || errors.As(err, new(*project.Error)) {
			s.Errorf("%v; want only fn's own error", err)
		}
		if n := s.count(project.Renewed); n != 11 && n != 12 {
			s.Errorf("%d heartbeats in 2 min; want one each 10 s", n)
		}
		s.wantState(project.Idle)
	})
}

// P11.
func TestKeepOnErrorLeavesTheReleaseToTheCaller(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		var ls project.Lease
		run := func(result error) error {
			return s.WithProjectLock(s.Context(), project.AcquireOptions{KeepOnError: true}, func(_ context.Context, l project.Lease) error {
				ls = l
				return result
			})
		}
		if err := run(errFn); !errors.Is(err, errFn) {
			s.Error(err)
		}
		s.wantState(project.HeartbeatQueued)
		s.released(s.Locker, ls)
		if err := run(nil); err != nil {
			s.Error(err)
		}
		s.wantState(project.Idle)
		_ = run(errFn)
		time.Sleep(time.Minute) // without a renewal
		s.wantState(project.Readonly)
		if n := s.count(project.ReadonlyEntered); n != 1 {
			s.Errorf("%d events readonly-entered; want one", n)
		}
	})
}

// P11: an error that is not retryable is returned after one attempt.
func TestWithProjectLockRetriesOnlyRetryableErrors(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ran := false
		fn := func(context.Context, project.Lease) error { ran = true; return nil }
		s.remote.SetPlan(leasetest.Every(leasetest.Load, leasetest.Refuse))
		wantCode(s.T, s.WithProjectLock(s.Context(), project.AcquireOptions{}, fn), project.AcquireDenied, false)
		if n := s.remote.Calls(leasetest.Load); n != 1 || ran {
			s.Errorf("%d attempts, fn ran: %t; want one and no", n, ran)
		}
		s.Reset()
		s.remote.SetPlan(nil)
		s.holdRemote()
		wantCode(s.T, s.WithProjectLock(s.Context(), project.AcquireOptions{}, fn), project.AcquireDenied, false)
		if n := s.remote.Calls(leasetest.Load); n != 3 || ran {
			s.Errorf("%d attempts, fn ran: %t; want three and no", n, ran)
		}
	})
}

func TestAFailedReleaseIsJoinedToFnsError(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		err := s.WithProjectLock(s.Context(), project.AcquireOptions{}, func(context.Context, project.Lease) error {
			s.remote.SetPlan(leasetest.Always(leasetest.Refuse))
			return errFn
		})
		wantCode(s.T, err, project.ReleaseFailed, true)
		if !errors.Is(err, errFn) || !strings.Contains(err.Error(), "project: release-failed: ") {
			s.Errorf("%v; want fn's error too", err)
		}
		s.wantState(project.Readonly)
	})
}

func TestAPanicReleasesTheLock(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		func() {
			defer func() {
				if recover() == nil {
					s.Error("the panic is gone")
				}
			}()
			_ = s.WithProjectLock(s.Context(), project.AcquireOptions{}, func(context.Context, project.Lease) error { panic("fn's") })
		}()
		s.wantState(project.Idle)
		if err := s.WithProjectLock(s.Context(), project.AcquireOptions{}, nothing); err != nil {
			s.Error(err)
		}
	})
}

// P2.
func TestUnsubscribeIsIdempotent(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		calls := 0
		unsubscribe := s.Subscribe(func(project.Event) { calls++ })
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		unsubscribe()
		unsubscribe()
		s.released(s.Locker, ls)
		if calls != 3 || len(s.reported()) != 6 {
			s.Errorf("%d calls; want 3 before unsubscribing, and 6 for the other listener", calls)
		}
	})
}

func TestEventsThatAListenerCausesAreDeliveredAfterwards(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		s.holdRemote()
		var end func()
		end = s.Subscribe(func(e project.Event) {
			if e.Type != project.ReadonlyEntered {
				return
			}
			end()
			s.memory.Delete(room)
			if s.State() != project.Readonly || !s.Reset() {
				s.Error("no reset")
			}
			s.acquired(s.Locker, project.AcquireOptions{})
		})
		var last []project.EventType
		unsubscribe := s.Subscribe(func(e project.Event) { last = append(last, e.Type) })
		_, err := s.Acquire(s.Context(), project.AcquireOptions{RetryLimit: 1})
		unsubscribe() // the end of trust is an event too
		wantCode(s.T, err, project.AcquireDenied, false)
		want := []project.EventType{project.Attempt, project.Failed, project.ReadonlyEntered, project.Attempt, project.Acquired, project.RenewScheduled}
		if !slices.Equal(last, want) {
			s.Errorf("events %v; want %v", last, want)
		}
	})
}

func TestAReleaseThatFailsThreeTimesEndsInReadOnlyUntilForced(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		s.reported()
		obstacle := s.lockFile() + ".guard"
		check(s, errors.Join(os.Remove(obstacle), os.Mkdir(obstacle, 0o700)))
		err := s.Release(s.Context(), ls, project.ReleaseOptions{})
		wantCode(s.T, err, project.ReleaseFailed, true)
		s.wantEvents("release-requested, attempt file-lock 0, release-failed 0 false, error release-failed true, waiting 500ms",
			"attempt file-lock 1, release-failed 1 false, error release-failed true, waiting 1s",
			"attempt file-lock 2, release-failed 2 false, error release-failed true, readonly-entered release-failed")
		err = s.Release(s.Context(), ls, project.ReleaseOptions{Force: true})
		wantCode(s.T, err, project.ReleaseFailed, false)
		if e := theError(err); e.Context["force"] != true {
			s.Errorf("context %v; want force", e.Context)
		}
		s.wantEvents("release-requested, attempt file-lock 0, release-failed 0 true, error release-failed false")
		s.wantState(project.Readonly)
		check(s, os.Remove(obstacle))
		if err := s.Release(s.Context(), ls, project.ReleaseOptions{Force: true}); err != nil {
			s.Error(err)
		}
		if got := s.reported(); len(got) != 3 || !strings.HasPrefix(got[2], "released") {
			s.Errorf("events %q; want release-requested, attempt, released", got)
		}
		s.wantState(project.Idle)
		s.wantNoFile()
	})
}

func TestForceRemovesTheFallbackFileUnlessAnotherHoldsIt(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		stays   bool
	}{
		"dead":  {`{"uuid":"x","mtime":"1999-12-31T23:00:00.000Z","ttl":30000}`, false},
		"alive": {`{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z","ttl":30000}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, true, func(s *fixture) {
				ls := s.acquired(s.Locker, project.AcquireOptions{})
				check(s, errors.Join(os.Mkdir(s.dir+"/project", 0o700), os.WriteFile(s.lockFile(), []byte(c.content), 0o600)))
				if err := s.Release(s.Context(), ls, project.ReleaseOptions{Force: true}); err != nil {
					s.Error(err)
				}
				s.wantState(project.Idle)
				if _, err := os.Stat(s.lockFile()); (err == nil) != c.stays {
					s.Errorf("%v; want it to stay: %t", err, c.stays)
				}
			})
		})
	}
}

// A token of a clock that was ahead stays the least.
func TestAForcedReleaseKeepsTheToken(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		s.memory.Put(room, document.Lock{Lease: lease.Lease{Token: ahead}})
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		check(s, s.Release(s.Context(), ls, project.ReleaseOptions{Force: true}))
		if next := s.acquired(s.Locker, project.AcquireOptions{}); ls.Token <= ahead || next.Token <= ls.Token {
			s.Errorf("tokens %d, %d after %d; want later ones", ls.Token, next.Token, ahead)
		}
	})
}

func TestAReleaseOfALostLeaseIsStale(t *testing.T) {
	for name, take := range map[string]func(s *fixture){
		"taken":          (*fixture).holdRemote,
		"taken and gone": func(s *fixture) { s.memory.Delete(room) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, true, func(s *fixture) {
				ls := s.acquired(s.Locker, project.AcquireOptions{})
				take(s)
				s.reported()
				err := s.Release(s.Context(), ls, project.ReleaseOptions{})
				wantCode(s.T, err, project.LeaseStale, false)
				s.wantEvents("release-requested, attempt web-lock 0, error lease-stale false",
					"readonly-entered lease-stale")
			})
		})
	}
}

func TestAnEarlierLeaseIsStale(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		old := s.acquired(s.Locker, project.AcquireOptions{})
		s.released(s.Locker, old)
		_, err := s.Renew(s.Context(), old)
		wantCode(s.T, err, project.LeaseStale, false)
		s.acquired(s.Locker, project.AcquireOptions{})
		s.reported()
		_, err = s.Renew(s.Context(), old)
		wantCode(s.T, err, project.LeaseStale, false)
		wantCode(s.T, s.Release(s.Context(), old, project.ReleaseOptions{Force: true}), project.LeaseStale, false)
		s.wantEvents()
		if s.State() != project.HeartbeatQueued {
			s.Error("the new lease is gone")
		}
	})
}
