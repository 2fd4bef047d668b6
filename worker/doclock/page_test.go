package doclock_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"taskguard/worker/doclock/web"
)

func TestThePageAndItsFilesAreServedAsTheyAre(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8", "/locks.js": "text/javascript; charset=utf-8"} {
		name := strings.TrimPrefix(path, "/")
		if name == "" {
			name = "index.html"
		}
		want, err := fs.ReadFile(web.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		got := b.do(http.MethodGet, path, http.NoBody)
		tag := got.header.Get("ETag")
		if got.header.Get("Content-Type") != kind || got.header.Get("Cache-Control") != "private, no-cache" || tag == "" {
			t.Errorf("%s: %v", path, got.header)
		}
		if got.status != http.StatusOK || got.body != string(bytes.TrimSpace(want)) {
			t.Errorf("%s: %d, %d bytes", path, got.status, len(got.body))
		}
		if status, body := b.ask(http.MethodGet, path, "If-None-Match", tag); status != http.StatusNotModified || body != "" {
			t.Errorf("%s, unchanged: %d %s", path, status, body)
		}
	}
}

func TestEveryAnswerHasTheSecurityHeaders(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for _, path := range []string{"/", "/locks.js", lockPath, "/nope", "/health/live", lockPath + "/ws"} {
		h := b.do(http.MethodGet, path, http.NoBody).header
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'self'", "worker-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: policy %q lacks %s", path, policy, want)
			}
		}
		if h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, h)
		}
	}
	if got := b.do(http.MethodGet, lockPath, http.NoBody).header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("a room's state may be cached: %q", got)
	}
}

func TestItIsReadyOnceTheStoreHasAnsweredAndUntilItStops(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	const not = `{"reason":"unavailable","status":"not_ready"}`
	b.want(http.StatusServiceUnavailable, not, http.MethodGet, "/health/ready")
	failures := 1
	s.AwaitReady(t.Context(), func(context.Context) error {
		if failures--; failures == 0 {
			return errors.New("unavailable")
		}
		return nil
	})
	b.want(http.StatusOK, `{"status":"ready"}`, http.MethodGet, "/health/ready")
	s.stop()
	b.want(http.StatusServiceUnavailable, not, http.MethodGet, "/health/ready")
	b.want(http.StatusOK, `{"status":"live"}`, http.MethodGet, "/health/live")
}
