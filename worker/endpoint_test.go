package worker_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// charging is an endpoint that charges in an act. After the charge it does what fails says.
type charging struct {
	mu    sync.Mutex
	times int                                          // how often it has charged
	fails func(w http.ResponseWriter, r *http.Request) // nil: it reports the end, and a result
}

func (c *charging) charges() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.times
}

// charge charges, and returns what then fails.
func (c *charging) charge() func(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times++
	return c.fails
}

// recovers makes it report the end of its later charges.
func (c *charging) recovers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = nil
}

func (c *charging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var job struct {
		Effects map[string]struct {
			State  string
			Result json.RawMessage
		}
	}
	if json.NewDecoder(r.Body).Decode(&job) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	line := func(text string) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, text+"\n")
		_ = http.NewResponseController(w).Flush()
	}
	switch act := job.Effects["charge"]; act.State {
	case "":
		line(`{"effect":"charge"}`)
	case "uncertain":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"error":{"code":"look_it_up"}}`)
	case "done":
		line(`{"result":` + string(act.Result) + `}`)
	case "go":
		if fails := c.charge(); fails != nil {
			fails(w, r)
			return
		}
		line(`{"effect":"charge","done":4200}`)
		line(`{"result":4200}`)
	}
}

// An attempt charges, and the worker does not learn the end. No later attempt charges, and all that knows of uncertain
// acts knows this one: until an operator answers. A requeue of the finished document keeps the record.
func TestAnEndpointsActIsLikeAnyOther(t *testing.T) {
	for name, tc := range map[string]struct {
		fails   func(w http.ResponseWriter, r *http.Request)
		limit   time.Duration // of a run
		answer  analysislock.Answer
		charges int
	}{
		"killed after go, and it happened": {fails: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			answer: analysislock.Answer{Done: true, Result: []byte("4200")}, charges: 1},
		"killed after go, and it did not": {fails: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, charges: 2},
		"500": {fails: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			answer: analysislock.Answer{Done: true, Result: []byte("4200")}, charges: 1},
		"a run timeout": {fails: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, limit: time.Second,
			answer: analysislock.Answer{Done: true, Result: []byte("4200")}, charges: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &charging{fails: tc.fails}
			server := httptest.NewServer(c)
			defer server.Close()
			analyzer, err := orchestrator.New(server.URL, orchestrator.Options{})
			if err != nil {
				t.Fatal(err)
			}
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			kind := jobs(analyzer.Analyze)
			kind.RunTimeout = tc.limit
			work, doc := g.MustRegister(kind), collection(t, b, "jobs").Doc("1")
			operator, run := work.Operator(), func() map[string]any {
				post(t, work.Handler(), "/tasks/job", `{"job_id":"1"}`)
				return fields(t, doc)
			}

			set(t, doc, pending)
			if got := run(); got["state"] != "PENDING" || charged(got)["state"] != "started" || c.charges() != 1 {
				t.Fatalf("after the charge: %v, %v", got["state"], got["effects"])
			}
			got := run()
			failure, _ := got["error"].(map[string]any)
			if got["state"] != "ERROR" || failure["code"] != analysislock.ActUncertain || got["openEffects"] != int64(1) || c.charges() != 1 {
				t.Fatalf("then: %v, %v, %v open acts, %d charges", got["state"], failure, got["openEffects"], c.charges())
			}
			if n := strings.Count(lines.String(), `level=ERROR msg="an act is uncertain" effects=[charge]`); n != 1 {
				t.Errorf("%d lines that an alert counts\n%s", n, lines)
			}
			if _, err := operator.Requeue(t.Context(), "1", "", nil, true, ""); !errors.Is(err, analysislock.ErrUncertain) {
				t.Errorf("a fresh requeue: %v", err)
			}

			c.recovers()
			if _, err := operator.Resolve(t.Context(), "1", "", nil, "charge", tc.answer, ""); err != nil {
				t.Fatal(err)
			}
			for _, requeue := range []bool{false, true} {
				if requeue {
					if _, err := operator.Requeue(t.Context(), "1", "", nil, false, ""); err != nil {
						t.Fatal(err)
					}
				}
				if got := run(); got["state"] != "DONE" || got["output"] != int64(4200) || c.charges() != tc.charges {
					t.Errorf("requeued %v: %v, %v after %d charges; want %d", requeue, got["state"], got["error"], c.charges(), tc.charges)
				}
			}
			if _, err := operator.Requeue(t.Context(), "1", "", nil, true, ""); err != nil {
				t.Fatal(err)
			}
			if run(); c.charges() != tc.charges+1 {
				t.Errorf("%d charges after a fresh requeue, want one more", c.charges())
			}
		})
	}
}

// The act of an endpoint that this process calls ends after the stop, and is recorded.
func TestAnEndpointsActEndsAfterTheStop(t *testing.T) {
	acting, stopped, c := make(chan struct{}), make(chan struct{}), &charging{}
	c.fails = func(w http.ResponseWriter, _ *http.Request) {
		close(acting)
		time.Sleep(500 * time.Millisecond)
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, `{"effect":"charge","done":4200}`+"\n")
	}
	server := httptest.NewServer(c)
	defer server.Close()
	analyzer, err := orchestrator.New(server.URL, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := emulatortest.Embedded(t)
	g := open(t, b, nil)
	go func() {
		defer close(stopped)
		<-acting
		shutDown(t, g, 8*time.Second)
	}()
	got := runJob(t, b, g, 1, pending, analyzer.Analyze)
	<-stopped
	if act := charged(got); got["state"] != "PENDING" || act["state"] != "done" || c.charges() != 1 {
		t.Errorf("%v, %v after %d charges", got["state"], act, c.charges())
	}
}
