package console_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// headers returns the names and values of a text like "Host: a, Origin: b".
func headers(text string) []string { return regexp.MustCompile(`: |, `).Split(text, -1) }

// Only a form of this console changes something.
func TestForms(t *testing.T) {
	same := headers("Sec-Fetch-Site: same-origin")
	source := newSource(heldBy("a", "w/1", 3, time.Hour), analysis("b", "FAILED"))
	s, h := writable(t, source)
	seen := hidden(t, page(t, s, "/unlock?id=a")).Encode()
	good := map[string]string{
		"/unlock?id=a":             seen,
		"/selected/requeue":        hidden(t, post(t, s, "/selected/requeue", chosen("b")).Body.String()).Encode(),
		"/failures/requeue?code=c": fmt.Sprint("seen=", time.Now().UnixMilli(), "-5"),
	}
	t.Run("another site cannot send one", func(t *testing.T) {
		for from, want := range map[string]int{
			"Sec-Fetch-Site: cross-site": 403, "Sec-Fetch-Site: same-site": 403, "Accept: text/html": 403,
			"Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: document": 403,
			"Origin: https://evil.example": 403, "Origin: http://localhost:1": 403, "Origin: null": 403,
			"Sec-Fetch-Site: same-origin, Host: evil.example": 421,
		} {
			for path, body := range good {
				code(t, path+" "+from, ask(t, s, http.MethodPost, path, body, headers(from)...), want)
			}
		}
		h.want(t)
	})
	t.Run("it has what was seen, and an end", func(t *testing.T) {
		for name, tc := range map[string]struct {
			path, body string
			want       int
		}{
			"the lock not seen":     {"/unlock?id=a", "", 409},
			"a form in the address": {"/unlock?id=a&" + seen, "", 409},
			"no id":                 {"/unlock", seen, 400},
			"without an end":        {"/unlock?id=a", seen + "&x=" + strings.Repeat("x", 300<<10), 409},
		} {
			code(t, name, ask(t, s, http.MethodPost, tc.path, tc.body, same...), tc.want)
		}
		page(t, s, "/unlock?id=a&"+seen)
		h.want(t)
	})
	t.Run("without an operator none is accepted", func(t *testing.T) {
		reader := open(t, source, console.Options{Every: quick})
		shown := page(t, reader, "/?state=QUEUED") + page(t, reader, "/analysis?id=a") + page(t, reader, "/failures")
		hasNot(t, shown, "data-action", "checkbox", `id="selection"`)
		for _, path := range []string{
			"/unlock?id=a", "/requeue?id=a", "/cancel?id=a", "/resolve?id=a", "/all/cancel?state=QUEUED",
			"/failures/requeue?code=c", "/selected/requeue",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				w := ask(t, reader, method, path, good[path], same...)
				code(t, method+" "+path, w, http.StatusForbidden)
				has(t, w.Body.String(), "--write")
			}
		}
	})
	t.Run("a page may come from another instance, and a browser may send only the origin", func(t *testing.T) {
		other, h := writable(t, newSource(heldBy("a", "w/1", 3, time.Hour)))
		w := ask(t, other, http.MethodPost, "/unlock?id=a", seen, headers("Origin: http://localhost:8590")...)
		code(t, "to another instance", w, http.StatusSeeOther)
		h.want(t, "unlock a by operator-1")
	})
}
