package server_test

import (
	"bytes"
	"cmp"
	"net/http"
	"strings"
	"testing"

	"taskguard/locks/document/server/web"
)

func TestThePageAndItsFilesAreServedAsTheyAre(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for path, kind := range map[string]string{"/": "text/html", "/index.html": "text/html", "/locks.js": "text/javascript", "/locks.d.ts": "text/plain", "/page.js": "text/javascript", "/page.css": "text/css"} {
		want := must(web.Files.ReadFile(cmp.Or(strings.TrimPrefix(path, "/"), "index.html")))(t)
		if path == "/locks.js" { // its own server
			want = append(want, "\ndefaults.endpoint = new URL('/api/documents', import.meta.url).href;"...)
		}
		got := b.do(http.MethodGet, path, http.NoBody)
		if got.status != http.StatusOK || got.body != string(bytes.TrimSpace(want)) || !strings.HasPrefix(got.header.Get("Content-Type"), kind) {
			t.Errorf("%s: %d, %d bytes, %v", path, got.status, len(got.body), got.header)
		}
		if again := b.do(http.MethodGet, path, http.NoBody, "If-None-Match", got.header.Get("ETag")); again.status != http.StatusNotModified || again.body != "" {
			t.Errorf("%s: unchanged, but sent again: %d", path, again.status)
		}
	}
}

func TestEveryAnswerHasTheSecurityHeaders(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for path, cache := range map[string]string{"/": "private, no-cache", "/locks.js": "private, no-cache", lockPath: "no-store", "/nope": "no-store", "/health/live": "no-store", lockPath + "/ws": "no-store"} {
		h := b.do(http.MethodGet, path, http.NoBody).header
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'self'", "worker-src 'self' blob:", "connect-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: policy %q lacks %s", path, policy, want)
			}
		}
		if over := b.do(http.MethodGet, path, http.NoBody, "X-Forwarded-Proto", "https").header; over.Get("Strict-Transport-Security") != "max-age=31536000" || h.Get("Strict-Transport-Security") != "" {
			t.Errorf("%s: over https %v, in clear %v", path, over, h)
		}
		if h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options")+h.Get("Referrer-Policy") != "nosniffno-referrer" || h.Get("Cache-Control") != cache {
			t.Errorf("%s: %v", path, h)
		}
	}
}
