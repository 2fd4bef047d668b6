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
func (i *issuer) forged(t *testing.T) func(n int) string {
	claims := strings.Split(i.sign(t, nil), ".")[1]
	return func(n int) string {
		return encoded(fmt.Sprintf(`{"alg":%q,"kid":"forged%d"}`, i.algorithm, n)) + "." + claims + ".AAAA"
	}
}

func TestAllCallersShareAFetch(t *testing.T) {
	google, proxy := issuers(t)
	for _, i := range []*issuer{google, proxy} {
		synctest.Test(t, func(t *testing.T) {
			s := &site{handler: i, slow: time.Second}
			check := i.check(t, s, nil)
			valid := i.sign(t, nil)
			fetched := func(want int) {
				t.Helper()
				if got := s.set(i, time.Second); got != want {
					t.Errorf("%d fetches, want %d", got, want)
				}
			}
			together(t, check, func(int) string { return valid }, nil)
			fetched(1)

			i.rotate(t)
			rotated := i.sign(t, nil)
			time.Sleep(10*time.Second - time.Nanosecond)
			together(t, check, func(int) string { return rotated }, taskauth.ErrUnauthenticated)
			fetched(1)
			time.Sleep(time.Nanosecond)
			together(t, check, func(int) string { return rotated }, nil)
			fetched(2)
			for range 9 {
				together(t, check, i.forged(t), taskauth.ErrUnauthenticated)
				time.Sleep(time.Second)
			}
			fetched(2)
			time.Sleep(time.Second)
			together(t, check, i.forged(t), taskauth.ErrUnauthenticated)
			fetched(3)
			if err := check(valid); err != nil {
				t.Errorf("a token of the previous key: %v", err)
			}

			i.rotate(t) // removes the first key
			if time.Sleep(time.Hour - time.Second); check(i.sign(t, map[string]any{"exp": nil})) == nil {
				t.Error("no expiry")
			}
			fetched(4)
		})
	}
}

// A key that Google has withdrawn is trusted for an hour, or for as long as the page cannot be read.
func TestKeysAreFetchedAgainAfterAnHourAndUsedWithoutThePage(t *testing.T) {
	google, _ := issuers(t)
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: google}
		check := google.check(t, s, nil)
		token := func() string { return google.sign(t, nil) }
		if err := check(token()); err != nil {
			t.Fatal(err)
		}
		s.set(nil, time.Hour)
		time.Sleep(48 * time.Hour)
		began := time.Now()
		if err := check(token()); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("after two days without the page: %v after %v; want that one waits 3 s for it", err, time.Since(began))
		}
		if err := check(token()); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("within a second of a failed fetch: %v after %v", err, time.Since(began))
		}
		if err := check(google.forged(t)(1)); text(err) != "unknown key" {
			t.Errorf("an unknown key without the page: %v", err)
		}

		time.Sleep(time.Second)
		s.set(google, time.Second)
		withdrawn := token()
		google.rotate(t)
		google.rotate(t)
		var both sync.WaitGroup
		both.Go(func() {
			if err := check(withdrawn); text(err) != "unknown key" {
				t.Errorf("a withdrawn key: %v", err)
			}
		})
		synctest.Wait()
		if began := time.Now(); check(withdrawn) != nil || time.Since(began) > 0 {
			t.Errorf("a known key waits for the fetch of another caller, %v", time.Since(began))
		}
		both.Wait()
	})
}

// The log has one line for each failed fetch, of a limited size.
func TestAnInvalidPageReplacesNoKeys(t *testing.T) {
	google, _ := issuers(t)
	w := httptest.NewRecorder()
	google.ServeHTTP(w, nil)
	valid := w.Body.String()
	page := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
	}
	for reason, handler := range map[string]http.Handler{
		"no answer":           nil,
		"not a page of keys":  page("<html>example</html>"),
		"not a page of keys ": page(valid[:300]),
		"no usable key":       page(`{"keys":[]}`),
		"no usable key ":      page(`{"keys":[null,{"kty":"example"},` + strings.Replace(valid[len(`{"keys":[`):], `"kid":"1"`, `"kid":""`, 1)),
		"status 500":          http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }),
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s := &site{handler: handler}
			check := google.check(t, s, slog.New(slog.NewJSONHandler(&log, nil)))
			if err := check(google.sign(t, nil)); !errors.Is(err, taskauth.ErrNoKeys) {
				t.Errorf("%s: %v, want ErrNoKeys", reason, err)
			}
			time.Sleep(time.Second)
			s.set(page(strings.Replace(valid, "[", `[{"kty":"OKP","crv":"future","kid":"1"},`, 1)), 0) // and a key of another kind
			if err := check(google.sign(t, nil)); err != nil {
				t.Errorf("%s, then a valid page: %v", reason, err)
			}
			s.set(handler, 0)
			time.Sleep(time.Hour)
			if err := check(google.sign(t, nil)); err != nil {
				t.Errorf("a valid page, then %s: %v", reason, err)
			}
			want := fmt.Sprintf(`"level":"WARN","msg":"keys not fetched","url":%q,"reason":%q}`, keysURL, strings.TrimSpace(reason))
			if strings.Count(log.String(), want) != 2 || strings.Count(log.String(), "\n") != 2 {
				t.Errorf("log %s, want two lines with %s", &log, want)
			}
		})
	}
}
