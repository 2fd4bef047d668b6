package worker

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/oidc"
	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
)

const (
	audience = "https://worker.example"
	caller   = "tasks@p.iam.gserviceaccount.com"
)

// page answers as the issuer's page, without a network.
type page struct{ http.Handler }

func (p page) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	p.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// guarded makes w verify the tokens of an issuer. Without keys, no token can be verified.
func (w *process) guarded(t *testing.T, keys bool) (*oidc.Issuer, *bytes.Buffer) {
	t.Helper()
	issuer, err := oidc.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	v, err := taskauth.New(taskauth.Options{
		Audience: audience, Accounts: []string{caller}, KeySource: taskauth.KeySource{KeysURL: "https://keys.example", Client: &http.Client{Transport: page{issuer}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if keys {
		go v.Run(t.Context())
		synctest.Wait()
	}
	var log bytes.Buffer
	w.guard.Log = slog.New(slog.NewJSONHandler(&log, nil))
	w.restart(v)
	return issuer, &log
}

func (w *process) as(t *testing.T, path, authorization string) reply {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"analysis_id":"x"}`))
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return w.send(t, r)
}

// No route that changes something admits a caller without a valid token, and no such call
// reaches Firestore. internal/taskauth tests all kinds of invalid tokens.
func TestAForgedCallIsRefusedBeforeAnythingIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, succeed)
		issuer, log := w.guarded(t, true)
		token := func(email, audience string) string {
			s, err := issuer.Token(email, audience)
			if err != nil {
				t.Fatal(err)
			}
			return "Bearer " + s
		}
		good := token(caller, audience)
		before := b.Calls.Total()
		for _, path := range []string{"/internal/tasks/analysis", "/internal/tasks/recover"} {
			for authorization, code := range map[string]int{
				"":                                     401,
				"Bearer s3cret":                        401,
				good[:len(good)-8] + "AAAAAAAA":        401,
				token(caller, "https://other"):         401,
				token("s3cret@evil.example", audience): 403,
			} {
				reason := map[int]string{401: "unauthenticated", 403: "forbidden"}[code]
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, unreadBody{t})
				r.Header.Set("Authorization", authorization)
				got := w.send(t, r)
				got.check(t, code, map[string]any{"reason": reason, "acquired": nil, "analysis_id": nil, "error": nil})
				if want := map[int]string{401: "Bearer"}[code]; got.Challenge != want {
					t.Errorf("%d with WWW-Authenticate %q, want %q", code, got.Challenge, want)
				}
			}
		}
		if n := b.Calls.Total() - before; n != 0 {
			t.Errorf("%d calls to Firestore, want none", n)
		}
		if s := log.String(); strings.Contains(s, "s3cret") || strings.Contains(s, "eyJ") || strings.Count(s, "\n") != 10 {
			t.Errorf("the log is to be a line a call, and to show nothing of it: %s", s)
		}
		w.as(t, "/internal/tasks/analysis", good).check(t, 200, map[string]any{"status": "READY"})
		w.as(t, "/internal/tasks/recover", good).check(t, 501, nil)
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
	})
}

// The status makes the queue try again.
func TestWithoutKeysEveryCallIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, succeed)
		issuer, _ := w.guarded(t, false)
		token, err := issuer.Token(caller, audience)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.as(t, "/internal/tasks/analysis", "Bearer "+token).check(t, 503, map[string]any{"acquired": false, "reason": "unavailable"})
		if took := time.Since(began); took > 5*time.Second || b.Calls.Total() != 0 {
			t.Errorf("answered after %v and %d calls", took, b.Calls.Total())
		}
		w.as(t, "/internal/tasks/analysis", "Bearer garbage").check(t, 401, map[string]any{"reason": "unauthenticated"})
	})
}

// unreadBody is a body that must not be read.
type unreadBody struct{ *testing.T }

func (u unreadBody) Read([]byte) (int, error) {
	u.Error("the body was read")
	return 0, io.EOF
}
