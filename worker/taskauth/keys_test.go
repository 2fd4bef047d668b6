package taskauth_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/oidc"
	"taskguard/worker/taskauth"
)

func newIssuer(t *testing.T) *oidc.Issuer {
	t.Helper()
	i, err := oidc.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func rotate(t *testing.T, i *oidc.Issuer) {
	t.Helper()
	if err := i.Rotate(); err != nil {
		t.Fatal(err)
	}
}

func wantFetches(t *testing.T, s *site, want int) {
	t.Helper()
	synctest.Wait()
	if got := s.count(); got != want {
		t.Errorf("got %d fetches, want %d", got, want)
	}
}

// together makes n concurrent checks of the tokens that next gives and returns
// their errors.
func together(v *taskauth.Verifier, n int, next func(int) string) []error {
	got := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		r := request("Bearer " + next(i))
		all.Go(func() { got[i] = v.Check(r) })
	}
	all.Wait()
	return got
}

func TestAColdStartIsOneFetchForAllCallers(t *testing.T) {
	for name, before := range map[string]bool{"Run first": true, "Run after the checks": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{handler: google(), slow: time.Second}
				v := newVerifier(t, s, nil)
				if before {
					run(t, v.Run)
					synctest.Wait()
				} else {
					time.AfterFunc(time.Second, func() { run(t, v.Run) })
				}
				valid := mint(t, google())
				for _, err := range together(v, 100, func(int) string { return valid }) {
					if err != nil {
						t.Fatal(err)
					}
				}
				wantFetches(t, s, 1)
			})
		})
	}
}

func TestWithoutKeysCheckWaitsThreeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google(), slow: time.Hour}
		v := running(t, s, nil)
		start := time.Now()
		wantError(t, v, mint(t, google()), taskauth.ErrNoKeys)
		if got, want := time.Since(start), 3*time.Second; got != want {
			t.Errorf("refused after %v, want %v", got, want)
		}
		r := request("Bearer " + mint(t, google()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start = time.Now()
		if err := v.Check(r.WithContext(ctx)); !errors.Is(err, taskauth.ErrNoKeys) || !time.Now().Equal(start) {
			t.Errorf("got %v, want ErrNoKeys at once where the caller is gone", err)
		}
	})
}

func TestAFailedFetchIsRepeatedWithAGrowingPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google(), dark: true}
		v := running(t, s, nil)
		for _, at := range []struct {
			after   time.Duration
			fetches int // of 0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5 s, then each minute
		}{{0, 1}, {time.Second, 2}, {7 * time.Second, 5}, {58 * time.Second, 8}, {time.Hour, 68}} {
			time.Sleep(at.after)
			wantFetches(t, s, at.fetches)
		}
		s.set(func(s *site) { s.dark = false })
		time.Sleep(time.Minute)
		wantPass(t, v, mint(t, google()))
	})
}

func TestARotationOfTheKeysRefusesNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		s := &site{handler: i}
		v := newVerifier(t, s, nil)
		time.AfterFunc(time.Second, func() { run(t, v.Run) }) // a caller that waits for the first keys asks for no other fetch
		old := mint(t, i)
		wantPass(t, v, old)
		rotate(t, i)
		for _, err := range together(v, 100, func(int) string { return mint(t, i) }) {
			if err != nil {
				t.Fatal(err)
			}
		}
		wantFetches(t, s, 2)
		wantPass(t, v, old)
		rotate(t, i)
		time.Sleep(time.Hour + time.Second)
		old = sign(t, i, nil)
		rotate(t, i)
		rotate(t, i)
		wantPass(t, v, old)
		wantPass(t, v, mint(t, i)) // its fetch shows that the old key was withdrawn
		wantError(t, v, old, taskauth.ErrUnauthenticated)
	})
}

func TestUnknownKeyIDsCauseOneFetchInTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google(), slow: 100 * time.Millisecond}
		v := running(t, s, nil)
		time.Sleep(time.Second)
		forged := func(n int) string { return withKeyID(fmt.Sprint("forged", n)) }
		for range 10 {
			for _, err := range together(v, 100, forged) {
				if !errors.Is(err, taskauth.ErrUnauthenticated) {
					t.Fatalf("got %v, want ErrUnauthenticated", err)
				}
			}
			time.Sleep(900 * time.Millisecond)
		}
		wantFetches(t, s, 2) // at the start, and for the first of the forged
		start := time.Now()
		wantError(t, v, forged(0), taskauth.ErrUnauthenticated)
		if !time.Now().Equal(start) {
			t.Error("a forged id waits although no fetch is under way")
		}
		time.Sleep(time.Second)
		wantError(t, v, forged(0), taskauth.ErrUnauthenticated)
		wantFetches(t, s, 3)
		wantPass(t, v, mint(t, google()))
	})
}

// An unknown key is a refusal, not a lack of keys.
func TestAnUnknownKeyIsRefusedWhereThePageDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google()}
		v := running(t, s, nil)
		wantPass(t, v, mint(t, google()))
		s.set(func(s *site) { s.slow = time.Hour })
		start := time.Now()
		wantError(t, v, withKeyID("k"), taskauth.ErrUnauthenticated)
		if got, want := time.Since(start), 3*time.Second; got != want {
			t.Errorf("refused after %v, want %v", got, want)
		}
	})
}

func TestKeysAreUsedForADayWithoutThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google()}
		v := running(t, s, nil)
		wantFetches(t, s, 1)
		s.set(func(s *site) { s.dark = true })
		time.Sleep(24*time.Hour - time.Nanosecond)
		wantPass(t, v, mint(t, google()))
		wantError(t, v, withKeyID("k"), taskauth.ErrUnauthenticated)
		time.Sleep(20 * time.Second)
		wantError(t, v, mint(t, google()), taskauth.ErrNoKeys)
		s.set(func(s *site) { s.dark = false })
		time.Sleep(time.Minute)
		wantPass(t, v, mint(t, google()))
	})
}

// One line for each failure, of the same size whatever the server says, and one
// when there are keys.
func TestOnlyFetchesAreLogged(t *testing.T) {
	for name, spoil := range breakages() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := &site{handler: google()}
				s.set(spoil)
				v := running(t, s, slog.New(slog.NewJSONHandler(&log, nil)))
				time.Sleep(6 * time.Second)
				s.set(func(s *site) { s.handler, s.dark, s.slow, s.broken = google(), false, 0, false })
				time.Sleep(time.Minute)
				wantPass(t, v, mint(t, google()))
				synctest.Wait()
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				for n, line := range lines {
					var entry struct {
						Level, Msg, Reason string
						Failures           int
					}
					if err := json.Unmarshal([]byte(line), &entry); err != nil {
						t.Fatal(err)
					}
					want := "WARN"
					if n == len(lines)-1 {
						want = "INFO"
					}
					reason, fixed := map[string]string{"slow": "no answer", "dark": "no answer", "broke": "no answer"}[name]
					if want == "WARN" && entry.Failures != n+1 {
						t.Errorf("got %s, want %d failures", line, n+1)
					}
					if want == "WARN" && fixed && entry.Reason != reason {
						t.Errorf("got %s, want the reason %q", line, reason)
					}
					if entry.Level != want || len(line) > 200 || strings.Contains(line, "example") {
						t.Errorf("got %s, want %s in one short line", line, want)
					}
				}
				if len(lines) < 2 {
					t.Errorf("got %d lines, want the failures and the recovery", len(lines))
				}
			})
		})
	}
}
