//go:build linux || darwin

package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// asking is an endpoint that plays a script: each call is answered by the next of its answers.
type asking struct {
	*httptest.Server
	answers []string            // lines; "500" and the like are a status, CUT breaks the connection
	calls   []map[string]string // the states that each call was told, and its checkpoint
	called  func()              // unless nil, called by each call
	waits   chan struct{}       // WAIT in an answer waits for it
	tokens  map[string]bool     // of all calls
	keys    []string            // the Idempotency-Key of each call
}

func newAsking(t *testing.T, answers ...string) *asking {
	t.Helper()
	a := &asking{answers: answers, waits: make(chan struct{}, 1), tokens: map[string]bool{}}
	a.Server = serve(t, func(w http.ResponseWriter, r *http.Request) {
		var job struct {
			Effects    map[string]struct{ State string }
			Checkpoint json.RawMessage
		}
		if err := json.NewDecoder(r.Body).Decode(&job); err != nil {
			t.Error(err)
		}
		told := map[string]string{}
		for name, act := range job.Effects {
			told[name] = act.State
		}
		if job.Checkpoint != nil {
			told["checkpoint"] = string(job.Checkpoint)
		}
		a.calls = append(a.calls, told)
		a.tokens[r.Header.Get("X-Lock-Token")] = true
		a.keys = append(a.keys, r.Header.Get("Idempotency-Key"))
		if a.called != nil {
			a.called()
		}
		if len(a.calls) > len(a.answers) {
			t.Errorf("call %d", len(a.calls))
			return
		}
		a.answer(w, r, a.answers[len(a.calls)-1])
	})
	return a
}

func (a *asking) answer(w http.ResponseWriter, r *http.Request, lines string) {
	switch lines {
	case "500":
		w.WriteHeader(http.StatusInternalServerError)
		return
	case "500 with a code":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"error":{"code":"busy"}}`)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = http.NewResponseController(w).Flush()
	for line := range strings.Lines(lines) {
		switch strings.TrimSpace(line) {
		case "CUT":
			panic(http.ErrAbortHandler)
		case "WAIT":
			select {
			case <-a.waits:
			case <-r.Context().Done():
				return
			}
		default:
			_, _ = io.WriteString(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func (a *asking) run(ctx context.Context, t *testing.T, m orchestrator.Reporter) (any, error) {
	t.Helper()
	analyzer := newAnalyzer(t, a.URL, orchestrator.Options{})
	orchestrator.SetPatience(analyzer, time.Millisecond)
	return orchestrator.Run(ctx, analyzer, orchestrator.Job{LockToken: 7, Reporter: m})
}

const (
	askCharge = `{"effect":"charge"}`
	endCharge = `{"effect":"charge","done":1}`
)

// What a call leaves open is recorded as begun: nobody ends it here, so the next attempt finds it uncertain.
func TestAnEndpointsActs(t *testing.T) {
	went := []map[string]string{{}, {"charge": "go"}}
	for name, c := range map[string]struct {
		answers []string
		calls   []map[string]string
		ends    string
		code    string // of a permanent error, or "retry", or "uncertain"; empty: there is a result
		reason  string // in the error
		invalid string
	}{
		"done":                       {answers: []string{askCharge, endCharge + "\n" + `{"result":7}`}, calls: went, ends: "charge done 1"},
		"done, with a report":        {answers: []string{askCharge, `{"effect":"charge","done":1,"message":"m"}` + "\n" + `{"result":7}`}, calls: went, ends: `charge done 1 after report "m"`},
		"the result in its line":     {answers: []string{askCharge, `{"effect":"charge","done":1,"result":7}`}, calls: went, ends: "charge done 1"},
		"a result, and no end":       {answers: []string{askCharge, `{"result":7}`}, calls: went},
		"killed after go":            {answers: []string{askCharge, "CUT"}, calls: went, code: "retry"},
		"500 after go":               {answers: []string{askCharge, "500"}, calls: went, code: "retry", reason: "500"},
		"a code after go":            {answers: []string{askCharge, "500 with a code"}, calls: went, code: "retry", reason: "500"},
		"no more lines after go":     {answers: []string{askCharge, `{"progress":1}`}, calls: went, code: "retry", reason: "without a result"},
		"killed after the end":       {answers: []string{askCharge, endCharge + "\nCUT"}, calls: went, ends: "charge done 1", code: "retry"},
		"done before":                {answers: []string{`{"effect":"done"}`, `{"result":7}`}, calls: []map[string]string{{}, {"done": "done"}}},
		"uncertain, and a failure":   {answers: []string{`{"effect":"unknown"}`, "500 with a code"}, calls: []map[string]string{{}, {"unknown": "uncertain"}}, code: "uncertain"},
		"uncertain, and killed":      {answers: []string{`{"effect":"unknown"}`, "CUT"}, calls: []map[string]string{{}, {"unknown": "uncertain"}}, code: "retry"},
		"uncertain, and a bare 500":  {answers: []string{`{"effect":"unknown"}`, "500"}, calls: []map[string]string{{}, {"unknown": "uncertain"}}, code: "retry", reason: "500"},
		"uncertain, and found":       {answers: []string{`{"effect":"unknown"}`, `{"effect":"unknown","done":2}` + "\n" + `{"result":7}`}, calls: []map[string]string{{}, {"unknown": "uncertain"}}, ends: "unknown done 2"},
		"uncertain, and another one": {answers: []string{`{"effect":"unknown"}`, `{"effect":"__x__"}`}, calls: []map[string]string{{}, {"unknown": "uncertain"}}, code: "uncertain"},
		"asked for again":            {answers: []string{askCharge, endCharge + "\n" + askCharge}, calls: went, ends: "charge done 1", code: "act_name_reused"},
		"asked for and refused":      {answers: []string{askCharge, `{"effect":"charge","not_done":true}` + "\n" + askCharge}, calls: went, ends: "charge not done", code: "retry", reason: "in the next attempt"},
		"another during an act":      {answers: []string{askCharge, `{"effect":"mail"}`}, calls: went, code: "retry", reason: `"mail" before the act "charge" had ended`},
		"a wrong name":               {answers: []string{`{"effect":"a/b"}`}, calls: []map[string]string{{}}, code: "act_name_invalid"},
		"no name":                    {answers: []string{`{"effect":7}`}, calls: []map[string]string{{}}, code: "act_name_invalid"},
		"an end of both kinds":       {answers: []string{askCharge, `{"effect":"charge","done":1,"not_done":true}` + "\n" + `{"result":7}`}, calls: went, invalid: "an act could not be recorded"},
		"an error in an act's line":  {answers: []string{askCharge, `{"effect":"charge","error":{"code":"busy"}}`}, calls: went, code: "retry", invalid: "an act could not be recorded"},
		"a result in an act's line":  {answers: []string{askCharge, `{"effect":"charge","result":7}`}, calls: went, invalid: "an act could not be recorded"},
		"uncertain, and an error":    {answers: []string{`{"effect":"unknown"}`, `{"effect":"unknown","error":{"code":"busy"}}`}, calls: []map[string]string{{}, {"unknown": "uncertain"}}, code: "uncertain", invalid: "an act could not be recorded"},
		"asked beside null":          {answers: []string{`{"effect":"charge","result":null,"error":null}`, endCharge + "\n" + `{"result":7}`}, calls: went, ends: "charge done 1"},
		"a checkpoint": {
			answers: []string{`{"checkpoint":5}` + "\n" + askCharge, `{"result":7}`},
			calls:   []map[string]string{{}, {"charge": "go", "checkpoint": "5"}},
		},
		"a checkpoint that is refused": {
			answers: []string{`{"checkpoint":5,"progress":2}` + "\n" + askCharge, `{"result":7}`},
			calls:   went, invalid: "a progress is not between 0 and 1",
		},
		"no room for the result": {
			answers: []string{askCharge, `{"effect":"charge","done":"` + strings.Repeat("x", 101) + `"}` + "\n" + `{"effect":"mail"}`, `{"result":7}`},
			calls:   append(slices.Clone(went), map[string]string{"charge": "done", "mail": "go"}),
			ends:    `charge done "` + strings.Repeat("x", 101) + `";charge done there is no room for the result`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, server := &marker{}, newAsking(t, c.answers...)
			got, err := server.run(t.Context(), t, m)
			equal(t, server.calls, c.calls)
			if ends := strings.Join(m.ends, ";"); ends != c.ends || strings.Join(m.invalid, ";") != c.invalid {
				t.Errorf("ended %q, want %q; ignored %q", ends, c.ends, m.invalid)
			}
			if keys := slices.Compact(slices.Sorted(slices.Values(server.keys))); len(keys) != len(server.calls) {
				t.Errorf("%d calls have the keys %q; what replays by a key would answer one like another", len(server.calls), keys)
			}
			if len(server.tokens) != 1 {
				t.Errorf("the calls have the lock tokens %v", server.tokens)
			}
			switch uncertain := errors.As(err, new(*orchestrator.UncertainError)); {
			case c.code == "uncertain" && !uncertain, c.code == "" && (err != nil || got != int64(7)):
				t.Errorf("%v, %v", got, err)
			case c.code == "retry":
				if wantRetry(t, err); uncertain || !strings.Contains(err.Error(), c.reason) {
					t.Errorf("%v, want %q", err, c.reason)
				}
			case c.code != "" && c.code != "uncertain":
				wantPermanent(t, err, c.code, c.reason)
			}
		})
	}
}

// No connection was made after the marker: the endpoint has restarted meanwhile.
func TestAnActWhoseGoCannotBeSentIsTakenBack(t *testing.T) {
	m, server := &marker{}, newAsking(t, askCharge)
	server.called = func() { _ = server.Listener.Close() }
	_, err := server.run(t.Context(), t, m)
	if wantRetry(t, err); !slices.Equal(m.ends, []string{"charge not done"}) || len(server.calls) != 1 {
		t.Errorf("%v, ended %q after %d calls", err, m.ends, len(server.calls))
	}
}

func TestAnEndpointsActThatBeginsWithTheStopIsTakenBack(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	m, server := &marker{stop: stop}, newAsking(t, askCharge)
	_, err := server.run(ctx, t, m)
	if !errors.Is(err, context.Canceled) || !slices.Equal(m.ends, []string{"charge not done"}) || len(server.calls) != 1 {
		t.Errorf("%v, ended %q after %d calls", err, m.ends, len(server.calls))
	}
}

func TestWithoutAGuardAnEndpointsActDoesNotBegin(t *testing.T) {
	server := newAsking(t, askCharge)
	if _, err := server.run(t.Context(), t, nil); !errors.Is(err, orchestrator.ErrNoGuard) || len(server.calls) != 1 {
		t.Errorf("%v after %d calls", err, len(server.calls))
	}
}

// outlasting is an outlaster that stops its run at a report.
type outlasting struct {
	stopper
	lasting context.Context //nolint:containedctx // of one run
}

func (o outlasting) Outlast(context.Context) (context.Context, context.CancelFunc) {
	return o.lasting, func() {}
}

// The worker hangs up after the act, or at once if there is none.
func TestAnEndpointsActGoesOnAfterTheStop(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		cause   error // of the end of the run
		lost    bool  // the lock is lost, after the stop
		ends    string
		result  any
	}{
		"the act is recorded":   {answers: []string{askCharge, `{"message":"m"}` + "\nWAIT\n" + endCharge + "\nWAIT"}, cause: stopError{}, ends: `charge done 1`},
		"and then the result":   {answers: []string{askCharge, `{"message":"m"}` + "\nWAIT\n" + `{"effect":"charge","done":1,"result":7}`}, cause: stopError{}, ends: `charge done 1`, result: int64(7)},
		"the lock is lost":      {answers: []string{askCharge, `{"message":"m"}` + "\nWAIT"}, cause: stopError{}, lost: true},
		"no act":                {answers: []string{`{"message":"m"}` + "\nWAIT"}, cause: stopError{}},
		"an act before":         {answers: []string{askCharge, endCharge + "\n" + `{"message":"m"}` + "\nWAIT"}, cause: stopError{}, ends: "charge done 1"},
		"one that was not done": {answers: []string{askCharge, `{"message":"m"}` + "\nWAIT\n" + `{"effect":"charge","not_done":true}` + "\nWAIT"}, cause: stopError{}, ends: `charge not done`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lasting, lose := context.WithCancel(t.Context())
			ctx, stop := context.WithCancelCause(lasting)
			m, server := &marker{}, newAsking(t, c.answers...)
			acts := len(c.answers) > 1 && !strings.HasPrefix(c.answers[1], endCharge)
			reported := stopper{m, func() {
				stop(c.cause)
				switch {
				case c.lost:
					lose()
				case acts:
					server.waits <- struct{}{}
				}
			}}
			got, err := server.run(ctx, t, outlasting{reported, lasting})
			if got != c.result || (err == nil) != (c.result != nil) || err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", got, err)
			}
			if ends := strings.Join(m.ends, ";"); ends != c.ends {
				t.Errorf("ended %q, want %q", ends, c.ends)
			}
		})
	}
}
