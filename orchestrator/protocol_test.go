//go:build linux || darwin

package orchestrator_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

			v.check(t, "exec:/bin/sh "+newFile(t, program.String()))
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
	m := &marker{old: v.Effects}
	if v.Lost {
		m.err = errors.New("the lock is lost")
	}
	v.Job.Reporter = m
	result, err := orchestrator.Run(t.Context(), newAnalyzer(t, spec, orchestrator.Options{}), v.Job)
	recorded := map[string]any{}
	maps.Copy(recorded, m.newest)
	if m.effects != nil {
		recorded["effects"] = m.effects
	}

	equal(t, plain(t, outcome(result, err)), v.Outcome)
	equal(t, plain(t, recorded), plain(t, v.Recorded))
	if problems := slices.Concat(m.invalid, m.warned); len(problems) > 0 {
		t.Errorf("the worker complains: %q", problems)
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
