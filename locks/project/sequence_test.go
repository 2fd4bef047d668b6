package project_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

// P13, seed 000 §5.
func TestWithoutARemoteStoreTheFileIsTakenAtOnce(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		began := time.Now()
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		if waited := time.Since(began); waited != 0 {
			s.Errorf("waited %v; want nothing (R2)", waited)
		}
		if ls.Strategy != project.FileLock || !ls.ViaFallback || ls.TTL != 30*time.Second {
			s.Errorf("%+v; want the file lock of 30 s, as a fallback", ls)
		}
		s.wantEvents("attempt web-lock 0, error web-lock-unsupported false, waiting 0s, fallback-engaged file-lock",
			"attempt file-lock 0, acquired file-lock, renew-scheduled 10s")
		s.wantState(project.HeartbeatQueued)
	})
}

func TestAConflictOverTheFileEndsInReadOnly(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		other := s.another(false)
		s.acquired(other, project.AcquireOptions{})
		var infos []project.ReadonlyInfo
		_, err := s.Acquire(s.Context(), project.AcquireOptions{OnReadonly: func(i project.ReadonlyInfo) { infos = append(infos, i) }})
		wantCode(s.T, err, project.FallbackConflict, false)
		e := theError(err)
		if held := (*document.HeldError)(nil); !errors.As(err, &held) || e.Context["retry"] != 2 {
			s.Errorf("%v, context %v; want who holds it as the cause, and retry 2", err, e.Context)
		}
		s.wantEvents("attempt web-lock 0, error web-lock-unsupported false, waiting 0s, fallback-engaged file-lock",
			"attempt file-lock 0, warning fallback-degraded, error fallback-conflict true, waiting 500ms",
			"attempt file-lock 1, warning fallback-degraded, error fallback-conflict true, waiting 1s",
			"attempt file-lock 2, warning fallback-degraded, error fallback-conflict false",
			"readonly-entered fallback-conflict")
		s.wantState(project.Readonly)
		if len(infos) != 1 || infos[0].Reason != project.FallbackConflict || infos[0].LastError != e {
			s.Errorf("onReadonly got %+v; want the conflict, once", infos)
		}
		s.wantHeld(other)
	})
}

func TestARenewalThatFailsTwiceSucceedsWithRetryRising(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		time.Sleep(10 * time.Second)
		s.reported()
		s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		next, err := s.Renew(s.Context(), ls)
		if err != nil || !next.ExpiresAt.After(ls.ExpiresAt) || next.RenewAttempt != 0 {
			s.Errorf("%+v, %v; want it extended", next, err)
		}
		s.wantEvents("attempt web-lock 0, error renew-failed true, waiting 500ms, attempt web-lock 1",
			"error renew-failed true, waiting 1s, attempt web-lock 2, renewed 2, renew-scheduled 10s")
	})
}

// The first attempt releases the lock, and its reply is lost.
func TestAReleaseThatFailsIsTriedAgainAndReleases(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		s.reported()
		s.remote.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.DropAfter), leasetest.On(leasetest.Load, leasetest.None, leasetest.Unavailable)))
		s.released(s.Locker, ls)
		s.wantEvents("release-requested, attempt web-lock 0, release-failed 0 false, error release-failed true",
			"waiting 500ms, attempt web-lock 1, released 3.5s")
		s.wantState(project.Idle)
	})
}

func TestALockIsAcquiredRenewedAndReleasedInFull(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		err := s.WithProjectLock(s.Context(), project.AcquireOptions{}, func(context.Context, project.Lease) error {
			time.Sleep(15 * time.Second)
			return nil
		})
		if err != nil {
			s.Fatal(err)
		}
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s, attempt web-lock 0, renewed 0",
			"renew-scheduled 10s, release-requested, attempt web-lock 0, released 15s")
		s.wantState(project.Idle)
		if _, err := os.Stat(filepath.Join(s.dir, "project")); err == nil {
			s.Error("the project's directory was touched, without need")
		}
	})
}
