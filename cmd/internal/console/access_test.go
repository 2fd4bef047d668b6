package console_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/internal/taskauth"
)

// proxy is an Identity that accepts only the good proof.
type proxy struct{ err error }

func (p proxy) Identify(r *http.Request) (string, error) {
	if r.Header.Get("X-Proof") == "good" {
		return "operator@example.com", nil
	}
	return "", p.err
}

func TestBehindAProxyEveryRequestNeedsAProof(t *testing.T) {
	for err, want := range map[error]int{taskauth.ErrUnauthenticated: http.StatusUnauthorized, taskauth.ErrNoKeys: http.StatusServiceUnavailable} {
		var log bytes.Buffer
		h := &recorder{}
		s := open(t, newSource(heldBy("secret-id", "w/1", 1, time.Hour)), console.Options{
			Identity: proxy{fmt.Errorf("%w: wrong audience", err)}, Operator: h, Every: quick, Place: "secret-project", Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		for _, target := range []string{"/", "/analysis?id=secret-id", "/unlock?id=secret-id", "/console.js", "/none"} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				w := ask(t, s, method, target, "", "Host", "console.example.com", "Sec-Fetch-Site", "same-origin")
				if w.Code != want {
					t.Errorf("%s %s: %d %s, want %d", method, target, w.Code, w.Body, want)
				}
				hasNot(t, w.Body.String(), "secret-", "changes allowed", "read only", "Firestore", "href=", "wrong audience")
				has(t, w.Body.String(), `role="alert"`)
			}
		}
		has(t, log.String(), "level=WARN", "wrong audience")
		h.want(t)
		if w := ask(t, s, http.MethodGet, "/", "", "Host", "console.example.com", "X-Proof", "good"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "operator@example.com") {
			t.Errorf("with a proof: %d %s", w.Code, w.Body)
		}
		form := hidden(t, ask(t, s, http.MethodGet, "/unlock?id=secret-id", "", "Host", "console.example.com", "X-Proof", "good").Body.String())
		ask(t, s, http.MethodPost, "/unlock?id=secret-id", form.Encode(), "Host", "console.example.com", "X-Proof", "good", "Sec-Fetch-Site", "same-origin")
		h.want(t, "unlock secret-id by operator@example.com")
	}
}

func TestTheLoopbackConsoleAnswersOnlyToLoopbackNames(t *testing.T) {
	s := open(t, newSource(), console.Options{Every: quick, Place: "secret-project", User: "secret-operator-1"})
	for host, want := range map[string]int{
		"localhost:8590": 200, "LOCALHOST": 200, "127.0.0.1:1": 200, "127.0.0.9": 200, "[::1]:8590": 200, "[::1]": 200,
		"evil.example": 421, "localhost.evil.example:8590": 421, "127.0.0.1.evil.example": 421, "10.0.0.1:8590": 421, "": 421, "0.0.0.0:8590": 421,
	} {
		w := ask(t, s, http.MethodGet, "/", "", "Host", host)
		if w.Code != want || strings.Contains(w.Body.String(), "secret-") != (want == 200) {
			t.Errorf("%s: %d, want %d", host, w.Code, want)
		}
	}
}

func TestAnotherSitesPageMayOnlyLeadTheBrowserHere(t *testing.T) {
	source := newSource()
	s := open(t, source, console.Options{Every: quick})
	for _, tc := range []struct {
		site, mode, dest string
		want             int
	}{
		{"cross-site", "no-cors", "image", 403}, {"same-site", "no-cors", "image", 403}, {"cross-site", "navigate", "iframe", 403}, {"cross-site", "cors", "document", 403}, {"cross-site", "", "", 403},
		{"cross-site", "navigate", "document", 200}, {"same-site", "navigate", "document", 200}, {"same-origin", "cors", "empty", 200}, {"none", "navigate", "document", 200}, {"", "", "", 200},
	} {
		before := source.calls("Page")
		w := ask(t, s, http.MethodGet, "/", "", "Sec-Fetch-Site", tc.site, "Sec-Fetch-Mode", tc.mode, "Sec-Fetch-Dest", tc.dest)
		if read := source.calls("Page") > before; w.Code != tc.want || read != (tc.want == 200) {
			t.Errorf("%+v: %d, read: %v", tc, w.Code, read)
		}
	}
}

func TestPagesAreNotCachedNotFramedAndRunNothingInline(t *testing.T) {
	s, _ := writable(t, newSource(analysis("a", "FAILED"), heldBy("b", "w", 1, time.Hour)))
	for _, target := range []string{"/", "/analysis?id=a", "/unlock?id=b", "/analysis?id=none", "/none", "/console.css", "/console.js", "/icon.svg"} {
		if h := ask(t, s, http.MethodGet, target, "", "X-Forwarded-Proto", "https").Header(); h.Get("Strict-Transport-Security") != "max-age=31536000" {
			t.Errorf("%s over https: %v", target, h)
		}
		w := ask(t, s, http.MethodGet, target, "")
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Frame-Options":         "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Strict-Transport-Security": "",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s %q, want %q", target, name, got, want)
			}
		}
		if kind := w.Header().Get("Content-Type"); kind == "" || strings.Contains(target, ".") && w.Code != http.StatusOK {
			t.Errorf("%s: %d of type %q", target, w.Code, kind)
		}
		if inline := regexp.MustCompile(`(?i)<[^>]* (style|on[a-z]+)=|<style|<script>`).FindString(w.Body.String()); inline != "" && target != "/console.js" {
			t.Errorf("%s holds %s", target, inline)
		}
	}
}
