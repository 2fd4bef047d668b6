package workerservice

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskguard/internal/testing/must"

	"google.golang.org/api/option"
)

func TestStartJob(t *testing.T) {
	var got string
	code := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + strings.TrimSpace(string(body))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "{}")
	}))
	defer api.Close()
	const job = "projects/p/locations/l/jobs/j"
	start, err := startJob(t.Context(), job, option.WithEndpoint(api.URL), option.WithHTTPClient(api.Client()))
	must.OK(t, err)

	for id, args := range map[string]string{"x": `["run","x"]`, "--json": `["run","--","--json"]`} {
		want := `POST /v2/` + job + `:run {"overrides":{"containerOverrides":[{"args":` + args + `}]}}`
		if err := start(t.Context(), id); err != nil || got != want {
			t.Errorf("%s: %v, sent %s, want %s", id, err, got, want)
		}
	}
	code = http.StatusForbidden
	if err := start(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("refused by Google: %v", err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/none")
	if _, err := startJob(t.Context(), job); err == nil || !strings.HasPrefix(err.Error(), "ANALYZER=job:") {
		t.Errorf("without credentials: %v; want the variable that needs them", err)
	}
}
