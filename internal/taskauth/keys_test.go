package taskauth_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/oidc"
	"taskguard/internal/taskauth"
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

// together checks n tokens of next at the same time, and returns the errors.
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
		s := &site{handler: google(), unreachable: true}
		v := running(t, s, nil)
		for _, at := range []struct {
			after   time.Duration
			fetches int // of 0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5 s, then each minute
		}{{0, 1}, {time.Second, 2}, {7 * time.Second, 5}, {58 * time.Second, 8}, {time.Hour, 68}} {
			time.Sleep(at.after)
			wantFetches(t, s, at.fetches)
		}
		s.set(func(s *site) { s.unreachable = false })
		time.Sleep(time.Minute)
		wantPass(t, v, mint(t, google()))
		s.set(func(s *site) { s.unreachable = true })
		time.Sleep(time.Hour)
		wantFetches(t, s, 72) // three in the last 2.5 s: the pauses begin anew
	})
}

func TestARotationOfTheKeysRefusesNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		s := &site{handler: i}
		v := newVerifier(t, s, nil)
		time.AfterFunc(time.Second, func() { run(t, v.Run) }) // the check waits for this fetch
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
		wantPass(t, v, mint(t, i)) // the fetch for it removes the old key
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
		s.set(func(s *site) { s.unreachable = true })
		time.Sleep(24*time.Hour - time.Nanosecond)
		wantPass(t, v, mint(t, google()))
		wantError(t, v, withKeyID("k"), taskauth.ErrUnauthenticated)
		time.Sleep(20 * time.Second)
		wantError(t, v, mint(t, google()), taskauth.ErrNoKeys)
		s.set(func(s *site) { s.unreachable = false })
		time.Sleep(time.Minute)
		wantPass(t, v, mint(t, google()))
	})
}

// The log has one line for each failure, of a limited size, and one when there are keys.
func TestAnInvalidPageIsLoggedAndReplacesNoKeys(t *testing.T) {
	for name, breakPage := range breakages() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := &site{handler: google()}
				v := running(t, s, slog.New(slog.NewJSONHandler(&log, nil)))
				wantPass(t, v, mint(t, google()))
				s.set(breakPage)
				time.Sleep(time.Hour + 30*time.Second)
				wantPass(t, v, mint(t, google()))
				s.set(func(s *site) { s.handler, s.unreachable, s.slow, s.broken = google(), false, 0, false })
				time.Sleep(time.Minute)
				synctest.Wait()
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				for n, line := range lines {
					var entry struct {
						Level    string
						Failures int
					}
					if err := json.Unmarshal([]byte(line), &entry); err != nil {
						t.Fatal(err)
					}
					want := map[int]string{0: "INFO", len(lines) - 1: "INFO"}[n]
					if entry.Level != cmp.Or(want, "WARN") || want == "" && entry.Failures != n || len(line) > 200 || strings.Contains(line, "example") {
						t.Errorf("line %d: got %s, want one short line", n, line)
					}
				}
				if len(lines) < 4 {
					t.Errorf("got %d lines, want the failures and the recovery: %s", len(lines), &log)
				}
			})
		})
	}
}

func withKeyID(kid string) string {
	header := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":"RS256","kid":%q}`, kid))
	return header + ".e30.AAAA"
}

// googlePage returns the valid page, with junk before its key.
func googlePage(junk ...string) string {
	w := httptest.NewRecorder()
	google().ServeHTTP(w, nil)
	return strings.Replace(w.Body.String(), "[", "["+strings.Join(append(junk, ""), ","), 1)
}

// key returns an entry of a page for the issuer's key id.
func key(kid, n, e string) string {
	return fmt.Sprintf(`{"kty":"RSA","alg":"RS256","use":"sig","kid":%q,"n":%q,"e":%q}`, kid, n, e)
}

func modulus(bits uint) string {
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	return base64.RawURLEncoding.EncodeToString(n.SetBit(n, 0, 1).Bytes())
}

// junk returns unusable entries with the id of a usable key.
func junk() map[string]string {
	kid, public := publicKey()
	n := base64.RawURLEncoding.EncodeToString(public.N.Bytes())
	return map[string]string{
		"null":             `null`,
		"text":             `"key"`,
		"no kid":           key("", n, "AQAB"),
		"N not base64":     key(kid, "!!!", "AQAB"),
		"N of 1024 bits":   key(kid, modulus(1024), "AQAB"),
		"E not base64":     key(kid, n, "="),
		"another type":     strings.Replace(key(kid, n, "AQAB"), `"RSA"`, `"EC"`, 1),
		"for encryption":   strings.Replace(key(kid, n, "AQAB"), `"sig"`, `"enc"`, 1),
		"another alg":      strings.Replace(key(kid, n, "AQAB"), `"RS256"`, `"RS512"`, 1),
		"elliptic, no RSA": `{"kty":"EC","crv":"P-256","kid":"` + kid + `","x":"","y":""}`,
	}
}

// breakages returns the ways in which a fetch of the page can fail.
func breakages() map[string]func(*site) {
	all := map[string]func(*site){
		"unreachable": func(s *site) { s.unreachable = true },
		"slow":        func(s *site) { s.slow = time.Hour },
		"broke":       func(s *site) { s.broken = true },
		"other":       func(s *site) { s.handler = page("<html>example</html>") },
		"no keys": func(s *site) {
			s.handler = page(`{"keys":[]}`)
		},
		"keys text": func(s *site) { s.handler = page(`{"keys":"example"}`) },
		"cut":       func(s *site) { s.handler = page(googlePage()[:300]) },
		"deep":      func(s *site) { s.handler = page(`{"keys":` + strings.Repeat("[", 100000)) },
		"all junk": func(s *site) {
			var entries []string
			for _, entry := range junk() {
				entries = append(entries, entry)
			}
			s.handler = page(`{"keys":[` + strings.Join(entries, ",") + `]}`)
		},
	}
	for _, status := range []int{204, 302, 404, 500} {
		all[fmt.Sprint(status)] = func(s *site) {
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				google().ServeHTTP(w, r)
			})
		}
	}
	return all
}

func TestAnUnusableKeyIsSkipped(t *testing.T) {
	for name, entry := range junk() {
		synctest.Test(t, func(t *testing.T) {
			t.Log(name)
			only := running(t, &site{handler: page(`{"keys":[` + entry + `]}`)}, nil)
			wantError(t, only, mint(t, google()), taskauth.ErrNoKeys)
			both := running(t, &site{handler: page(googlePage(entry))}, nil)
			wantPass(t, both, mint(t, google()))
			wantError(t, both, forge("RS256", "{}", mac(nil)), taskauth.ErrUnauthenticated)
		})
	}
}
