package local

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// workerThat returns a worker that answers each delivery.
func workerThat(t *testing.T, number int, answers http.HandlerFunc) *process {
	t.Helper()
	s := httptest.NewServer(answers)
	t.Cleanup(s.Close)
	return &process{number: number, address: strings.TrimPrefix(s.URL, "http://")}
}

func TestRouter(t *testing.T) {
	var seen []string
	r := &router{observe: func(d *delivery) { seen = append(seen, d.String()) }}
	call := func(body, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/a/b", strings.NewReader(body)))
		if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want) {
			t.Errorf("%s; want %s", got, want)
		}
	}
	const refused = `{"reason":"busy","error":"E","retry_at":"2999-01-01T00:00:00.000Z","rejected":true}`
	call("{}", "503 ")
	r.workers = []*process{
		workerThat(t, 1, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, `{"acquired":true,"status":"READY","it":%q}`, r.URL.Path+string(body))
		}),
		workerThat(t, 2, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, refused, http.StatusConflict) }),
		// The third dies.
		workerThat(t, 3, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9") }),
	}
	call(`{"analysis_id":"x"}`, "409 "+refused+"\n")
	call(`{"analysis_id":"x"}`, "502 ") // the error depends on when the connection ends
	call(`{}`, `200 {"acquired":true,"status":"READY","it":"/a/b{}"}`)
	call("", "409 "+refused+"\n") // recovery
	if want := []string{
		"x: worker 2 answered 409 busy: E; next delivery at 2999-01-01T00:00:00.000Z; the task is deleted",
		"x: worker 3 did not answer; the queue will try again",
		"a task without an analysis_id: worker 1 answered 200 READY",
	}; !slices.Equal(seen, want) {
		t.Errorf("%q; want %q", seen, want)
	}
}

func TestRouter_Full(t *testing.T) {
	a, b := &process{number: 1}, &process{number: 2}
	for limit, want := range map[int]string{2: "2 1 2 1 1 2 1 ", 0: "2 1 2 1 2 1 2 "} {
		r, got := &router{limit: limit, workers: []*process{a, b}}, ""
		for i, n := range []int32{1, 1, 1, 1, 1, 0, 0} {
			if i == 4 {
				a.deliveries.Add(-1)
			}
			got += strings.TrimPrefix(r.pick(n).String(), "worker ") + " "
		}
		if got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
		a.deliveries.Store(0)
		b.deliveries.Store(0)
	}
}
