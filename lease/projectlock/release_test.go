package projectlock_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

func TestAReleaseThatFailsThreeTimesEndsInReadOnlyAndForceLeadsOut(t *testing.T) {
	play(t, false, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		s.told()
		obstacle := s.lockFile() + ".guard"
		if err := errors.Join(os.Remove(obstacle), os.Mkdir(obstacle, 0o700)); err != nil {
			s.Fatal(err)
		}
		err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{})
		wantCode(s.T, err, projectlock.ReleaseFailed, true)
		failing := func(n string) []string {
			return []string{"attempt file-lock " + n, "release-failed " + n + " false", "error release-failed true"}
		}
		want := append([]string{"release-requested"}, append(failing("0"), "waiting 500ms")...)
		want = append(append(want, failing("1")...), "waiting 1s")
		s.wantTold(append(append(want, failing("2")...), "readonly-entered release-failed")...)
		err = s.Release(s.Context(), ls, projectlock.ReleaseOptions{Force: true})
		wantCode(s.T, err, projectlock.ReleaseFailed, false)
		s.wantTold("release-requested", "attempt file-lock 0", "release-failed 0 true", "error release-failed false")
		s.wantState(projectlock.Readonly)
		if err := os.Remove(obstacle); err != nil {
			s.Fatal(err)
		}
		if err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{Force: true}); err != nil {
			s.Error(err)
		}
		if got := s.told(); len(got) != 3 || !strings.HasPrefix(got[2], "released") {
			s.Errorf("told %q; want release-requested, attempt, released", got)
		}
		s.wantState(projectlock.Idle)
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
			play(t, true, func(s *stage) {
				ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
				if err := errors.Join(os.Mkdir(s.dir+"/project", 0o700), os.WriteFile(s.lockFile(), []byte(c.content), 0o600)); err != nil {
					s.Fatal(err)
				}
				if err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{Force: true}); err != nil {
					s.Error(err)
				}
				s.wantState(projectlock.Idle)
				if _, err := os.Stat(s.lockFile()); (err == nil) != c.stays {
					s.Errorf("%v; want it to stay: %t", err, c.stays)
				}
			})
		})
	}
}

func TestAReleaseOfALeaseThatIsGoneSaysSo(t *testing.T) {
	for name, take := range map[string]func(s *stage){
		"taken":          (*stage).holdRemote,
		"taken and gone": func(s *stage) { s.memory.Delete(room) },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, true, func(s *stage) {
				ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
				take(s)
				s.told()
				err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{})
				wantCode(s.T, err, projectlock.LeaseStale, false)
				s.wantTold("release-requested", "attempt web-lock 0", "error lease-stale false", "readonly-entered lease-stale")
			})
		})
	}
}

func TestAReleaseWhoseReplyWasLostIsARelease(t *testing.T) {
	play(t, true, func(s *stage) {
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		s.told()
		s.remote.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.DropAfter), leasetest.On(leasetest.Load, leasetest.None, leasetest.Dark)))
		if err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{}); err != nil {
			s.Error(err)
		}
		s.wantTold("release-requested", "attempt web-lock 0", "release-failed 0 false", "error release-failed true", "waiting 500ms",
			"attempt web-lock 1", "released 3.5s")
	})
}

func TestALeaseOfEarlierIsNotTheOneThatIsHeld(t *testing.T) {
	play(t, true, func(s *stage) {
		old := s.acquired(s.Locker, projectlock.AcquireOptions{})
		if err := s.Release(s.Context(), old, projectlock.ReleaseOptions{}); err != nil {
			s.Fatal(err)
		}
		s.acquired(s.Locker, projectlock.AcquireOptions{})
		s.told()
		_, err := s.Renew(s.Context(), old)
		wantCode(s.T, err, projectlock.LeaseStale, false)
		wantCode(s.T, s.Release(s.Context(), old, projectlock.ReleaseOptions{Force: true}), projectlock.LeaseStale, false)
		s.wantTold()
		if _, held := s.Current(); !held {
			s.Error("the new lease is gone")
		}
	})
}
