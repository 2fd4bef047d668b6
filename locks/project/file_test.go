package project_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/locks/project"
)

// put writes project/.lock as another program would, now by the virtual clock.
func (s *fixture) put(content string) {
	s.Helper()
	if err := os.Mkdir(s.dir+"/project", 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		s.Fatal(err)
	}
	now := time.Now()
	check(s, errors.Join(os.WriteFile(s.lockFile(), []byte(content), 0o600), os.Chtimes(s.lockFile(), now, now)))
}

func TestTheFileHoldsUUIDModificationTimeAndTTL(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{OwnerID: "desk/1"})
		read := func() (r struct {
			UUID, MTime, Owner string
			TTL                int64
		}) {
			data, err := os.ReadFile(s.lockFile())
			check(s, errors.Join(err, json.Unmarshal(data, &r)))
			return r
		}
		if r := read(); r.UUID != ls.ID || r.MTime != "2000-01-01T00:00:00.000Z" || r.TTL != 30_000 || r.Owner != "desk/1" {
			s.Errorf("%+v", r)
		}
		time.Sleep(7 * time.Second)
		s.renewed(ls)
		if r := read(); r.UUID != ls.ID || r.MTime != "2000-01-01T00:00:07.000Z" {
			s.Errorf("renewed: %+v", r)
		}
		s.released(s.Locker, ls)
		s.wantNoFile()
	})
}

func TestAnUnreadableFileIsHeldForOneTTL(t *testing.T) {
	for name, content := range map[string]string{
		"empty":               ``,
		"half-written":        `{"uuid":"1234","mtime":"2000-01-`,
		"foreign JSON":        `{"pid":1234}`,
		"without a TTL":       `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z"}`,
		"of absurd TTL":       `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z","ttl":9223372036854775807}`,
		"of the far future":   `{"uuid":"x","mtime":"2099-01-01T00:00:00.000Z","ttl":30000}`,
		"of no readable time": `{"uuid":"x","mtime":"yesterday","ttl":30000}`,
		"well-formed, in use": `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z","ttl":30000}`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, false, func(s *fixture) {
				s.put(content)
				once := project.AcquireOptions{Preferred: project.FileLock, RetryLimit: 1}
				time.Sleep(30*time.Second - time.Millisecond)
				_, err := s.Acquire(s.Context(), once)
				wantCode(s.T, err, project.FallbackConflict, false)
				if data, err := os.ReadFile(s.lockFile()); err != nil || string(data) != content {
					s.Errorf("%q, %v; want it as it was", data, err)
				}
				s.Reset()
				time.Sleep(time.Millisecond) // now ≥ expiry (R7)
				ls := s.acquired(s.Locker, once)
				s.released(s.Locker, ls)
				s.wantNoFile()
			})
		})
	}
}

func TestAFileOfAClockThatWasSetBackIsExpiredAtItsOwnTime(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		s.put(`{"uuid":"x","mtime":"2000-01-01T01:00:00.000Z","ttl":0}`)
		s.acquired(s.Locker, once())
	})
}

// The clock of another program was an hour ahead. Its lock ends one TTL after it was first seen, not at
// its own date, and only if it was not renewed meanwhile.
func TestALockOfAClockThatIsAheadEndsOneTTLAfterItWasFirstSeen(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"by an hour": time.Hour, "by less than its TTL": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, false, func(s *fixture) {
				const token = 4_102_444_800_000_000 // of the year 2100
				dated := func() {
					at := time.Now().Add(ahead).Format(time.RFC3339Nano)
					s.put(fmt.Sprintf(`{"uuid":"x","mtime":%q,"ttl":30000,"token":%d}`, at, token))
				}
				refused := func() {
					s.Helper()
					_, err := s.Acquire(s.Context(), once())
					wantCode(s.T, err, project.FallbackConflict, false)
					s.reset()
				}
				dated()
				refused()
				time.Sleep(29 * time.Second)
				dated() // its holder lives
				refused()
				time.Sleep(30*time.Second - time.Millisecond)
				refused()
				time.Sleep(time.Millisecond)
				ls := s.acquired(s.Locker, once())
				if now := time.Now(); ls.Token != token+1 || !ls.AcquiredAt.Equal(now) {
					s.Errorf("%+v; want a larger token, and the time of this clock", ls)
				}
				s.released(s.Locker, ls)
			})
		})
	}
}

// P10.
func TestNoLinkIsFollowed(t *testing.T) {
	for name, link := range map[string]func(s *fixture) error{
		"the file": func(s *fixture) error {
			return errors.Join(os.Mkdir(s.dir+"/project", 0o700), os.WriteFile(s.dir+"/target", []byte("x"), 0o600), os.Symlink("../target", s.lockFile()))
		},
		"the guard": func(s *fixture) error {
			return errors.Join(os.Mkdir(s.dir+"/project", 0o700), os.WriteFile(s.dir+"/target", []byte("x"), 0o600), os.Symlink("../target", s.lockFile()+".guard"))
		},
		"a file for a directory": func(s *fixture) error { return os.WriteFile(s.dir+"/project", nil, 0o600) },
		"no parent":              func(s *fixture) error { return os.Remove(s.dir) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, false, func(s *fixture) {
				check(s, link(s))
				_, err := s.Acquire(s.Context(), project.AcquireOptions{})
				wantCode(s.T, err, project.AcquireDenied, false)
				if e := theError(err); !errors.Is(e, lease.ErrRefused) {
					s.Error(err)
				}
				if data, err := os.ReadFile(s.dir + "/target"); err == nil && string(data) != "x" {
					s.Errorf("it wrote %q", data)
				}
			})
		})
	}
}

func TestAForcedReleaseFreesTheRemoteLeaseIfTheFileCannotBeRemoved(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		check(s, os.WriteFile(s.dir+"/project", nil, 0o600))
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		wantCode(s.T, s.Release(s.Context(), ls, project.ReleaseOptions{Force: true}), project.ReleaseFailed, false)
		s.wantOwner("")
	})
}
