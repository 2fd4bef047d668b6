//go:build linux || darwin

package orchestrator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// vector is a case of testdata/protocol, whose README describes the fields.
type vector struct {
	Name  string
	Job   orchestrator.Job
	Steps json.RawMessage // for the clients

	Lines []struct{ Send, Reply json.RawMessage }
	// Output is nil if the program prints nothing.
	Output json.RawMessage
	Exit   int
	Answer answer
	Calls  []call

	Effects  map[string]effect
	Lost     bool
	Outcome  any
	Recorded map[string]any
}

// call is one of several calls of an endpoint.
type call struct {
	Effects, Checkpoint, Steps json.RawMessage
	Answer                     answer
}

type answer struct {
	Status     int
	Type       string
	RetryAfter string `json:"retry_after"`
	Lines      []json.RawMessage
	Body       json.RawMessage
}

// effect is the record of a side effect.
type effect struct {
	State       string
	Token       int64
	Result      json.RawMessage
	ResultError string `json:"result_error"`
}

func vectors(t *testing.T, file string) (all []vector) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", "protocol", file))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil || len(all) == 0 {
		t.Fatalf("%s: %d vectors, %v", file, len(all), err)
	}
	return all
}

func TestProtocol_Programs(t *testing.T) {
	for _, v := range vectors(t, "exec.json") {
		t.Run(v.Name, func(t *testing.T) {
			replies := filepath.Join(t.TempDir(), "replies")
			var program strings.Builder
			var want []json.RawMessage
			for _, line := range v.Lines {
				if line.Reply != nil {
					want = append(want, line.Reply)
					fmt.Fprintf(&program, "read -r reply <&\"$REPLY_FD\"; echo \"$reply\" >>%s\n", replies)
					continue
				}
				fmt.Fprintf(&program, "cat >&\"$REPORT_FD\" <<'END'\n%s\nEND\n", oneLine(t, line.Send))
			}
			if v.Output != nil {
				fmt.Fprintf(&program, "cat <<'END'\n%s\nEND\n", v.Output)
			}
			fmt.Fprintf(&program, "exit %d\n", v.Exit)
			file := filepath.Join(t.TempDir(), "analyzer.sh")
			if err := os.WriteFile(file, []byte(program.String()), 0o600); err != nil {
				t.Fatal(err)
			}

			v.check(t, "exec:/bin/sh "+word(t, file))
			text, _ := os.ReadFile(replies) // none if the vector has no reply
			var got []json.RawMessage
			for line := range strings.Lines(string(text)) {
				got = append(got, json.RawMessage(line))
			}
			equal(t, plain(t, got), plain(t, want))
		})
	}
}

func TestProtocol_Endpoints(t *testing.T) {
	for _, v := range vectors(t, "http.json") {
		t.Run(v.Name, func(t *testing.T) {
			calls := v.Calls
			if calls == nil {
				calls = []call{{Answer: v.Answer}}
			}
			server := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if len(calls) == 0 {
					t.Error("another call")
					return
				}
				now := calls[0]
				calls = calls[1:]
				var body struct{ Effects, Checkpoint json.RawMessage }
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
					t.Error(err)
				}
				want := cmp.Or(string(now.Checkpoint), string(v.Job.Resume), "null")
				equal(t, plain(t, body.Effects), plain(t, now.Effects))
				equal(t, plain(t, body.Checkpoint), plain(t, json.RawMessage(want)))
				now.Answer.write(t, w)
			})
			v.check(t, server.URL)
			if len(calls) > 0 {
				t.Errorf("%d calls are missing", len(calls))
			}
		})
	}
}

func (a answer) write(t *testing.T, w http.ResponseWriter) {
	w.Header().Set("Content-Type", a.Type)
	if a.RetryAfter != "" {
		w.Header().Set("Retry-After", a.RetryAfter)
	}
	w.WriteHeader(a.Status)
	for _, line := range a.Lines {
		_, _ = fmt.Fprintln(w, oneLine(t, line))
	}
	_, _ = w.Write(a.Body)
}

// check runs the vector's job, and compares the outcome and what the run has recorded.
func (v vector) check(t *testing.T, spec string) {
	t.Helper()
	recorded := &record{vector: v, got: map[string]any{}, effects: map[string]any{}}
	v.Job.Reporter = recorded
	analyzer := newAnalyzer(t, spec, orchestrator.Options{})
	result, err := orchestrator.Run(t.Context(), analyzer, v.Job)
	if len(recorded.effects) > 0 {
		recorded.got["effects"] = recorded.effects
	}

	equal(t, plain(t, outcome(result, err)), v.Outcome)
	equal(t, plain(t, recorded.got), plain(t, v.Recorded))
	if len(recorded.problems) > 0 {
		t.Errorf("the worker complains: %q", recorded.problems)
	}
}

// outcome is the outcome of a run as vectors have it.
func outcome(result any, err error) any {
	if uncertain, ok := errors.AsType[*orchestrator.UncertainError](err); ok {
		return map[string]any{"uncertain": uncertain.Name}
	}
	failure := map[string]any{}
	if later, ok := errors.AsType[*orchestrator.RetryAfterError](err); ok {
		failure["retry_after"] = later.After().Seconds()
	}
	if refused, ok := errors.AsType[*orchestrator.PermanentError](err); ok {
		failure["code"], failure["message"], failure["permanent"] = refused.Code, refused.Message, true
	} else if failed, ok := errors.AsType[*orchestrator.FailureError](err); ok {
		failure["code"], failure["message"] = failed.Code, failed.Message
	} else if err != nil {
		failure["code"] = err.Error()
	} else {
		return map[string]any{"result": result}
	}
	return map[string]any{"error": failure}
}

// record is a Marker that keeps the newest of what it gets. It needs no mutex: one goroutine reads the lines
// of a run.
type record struct {
	vector   vector
	got      map[string]any
	effects  map[string]any
	problems []string
}

func (r *record) Report(report orchestrator.Report) {
	if report.Progress != nil {
		r.got["progress"] = *report.Progress
	}
	if report.Message != nil {
		r.got["message"] = *report.Message
	}
	if report.Checkpoint != nil {
		r.got["checkpoint"] = report.Checkpoint.Value
	}
}

func (r *record) Commit(_ context.Context, report orchestrator.Report) error {
	r.Report(report)
	return r.lost()
}

func (r *record) Begin(_ context.Context, name string, _ bool) (*orchestrator.Act, error) {
	if err := r.lost(); err != nil {
		return nil, err
	}
	if old, ok := r.vector.Effects[name]; ok && r.effects[name] == nil {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return &orchestrator.Act{
			State: old.State, Token: old.Token, At: at, Result: old.Result, ResultError: old.ResultError,
		}, nil
	}
	r.effects[name] = map[string]any{"state": "started"}
	return nil, nil
}

func (r *record) End(_ context.Context, name string, done *orchestrator.Act) error {
	if done == nil {
		r.effects[name] = map[string]any{"state": "not_done"}
		return r.lost()
	}
	r.effects[name] = map[string]any{"state": "done", "result": done.Result}
	return r.lost()
}

func (r *record) Invalid(problem string) { r.problems = append(r.problems, problem) }
func (r *record) Warn(problem string)    { r.problems = append(r.problems, problem) }

func (r *record) lost() error {
	if r.vector.Lost {
		return errors.New("the lock is lost")
	}
	return nil
}

// plain returns v as JSON is decoded.
func plain(t *testing.T, v any) (decoded any) {
	t.Helper()
	if text, ok := v.(json.RawMessage); ok && text == nil {
		return nil
	}
	text, err := json.Marshal(v)
	if err := cmp.Or(err, json.Unmarshal(text, &decoded)); err != nil {
		t.Fatal(err)
	}
	return decoded
}

// oneLine returns JSON without line breaks.
func oneLine(t *testing.T, text json.RawMessage) string {
	t.Helper()
	line, err := json.Marshal(plain(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}
