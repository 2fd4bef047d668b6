package env

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"taskguard/internal/taskauth"
)

func TestIAMModeOutsideCloudRunIsAWarning(t *testing.T) {
	for _, tc := range []struct {
		service, mode string
		warnings      int
	}{{"", "iam", 1}, {"", "none", 0}, {"taskguard-worker", "iam", 0}} {
		t.Setenv("K_SERVICE", tc.service)
		var log bytes.Buffer
		if _, ours, err := (TaskAuth{Mode: tc.mode}).Verifier(t.Context(), slog.New(slog.NewJSONHandler(&log, nil))); ours || err != nil {
			t.Errorf("%t, %v", ours, err)
		}
		if got := strings.Count(log.String(), `"level":"WARN"`); got != tc.warnings {
			t.Errorf("%+v: %d warnings: %s", tc, got, &log)
		}
	}
}

type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("down") }

func TestAVerifierLogsItsFetchesAndAWrongModeHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		token := taskauth.Options{Audience: "a", Accounts: []string{"a@b.c"}, KeySource: taskauth.KeySource{Client: &http.Client{Transport: unreachable{}}}}
		v, ours, err := TaskAuth{Mode: "oidc", Token: token}.Verifier(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)))
		if !ours || err != nil {
			t.Fatalf("%t, %v", ours, err)
		}
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		r.Header.Set("Authorization", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.AAAA")
		if err := v.Check(r); !errors.Is(err, taskauth.ErrNoKeys) || !strings.Contains(log.String(), "keys not fetched") {
			t.Errorf("%v, log: %s", err, &log)
		}
		for _, wrong := range []TaskAuth{{Mode: "oidc"}, {Mode: ""}, {Mode: "OIDC"}} {
			if v, _, err := wrong.Verifier(t.Context(), nil); err == nil || v != nil {
				t.Errorf("%+v: %v, %v", wrong, v, err)
			}
		}
	})
}
