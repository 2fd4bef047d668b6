//go:build linux || darwin

package orchestrator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// marker is a Reporter that records acts.
type marker struct {
	recorder
	old     map[string]effect // of earlier attempts
	effects map[string]any    // of this one, as vectors have them
	ends    []string
	err     error  // of each call
	late    error  // of each end
	stop    func() // called by each begin
}

func (m *marker) Begin(_ context.Context, name string, again bool) (*orchestrator.Act, error) {
	if m.stop != nil {
		m.stop()
	}
	if m.err != nil || again { // a program cannot begin an act again
		return nil, cmp.Or(m.err, orchestrator.ErrUnknown)
	}
	if old, ok := m.old[name]; ok && m.effects[name] == nil {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return &orchestrator.Act{
			State: old.State, Token: old.Token, At: at, Result: old.Result, ResultError: old.ResultError,
		}, nil
	}
	m.record(name, map[string]any{"state": "started"})
	return nil, nil
}

func (m *marker) record(name string, state map[string]any) {
	if m.effects == nil {
		m.effects = map[string]any{}
	}
	m.effects[name] = state
}

func (m *marker) Commit(ctx context.Context, r orchestrator.Report) error {
	return errors.Join(m.recorder.Commit(ctx, r), m.err)
}

func (m *marker) End(ctx context.Context, name string, done *orchestrator.Act) error {
	end, err := name+" not done", errors.Join(m.err, m.late)
	if ctx.Err() != nil {
		err = errors.Join(err, orchestrator.ErrUnknown)
	}
	m.record(name, map[string]any{"state": "not_done"})
	if done != nil {
		m.record(name, map[string]any{"state": "done", "result": done.Result})
		end = fmt.Sprintf("%s done %s%s", name, done.Result, done.ResultError)
		if len(done.Result) > 100 {
			err = orchestrator.ErrNoRoom
		}
	}
	if len(m.reports) > 0 {
		end += " after report " + m.reports[0]
	}
	m.ends = append(m.ends, end)
	return err
}

// unknown is an act that an earlier attempt may have done.
var unknown = map[string]effect{"unknown": {Token: 3}}

const stopping = `{"ack":1,"error":"the run is stopping: no act begins"}`

// A line with an ack is written, and its reply is printed.
func TestReplies(t *testing.T) {
	begun := `"effect":{"state":"go","key":"` + orchestrator.ActKey("", "", "charge") + `"}`
	lost := errors.New("lost")
	notKnown := fmt.Errorf("%w: %w", orchestrator.ErrUnknown, errors.New("worker: stopped"))
	const (
		once        = "charge done 1"
		isLost      = `"error":"lost"`
		wrongEnd    = `"error":"an act ends with either done, or not_done that is true"`
		wrongName   = `"error":"an act's name has 1 to 64 letters, digits, _ and -, and is not like __x__"`
		maybe       = `"unknown":true,"error":"unknown whether this was committed: stopped"`
		bad         = "a progress is not between 0 and 1"
		empty       = "a report has no progress, message or checkpoint"
		noRoom      = "there is no room for the result"
		biggestInts = `[[18446744073709551615,"<"]]`
	)
	long := "[" + strings.Repeat("1,", 60) + "1]"
	for name, c := range map[string]struct {
		line    string // without its ack
		reply   string // likewise
		err     error  // of the commit
		ends    string
		invalid string
	}{
		"begin, and a bad report": {line: `"effect":"charge","progress":2`, reply: begun, invalid: bad},

		"done, any JSON":      {line: `"effect":"charge","done":` + biggestInts, ends: "charge done " + biggestInts},
		"done, a checkpoint":  {line: `"effect":"charge","done":1,"checkpoint":5`, ends: once + " after report 5"},
		"done, a bad report":  {line: `"effect":"charge","done":1,"progress":2`, ends: once, invalid: bad},
		"done, not committed": {line: `"effect":"charge","done":1`, err: lost, reply: isLost, ends: once},
		"done, maybe":         {line: `"effect":"charge","done":1`, err: notKnown, reply: maybe, ends: once},
		"not done, wrongly":   {line: `"effect":"charge","not_done":"yes"`, reply: wrongEnd},
		"not_done false":      {line: `"effect":"charge","not_done":false`, reply: wrongEnd},
		"done and not done":   {line: `"effect":"charge","done":1,"not_done":true`, reply: wrongEnd},
		"a wrong name":        {line: `"effect":"a/b"`, reply: wrongName},
		"a reserved name":     {line: `"effect":"__x__"`, reply: wrongName},
		"no name":             {line: `"effect":7`, reply: wrongName},
		"done, a wrong name":  {line: `"effect":"a/b","done":1`, reply: wrongName},
		"no room for a result": {
			line:  `"effect":"charge","done":` + long,
			reply: `"effect":{"state":"done","result_error":"` + noRoom + `"}`,
			ends:  "charge done " + long + ";charge done " + noRoom,
		},

		"one not committed":  {line: `"checkpoint":{"page":5}`, err: lost, reply: isLost},
		"one maybe":          {line: `"checkpoint":{"page":5}`, err: notKnown, reply: maybe},
		"a wrong one of two": {line: `"progress":2,"checkpoint":7`, reply: `"error":"` + bad + `"`, invalid: bad},
		"an empty report":    {line: `"page":1`, reply: `"error":"` + empty + `"`, invalid: empty},
	} {
		t.Run(name, func(t *testing.T) {
			m := &marker{err: c.err}
			got, err := script(t.Context(), t, m, ask(`{`+c.line+`,"ack":1}`)+`echo "$reply"`)
			if err != nil {
				t.Fatal(err)
			}
			want := `{"ack":1}`
			if c.reply != "" {
				want = `{"ack":1,` + c.reply + `}`
			}
			equal(t, plain(t, got), plain(t, json.RawMessage(want)))
			equal(t, strings.Join(m.ends, ";"), c.ends)
			equal(t, strings.Join(m.invalid, ";"), c.invalid)
			if slices.Contains(m.reports, "2") {
				t.Error("the wrong progress is reported")
			}
		})
	}
	for line, want := range map[string]string{
		`{"progress":1,"ack":null}`:                                   `{"ack":null}`,
		`{"progress":1,"ack":8` + strings.Repeat(" ", 1<<20-21) + `}`: `{"error":"a report is too long"}`,
		`progress 7`: `{"error":"a report is not an object of JSON"}`,
		`{"ack":8,"checkpoint":` + strings.Repeat("[", 20_000): `{"error":"a report is not an object of JSON"}`,
	} {
		got, err := script(t.Context(), t, &marker{}, ask(line)+`echo "$reply"`)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, plain(t, got), plain(t, json.RawMessage(want)))
	}
}

// ask writes a line, and waits for its reply.
func ask(line string) string {
	return `echo '` + line + `' >&"$REPORT_FD"; read -r reply <&"$REPLY_FD"; `
}

// A program fails without an answer to an act that may have been done.
func TestProgram_Uncertain(t *testing.T) {
	asked := ask(`{"effect":"unknown","ack":1}`)
	for name, c := range map[string]struct {
		script    string
		uncertain bool
		invalid   string
	}{
		"rejected":              {script: asked + "exit 65", uncertain: true},
		"printed too much":      {script: asked + "head -c 9000000 /dev/zero | tr '\\0' 1", uncertain: true},
		"failed with an answer": {script: asked + `echo '{"effect":"unknown","not_done":true}' >&3; exit 1`},
		"succeeded":             {script: asked + "echo 1"},
		"failed with the stop":  {script: asked + `sleep 9 & printf '{"progress":1}' >&3; exit 1`},
		"begun without an ack": {
			script: `echo '{"effect":"charge"}' >&3; exit 1`, invalid: "an act could not be recorded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			m := &marker{old: unknown, late: orchestrator.ErrUnknown} // what ends the run commits the answer
			_, err := script(ctx, t, stopper{m, stop}, c.script)
			uncertain, ok := errors.AsType[*orchestrator.UncertainError](err)
			if ok != c.uncertain {
				t.Errorf("got %v, want uncertain: %t", err, c.uncertain)
			}
			if ok {
				equal(t, fmt.Sprint(uncertain.Name, uncertain.Token), "unknown3")
			}
			equal(t, strings.Join(m.invalid, ";"), c.invalid)
		})
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
func TestReplies_ShareACommit(t *testing.T) {
	b := &batcher{most: 3}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := script(ctx, t, b, `printf '{"checkpoint":1,"ack":1}\n\n{"progress":1,"ack":"b"}\n{"checkpoint":3,"ack":3}' >&3; exec 3>&-
		for i in 1 2 3; do read -r reply <&4; echo "$reply"; done | tr '\n' ,`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, `{"ack":1},{"ack":"b","error":"lost"},{"ack":3},`)
	equal(t, b.reports, []string{"1", "1", "3"})
}

// Nobody reads the replies to a program that has exited: its reports need no commit of their own.
func TestReplies_AfterExit(t *testing.T) {
	b := &batcher{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := script(ctx, t, b, `i=0; while [ $i -lt 1500 ]; do echo '{"checkpoint":'$i',"ack":'$i'}'; i=$((i+1)); done >&3
		echo '{"progress":2,"ack":1}{"effect":"charge","done":1,"ack":1}' | sed 's/}{/}\n{/' >&3; echo 7`)
	want7(t, got, err)
	equal(t, len(b.reports), 1500)
	equal(t, b.reports[len(b.reports)-1], "1499")
	equal(t, b.ends, []string{"charge done 1 after report 0"})
	equal(t, len(b.invalid), 1)
	if len(b.done) > 1000 {
		t.Errorf("%d wait", len(b.done))
	}
}

// Until the program is killed, what it reports after the stop is committed and answered, and its last line, which has
// no end, is read. No act begins.
func TestReplies_AfterStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	m, ready := &marker{}, newFile(t, "")
	go func() {
		defer stop()
		waitForLine(t, ready, "ready")
	}()
	last := ""
	for _, line := range []string{
		`{"checkpoint":9,"ack":1}`, `{"effect":"charge","done":7,"ack":2}`, `{"effect":"mail","ack":1}`,
	} {
		last += ask(line) + `echo "$reply" >>` + ready + "; "
	}
	_, err := script(ctx, t, m, "last() { "+last+`printf '{"checkpoint":10}' >&3; exit 1; }; trap last TERM
		echo ready >`+ready+`; while :; do sleep 0.01; done`)
	if err == nil {
		t.Error("the stopped program has a result")
	}
	equal(t, waitForLine(t, ready, "ready"), "ready\n{\"ack\":1}\n{\"ack\":2}\n"+stopping+"\n")
	equal(t, m.ends, []string{"charge done 7 after report 9"})
	equal(t, m.reports, []string{"9", "10"})
}

// stopError is the cause of a stop that leaves so much time to acts.
type stopError struct{ term time.Duration }

func (stopError) Error() string              { return "stopped" }
func (e stopError) TermAfter() time.Duration { return e.term }

// outlaster is a stopper whose run has a context that ends after the run.
type outlaster struct {
	stopper
	lasting context.Context //nolint:containedctx // of one run
}

func (o outlaster) Outlast(context.Context) (context.Context, context.CancelFunc) {
	return o.lasting, func() {}
}

// The run ends once the program has begun an act, or is ready. Then the program goes on as it is told, and
// notes a SIGTERM.
func TestProgram_StopDuringAct(t *testing.T) {
	const wait = `while :; do sleep 0.01; done`
	const done = "charge done 7"
	line := func(fields string) string {
		return `echo '{"effect":"charge",` + fields + `"ack":1}' >&3; read -r reply <&4; `
	}
	begin, end := line(""), "sleep 0.3; "+line(`"done":7,`)
	refused := strings.ReplaceAll(begin, "charge", "mail") + `[ "$reply" = '` + stopping + `' ] && `
	for name, c := range map[string]struct {
		before, after string // the program, before and after the end of the run
		cause, loss   error  // of the run, and then of the lock
		ends          string
		result        any
		untold        bool // there is no SIGTERM
	}{
		"the act is recorded":    {before: begin, after: end + wait, cause: stopError{never}, ends: done},
		"the act takes too long": {before: begin, after: wait, cause: stopError{50 * time.Millisecond}},
		"the program exits": {
			before: begin, after: "sleep 0.1; echo 8", cause: stopError{never}, result: int64(8), untold: true,
		},
		"the lock is lost":        {before: begin, after: wait, cause: stopError{never}, loss: urgentError{never}},
		"the lock was lost":       {before: begin, after: wait, cause: urgentError{never}},
		"no act":                  {after: wait, cause: stopError{never}},
		"an act before":           {before: begin + end, after: wait, cause: stopError{never}, ends: done},
		"a second begins in vain": {before: begin, after: refused + end + wait, cause: stopError{never}, ends: done},
		"SIGTERM is ignored": {
			before: begin + "trap '' TERM; ", after: wait, untold: true,
			cause: stopError{0}, loss: urgentError{time.Millisecond},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, m := newFile(t, ""), &marker{}
			lasting, lose := context.WithCancelCause(t.Context())
			ctx, stop := context.WithCancelCause(lasting)
			go func() {
				waitForLine(t, file, "ready")
				if stop(c.cause); c.loss != nil {
					lose(c.loss)
				}
				check(os.WriteFile(file+".stopped", nil, 0o600))
			}()
			got, err := script(ctx, t, outlaster{stopper{marker: m}, lasting}, "note() { echo $1 >>"+file+"; }\n"+
				"trap 'note TERM; exit 1' TERM\n"+
				c.before+"note ready; while [ ! -e "+file+".stopped ]; do sleep 0.01; done; "+c.after)
			if got != c.result || (err == nil) != (c.result != nil) {
				t.Errorf("%v, %v; want %v", got, err, c.result)
			}
			equal(t, strings.Join(m.ends, ";"), c.ends)
			notes, _ := os.ReadFile(file)
			if told := strings.Contains(string(notes), "TERM"); told == c.untold {
				t.Errorf("told: %t", told)
			}
		})
	}
}

// A program that reads no replies still ends.
func TestReplies_Unread(t *testing.T) {
	line := fmt.Sprintf(`{"checkpoint":1,"ack":%s}`, strings.Repeat("7", 2000))
	for name, text := range map[string]string{
		"a full pipe": `i=0; while [ $i -lt 100 ]; do echo '` + line + `' >&3; i=$((i+1)); done & sleep 0.3; echo 1`,
		"not JSON":    `yes "a log line that is no report, and a long one at that" | head -n 100000 >&3; echo 1`,
	} {
		if got, err := script(t.Context(), t, &marker{}, text); err != nil || fmt.Sprint(got) != "1" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// A report beside an act is committed with it. An act whose go cannot arrive is not left marked.
func TestReplies_Closed(t *testing.T) {
	m := &marker{}
	_, err := script(t.Context(), t, m, `exec 4<&-
		echo '{"effect":"charge","checkpoint":5,"ack":1}' >&"$REPORT_FD"; sleep 0.1`)
	if err != nil {
		t.Error(err)
	}
	equal(t, m.ends, []string{"charge not done after report 5"})
	equal(t, m.reports, []string{"5"})
}

// An act whose go did not arrive is not under way: a stop does not wait for it.
func TestReplies_ClosedThenStopped(t *testing.T) {
	lasting, lose := context.WithTimeout(t.Context(), time.Minute)
	defer lose()
	ctx, stop := context.WithCancelCause(lasting)
	m := &marker{}
	reported := stopper{m, func() { stop(stopError{never}) }}
	_, err := script(ctx, t, outlaster{reported, lasting}, `exec 4<&-
		echo '{"effect":"charge","ack":1}' >&3; echo '{"progress":1}' >&3; while :; do sleep 0.01; done`)
	if !errors.Is(err, context.Canceled) || lasting.Err() != nil {
		t.Errorf("%v, and then %v; want the stop alone", err, lasting.Err())
	}
	equal(t, m.ends, []string{"charge not done"})
}
