//go:build linux || darwin

package orchestrator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
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
	answers []string        // lines; "500" and the like are a status, CUT breaks the connection
	calls   []string        // the states that each call was told
	called  func()          // unless nil, called by each call
	waits   chan struct{}   // WAIT in an answer waits for it
	tokens  map[string]bool // of all calls
	keys    []string        // the Idempotency-Key of each call
}

func newAsking(t *testing.T, answers ...string) *asking {
	t.Helper()
	a := &asking{answers: answers, waits: make(chan struct{}, 1), tokens: map[string]bool{}}
	a.Server = serve(t, func(w http.ResponseWriter, r *http.Request) {
		var job struct {
			Effects map[string]struct{ State string }
		}
		if err := json.NewDecoder(r.Body).Decode(&job); err != nil {
			t.Error(err)
		}
		told := []string{}
		for _, name := range slices.Sorted(maps.Keys(job.Effects)) {
			told = append(told, name+"="+job.Effects[name].State)
		}
		a.calls = append(a.calls, strings.Join(told, " "))
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
	is7       = "\n" + `{"result":7}`
)

// What a call leaves open is recorded as begun: nobody ends it here, so the next attempt finds it uncertain.
func TestCalls(t *testing.T) {
	const askUnknown, unrecorded = `{"effect":"unknown"}`, "an act could not be recorded"
	for name, c := range map[string]struct {
		ask     string // the first answer; empty: askCharge
		answer  string // the second one; empty: there is no second call
		ends    string
		err     string // the code of a permanent error, or "retry", or "uncertain"; empty: there is a result
		reason  string // in the error
		invalid string
	}{
		"done": {answer: endCharge + is7, ends: "charge done 1"},
		"done, with a report": {
			answer: `{"effect":"charge","done":1,"message":"m"}` + is7, ends: `charge done 1 after report "m"`,
		},
		"the result in its line": {answer: `{"effect":"charge","done":1,"result":7}`, ends: "charge done 1"},
		"a result, and no end":   {answer: is7},
		"asked beside null": {
			ask: `{"effect":"charge","result":null,"error":null}`, answer: endCharge + is7, ends: "charge done 1",
		},
		"killed after go": {answer: "CUT", err: "retry"},
		"a code after go": {answer: "500 with a code", err: "retry", reason: "500"},
		"asked for again": {answer: endCharge + "\n" + askCharge, ends: "charge done 1", err: "act_name_reused"},
		"asked for and refused": {
			answer: `{"effect":"charge","not_done":true}` + "\n" + askCharge,
			ends:   "charge not done", err: "retry", reason: "in the next attempt",
		},
		"another during an act": {answer: `{"effect":"mail"}`, err: "retry", reason: `"mail" before the act "charge"`},
		"a wrong name":          {ask: `{"effect":"a/b"}`, err: "act_name_invalid"},

		"uncertain, and killed":      {ask: askUnknown, answer: "CUT", err: "retry"},
		"uncertain, and a bare 500":  {ask: askUnknown, answer: "500", err: "retry", reason: "500"},
		"uncertain, and another one": {ask: askUnknown, answer: `{"effect":"__x__"}`, err: "uncertain"},
		"uncertain, and an error": {
			ask: askUnknown, answer: `{"effect":"unknown","error":{}}`, err: "uncertain", invalid: unrecorded,
		},

		"an error in an act's line": {answer: `{"effect":"charge","error":{}}`, err: "retry", invalid: unrecorded},
		"a result in an act's line": {answer: `{"effect":"charge","result":7}`, invalid: unrecorded},
		"a checkpoint that is refused": {
			ask: `{"checkpoint":5,"progress":2}` + "\n" + askCharge, answer: is7,
			invalid: "a progress is not between 0 and 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, server := &marker{old: unknown}, newAsking(t, cmp.Or(c.ask, askCharge), c.answer)
			got, err := server.run(t.Context(), t, m)
			calls := []string{"", "charge=go"}
			switch {
			case c.answer == "":
				calls = calls[:1]
			case c.ask == askUnknown:
				calls[1] = "unknown=uncertain"
			}
			server.check(t, calls)
			equal(t, strings.Join(m.ends, ";"), c.ends)
			equal(t, strings.Join(m.invalid, ";"), c.invalid)

			if uncertain := errors.As(err, new(*orchestrator.UncertainError)); uncertain != (c.err == "uncertain") {
				t.Errorf("got %v, want %s", err, c.err)
			}
			switch c.err {
			case "":
				want7(t, got, err)
			case "retry":
				wantRetry(t, err, c.reason)
			case "uncertain":
			default:
				wantPermanent(t, err, c.err, c.reason)
			}
		})
	}
}

// check wants calls that were told these states. Each has its own key, because what replays by a key would answer
// one like another.
func (a *asking) check(t *testing.T, told []string) {
	t.Helper()
	equal(t, a.calls, told)
	if keys := slices.Compact(slices.Sorted(slices.Values(a.keys))); len(keys) != len(a.calls) {
		t.Errorf("%d calls have the keys %q", len(a.calls), keys)
	}
	if len(a.tokens) != 1 {
		t.Errorf("the calls have the lock tokens %v", a.tokens)
	}
}

func TestCalls_NoRoom(t *testing.T) {
	long := `"` + strings.Repeat("x", 101) + `"`
	m, server := &marker{}, newAsking(t, askCharge, `{"effect":"charge","done":`+long+`}`+"\n"+`{"effect":"mail"}`, is7)
	got, err := server.run(t.Context(), t, m)
	want7(t, got, err)
	server.check(t, []string{"", "charge=go", "charge=done mail=go"})
	equal(t, m.ends, []string{"charge done " + long, "charge done there is no room for the result"})
}

// No connection was made after the marker: the endpoint has restarted meanwhile.
func TestCalls_UnsentGo(t *testing.T) {
	m, server := &marker{}, newAsking(t, askCharge)
	server.called = func() { _ = server.Listener.Close() }
	_, err := server.run(t.Context(), t, m)
	wantRetry(t, err)
	equal(t, m.ends, []string{"charge not done"})
	equal(t, len(server.calls), 1)
}

// The marker was committed at the moment of the stop.
func TestCalls_StopAtBegin(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	m, server := &marker{stop: stop}, newAsking(t, askCharge)
	if _, err := server.run(ctx, t, m); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	equal(t, m.ends, []string{"charge not done"})
	equal(t, len(server.calls), 1)
}

func TestCalls_NoGuard(t *testing.T) {
	server := newAsking(t, askCharge)
	if _, err := server.run(t.Context(), t, nil); !errors.Is(err, orchestrator.ErrNoGuard) {
		t.Errorf("got %v", err)
	}
	equal(t, len(server.calls), 1)
}

// The worker hangs up after the act, or at once if there is none.
func TestCalls_StopDuringAct(t *testing.T) {
	const stop = `{"message":"m"}` + "\nWAIT\n"
	for name, c := range map[string]struct {
		answer string // of the call that begins the act; empty: there is no act
		lost   bool   // the lock is lost, after the stop
		ended  bool   // the act has ended before the stop
		ends   string
		result any
	}{
		"the act is recorded": {answer: stop + endCharge + "\nWAIT", ends: "charge done 1"},
		"and then the result": {
			answer: stop + `{"effect":"charge","done":1,"result":7}`, ends: "charge done 1", result: int64(7),
		},
		"the lock is lost": {answer: stop, lost: true},
		"no act":           {},
		"an act before":    {answer: endCharge + "\n" + stop, ended: true, ends: "charge done 1"},
		"one that was not done": {
			answer: stop + `{"effect":"charge","not_done":true}` + "\nWAIT", ends: "charge not done",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lasting, lose := context.WithCancel(t.Context())
			ctx, cancel := context.WithCancelCause(lasting)
			m, server := &marker{}, newAsking(t, askCharge, c.answer)
			if c.answer == "" {
				server.answers = []string{stop}
			}
			reported := stopper{m, func() {
				cancel(stopError{})
				switch {
				case c.lost:
					lose()
				case c.answer != "" && !c.ended:
					server.waits <- struct{}{}
				}
			}}
			got, err := server.run(ctx, t, outlaster{reported, lasting})
			if c.result == nil && !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, %v; want the end of the context", got, err)
			}
			equal(t, got, c.result)
			equal(t, strings.Join(m.ends, ";"), c.ends)
		})
	}
}
