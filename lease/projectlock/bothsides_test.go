package projectlock_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

// A fell back during an outage; B comes when it is over.
func TestWhoFindsTheFileHeldGivesTheRemoteLeaseBack(t *testing.T) {
	play(t, true, func(s *stage) {
		other := s.another(false)
		theirs := s.acquired(other, projectlock.AcquireOptions{})
		before, err := os.ReadFile(s.lockFile())
		if err != nil {
			s.Fatal(err)
		}
		_, err = s.Acquire(s.Context(), projectlock.AcquireOptions{})
		wantCode(s.T, err, projectlock.AcquireDenied, false)
		if held := (*lease.HeldError)(nil); !errors.As(err, &held) || !held.ExpiresAt.Equal(theirs.ExpiresAt) {
			s.Errorf("%v; want until when the file is held", err)
		}
		s.wantTold("attempt web-lock 0", "error acquire-denied true", "waiting 500ms",
			"attempt web-lock 1", "error acquire-denied true", "waiting 1s",
			"attempt web-lock 2", "error acquire-denied false", "readonly-entered acquire-denied")
		if c, err := s.memory.Load(s.Context(), room); err != nil || c.Doc.Owner != "" {
			s.Errorf("the remote lease was kept: %+v, %v", c.Doc, err)
		}
		if after, err := os.ReadFile(s.lockFile()); err != nil || !bytes.Equal(after, before) {
			s.Errorf("%s, %v; want the file as it was", after, err)
		}
		s.Reset()
		if err := other.Release(s.Context(), theirs, projectlock.ReleaseOptions{}); err != nil {
			s.Fatal(err)
		}
		s.acquired(s.Locker, projectlock.AcquireOptions{})
	})
}

// A directory in which nobody can have the file does not keep the remote lease
// from anybody, and one that cannot be looked into does.
func TestALockFileThatCannotBeReadMayBeHeld(t *testing.T) {
	play(t, true, func(s *stage) {
		if err := os.Symlink(s.TempDir(), s.dir+"/project"); err != nil {
			s.Fatal(err)
		}
		s.acquired(s.Locker, projectlock.AcquireOptions{})
	})
	play(t, true, func(s *stage) {
		if err := errors.Join(os.Mkdir(s.dir+"/project", 0o700), os.WriteFile(s.lockFile(), nil, 0o600), os.Truncate(s.lockFile(), 17<<20)); err != nil {
			s.Fatal(err)
		}
		if _, err := s.Acquire(s.Context(), once(0)); err == nil {
			s.Error("acquired, although what project/.lock is cannot be made out")
		}
		if c, err := s.memory.Load(s.Context(), room); err != nil || c.Doc.Owner != "" {
			s.Errorf("the remote lease was kept: %+v, %v", c.Doc, err)
		}
	})
}

func TestInAnOutageTheFileIsTakenOnlyWhenARemoteHolderCannotTrustItsLeaseAnyMore(t *testing.T) {
	play(t, true, func(s *stage) {
		b := s.another(true)
		err := s.WithProjectLock(s.Context(), projectlock.AcquireOptions{}, func(ctx context.Context, _ projectlock.Lease) error {
			s.remote.SetPlan(leasetest.Always(leasetest.Dark))
			ls, err := b.Acquire(s.Context(), projectlock.AcquireOptions{})
			if err != nil || ls.Strategy != projectlock.FileLock {
				s.Errorf("%+v, %v; want the file", ls, err)
			}
			if ctx.Err() == nil {
				s.Error("both hold the lock")
			}
			return nil
		})
		wantCode(s.T, err, projectlock.LeaseStale, false)
	})
}
