package console_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
)

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
