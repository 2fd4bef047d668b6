//go:build linux || darwin

package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	err  error  // of each call
	late error  // of each end
	stop func() // called by each begin
}

func (m *marker) Begin(_ context.Context, name string, again bool) (*orchestrator.Act, error) {
	if m.stop != nil {
		m.stop()
	}
	switch since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC); {
	case m.err != nil || again:
		return nil, errors.Join(m.err, ctxEnded(again))
	case name == "done":
		return &orchestrator.Act{State: "done", Result: json.RawMessage(`{"receipt":7}`), Token: 1, At: since}, nil
	case name == "lost":
		return &orchestrator.Act{State: "done", ResultError: "NaN", Token: 1, At: since}, nil
	case name == "unknown":
		return &orchestrator.Act{Token: 3, At: since}, nil
	}
	return nil, nil
}

const badName = "an act's name has 1 to 64 letters, digits, _ and -, and is not like __x__"

func ctxEnded(ended bool) error {
	if ended {
		return errors.New("a program cannot begin an act again")
	}
	return nil
}

func (m *marker) Commit(ctx context.Context, r orchestrator.Report) error {
	return errors.Join(m.recorder.Commit(ctx, r), m.err)
}

func (m *marker) End(ctx context.Context, name string, done *orchestrator.Act) error {
	end, err := name+" not done", errors.Join(m.err, m.late)
	if ctx.Err() != nil {
		err = errors.Join(err, orchestrator.ErrUnknown)
	}
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
	key, unknown := job.Key("charge"), fmt.Errorf("%w: %w", orchestrator.ErrUnknown, errors.New("worker: stopped"))
	const bad, none = "a progress is not between 0 and 1", "a report is not an object of JSON"
	for name, tc := range map[string]struct {
		line, reply string
		ends        string
		err         error
		invalid     string
	}{
		"begin":                  {line: `{"effect":"charge","ack":1}`, reply: `{"ack":1,"effect":{"state":"go","key":"` + key + `"}}`},
		"with a bad report":      {line: `{"effect":"charge","progress":2,"ack":1}`, reply: `{"ack":1,"effect":{"state":"go","key":"` + key + `"}}`, invalid: bad},
		"end, and a bad one":     {line: `{"effect":"charge","done":1,"progress":2,"ack":1}`, reply: `{"ack":1}`, ends: "charge done 1", invalid: bad},
		"done before":            {line: `{"effect":"done","ack":2}`, reply: `{"ack":2,"effect":{"state":"done","result":{"receipt":7}}}`},
		"uncertain":              {line: `{"effect":"unknown","ack":3}`, reply: `{"ack":3,"effect":{"state":"uncertain","key":"` + job.Key("unknown") + `","since":"2026-01-02T03:04:05Z","token":3}}`},
		"done":                   {line: `{"effect":"charge","done":{"n":1},"ack":4}`, reply: `{"ack":4}`, ends: `charge done {"n":1}`},
		"done with null":         {line: `{"effect":"charge","done":null,"ack":4}`, reply: `{"ack":4}`, ends: "charge done null"},
		"not done":               {line: `{"effect":"charge","not_done":true,"ack":5}`, reply: `{"ack":5}`, ends: "charge not done"},
		"not done, wrongly":      {line: `{"effect":"charge","not_done":"yes","ack":5}`, reply: `{"ack":5,"error":"an act ends with either done, or not_done that is true"}`},
		"not_done false":         {line: `{"effect":"charge","not_done":false,"ack":5}`, reply: `{"ack":5,"error":"an act ends with either done, or not_done that is true"}`},
		"both":                   {line: `{"effect":"charge","done":1,"not_done":true,"ack":5}`, reply: `{"ack":5,"error":"an act ends with either done, or not_done that is true"}`},
		"a wrong name":           {line: `{"effect":"a/b","ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"end of a wrong name":    {line: `{"effect":"a/b","done":1,"ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"no name":                {line: `{"effect":7,"ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
		"a checkpoint":           {line: `{"checkpoint":{"page":5},"ack":7}`, reply: `{"ack":7}`},
		"one not committed":      {line: `{"checkpoint":{"page":5},"ack":7}`, err: errors.New("lost"), reply: `{"ack":7,"error":"lost"}`},
		"a wrong report":         {line: `{"progress":2,"ack":8}`, reply: `{"ack":8,"error":"` + bad + `"}`, invalid: bad},
		"a wrong type":           {line: `{"progress":"2","ack":8}`, reply: `{"ack":8,"error":"the progress of a report has a wrong type"}`, invalid: "the progress of a report has a wrong type"},
		"a bad one of two":       {line: `{"progress":2,"checkpoint":7,"ack":8}`, reply: `{"ack":8,"error":"` + bad + `"}`, invalid: bad},
		"nothing":                {line: `{"ack":8}`, reply: `{"ack":8,"error":"a report has no progress, message or checkpoint"}`, invalid: "a report has no progress, message or checkpoint"},
		"any ack":                {line: `{"progress":1,"ack":null}`, reply: `{"ack":null}`},
		"unknown":                {line: `{"checkpoint":{"page":5},"ack":8}`, err: unknown, reply: `{"ack":8,"unknown":true,"error":"unknown whether this was committed: stopped"}`},
		"unknown end":            {line: `{"effect":"charge","done":1,"ack":9}`, err: unknown, reply: `{"ack":9,"unknown":true,"error":"unknown whether this was committed: stopped"}`, ends: "charge done 1"},
		"a large checkpoint":     {line: `{"checkpoint":"` + strings.Repeat("x", 300_000) + `","ack":8}`, reply: `{"ack":8,"error":"a checkpoint is over 256 KiB"}`, invalid: "a checkpoint is over 256 KiB"},
		"deep":                   {line: `{"checkpoint":` + nest(30, "1") + `,"ack":8}`, reply: `{"ack":8,"error":"a checkpoint cannot be stored in a document"}`, invalid: "a checkpoint cannot be stored in a document"},
		"a longest line":         {line: `{"progress":1,"ack":8` + strings.Repeat(" ", 1<<20-22) + `}`, reply: `{"ack":8}`},
		"a longer line":          {line: `{"progress":1,"ack":8` + strings.Repeat(" ", 1<<20-21) + `}`, reply: `{"error":"a report is too long"}`, invalid: "a report is too long"},
		"no JSON":                {line: `progress 7`, reply: `{"error":"` + none + `"}`, invalid: none},
		"no object":              {line: `[{"progress":1,"ack":8}]`, reply: `{"error":"` + none + `"}`, invalid: none},
		"too deep":               {line: `{"ack":8,"checkpoint":` + strings.Repeat("[", 20_000), reply: `{"error":"` + none + `"}`, invalid: none},
		"a byte order mark":      {line: "\uFEFF" + `{"checkpoint":7,"ack":8}`, reply: `{"ack":8}`},
		"not committed":          {line: `{"effect":"charge","ack":9}`, err: errors.New("lost"), reply: `{"ack":9,"error":"lost"}`},
		"end not committed":      {line: `{"effect":"charge","done":1,"ack":9}`, err: errors.New("lost"), reply: `{"ack":9,"error":"lost"}`, ends: "charge done 1"},
		"done before, no result": {line: `{"effect":"lost","ack":2}`, reply: `{"ack":2,"effect":{"state":"done","result_error":"NaN"}}`},
		"done, and a checkpoint": {line: `{"effect":"charge","done":1,"checkpoint":5,"ack":4}`, reply: `{"ack":4}`, ends: "charge done 1 after report 5"},
		"a result without room": {line: `{"effect":"charge","done":[` + strings.Repeat("1,", 60) + `1],"ack":4}`, reply: `{"ack":4,"effect":{"state":"done","result_error":"there is no room for the result"}}`,
			ends: "charge done [" + strings.Repeat("1,", 60) + "1];charge done there is no room for the result"},
		"a result that no document holds": {line: `{"effect":"charge","done":[[18446744073709551615,"<"]],"ack":4}`, reply: `{"ack":4}`, ends: `charge done [[18446744073709551615,"<"]]`},
		"a reserved name":                 {line: `{"effect":"__x__","ack":6}`, reply: `{"ack":6,"error":"` + badName + `"}`},
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
		if invalid := strings.Join(m.invalid, ";"); invalid != tc.invalid {
			t.Errorf("%s: ignored %q, want %q", name, invalid, tc.invalid)
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
		"failed with the stop":     {ask + `sleep 9 & printf '{"progress":1}' >&"$REPORT_FD"; exit 1`, false},
	} {
		ctx, stop := context.WithCancel(t.Context())
		m := &marker{late: orchestrator.ErrUnknown} // what ends the run commits the answer
		_, err := script(ctx, t, stopper{m, stop}, tc.script)
		var uncertain *orchestrator.UncertainError
		if got := errors.As(err, &uncertain); len(m.invalid) > 0 != (name == "begun without an ack") || got != tc.uncertain || got && (uncertain.Name != "unknown" || uncertain.Token != 3) {
			t.Errorf("%s: %v, invalid %q", name, err, m.invalid)
		}
	}
}

// stopper is a marker whose run is stopped when it gets a report. A line that has no end, and whose pipe
// a child keeps open, is read when the program has exited.
type stopper struct {
	*marker
	stop func()
}

func (s stopper) Report(orchestrator.Report) { s.stop() }

// batcher is a marker whose commits wait until several reports do.
type batcher struct {
	marker
	most int // zero: for ever
	done []func(error)
}

func (b *batcher) CommitSoon(r orchestrator.Report, done func(error)) {
	b.Report(r)
	if b.done = append(b.done, done); len(b.done) == b.most {
		for i, done := range b.done {
			done(map[bool]error{true: errors.New("lost")}[i == 1])
		}
	}
}

// A program's lines are read while earlier ones wait for their commit, also the last one, which has no end.
func TestLinesThatWaitShareACommit(t *testing.T) {
	b := &batcher{most: 3}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := script(ctx, t, b, `printf '{"checkpoint":1,"ack":1}\n\n{"progress":1,"ack":"b"}\n{"checkpoint":3,"ack":3}' >&3; exec 3>&-
		for i in 1 2 3; do read -r reply <&4; echo "$reply"; done | tr '\n' ,`)
	if want := `{"ack":1},{"ack":"b","error":"lost"},{"ack":3},`; err != nil || got != want || !slices.Equal(b.reports, []string{"1", "1", "3"}) {
		t.Errorf("%v, %v, want %s; reports %q", got, err, want, b.reports)
	}
}

// Nobody reads the replies to a program that has exited: its reports need no commit of their own.
func TestTheLinesOfAProgramThatHasExitedWaitForNothing(t *testing.T) {
	b := &batcher{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := script(ctx, t, b, `i=0; while [ $i -lt 1500 ]; do echo '{"checkpoint":'$i',"ack":'$i'}'; i=$((i+1)); done >&3
		echo '{"progress":2,"ack":1}{"effect":"charge","done":1,"ack":1}' | sed 's/}{/}\n{/' >&3; echo 7`)
	if err != nil || got != int64(7) || len(b.reports) != 1500 || b.reports[1499] != "1499" {
		t.Errorf("%v, %v; %d reports", got, err, len(b.reports))
	}
	if len(b.done) > 1000 || len(b.invalid) != 1 || !slices.Equal(b.ends, []string{"charge done 1 after report 0"}) {
		t.Errorf("%d wait; invalid %q, ended %q", len(b.done), b.invalid, b.ends)
	}
}

// Until the program is killed, what it reports after the stop is committed and answered. No act begins.
func TestAStoppedProgramGetsRepliesButNoGo(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	m, ready := &marker{}, filepath.Join(t.TempDir(), "ready")
	go func() {
		defer stop()
		waitForLine(t, ready, "ready")
	}()
	_, err := script(ctx, t, m, `trap 'for line in "{\"checkpoint\":9,\"ack\":1}" "{\"effect\":\"charge\",\"done\":7,\"ack\":2}" "{\"effect\":\"mail\",\"ack\":3}"; do
		echo "$line" >&3; read -r reply <&4; echo "$reply" >>`+ready+`; done; exit 1' TERM; echo ready >`+ready+`; while :; do sleep 0.01; done`)
	want := "ready\n{\"ack\":1}\n{\"ack\":2}\n{\"ack\":3,\"error\":\"the run is stopping: no act begins\"}\n"
	if got := waitForLine(t, ready, "ready"); err == nil || got != want || !slices.Equal(m.ends, []string{"charge done 7 after report 9"}) {
		t.Errorf("%v; got %swant %s; ended %q", err, got, want, m.ends)
	}
}

// stopError is the cause of a stop that leaves so much time to acts.
type stopError struct{ term time.Duration }

func (stopError) Error() string              { return "stopped" }
func (e stopError) TermAfter() time.Duration { return e.term }

// outlaster is a marker whose run has a context that ends after the run.
type outlaster struct {
	*marker
	lasting context.Context //nolint:containedctx // of one run
}

func (o outlaster) Outlast(context.Context) (context.Context, context.CancelFunc) {
	return o.lasting, func() {}
}

// The run ends once the program has begun an act, or is ready. Then the program goes on as it is told, and
// notes a SIGTERM.
func TestAProgramIsToldLastOfAStopDuringItsAct(t *testing.T) {
	const begin = `echo '{"effect":"charge","ack":1}' >&3; read -r reply <&4; `
	const end = `sleep 0.3; echo '{"effect":"charge","done":7,"ack":1}' >&3; read -r reply <&4; `
	const wait = `while :; do sleep 0.01; done`
	second := strings.ReplaceAll(begin, "charge", "mail") + `[ "$reply" = '{"ack":1,"error":"the run is stopping: no act begins"}' ] && `
	for name, c := range map[string]struct {
		before, after string // the program, before and after the end of the run
		cause, loss   error  // of the run, and then of the lock
		notes, ends   string
		result        any
	}{
		"the act is recorded":     {before: begin, after: end + wait, cause: stopError{never}, notes: "ready TERM", ends: "charge done 7"},
		"the act was not done":    {before: begin, after: `echo '{"effect":"charge","not_done":true}' >&3; ` + wait, cause: stopError{never}, notes: "ready TERM", ends: "charge not done"},
		"the act takes too long":  {before: begin, after: wait, cause: stopError{50 * time.Millisecond}, notes: "ready TERM"},
		"the program exits":       {before: begin, after: "sleep 0.1; echo 8", cause: stopError{never}, notes: "ready", result: int64(8)},
		"the lock is lost":        {before: begin, after: wait, cause: stopError{never}, loss: urgentError{never}, notes: "ready TERM"},
		"the lock was lost":       {before: begin, after: wait, cause: urgentError{never}, notes: "ready TERM"},
		"no act":                  {after: wait, cause: stopError{never}, notes: "ready TERM"},
		"an act before":           {before: begin + end, after: wait, cause: stopError{never}, notes: "ready TERM", ends: "charge done 7"},
		"a name that is taken":    {before: begin + strings.ReplaceAll(begin, "charge", "__x__"), after: end + wait, cause: stopError{never}, notes: "ready TERM", ends: "charge done 7"},
		"SIGTERM is ignored":      {before: begin + "trap '' TERM; ", after: wait, cause: stopError{0}, loss: urgentError{time.Millisecond}, notes: "ready"},
		"a second begins in vain": {before: begin, after: second + end + wait, cause: stopError{never}, notes: "ready TERM", ends: "charge done 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, m := filepath.Join(t.TempDir(), "notes"), &marker{}
			lasting, lose := context.WithCancelCause(t.Context())
			ctx, stop := context.WithCancelCause(lasting)
			go func() {
				waitForLine(t, file, "ready")
				if stop(c.cause); c.loss != nil {
					lose(c.loss)
				}
				if err := os.WriteFile(file+".stopped", nil, 0o600); err != nil {
					t.Error(err)
				}
			}()
			got, err := scriptWithGrace(ctx, t, never, outlaster{m, lasting}, "note() { echo $1 >>"+file+"; }; trap 'note TERM; exit 1' TERM; "+
				c.before+"note ready; while [ ! -e "+file+".stopped ]; do sleep 0.01; done; "+c.after)
			notes, _ := os.ReadFile(file)
			text, ends := strings.Join(strings.Fields(string(notes)), " "), strings.Join(m.ends, ";")
			if text != c.notes || ends != c.ends || got != c.result || (err == nil) != (c.result != nil) {
				t.Errorf("%s, ended %q: %v, %v; want %s, %q: %v", text, ends, got, err, c.notes, c.ends, c.result)
			}
		})
	}
}

// The marker was committed at the moment of the stop.
func TestAnActThatBeginsWithTheStopIsTakenBack(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	m := &marker{stop: stop}
	_, err := script(ctx, t, m, `echo '{"effect":"charge","ack":1}' >&"$REPORT_FD"; read -r reply <&4; sleep 60`)
	if !errors.Is(err, context.Canceled) || !slices.Equal(m.ends, []string{"charge not done"}) {
		t.Errorf("%v; ended %q", err, m.ends)
	}
}

// A program that reads no replies, or closes them, still ends.
func TestRepliesThatAreNotReadHoldNothingUp(t *testing.T) {
	line := fmt.Sprintf(`{"checkpoint":1,"ack":%s}`, strings.Repeat("7", 2000))
	for name, text := range map[string]string{
		"a full pipe": `i=0; while [ $i -lt 100 ]; do echo '` + line + `' >&"$REPORT_FD"; i=$((i+1)); done & sleep 0.3; echo 1`,
		"not JSON":    `yes "a log line that is no report, and a long one at that" | head -n 100000 >&3; echo 1`,
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
