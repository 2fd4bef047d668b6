package project_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

func TestAcquire(t *testing.T) {
	inBubble(t, "a lease has the fields of the seed", true, func(s *fixture) { // P1, P4
		ls := s.acquired(s.Locker, options{OwnerID: "tab"})
		same(s, project.Lease{
			ID: ls.ID, Token: ls.Token, Strategy: "web-lock", Resource: "imgponic:project", TTL: 25 * time.Second,
			AcquiredAt: s.start.Round(0), ExpiresAt: s.start.Round(0).Add(25 * time.Second),
			NextHeartbeatAt: s.start.Add(10 * time.Second), TrustedUntil: s.start.Add(22500 * time.Millisecond),
		}, ls)
		uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
		if !uuid.MatchString(ls.ID) {
			s.Errorf("%q is no UUID, version 4", ls.ID)
		}
		c := must.Get(s.memory.Load(s.Context(), room, lease.OnlyLease))(s)
		same(s, lease.Grant{Owner: "tab/" + ls.ID, Token: ls.Token}, c.Doc.Grant())
	})

	inBubble(t, "a browser and a locker exclude each other", true, func(s *fixture) {
		browser := must.Get(document.New(s.memory, 0))(s)
		ls := s.acquired(s.Locker, options{})
		if _, err := browser.Acquire(s.Context(), room, "session/1"); !errors.As(err, new(*document.HeldError)) {
			s.Errorf("the browser's: %v; want it held", err)
		}
		s.released(s.Locker, ls)
		must.Get(browser.Acquire(s.Context(), room, "session/1"))(s)
		s.refused(s.Locker, options{}, project.AcquireDenied)
		s.wantNoFile() // a holder of each could coexist otherwise (R6)
	})

	inBubble(t, "an abort leaves nothing behind", true, func(s *fixture) {
		// The write is applied and its reply is lost: only the clean-up finds the record.
		dropped := leasetest.Every(leasetest.Swap, leasetest.ReplyLost)
		s.remote.SetPlan(leasetest.Any(dropped, leasetest.On(leasetest.Load, leasetest.None, leasetest.Unavailable)))
		why := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(s.Context())
		time.AfterFunc(2*time.Second, func() { cancel(why) })
		_, err := s.Acquire(ctx, options{})
		if !errors.Is(err, why) || errors.As(err, new(*project.Error)) {
			s.Errorf("%v; want the reason", err)
		}
		s.wantEvents("attempt web-lock 0")
		s.wantState(project.Idle)
		s.wantOwner("")
		s.remote.SetPlan(nil)
		s.acquired(s.Locker, options{})
	})

	inBubble(t, "a wait continues beyond the retry limit", true, func(s *fixture) {
		other := s.another(true)
		theirs := s.acquired(other, options{})
		time.AfterFunc(9*time.Second, func() { s.released(other, theirs) })
		ls := s.acquired(s.Locker, options{Wait: time.Minute})
		if ls.Token <= theirs.Token {
			s.Errorf("token %d after %d; want a later one", ls.Token, theirs.Token)
		}
		s.refused(other, options{Wait: 5 * time.Second}, project.AcquireDenied)
	})

	inBubble(t, "read-only ends only by reset", true, func(s *fixture) {
		s.holdRemote()
		s.refused(s.Locker, options{}, project.AcquireDenied)
		s.memory.Delete(room)
		_, err := s.Acquire(s.Context(), options{})
		wantErr(s, err, project.ErrState)
		s.reset()
		same(s, false, s.Reset())
		s.wantState(project.Idle)
		s.acquired(s.Locker, options{})
		_, err = s.Acquire(s.Context(), options{})
		wantErr(s, err, project.ErrState)
		same(s, false, s.Reset()) // while it is held
	})

	for name, o := range map[string]options{
		"strategy":           {Preferred: "hope"},
		"TTL under a second": {TTL: time.Millisecond},
		"heartbeat too long": {HeartbeatInterval: 12 * time.Second},
	} {
		inBubble(t, "impossible options are refused before anything happens, "+name, true, func(s *fixture) {
			if _, err := s.Acquire(s.Context(), o); err == nil {
				s.Error("accepted")
			}
			s.wantEvents()
			s.wantState(project.Idle)
		})
	}
	for _, name := range []string{"", "\xff", strings.Repeat("x", 505)} {
		if _, err := project.New(project.Config{Project: name}); err == nil {
			t.Errorf("the name %q was accepted", name)
		}
	}
}

func TestFallback(t *testing.T) {
	// P13, seed 000 §5.
	inBubble(t, "without a remote store the file is taken at once", false, func(s *fixture) {
		ls := s.acquired(s.Locker, options{})
		s.wantSince(0) // R2
		same(s, project.FileLock, ls.Strategy)
		same(s, true, ls.ViaFallback)
		same(s, 30*time.Second, ls.TTL)
		s.wantEvents("attempt web-lock 0, error web-lock-unsupported false, waiting 0s, fallback-engaged file-lock",
			"attempt file-lock 0, acquired file-lock, renew-scheduled 10s")
		s.wantState(project.HeartbeatQueued)
	})

	inBubble(t, "an unreachable remote falls back after its retries", true, func(s *fixture) {
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		time.AfterFunc(4*time.Second, func() { same(s, 2, s.count(project.Attempt)) }) // each is reported at once
		ls := s.acquired(s.Locker, options{})
		same(s, project.FileLock, ls.Strategy)
		same(s, true, ls.ViaFallback)
		s.wantSince(25 * time.Second) // three attempts of 3 s, their waits, and the rest of a TTL
		s.wantEvents("attempt web-lock 0, error acquire-timeout true, waiting 500ms, attempt web-lock 1",
			"error acquire-timeout true, waiting 1s, attempt web-lock 2, error acquire-timeout true",
			"waiting 11.5s, attempt web-lock 3, error acquire-timeout false, waiting 0s",
			"fallback-engaged file-lock, attempt file-lock 0, acquired file-lock, renew-scheduled 10s")
		time.Sleep(time.Minute) // until trust has ended
		s.reset()
		s.wantSince(85 * time.Second) // the reset needs nothing of the remote store, whose lease has expired
	})

	inBubble(t, "not sooner for a short TTL, as others have a longer one", true, func(s *fixture) {
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		s.acquired(s.Locker, options{TTL: 10 * time.Second})
		s.wantSince(25 * time.Second)
	})

	inBubble(t, "none after the remote lease was seen held", true, func(s *fixture) {
		s.holdRemote()
		s.remote.SetPlan(func(c leasetest.Call) leasetest.Fault {
			if c.N == 1 {
				return leasetest.None
			}
			return leasetest.Unavailable
		})
		s.refused(s.Locker, options{}, project.AcquireTimeout)
		same(s, 3, s.count(project.Attempt)) // none waits for a fallback
		s.wantNoFile()
		s.wantState(project.Readonly)
	})

	inBubble(t, "none once the outage is over", true, func(s *fixture) {
		b := s.another(true)
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		done := make(chan error)
		go func() {
			time.Sleep(12 * time.Second)
			s.remote.SetPlan(nil)
			done <- b.WithProjectLock(context.Background(), options{}, func(context.Context, project.Lease) error {
				time.Sleep(40 * time.Second)
				return nil
			})
		}()
		if ls, err := s.Acquire(s.Context(), options{}); err == nil {
			s.Errorf("acquired as %s, although another holds it and the store answers", ls.Strategy)
		}
		must.OK(s, <-done)
	})

	// One program took the file in an outage; another acquires when the outage is over.
	inBubble(t, "the remote lease is released if another holds the file", true, func(s *fixture) {
		other := s.another(false)
		theirs := s.acquired(other, options{})
		before := string(must.Get(os.ReadFile(s.lockFile()))(s))
		time.AfterFunc(time.Millisecond, func() { s.wantOwner("") })
		err := s.refusal(s.Locker, options{}, project.AcquireDenied)
		held, ok := errors.AsType[*lease.HeldError](err)
		if !ok || !held.ExpiresAt.Equal(theirs.ExpiresAt) {
			s.Errorf("%v; want until when the file is held", err)
		}
		same(s, true, strings.Contains(err.Error(), "project/.lock"))
		s.wantEvents("attempt web-lock 0, error acquire-denied true, waiting 500ms, attempt web-lock 1",
			"error acquire-denied true, waiting 1s, attempt web-lock 2, error acquire-denied false",
			"readonly-entered acquire-denied")
		s.wantOwner("")
		s.wantFile(before)
		s.Reset()
		s.released(other, theirs)
		s.acquired(s.Locker, options{})
	})

	inBubble(t, "a conflict over the file ends in read-only", false, func(s *fixture) {
		other := s.another(false)
		s.acquired(other, options{})
		var infos []project.ReadonlyInfo
		onReadonly := func(i project.ReadonlyInfo) { infos = append(infos, i) }
		e := theError(s.refusal(s.Locker, options{OnReadonly: onReadonly}, project.FallbackConflict))
		if held := (*document.HeldError)(nil); !errors.As(e, &held) || e.Context["retry"] != 2 {
			s.Errorf("%v, context %v; want who holds it as the cause, and retry 2", e, e.Context)
		}
		s.wantEvents("attempt web-lock 0, error web-lock-unsupported false, waiting 0s, fallback-engaged file-lock",
			"attempt file-lock 0, warning fallback-degraded, error fallback-conflict true, waiting 500ms",
			"attempt file-lock 1, warning fallback-degraded, error fallback-conflict true, waiting 1s",
			"attempt file-lock 2, warning fallback-degraded, error fallback-conflict false",
			"readonly-entered fallback-conflict")
		s.wantState(project.Readonly)
		want := project.ReadonlyInfo{Reason: project.FallbackConflict, LastError: e}
		if len(infos) != 1 || infos[0] != want {
			s.Errorf("onReadonly got %+v; want the conflict, once", infos)
		}
		s.wantHeld(other)
	})
}
