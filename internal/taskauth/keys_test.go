package taskauth_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/taskauth"
)

// together checks 100 tokens at the same time, and wants the error for each; nil: it passes.
func together(t *testing.T, check func(string) error, token func(int) string, want error) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if err := check(token(i)); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		})
	}
	all.Wait()
}

// forged returns a token with another unknown key id for each n.
func (i *issuer) forged() func(n int) string {
	claims := strings.Split(i.sign(nil), ".")[1]
	return func(n int) string {
		return encoded(fmt.Sprintf(`{"alg":%q,"kid":"forged%d"}`, i.algorithm, n)) + "." + claims + ".AAAA"
	}
}

func TestKeys_Shared(t *testing.T) {
	google, _ := issuers()
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google, slow: time.Second}
		check := google.check(t, s, nil)
		valid := google.sign(nil)
		fetched := func(want int) {
			t.Helper()
			if got := s.set(google, time.Second); got != want {
				t.Errorf("%d fetches, want %d", got, want)
			}
		}
		together(t, check, func(int) string { return valid }, nil)
		fetched(1)

		google.rotate()
		rotated := google.sign(nil)
		time.Sleep(10*time.Second - time.Nanosecond)
		together(t, check, func(int) string { return rotated }, taskauth.ErrUnauthenticated)
		fetched(1)
		time.Sleep(time.Nanosecond)
		together(t, check, func(int) string { return rotated }, nil)
		fetched(2)
		for range 9 {
			together(t, check, google.forged(), taskauth.ErrUnauthenticated)
			time.Sleep(time.Second)
		}
		fetched(2)
		time.Sleep(time.Second)
		together(t, check, google.forged(), taskauth.ErrUnauthenticated)
		fetched(3)
		if err := check(valid); err != nil {
			t.Errorf("a token of the previous key: %v", err)
		}
	})
}

// A key that Google has withdrawn is trusted for an hour, or for as long as the page cannot be read.
func TestKeys_Refetched(t *testing.T) {
	google, _ := issuers()
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google}
		check := google.check(t, s, nil)
		took := func(token string, want error, wait time.Duration) {
			t.Helper()
			began := time.Now()
			if err := check(token); !errors.Is(err, want) || time.Since(began) != wait {
				t.Errorf("%v after %v; want %v after %v", err, time.Since(began), want, wait)
			}
		}
		took(google.sign(nil), nil, 0)
		s.set(nil, time.Hour)
		time.Sleep(48 * time.Hour) // without the page
		took(google.sign(nil), nil, 3*time.Second)
		took(google.sign(nil), nil, 0) // the fetch has just failed
		took(google.forged()(1), taskauth.ErrUnauthenticated, 0)

		time.Sleep(time.Second)
		s.set(google, time.Second)
		withdrawn := google.sign(nil)
		google.rotate()
		google.rotate()
		var both sync.WaitGroup
		both.Go(func() {
			if err := check(withdrawn); !errors.Is(err, taskauth.ErrUnauthenticated) {
				t.Errorf("a withdrawn key: %v", err)
			}
		})
		synctest.Wait()
		took(withdrawn, nil, 0) // a known key does not wait for the fetch of another caller
		both.Wait()
	})
}

// The log has one line for each failed fetch, with a fixed text.
func TestKeys_InvalidPage(t *testing.T) {
	google, _ := issuers()
	w := httptest.NewRecorder()
	google.ServeHTTP(w, nil)
	valid := w.Body.String()
	page := func(code int, text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(text))
		})
	}
	unnamed := strings.Replace(valid[len(`{"keys":[`):], `"kid":"1"`, `"kid":""`, 1)
	future := strings.Replace(valid, "[", `[{"kty":"OKP","crv":"future","kid":"1"},`, 1) // and a key of another kind
	for _, tc := range []struct {
		reason string
		page   http.Handler
	}{
		{"no answer", nil},
		{"not a page of keys", page(200, valid[:300])},
		{"no usable key", page(200, `{"keys":[]}`)},
		{"no usable key", page(200, `{"keys":[null,{"kty":"example"},`+unnamed)},
		{"status 500", page(500, "")},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s := &site{}
			check := google.check(t, s, slog.New(slog.NewTextHandler(&log, nil)))
			checkPage := func(page http.Handler, want error) {
				t.Helper()
				s.set(page, 0)
				if err := check(google.sign(nil)); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", tc.reason, err, want)
				}
			}
			checkPage(tc.page, taskauth.ErrNoKeys)
			time.Sleep(time.Second)
			checkPage(page(200, future), nil)
			time.Sleep(time.Hour)
			checkPage(tc.page, nil) // the keys stay
			if n := strings.Count(log.String(), "level=WARN"); n != 2 || strings.Count(log.String(), tc.reason) != n {
				t.Errorf("log, want two lines with %s: %s", tc.reason, &log)
			}
		})
	}
}
