package console_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
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

func TestAccess_Proxy(t *testing.T) {
	for err, want := range map[error]int{
		taskauth.ErrUnauthenticated: http.StatusUnauthorized,
		taskauth.ErrNoKeys:          http.StatusServiceUnavailable,
	} {
		var log bytes.Buffer
		h := &recorder{}
		s := open(t, newSource(heldBy("secret-id", "w/1", 1, time.Hour)), console.Options{
			Identity: proxy{fmt.Errorf("%w: wrong audience", err)}, Operator: h, Place: "secret-project",
			Log: logTo(&log),
		})
		request := func(method, target, body, proof string) *httptest.ResponseRecorder {
			return ask(t, s, method, target, body,
				"Host", "console.example.com", "Sec-Fetch-Site", "same-origin", "X-Proof", proof)
		}
		for _, target := range []string{"/", "/analysis?id=secret-id", "/unlock?id=secret-id", "/console.js", "/none"} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				w := request(method, target, "", "")
				code(t, method+" "+target, w, want)
				hasNot(t, w.Body.String(), "secret-", "changes allowed", "read only", "href=", "wrong audience")
			}
		}
		has(t, log.String(), "level=WARN", "wrong audience")
		h.want(t)

		confirmation := request(http.MethodGet, "/unlock?id=secret-id", "", "good").Body.String()
		has(t, confirmation, "operator@example.com")
		request(http.MethodPost, "/unlock?id=secret-id", hidden(t, confirmation).Encode(), "good")
		h.want(t, "unlock secret-id by operator@example.com")
	}
}

func TestAccess_Loopback(t *testing.T) {
	s := open(t, newSource(), console.Options{Place: "secret-project"})
	for host, want := range map[string]int{
		"localhost:8590": 200, "LOCALHOST": 200, "127.0.0.9": 200, "[::1]:8590": 200, "[::1]": 200,
		"evil.example": 421, "localhost.evil.example:8590": 421, "127.0.0.1.evil.example": 421,
		"10.0.0.1:8590": 421, "": 421, "0.0.0.0:8590": 421,
	} {
		w := ask(t, s, http.MethodGet, "/", "", "Host", host)
		code(t, host, w, want)
		contains(t, w.Body.String(), want == 200, "secret-")
	}
}

// Another site's page may only lead the browser here.
func TestAccess_OtherSites(t *testing.T) {
	source := newSource()
	s := open(t, source, console.Options{Every: quick})
	for from, want := range map[string]int{
		"cross-site no-cors image": 403, "same-site no-cors image": 403, "cross-site navigate iframe": 403,
		"cross-site cors document": 403, "cross-site  ": 403, "cross-site navigate document": 200,
		"same-site navigate document": 200, "same-origin cors empty": 200, "none navigate document": 200, "  ": 200,
	} {
		fetch, before := strings.Split(from, " "), source.calls("Page")
		w := ask(t, s, http.MethodGet, "/", "",
			"Sec-Fetch-Site", fetch[0], "Sec-Fetch-Mode", fetch[1], "Sec-Fetch-Dest", fetch[2])
		code(t, from, w, want)
		equal(t, from+": is read", source.calls("Page") > before, want == 200)
	}
}

func TestHeaders(t *testing.T) {
	s, _ := writable(t, newSource(heldBy("a", "w", 1, time.Hour)))
	for target, kind := range map[string]string{
		"/": "text/html", "/unlock?id=a": "text/html", "/analysis?id=none": "text/html", "/none": "text/html",
		"/console.css": "text/css", "/console.js": "text/javascript", "/icon.svg": "image/svg+xml",
	} {
		w := get(t, s, target)
		has(t, w.Header().Get("Content-Type"), kind)
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
				"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			equal(t, target+": "+name, w.Header().Get(name), want)
		}
		if strings.HasPrefix(kind, "text/html") { // the policy would refuse it
			equal(t, target+" holds", listed(w.Body.String(), `(?i)<[^>]* (?:style|on[a-z]+)=|<style|<script>`), "")
		}
	}
}
