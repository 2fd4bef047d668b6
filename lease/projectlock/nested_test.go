package projectlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

// The cause of a context may be the loss of another lock, which is not ours.
func TestTheLossOfAnOuterLockIsNotThatOfAnInner(t *testing.T) {
	inner := func(s *stage, remote bool) *projectlock.Locker {
		c := projectlock.Config{Project: "second", Dir: s.TempDir()}
		if remote {
			c.Remote = s.remote
		}
		l, err := projectlock.New(c)
		if err != nil {
			s.Fatal(err)
		}
		return l
	}
	play(t, true, func(s *stage) {
		l := inner(s, true)
		_ = s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, _ projectlock.Lease) error {
			s.remote.SetPlan(leasetest.Always(leasetest.Dark))
			_, err := l.Acquire(ctx, projectlock.AcquireOptions{TTL: time.Hour, OnReadonly: func(projectlock.ReadonlyInfo) { s.Error("read-only") }})
			if err == nil || l.State() != projectlock.Idle {
				s.Errorf("%v, and the inner is %s; want Idle", err, l.State())
			}
			return nil
		})
	})
	play(t, true, func(s *stage) {
		l := inner(s, false)
		_ = s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, _ projectlock.Lease) error {
			ls := s.acquired(l, projectlock.AcquireOptions{TTL: time.Hour})
			s.remote.SetPlan(leasetest.Always(leasetest.Dark))
			<-ctx.Done()
			for range 20 {
				_, _ = l.Renew(ctx, ls)
			}
			if _, held := l.Current(); !held {
				s.Errorf("the inner, which is healthy, is %s", l.State())
			}
			return nil
		})
	})
}

func TestAnOutageThatIsOverIsNoReasonToTakeTheFile(t *testing.T) {
	play(t, true, func(s *stage) {
		b := s.another(true)
		s.remote.SetPlan(leasetest.Always(leasetest.Dark))
		done := make(chan error)
		go func() {
			time.Sleep(12 * time.Second)
			s.remote.SetPlan(nil)
			done <- b.WithProjectLock(context.Background(), projectlock.AcquireOptions{}, func(context.Context, projectlock.Lease) error {
				time.Sleep(40 * time.Second)
				return nil
			})
		}()
		if ls, err := s.Acquire(s.Context(), projectlock.AcquireOptions{}); err == nil {
			s.Errorf("acquired as %s, although another holds it and the store answers", ls.Strategy)
		}
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
}

func TestWithAContextThatHasEndedNothingBegins(t *testing.T) {
	for range 20 {
		play(t, true, func(s *stage) {
			ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
			ctx, cancel := context.WithCancel(s.Context())
			cancel()
			if err := s.Release(ctx, ls, projectlock.ReleaseOptions{}); !errors.Is(err, context.Canceled) {
				s.Errorf("release: %v", err)
			}
			if _, held := s.Current(); !held {
				s.Error("released all the same")
			}
			_ = s.Release(s.Context(), ls, projectlock.ReleaseOptions{})
		})
	}
}
