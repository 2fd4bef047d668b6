package taskauth_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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

func TestAColdStartIsOneFetchForAllWhoWait(t *testing.T) {
	for name, before := range map[string]bool{"Run first": true, "Run after the checks": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{handler: google(), slow: time.Second}
				v := newVerifier(t, s, nil)
				if before {
					run(t, v)
					synctest.Wait()
				} else {
					time.AfterFunc(time.Second, func() { run(t, v) })
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

func TestWithoutKeysNothingIsDecided(t *testing.T) {
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

func TestTheFirstKeysAreTriedForAgainWithAGrowingPause(t *testing.T) {
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

func TestKeysAreFetchedAgainBeforeTheyAreStale(t *testing.T) {
	for control, want := range map[string]time.Duration{
		"public, max-age=1000":     15 * time.Minute,
		"max-age=20000, private":   time.Hour,
		"PUBLIC , Max-Age=1000":    15 * time.Minute,
		"max-age=10":               time.Minute,
		"max-age=99999999999999":   time.Minute,
		"max-age=4294967295":       time.Hour,
		"max-age=-1":               time.Minute,
		"max-age=\"600\"":          time.Minute,
		"no-store":                 time.Minute,
		"":                         time.Minute,
		"max-age=1000|Age: 200":    12 * time.Minute,
		"max-age=1000|Age: 999999": time.Minute,
	} {
		t.Run(control, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				control, age, _ := strings.Cut(control, "|Age: ")
				s := &site{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					google().ServeHTTP(w, r)
					w.Header().Set("Cache-Control", control)
					w.Header().Set("Age", age)
				})}
				// The recorder takes its headers at the first byte.
				s.handler = lateHeaders(s.handler)
				running(t, s, nil)
				wantFetches(t, s, 1)
				time.Sleep(want - time.Nanosecond)
				wantFetches(t, s, 1)
				time.Sleep(time.Nanosecond)
				wantFetches(t, s, 2)
			})
		})
	}
}

func TestARotationOfTheKeysIsSurvivedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		s := &site{handler: i}
		v := newVerifier(t, s, nil)
		time.AfterFunc(time.Second, func() { run(t, v) }) // who waits for the first keys asks for no more
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
		time.Sleep(time.Hour - 6*time.Minute + time.Second)
		old = sign(t, i, nil)
		rotate(t, i)
		rotate(t, i)
		wantPass(t, v, old)
		wantPass(t, v, mint(t, i)) // its fetch tells of what was withdrawn
		wantError(t, v, old, taskauth.ErrUnauthenticated)
	})
}

func TestForgedKeyIDsCannotHammerThePage(t *testing.T) {
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

// A fetch because of an unknown key joins the refresh that is under way.
func TestAnUnknownKeyDuringARefreshCausesNoOtherFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		s := &site{handler: i}
		v := running(t, s, nil)
		wantFetches(t, s, 1)
		rotate(t, i)
		s.set(func(s *site) { s.slow = 2 * time.Second })
		time.Sleep(54*time.Minute + time.Second)
		wantFetches(t, s, 2)
		wantPass(t, v, mint(t, i))
		time.Sleep(time.Minute)
		wantFetches(t, s, 2)
	})
}

// An unknown key is no lack of keys: the caller is refused, and not told to come again.
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

func TestAfterAnOutageTheNextIsTriedAgainAsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &site{handler: google()}
		running(t, s, slog.New(slog.NewJSONHandler(&log, nil)))
		for outage := range 2 {
			wantFetches(t, s, 1)
			time.Sleep(54*time.Minute - time.Second)
			s.set(func(s *site) { s.dark = true })
			time.Sleep(time.Second + 1200*time.Millisecond) // at 0 and 0.5 s it fails
			wantFetches(t, s, 3)
			s.set(func(s *site) { s.dark = false })
			time.Sleep(300 * time.Millisecond) // at 1.5 s it does not
			wantFetches(t, s, 4)
			if got, want := strings.Count(log.String(), `"task keys fetched"`), outage+2; got != want {
				t.Errorf("got %d lines that there are keys, want %d", got, want)
			}
			s.set(func(s *site) { s.fetches = 1 })
		}
	})
}

func TestAnOutageIsSurvivedForADayAndThenNothingPasses(t *testing.T) {
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

func TestABrokenPageNeverReplacesGoodKeys(t *testing.T) {
	for name, spoil := range breakages() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{handler: google()}
				v := running(t, s, nil)
				wantFetches(t, s, 1)
				s.set(spoil)
				time.Sleep(54*time.Minute + 30*time.Second)
				synctest.Wait()
				if got := s.count(); got < 3 {
					t.Fatalf("got %d fetches, want the refresh and its repetitions", got)
				}
				wantPass(t, v, mint(t, google()))
			})
		})
	}
}

func TestWhenRunHasEndedNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google(), slow: 2 * time.Second}
		v := newVerifier(t, s, nil)
		stop := run(t, v)
		start := time.Now()
		time.AfterFunc(time.Second, stop)
		wantError(t, v, mint(t, google()), taskauth.ErrNoKeys)
		if got, want := time.Since(start), time.Second; got != want {
			t.Errorf("waited %v, want %v", got, want)
		}
		wantError(t, v, mint(t, google()), taskauth.ErrNoKeys)
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
					reason, fixed := map[string]string{"slow": "no answer in time", "dark": "no answer", "broke": "no answer"}[name]
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
