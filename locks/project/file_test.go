package project_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/project"
)

func TestFile(t *testing.T) {
	inBubble(t, "it has the fields of the seed", false, func(s *fixture) {
		ls := s.acquired(s.Locker, options{OwnerID: "desk/1"})
		type record struct {
			UUID, MTime, Owner string
			TTL                int64
		}
		read := func() (r record) {
			must.OK(s, json.Unmarshal(must.Get(os.ReadFile(s.lockFile()))(s), &r))
			return r
		}
		want := record{UUID: ls.ID, MTime: "2000-01-01T00:00:00.000Z", TTL: 30_000, Owner: "desk/1"}
		same(s, want, read())
		time.Sleep(7 * time.Second)
		s.renewed(ls)
		want.MTime = "2000-01-01T00:00:07.000Z"
		same(s, want, read())
		s.released(s.Locker, ls)
		s.wantNoFile()
	})

	for name, content := range map[string]string{
		"empty":               ``,
		"half-written":        `{"uuid":"1234","mtime":"2000-01-`,
		"foreign JSON":        `{"pid":1234}`,
		"without a TTL":       `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z"}`,
		"of absurd TTL":       `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z","ttl":9223372036854775807}`,
		"of the far future":   `{"uuid":"x","mtime":"2099-01-01T00:00:00.000Z","ttl":30000}`,
		"written in 2099":     `{"uuid":"x","mtime":"2000-01-01T00:00:00Z","ttl":30000,"at":"2099-01-01T00:00:00Z"}`,
		"of no readable time": `{"uuid":"x","mtime":"yesterday","ttl":30000}`,
		"well-formed, in use": `{"uuid":"x","mtime":"2000-01-01T00:00:00.000Z","ttl":30000}`,
	} {
		inBubble(t, "an unreadable one is held for one TTL, "+name, false, func(s *fixture) {
			s.put(content)
			time.Sleep(30*time.Second - time.Millisecond)
			s.refused(s.Locker, once(), project.FallbackConflict)
			s.wantFile(content)
			s.Reset()
			time.Sleep(time.Millisecond) // now ≥ expiry (R7)
			s.released(s.Locker, s.acquired(s.Locker, once()))
			s.wantNoFile()
		})
	}

	inBubble(t, "one of a clock that was set back is expired at its own time", false, func(s *fixture) {
		s.put(`{"uuid":"x","mtime":"2000-01-01T01:00:00.000Z","ttl":0}`)
		s.acquired(s.Locker, once())
	})

	// The clock of another program was an hour ahead. Its lock ends one TTL after it was first seen, not at
	// its own date, and only if it was not renewed meanwhile.
	for _, ahead := range []time.Duration{time.Hour, 20 * time.Second} { // or by less than its TTL
		name := "one of a clock that is ahead ends one TTL after it was first seen, by " + ahead.String()
		inBubble(t, name, false, func(s *fixture) {
			const token = 4_102_444_800_000_000 // of the year 2100
			dated := func() {
				at := time.Now().Add(ahead).Format(time.RFC3339Nano)
				s.put(fmt.Sprintf(`{"uuid":"x","mtime":%q,"ttl":30000,"token":%d}`, at, token))
			}
			refused := func() {
				s.Helper()
				s.refused(s.Locker, once(), project.FallbackConflict)
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
			same(s, token+1, ls.Token)
			if !ls.AcquiredAt.Equal(time.Now()) {
				s.Errorf("%+v; want the time of this clock", ls)
			}
			s.released(s.Locker, ls)
		})
	}

	for name, obstacle := range map[string]func(s *fixture) error{
		"a file for a directory": func(s *fixture) error { return os.WriteFile(s.dir+"/project", nil, 0o600) },
		"no parent":              func(s *fixture) error { return os.Remove(s.dir) },
	} {
		inBubble(t, "one that cannot be made is refused, "+name, false, func(s *fixture) {
			must.OK(s, obstacle(s))
			wantErr(s, s.refusal(s.Locker, options{}, project.AcquireDenied), lease.ErrRefused)
		})
	}
}
