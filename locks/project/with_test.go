package project_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

func TestWithProjectLock(t *testing.T) {
	inBubble(t, "it renews and releases in full", true, func(s *fixture) {
		must.OK(s, s.with(func(context.Context) { time.Sleep(15 * time.Second) }))
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s, attempt web-lock 0, renewed 0",
			"renew-scheduled 10s, release-requested, attempt web-lock 0, released 15s")
		s.wantState(project.Idle)
		s.wantNoFile()
	})

	inBubble(t, "it renews while fn runs, also after its context has ended", true, func(s *fixture) {
		ctx, cancel := context.WithCancel(s.Context())
		err := s.WithProjectLock(ctx, options{}, func(ctx context.Context, _ project.Lease) error {
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

	inBubble(t, "with KeepOnError the release is the caller's", true, func(s *fixture) { // P11
		var ls project.Lease
		run := func(result error) error {
			fn := func(_ context.Context, l project.Lease) error { ls = l; return result }
			return s.WithProjectLock(s.Context(), options{KeepOnError: true}, fn)
		}
		wantErr(s, run(errFn), errFn)
		s.wantHeld(s.Locker)
		s.released(s.Locker, ls)
		must.OK(s, run(nil))
		s.wantState(project.Idle)
		wantErr(s, run(errFn), errFn)
		time.Sleep(time.Minute) // without a renewal
		s.wantState(project.Readonly)
		same(s, 1, s.count(project.ReadonlyEntered))
	})

	inBubble(t, "it retries only retryable errors", true, func(s *fixture) { // P11
		fn := func(context.Context) { s.Error("fn ran") }
		s.remote.SetPlan(leasetest.Every(leasetest.Load, leasetest.Refuse))
		wantCode(s, s.with(fn), project.AcquireDenied, false)
		same(s, 1, s.remote.Calls(leasetest.Load))
		s.Reset()
		s.remote.SetPlan(nil)
		s.holdRemote()
		wantCode(s, s.with(fn), project.AcquireDenied, false)
		same(s, 3, s.remote.Calls(leasetest.Load))
	})

	inBubble(t, "a failed release is joined to fn's error", true, func(s *fixture) {
		err := s.WithProjectLock(s.Context(), options{}, func(context.Context, project.Lease) error {
			s.remote.SetPlan(leasetest.Always(leasetest.Refuse))
			return errFn
		})
		wantCode(s, err, project.ReleaseFailed, true)
		wantErr(s, err, errFn)
		s.wantState(project.Readonly)
	})

	inBubble(t, "a panic releases the lock", true, func(s *fixture) {
		func() {
			defer func() { same(s, "fn's", recover()) }()
			_ = s.with(func(context.Context) { panic("fn's") })
		}()
		s.wantState(project.Idle)
		must.OK(s, s.with(func(context.Context) {}))
	})

	for name, force := range map[string]bool{"by force": true, "without force": false} {
		inBubble(t, "a release ends fn's context before another can have the lock, "+name, true, func(s *fixture) {
			other := s.another(true)
			err := s.WithProjectLock(s.Context(), options{}, func(ctx context.Context, ls project.Lease) error {
				go func() { must.OK(s, s.Release(context.Background(), ls, release{Force: force})) }()
				time.Sleep(time.Second)
				s.acquired(other, options{})
				if cause := context.Cause(ctx); cause == nil || errors.As(cause, new(*project.Error)) {
					s.Errorf("fn's context ended with %v; want it ended, by the release", cause)
				}
				return ctx.Err()
			})
			wantErr(s, err, context.Canceled) // fn's own
			s.wantHeld(other)
		})
	}
}

func TestRelease(t *testing.T) {
	// The first attempt releases the lock, and its reply is lost.
	inBubble(t, "one that fails is tried again", true, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		s.reported()
		dropped := leasetest.On(leasetest.Swap, leasetest.ReplyLost)
		s.remote.SetPlan(leasetest.Any(dropped, leasetest.On(leasetest.Load, leasetest.None, leasetest.Unavailable)))
		s.released(s.Locker, ls)
		s.wantEvents("release-requested, attempt web-lock 0, release-failed 0 false, error release-failed true",
			"waiting 500ms, attempt web-lock 1, released 3.5s")
		s.wantState(project.Idle)
	})

	inBubble(t, "one that fails three times ends in read-only until forced", false, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		s.reported()
		s.block()
		wantCode(s, s.Release(s.Context(), ls, release{}), project.ReleaseFailed, true)
		s.wantEvents("release-requested, attempt file-lock 0, release-failed 0 false, error release-failed true",
			"waiting 500ms, attempt file-lock 1, release-failed 1 false, error release-failed true",
			"waiting 1s, attempt file-lock 2, release-failed 2 false, error release-failed true",
			"readonly-entered release-failed")
		err := s.forced(ls)
		wantCode(s, err, project.ReleaseFailed, false)
		same[any](s, true, theError(err).Context["force"])
		s.wantEvents("release-requested, attempt file-lock 0, release-failed 0 true, error release-failed false")
		s.wantState(project.Readonly)
		s.unblock()
		must.OK(s, s.forced(ls))
		s.wantEvents("release-requested, attempt file-lock 0, released 13.5s")
		s.wantState(project.Idle)
		s.wantNoFile()
	})

	const dead = `{"uuid":"x","mtime":"1999-12-31T23:00:00.000Z","ttl":30000}`
	const alive = `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z","ttl":30000}`
	for name, content := range map[string]string{"dead": dead, "alive": alive} {
		inBubble(t, "force removes the fallback file unless another holds it, "+name, true, func(s *fixture) {
			ls := s.acquired(s.Locker, options{})
			s.put(content)
			must.OK(s, s.forced(ls))
			s.wantState(project.Idle)
			if content == alive {
				s.wantFile(alive)
			} else {
				s.wantNoFile()
			}
		})
	}
	inBubble(t, "force frees the remote lease if the file cannot be removed", true, func(s *fixture) {
		must.OK(s, os.WriteFile(s.dir+"/project", nil, 0o600))
		wantCode(s, s.forced(s.acquired(s.Locker, options{})), project.ReleaseFailed, false)
		s.wantOwner("")
	})

	// A token of a clock that was ahead stays the least.
	inBubble(t, "force keeps the token", true, func(s *fixture) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		s.memory.Put(room, document.Lock{Lease: lease.Lease{Token: ahead}})
		ls := s.acquired(s.Locker, options{})
		must.OK(s, s.forced(ls))
		next := s.acquired(s.Locker, options{})
		if ls.Token <= ahead || next.Token <= ls.Token {
			s.Errorf("tokens %d, %d after %d; want later ones", ls.Token, next.Token, ahead)
		}
	})

	for name, take := range map[string]func(s *fixture){
		"taken":          (*fixture).holdRemote,
		"taken and gone": func(s *fixture) { s.memory.Delete(room) },
	} {
		inBubble(t, "the release of a lost lease is stale, "+name, true, func(s *fixture) {
			ls := s.acquired(s.Locker, options{})
			take(s)
			s.reported()
			wantCode(s, s.Release(s.Context(), ls, release{}), project.LeaseStale, false)
			s.wantEvents("release-requested, attempt web-lock 0, error lease-stale false",
				"readonly-entered lease-stale")
		})
	}
}
