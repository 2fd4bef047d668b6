//go:build linux || darwin

package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// marker is a Reporter that has marked the acts done and unknown.
type marker struct {
	recorder
	ends []string
	err  error // of each call
}

func (m *marker) Begin(_ context.Context, name string, again bool) (*orchestrator.Effect, error) {
	switch since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC); {
	case m.err != nil || again:
		return nil, errors.Join(m.err, ctxEnded(again))
	case name == "done":
		return &orchestrator.Effect{State: "done", Result: json.RawMessage(`{"receipt":7}`), Token: 1, At: since}, nil
	case name == "lost":
		return &orchestrator.Effect{State: "done", ResultError: "NaN", Token: 1, At: since}, nil
	case name == "unknown":
		return &orchestrator.Effect{Token: 3, At: since}, nil
	}
	return nil, nil
}

const badName = "the name of an act is not 1 to 64 letters, digits, _ and -, or it is like __x__"

func ctxEnded(ended bool) error {
	if ended {
		return errors.New("a program cannot begin an act again")
	}
	return nil
}

func (m *marker) Commit(ctx context.Context, r orchestrator.Report) error {
	return errors.Join(m.recorder.Commit(ctx, r), m.err)
}

func (m *marker) End(_ context.Context, name string, done *orchestrator.Effect) error {
	end, err := name+" not done", m.err
	if done != nil {
		end = fmt.Sprintf("%s done %s%s", name, done.Result, done.ResultError)
	}
	if len(m.reports) > 0 {
		end += " after report " + m.reports[0]
	}
	m.ends = append(m.ends, end)
	if done != nil && len(done.Result) > 100 {
		err = orchestrator.ErrNoRoom
	}
	return err
}

// Each line is written and, if it has an ack, its reply is printed.
func TestAProgramGetsTheRepliesThatItAsksFor(t *testing.T) {
	job := orchestrator.Job{Reporter: &marker{}}
	key := job.Key("charge")
	for name, tc := range map[string]struct {
		line, reply string
		ends        string
		err         error
	}{
		"begin":                  {line: `{"effect":"charge","ack":1}`, reply: `{"ack":1,"effect":{"state":"go","key":"` + key + `"}}`},
		"with a bad report":      {line: `{"effect":"charge","progress":2,"ack":1}`, reply: `{"ack":1,"effect":{"state":"go","key":"` + key + `"}}`},
		"done before":            {line: `{"effect":"done","ack":2}`, reply: `{"ack":2,"effect":{"state":"done","result":{"receipt":7}}}`},
		"uncertain":              {line: `{"effect":"unknown","ack":3}`, reply: `{"ack":3,"effect":{"state":"uncertain","key":"` + job.Key("unknown") + `","since":"2026-01-02T03:04:05Z","token":3}}`},
		"done":                   {line: `{"effect":"charge","done":{"n":1},"ack":4}`, reply: `{"ack":4}`, ends: `charge done {"n":1}`},
		"done with null":         {line: `{"effect":"charge","done":null,"ack":4}`, reply: `{"ack":4}`, ends: "charge done null"},
		"done, and a checkpoint": {line: `{"effect":"charge","done":1,"checkpoint":5,"ack":4}`, reply: `{"ack":4}`, ends: "charge done 1 after report 5"},
		"not done":               {line: `{"effect":"charge","not_done":true,"ack":5}`, reply: `{"ack":5}`, ends: "charge not done"},
		"not done, wrongly":      {line: `{"effect":"charge","not_done":"yes","ack":5}`, reply: `{"ack":5,"error":"an act ends with either done, or not_done that is true"}`},
		"not_done false":         {line: `{"effect":"charge","not_done":false,"ack":5}`, reply: `{"ack":5,"error":"an act ends with either done, or not_done that is true"}`},
		"both":                   {line: `{"effect":"charge","done":1,"not_done":true,"ack":5}`, reply: `{"ack":5,"error":"an act ends with either done, or not_done that is true"}`},
		"done before, no result": {line: `{"effect":"lost","ack":2}`, reply: `{"ack":2,"effect":{"state":"done","result_error":"NaN"}}`},
		"a result without room": {line: `{"effect":"charge","done":[` + strings.Repeat("1,", 60) + `1],"ack":4}`, reply: `{"ack":4,"effect":{"state":"done","result_error":"there is no room for the result"}}`,
			ends: "charge done [" + strings.Repeat("1,", 60) + "1];charge done there is no room for the result"},
		"a result that no document holds": {line: `{"effect":"charge","done":[[18446744073709551615,"<"]],"ack":4}`, reply: `{"ack":4}`, ends: `charge done [[18446744073709551615,"<"]]`},
		"a reserved name":                 {line: `{"effect":"__x__","ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"a wrong name":                    {line: `{"effect":"a/b","ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"end of a wrong name":             {line: `{"effect":"a/b","done":1,"ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"no name":                         {line: `{"effect":7,"ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"a checkpoint":                    {line: `{"checkpoint":{"page":5},"ack":7}`, reply: `{"ack":7}`},
		"one not committed":               {line: `{"checkpoint":{"page":5},"ack":7}`, err: errors.New("lost"), reply: `{"ack":7,"error":"lost"}`},
		"a wrong report":                  {line: `{"progress":2,"ack":8}`, reply: `{"ack":8,"error":"a progress is not between 0 and 1"}`},
		"not committed":                   {line: `{"effect":"charge","ack":9}`, err: errors.New("lost"), reply: `{"ack":9,"error":"lost"}`},
		"end not committed":               {line: `{"effect":"charge","done":1,"ack":9}`, err: errors.New("lost"), reply: `{"ack":9,"error":"lost"}`, ends: "charge done 1"},
	} {
		m := &marker{err: tc.err}
		got, err := script(t.Context(), t, m, "echo '"+tc.line+`' >&"$REPORT_FD"; read -r reply <&"$REPLY_FD"; echo "$reply"`)
		text, _ := json.Marshal(got)
		var want any
		_ = json.Unmarshal([]byte(tc.reply), &want)
		wanted, _ := json.Marshal(want)
		if ends := strings.Join(m.ends, ";"); err != nil || !bytes.Equal(text, wanted) || ends != tc.ends || slices.Contains(m.reports, "2") {
			t.Errorf("%s: %s, %v, ended %q, want %s, ended %q", name, text, err, ends, wanted, tc.ends)
		}
	}
}

func TestAnActThatAProgramLeavesUncertainEndsTheRun(t *testing.T) {
	const ask = `echo '{"effect":"unknown","ack":1}' >&"$REPORT_FD"; read -r reply <&"$REPLY_FD"; `
	for name, tc := range map[string]struct {
		script    string
		uncertain bool
	}{
		"failed without an answer": {ask + "exit 1", true},
		"rejected without one":     {ask + "exit 65", true},
		"failed with an answer":    {ask + `echo '{"effect":"unknown","not_done":true}' >&"$REPORT_FD"; exit 1`, false},
		"failed before it asked":   {"exit 1", false},
		"begun without an ack":     {`echo '{"effect":"charge"}' >&"$REPORT_FD"; exit 1`, false},
		"succeeded":                {ask + "echo 1", false},
		"printed too much":         {ask + "head -c 9000000 /dev/zero | tr '\\0' 1", true},
	} {
		m := &marker{}
		_, err := script(t.Context(), t, m, tc.script)
		var uncertain *orchestrator.UncertainError
		if got := errors.As(err, &uncertain); len(m.invalid) > 0 != (name == "begun without an ack") || got != tc.uncertain || got && (uncertain.Name != "unknown" || uncertain.Token != 3) {
			t.Errorf("%s: %v, invalid %q", name, err, m.invalid)
		}
	}
}

// A program that reads no replies ends all the same, as does one that closes them.
func TestRepliesThatAreNotReadHoldNothingUp(t *testing.T) {
	line := fmt.Sprintf(`{"checkpoint":1,"ack":%s}`, strings.Repeat("7", 2000))
	for name, text := range map[string]string{
		"a full pipe": `i=0; while [ $i -lt 100 ]; do echo '` + line + `' >&"$REPORT_FD"; i=$((i+1)); done & sleep 0.3; echo 1`,
		"closed":      `exec 4<&-; echo '` + line + `' >&"$REPORT_FD"; sleep 0.1; echo 1`,
	} {
		if got, err := script(t.Context(), t, &marker{}, text); err != nil || fmt.Sprint(got) != "1" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// A report beside an act is committed with it. An act whose go cannot arrive is not left marked.
func TestAnActDoesNotBeginWithoutAReader(t *testing.T) {
	m := &marker{}
	_, err := script(t.Context(), t, m, `exec 4<&-; echo '{"effect":"charge","checkpoint":5,"ack":1}' >&"$REPORT_FD"; sleep 0.1`)
	if got := strings.Join(m.ends, ";"); err != nil || got != "charge not done after report 5" || !slices.Equal(m.reports, []string{"5"}) {
		t.Errorf("%v; ended %q, reported %q", err, got, m.reports)
	}

	m = &marker{}
	if _, err = script(t.Context(), t, m, `echo '{"effect":"charge","done":1}' >&"$REPORT_FD"`); err != nil || !slices.Equal(m.ends, []string{"charge done 1"}) {
		t.Errorf("the last line: %v, ended %q", err, m.ends)
	}
}
