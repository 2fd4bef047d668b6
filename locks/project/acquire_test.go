package project_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

func (s *fixture) lockFile() string { return filepath.Join(s.dir, "project", ".lock") }

func (s *fixture) wantNoFile() {
	s.Helper()
	if _, err := os.Lstat(s.lockFile()); !errors.Is(err, os.ErrNotExist) {
		s.Errorf("%s: %v; want none", s.lockFile(), err)
	}
}

// P1, P4.
func TestALeaseHasTheFieldsOfTheSeed(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{OwnerID: "tab"})
		now := time.Now()
		for got, want := range map[time.Time]time.Duration{
			ls.AcquiredAt: 0, ls.ExpiresAt: 25 * time.Second, ls.NextHeartbeatAt: 10 * time.Second, ls.TrustedUntil: 22500 * time.Millisecond,
		} {
			if !got.Equal(now.Add(want)) {
				s.Errorf("a time is %v from now; want %v", got.Sub(now), want)
			}
		}
		if ls.Strategy != "web-lock" || ls.Resource != "imgponic:project" || ls.TTL != 25*time.Second || ls.RenewAttempt != 0 || ls.ViaFallback {
			s.Errorf("%+v", ls)
		}
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(ls.ID) {
			s.Errorf("%q is no UUID, version 4", ls.ID)
		}
		c, err := s.memory.Load(s.Context(), room, lease.OnlyLease)
		if err != nil || c.Doc.Owner != "tab/"+ls.ID || c.Doc.Token != ls.Token {
			s.Errorf("the store shows %+v, %v", c.Doc, err)
		}
	})
}

func TestABrowserAndALockerExcludeEachOther(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		browser := must(document.New(s.memory, 0))(s)
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		if _, err := browser.Acquire(s.Context(), room, "session/1"); !errors.As(err, new(*document.HeldError)) {
			s.Errorf("the browser's: %v; want it held", err)
		}
		s.released(s.Locker, ls)
		must(browser.Acquire(s.Context(), room, "session/1"))(s)
		_, err := s.Acquire(s.Context(), project.AcquireOptions{})
		wantCode(s.T, err, project.AcquireDenied, false)
		s.wantNoFile() // a holder of each could coexist otherwise (R6)
	})
}

func TestAnUnreachableRemoteFallsBackAfterItsRetries(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		began := time.Now()
		time.AfterFunc(4*time.Second, func() {
			if n := s.count(project.Attempt); n != 2 {
				s.Errorf("%d attempts after 4 s; want each reported at once", n)
			}
		})
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		if ls.Strategy != project.FileLock || !ls.ViaFallback {
			s.Errorf("%+v; want the file", ls)
		}
		if waited := time.Since(began); waited != 25*time.Second {
			s.Errorf("it took %v; want three attempts of 3 s, their waits, and the rest of a TTL", waited)
		}
		s.wantEvents("attempt web-lock 0, error acquire-timeout true, waiting 500ms, attempt web-lock 1",
			"error acquire-timeout true, waiting 1s, attempt web-lock 2, error acquire-timeout true",
			"waiting 11.5s, attempt web-lock 3, error acquire-timeout false, waiting 0s",
			"fallback-engaged file-lock, attempt file-lock 0, acquired file-lock, renew-scheduled 10s")
		time.Sleep(time.Minute) // until trust has ended
		began = time.Now()
		s.reset()
		if took := time.Since(began); took != 0 {
			s.Errorf("the reset took %v; want none of the remote store, whose lease has expired", took)
		}
	})
}

func TestNoFallbackAfterTheRemoteLeaseWasSeenHeld(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		s.holdRemote()
		s.remote.SetPlan(leasetest.On(leasetest.Load, leasetest.None, leasetest.Unavailable, leasetest.Unavailable, leasetest.Unavailable))
		_, err := s.Acquire(s.Context(), project.AcquireOptions{})
		wantCode(s.T, err, project.AcquireTimeout, false)
		if n := s.count(project.Attempt); n != 3 {
			s.Errorf("%d attempts; want none that waits for a fallback", n)
		}
		s.wantNoFile()
		s.wantState(project.Readonly)
	})
}

func TestAnAbortDuringAcquireLeavesNothingBehind(t *testing.T) {
	why := errors.New("the user left")
	inBubble(t, true, func(s *fixture) {
		// The write is applied and its reply is lost: only the clean-up finds the record.
		s.remote.SetPlan(leasetest.Any(leasetest.Every(leasetest.Swap, leasetest.DropAfter), func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Load && c.N == 2 {
				return leasetest.Unavailable
			}
			return leasetest.None
		}))
		ctx, cancel := context.WithCancelCause(s.Context())
		time.AfterFunc(2*time.Second, func() { cancel(why) })
		_, err := s.Acquire(ctx, project.AcquireOptions{})
		if !errors.Is(err, why) || errors.As(err, new(*project.Error)) {
			s.Errorf("%v; want the reason", err)
		}
		s.wantEvents("attempt web-lock 0")
		s.wantState(project.Idle)
		s.wantOwner("")
		s.remote.SetPlan(nil)
		s.acquired(s.Locker, project.AcquireOptions{})
	})
}

func TestWaitContinuesBeyondTheRetryLimit(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		other := s.another(true)
		theirs := s.acquired(other, project.AcquireOptions{})
		time.AfterFunc(9*time.Second, func() {
			s.released(other, theirs)
		})
		ls := s.acquired(s.Locker, project.AcquireOptions{Wait: time.Minute})
		if ls.Token <= theirs.Token {
			s.Errorf("token %d after %d; want a later one", ls.Token, theirs.Token)
		}
		_, err := other.Acquire(s.Context(), project.AcquireOptions{Wait: 5 * time.Second})
		wantCode(s.T, err, project.AcquireDenied, false)
	})
}

func TestReadOnlyEndsOnlyByReset(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		s.holdRemote()
		_, err := s.Acquire(s.Context(), project.AcquireOptions{})
		wantCode(s.T, err, project.AcquireDenied, false)
		s.memory.Delete(room)
		if _, err := s.Acquire(s.Context(), project.AcquireOptions{}); !errors.Is(err, project.ErrState) {
			s.Errorf("while read-only: %v; want ErrState", err)
		}
		if !s.Reset() || s.Reset() {
			s.Error("want one reset out of read-only, and no other")
		}
		s.wantState(project.Idle)
		s.acquired(s.Locker, project.AcquireOptions{})
		if _, err := s.Acquire(s.Context(), project.AcquireOptions{}); !errors.Is(err, project.ErrState) {
			s.Errorf("while held: %v; want ErrState", err)
		}
		if s.Reset() {
			s.Error("a held lock was reset")
		}
	})
}

func TestImpossibleOptionsAreRefusedBeforeAnythingHappens(t *testing.T) {
	for name, o := range map[string]project.AcquireOptions{
		"strategy":           {Preferred: "hope"},
		"TTL under a second": {TTL: time.Millisecond},
		"heartbeat too long": {HeartbeatInterval: 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, true, func(s *fixture) {
				if _, err := s.Acquire(s.Context(), o); err == nil {
					s.Error("accepted")
				}
				s.wantEvents()
				s.wantState(project.Idle)
			})
		})
	}
	for _, name := range []string{"", "\xff", strings.Repeat("x", 505)} {
		if _, err := project.New(project.Config{Project: name}); err == nil {
			t.Errorf("the name %q was accepted", name)
		}
	}
}

// One program took the file in an outage; another acquires when the outage is over.
func TestTheRemoteLeaseIsReleasedIfAnotherHoldsTheFile(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		other := s.another(false)
		theirs := s.acquired(other, project.AcquireOptions{})
		before, err := os.ReadFile(s.lockFile())
		if err != nil {
			s.Fatal(err)
		}
		time.AfterFunc(time.Millisecond, func() { s.wantOwner("") })
		_, err = s.Acquire(s.Context(), project.AcquireOptions{})
		wantCode(s.T, err, project.AcquireDenied, false)
		held := (*lease.HeldError)(nil)
		if !errors.As(err, &held) || !held.ExpiresAt.Equal(theirs.ExpiresAt) || !strings.Contains(err.Error(), "project/.lock") {
			s.Errorf("%v; want until when the file is held", err)
		}
		s.wantEvents("attempt web-lock 0, error acquire-denied true, waiting 500ms, attempt web-lock 1",
			"error acquire-denied true, waiting 1s, attempt web-lock 2, error acquire-denied false",
			"readonly-entered acquire-denied")
		s.wantOwner("")
		if after, err := os.ReadFile(s.lockFile()); err != nil || !bytes.Equal(after, before) {
			s.Errorf("%s, %v; want the file as it was", after, err)
		}
		s.Reset()
		s.released(other, theirs)
		s.acquired(s.Locker, project.AcquireOptions{})
	})
}

func TestNoFallbackOnceTheOutageIsOver(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		b := s.another(true)
		s.remote.SetPlan(leasetest.Always(leasetest.Unavailable))
		done := make(chan error)
		go func() {
			time.Sleep(12 * time.Second)
			s.remote.SetPlan(nil)
			done <- b.WithProjectLock(context.Background(), project.AcquireOptions{}, func(context.Context, project.Lease) error {
				time.Sleep(40 * time.Second)
				return nil
			})
		}()
		if ls, err := s.Acquire(s.Context(), project.AcquireOptions{}); err == nil {
			s.Errorf("acquired as %s, although another holds it and the store answers", ls.Strategy)
		}
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
}
