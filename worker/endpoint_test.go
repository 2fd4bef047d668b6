package worker_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// charging is an endpoint that charges in an act.
type charging struct {
	charges atomic.Int32
	fails   http.HandlerFunc // what happens after the first charge
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
	w.Header().Set("Content-Type", "application/x-ndjson")
	switch act := job.Effects["charge"]; act.State {
	case "":
		_, _ = io.WriteString(w, `{"effect":"charge"}`+"\n")
	case "uncertain":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"error":{"code":"look_it_up"}}`)
	case "done":
		_, _ = io.WriteString(w, `{"result":`+string(act.Result)+"}\n")
	case "go":
		if c.charges.Add(1) == 1 {
			c.fails(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"effect":"charge","done":4200}`+"\n"+`{"result":4200}`+"\n")
	}
}

// analyze returns a Run that calls c, until the end of the test.
func (c *charging) analyze(t *testing.T) func(context.Context, worker.Job) (any, error) {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return must.Get(orchestrator.New(server.URL, orchestrator.Options{}))(t).Analyze
}

// An attempt charges, and the endpoint is killed before its worker learns the end. No later attempt charges:
// an operator answers, and the endpoint gets the answer. orchestrator/calls_test.go has the protocol.
func TestEndpoint_Act(t *testing.T) {
	c := &charging{fails: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }}
	b := emulatortest.Embedded(t)
	g, log := openLogged(t, b, nil)
	work, doc := g.MustRegister(jobs(c.analyze(t))), collection(t, b, "jobs").Doc("1")
	run := func(state string, charges int32) map[string]any {
		t.Helper()
		post(t, work.Handler(), "/tasks/job", `{"job_id":"1"}`)
		got := fields(t, doc)
		if n := c.charges.Load(); got["state"] != state || n != charges {
			t.Fatalf("%v after %d charges, want %s after %d: %v", got["state"], n, state, charges, got["error"])
		}
		return got
	}

	set(t, doc, pending)
	if act := charged(run("PENDING", 1)); act["state"] != "started" {
		t.Errorf("after the charge: %v", act)
	}
	got := run("ERROR", 1)
	failure, _ := got["error"].(map[string]any)
	if failure["code"] != analysislock.ActUncertain || got["openEffects"] != int64(1) {
		t.Errorf("then: %v, %v open acts", failure, got["openEffects"])
	}
	if n := strings.Count(log.String(), `level=ERROR msg="an act is uncertain" effects=[charge]`); n != 1 {
		t.Errorf("%d lines that an alert counts\n%s", n, log)
	}
	happened := analysislock.Answer{Done: true, Result: []byte("4200")}
	if _, err := work.Operator().Resolve(t.Context(), "1", "", nil, "charge", happened, ""); err != nil {
		t.Fatal(err)
	}
	if got := run("DONE", 1); got["output"] != int64(4200) {
		t.Errorf("output %v", got["output"])
	}
}

// The act of an endpoint that this process calls ends after the stop, and is recorded.
func TestEndpoint_Stop(t *testing.T) {
	stopped, b := make(chan struct{}), emulatortest.Embedded(t)
	g := open(t, b, nil)
	c := &charging{fails: func(w http.ResponseWriter, _ *http.Request) {
		go func() {
			defer close(stopped)
			shutDown(t, g, 8*time.Second)
		}()
		time.Sleep(500 * time.Millisecond) // the stop has begun long before
		_, _ = io.WriteString(w, `{"effect":"charge","done":4200}`+"\n")
	}}
	got := runJob(t, b, g, 1, pending, c.analyze(t))
	<-stopped
	if act := charged(got); got["state"] != "PENDING" || act["state"] != "done" {
		t.Errorf("%v, %v", got["state"], act)
	}
	if n := c.charges.Load(); n != 1 {
		t.Errorf("%d charges", n)
	}
}
