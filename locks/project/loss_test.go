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

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/project"
)

// untilLost runs fn under the lock until its context ends, and returns the cause.
func (s *fixture) untilLost(o options) (cause, err error) {
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

// stopped returns an OnReadonly that notes how long after the start it was called.
func (s *fixture) stopped(after *[]time.Duration) func(project.ReadonlyInfo) {
	return func(project.ReadonlyInfo) { *after = append(*after, time.Since(s.start)) }
}

// When trust in the lease ends, which is not renewed.
const trusted = 22500 * time.Millisecond

// patient are options with which a heartbeat tries until trust has ended.
var patient = options{RetryLimit: 100, Backoff: 1700 * time.Millisecond}

func TestLoss(t *testing.T) {
	inBubble(t, "a lease that another has taken is stale", true, func(s *fixture) {
		time.AfterFunc(5*time.Second, s.holdRemote)
		var stops []time.Duration
		cause, err := s.untilLost(options{OnReadonly: s.stopped(&stops)})
		wantCode(s, err, project.LeaseStale, false)
		e := theError(err)
		wantErr(s, cause, e)
		wantErr(s, err, lease.ErrLost)
		same(s, 1250*time.Millisecond, e.KillAfter())
		if len(stops) != 1 || stops[0].Truncate(10*time.Millisecond) != 10*time.Second {
			s.Errorf("writes stopped after %v; want once, with the next heartbeat", stops)
		}
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s, attempt web-lock 0",
			"error lease-stale false, readonly-entered lease-stale")
		s.wantOwner("other")
	})

	inBubble(t, "two heartbeats in a row without success end in read-only", true, func(s *fixture) { // R5
		s.failAfter(time.Second, leasetest.Refuse)
		_, err := s.untilLost(options{})
		wantCode(s, err, project.RenewFailed, true)
		const failed = "attempt web-lock 0, error renew-failed true, waiting 500ms, attempt web-lock 1, " +
			"error renew-failed true, waiting 1s, attempt web-lock 2, error renew-failed true"
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s", failed, "renew-scheduled 8.5s",
			failed, "readonly-entered renew-failed")
	})

	inBubble(t, "a file of another is left alone", false, func(s *fixture) { // R1
		ls := s.acquired(s.Locker, options{})
		const theirs = `{"uuid":"another","mtime":"2000-01-01T00:00:20.000Z","ttl":30000}`
		s.put(theirs)
		_, err := s.Renew(s.Context(), ls)
		wantCode(s, err, project.LeaseStale, false)
		s.Reset()
		s.wantFile(theirs)
	})

	for _, fault := range []leasetest.Fault{leasetest.Refuse, leasetest.Unavailable, leasetest.SlowReply} {
		inBubble(t, "no event of a heartbeat follows the end of trust, "+string(fault), true, func(s *fixture) {
			s.remote.Delay = 25 * time.Second // of a reply that comes after the end of trust
			var stops []time.Duration
			o := patient
			o.OnReadonly = s.stopped(&stops)
			ls := s.acquired(s.Locker, o)
			s.remote.SetPlan(leasetest.Always(fault))
			_, err := s.Renew(s.Context(), ls)
			wantCode(s, err, project.LeaseStale, false)
			time.Sleep(5 * time.Second) // the removal of the record has given up too
			same(s, trusted, stops[0])
			same(s, 1, len(stops))
			same(s, 1, s.count(project.ReadonlyEntered))
			all := s.reported()
			same(s, "error lease-stale false, readonly-entered lease-stale", strings.Join(all[len(all)-2:], ", "))
		})
	}

	inBubble(t, "it is reported while a heartbeat hangs", true, func(s *fixture) {
		s.remote.Delay = time.Minute // also beyond the end of its context
		s.failAfter(time.Second, leasetest.SlowFailure)
		var stops []time.Duration
		_, err := s.untilLost(options{OnReadonly: s.stopped(&stops)})
		wantCode(s, err, project.LeaseStale, false)
		same(s, trusted, stops[0])
	})

	inBubble(t, "OnReadonly may release by force", true, func(s *fixture) {
		var ls project.Lease
		called := false
		ls = s.acquired(s.Locker, options{OnReadonly: func(project.ReadonlyInfo) {
			called = true
			ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
			defer cancel()
			_, err := s.Renew(ctx, ls)
			wantCode(s, err, project.LeaseStale, false)
			must.OK(s, s.Release(ctx, ls, release{Force: true}))
		}})
		s.holdRemote()
		_, err := s.Renew(s.Context(), ls)
		wantCode(s, err, project.LeaseStale, false)
		same(s, true, called)
		s.wantState(project.Idle)
	})

	// KillAfter's promise: a function that ignores the loss has so long.
	for name, remote := range map[string]bool{"remote": true, "file": false} {
		inBubble(t, "a lease without trust stays held until it expires, "+name, remote, func(s *fixture) {
			ls := s.acquired(s.Locker, options{})
			time.Sleep(time.Until(ls.TrustedUntil) + 10*time.Millisecond)
			other := s.another(remote)
			if _, err := other.Acquire(s.Context(), once()); err == nil {
				s.Error("another acquired the lock 10 ms after the loss")
			}
			s.wantState(project.Readonly)
			other.Reset()
			time.Sleep(time.Until(ls.ExpiresAt))
			s.acquired(other, options{})
			s.reset()
			s.wantHeld(other)
		})
	}

	inBubble(t, "reset removes the record but not while fn runs", false, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		time.Sleep(time.Until(ls.TrustedUntil) + 10*time.Millisecond)
		s.reset()
		s.wantNoFile()
		err := s.with(func(ctx context.Context) {
			s.block() // no heartbeat gets through
			<-ctx.Done()
			s.unblock()
			s.reset()
			must.Get(os.Stat(s.lockFile()))(s)
		})
		wantCode(s, err, project.LeaseStale, false)
		s.wantNoFile()
	})

	short := options{TTL: 2 * time.Second}
	dropped, hangs := leasetest.On(leasetest.Swap, leasetest.RequestLost), leasetest.Always(leasetest.SlowFailure)
	for name, c := range map[string]struct {
		after time.Duration
		plan  leasetest.Plan
		o     options
		want  error
	}{
		"a full disk":            {time.Second, leasetest.Always(leasetest.Refuse), patient, lease.ErrRefused},
		"a heartbeat that hangs": {time.Second / 10, leasetest.Any(dropped, hangs), short, leasetest.ErrDropped},
	} {
		inBubble(t, "out of time, it names why the renewals failed, "+name, true, func(s *fixture) {
			s.remote.Delay = time.Minute
			time.AfterFunc(c.after, func() { s.remote.SetPlan(c.plan) })
			_, err := s.untilLost(c.o)
			wantCode(s, err, project.LeaseStale, false)
			wantErr(s, err, c.want)
			wantErr(s, err, lease.ErrLost)
		})
	}
	inBubble(t, "it names no failure before a renewal that succeeded", true, func(s *fixture) {
		refuse := leasetest.On(leasetest.Swap, leasetest.Refuse)
		time.AfterFunc(time.Second, func() { s.remote.SetPlan(refuse) })
		time.AfterFunc(15*time.Second, s.holdRemote)
		_, err := s.untilLost(options{})
		wantErr(s, err, lease.ErrLost)
		if errors.Is(err, lease.ErrRefused) {
			s.Error(err)
		}
	})
}

func TestRenew(t *testing.T) {
	inBubble(t, "one that fails twice succeeds with retry rising", true, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		time.Sleep(10 * time.Second)
		s.reported()
		s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		next := must.Get(s.Renew(s.Context(), ls))(s)
		same(s, true, next.ExpiresAt.After(ls.ExpiresAt))
		same(s, 0, next.RenewAttempt)
		s.wantEvents("attempt web-lock 0, error renew-failed true, waiting 500ms, attempt web-lock 1",
			"error renew-failed true, waiting 1s, attempt web-lock 2, renewed 2, renew-scheduled 10s")
	})

	inBubble(t, "a successful one resets the count of failed ones", true, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		refusals := slices.Repeat([]leasetest.Fault{leasetest.Refuse}, 3)
		for range 3 {
			s.remote.SetPlan(leasetest.On(leasetest.Swap, refusals...))
			time.Sleep(time.Second)
			_, err := s.Renew(s.Context(), ls)
			wantCode(s, err, project.RenewFailed, true)
			s.renewed(ls)
		}
	})

	inBubble(t, "one waits for its turn until its context ends", true, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		go func() { _, _ = s.Renew(s.Context(), ls) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errFn)
		defer cancel()
		for range 2 { // it waits for the other's turn; it has ended before
			_, err := s.Renew(ctx, ls)
			wantErr(s, err, errFn)
		}
	})

	inBubble(t, "a late one is a warning and renews", true, func(s *fixture) {
		ls := s.acquired(s.Locker, options{HeartbeatInterval: 5 * time.Second})
		time.Sleep(10 * time.Second)
		s.reported()
		s.renewed(ls)
		s.wantEvents("attempt web-lock 0, renewed 0, renew-scheduled 5s")
		time.Sleep(10*time.Second + time.Millisecond)
		s.renewed(ls)
		s.wantEvents("warning heartbeat-delayed, attempt web-lock 0, renewed 0, renew-scheduled 5s")
	})

	inBubble(t, "an earlier lease is stale", true, func(s *fixture) {
		old := s.acquired(s.Locker, options{})
		s.released(s.Locker, old)
		_, err := s.Renew(s.Context(), old)
		wantCode(s, err, project.LeaseStale, false)
		s.acquired(s.Locker, options{})
		s.reported()
		_, err = s.Renew(s.Context(), old)
		wantCode(s, err, project.LeaseStale, false)
		wantCode(s, s.forced(old), project.LeaseStale, false)
		s.wantEvents()
		s.wantHeld(s.Locker)
	})
}
