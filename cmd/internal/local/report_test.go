package local

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/operate"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// demoOf returns a demo of the files a and b that has kept its promises, and its output.
func demoOf(jsonWanted bool) (d *demo, out *bytes.Buffer) {
	out = &bytes.Buffer{}
	c := &cli.Call{Streams: cli.Streams{Out: out}}
	c.JSON = jsonWanted
	d = &demo{
		router: router{show: cli.NewProgress(out)}, c: c, runs: make(chan run, 1), over: make(chan struct{}),
		docs: []operate.Document{{ID: "a", Name: "a.txt"}, {ID: "b", Name: "b.txt"}},
		rows: map[string]*row{
			"a": {Name: "a.txt", Status: "READY", Finishes: 1, Skips: 1},
			"b": {Name: "b.txt", Status: "READY", Finishes: 1},
		},
		killed: &killedRun{Worker: 7, ID: "a", Token: 1, Percent: 40, TakenOver: 8, Continued: 40, checkpoint: true},
	}
	return d, out
}

func TestDemo_BrokenPromise(t *testing.T) {
	for want, broken := range map[string]func(*demo){
		"":                     func(*demo) {},
		"no worker was killed": func(d *demo) { d.killed = nil },
		"the killed run was not continued from its checkpoint": func(d *demo) { d.killed.Continued = 0 },
		"a.txt is FAILED, finished by 1 delivery":              func(d *demo) { d.rows["a"].Status = "FAILED" },
		"b.txt is READY, finished by 2 deliveries":             func(d *demo) { d.rows["b"].Finishes = 2 },
		"no delivery was skipped":                              func(d *demo) { d.rows["a"].Skips = 0 },
	} {
		d, out := demoOf(true)
		broken(d)
		err := d.report()
		var got struct {
			OK       bool
			Problems []string
			Files    []row
		}
		must.OK(t, json.Unmarshal(out.Bytes(), &got))
		if problems := strings.Join(got.Problems, "; "); len(got.Files) != 2 || !strings.Contains(problems, want) {
			t.Errorf("%+v; want %q", got, want)
		}
		if kept := want == ""; got.OK != kept || (err == nil) != kept {
			t.Errorf("%v, %+v; want success: %t", err, got, kept)
		}
		if len(got.Problems) > 1 {
			t.Errorf("%q; want one problem", got.Problems)
		}

		text, out := demoOf(false)
		broken(text)
		if kept := text.report() == nil; kept != strings.Contains(out.String(), "Each file was finished once.") {
			t.Errorf("kept: %t, %s", kept, out)
		}
	}
	d, _ := demoOf(false)
	d.killed.checkpoint, d.killed.Continued = false, 0
	if err := d.report(); err != nil {
		t.Errorf("%v of a run that was killed before its first checkpoint", err)
	}
}

func TestDemo_Table(t *testing.T) {
	d, out := demoOf(false)
	b := d.rows["b"]
	b.Deliveries, b.Runs, b.Unanswered, b.FinishedBy = 3, 2, 1, 9
	must.OK(t, d.report())
	for _, want := range []string{
		"FILE RESULT DELIVERIES RUNS SKIPPED UNANSWERED FINISHED BY a.txt READY 0 0 1 0 worker 0 b.txt READY 3 2 0 1 worker 9",
		"Worker 7 was killed at 40 % of a.txt. Worker 8 continued at 40 %.",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("%s lacks %s", out, want)
		}
	}
}

func TestDemo_Over(t *testing.T) {
	d, out := demoOf(false)
	for _, r := range d.rows {
		*r = row{Name: r.Name}
	}
	alive, dead := &process{number: 3}, &process{number: 3}
	w := alive
	d.runBegins(dead, &record{Message: runMessage, AnalysisID: "a", Token: 1})
	deliver := func(id string, status int, a answer) {
		t.Helper()
		select {
		case <-d.over:
			t.Fatalf("it is over before %s: %d", id, status)
		default:
		}
		d.delivered(&delivery{worker: w, analysisID: id, status: status, answer: a})
	}
	finished, skipped := answer{Acquired: true, Result: "READY"}, answer{}
	deliver("a", 0, skipped)
	w = dead
	deliver("a", 0, skipped) // the killed run
	deliver("a", 0, skipped)
	w = alive
	deliver("a", 503, answer{Acquired: true, Error: strings.Repeat("long ", 50)})
	deliver("a", 200, answer{Acquired: true, Reason: "lock_lost"})
	deliver("a", 200, finished)
	deliver("b", 200, finished)
	deliver("b", 200, skipped)
	deliver("b", 0, skipped) // a file has two duplicates
	<-d.over
	// One more is not counted.
	d.delivered(&delivery{worker: w, analysisID: "b", status: 200, answer: finished})
	for _, want := range []row{
		{Name: "a.txt", Deliveries: 6, Runs: 3, Unanswered: 3, Finishes: 1, FinishedBy: 3},
		{Name: "b.txt", Deliveries: 3, Runs: 1, Skips: 1, Unanswered: 1, Finishes: 1, FinishedBy: 3},
	} {
		if got := *d.rows[want.Name[:1]]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("a line is wider than 80 columns: %s", line)
		}
	}
	if got := strings.Count(out.String(), "  b.txt: worker 3 "); got != 3 {
		t.Errorf("%d lines of b.txt: %s", got, out)
	}
}

func TestDemo_Kill(t *testing.T) {
	b := emulatortest.Embedded(t)
	a := must.Get(repo.Open(t.Context(), b.Project, repo.Options{Emulator: b.Listen(t)}))(t)
	defer func() { _ = a.Close() }()
	for _, id := range []string{"a", "b"} {
		b.Put(t, id, map[string]any{"status": "QUEUED", "input": "x"})
		acq, err := a.AcquireAnalysisLock(t.Context(), id, "w/1", time.Hour, analysislock.AcquireOptions{})
		if err != nil || !acq.Acquired {
			t.Fatal(acq, err)
		}
		b.Merge(t, id, map[string]any{"progress": map[string]any{"fraction": 0.4}})
	}
	b.Merge(t, "b", map[string]any{"checkpoint": "c"})
	for id, checkpoint := range map[string]bool{"a": false, "b": true} {
		w := must.Get(startProcess(t.Context(), 4, logging(serving, func(*process, *record) {})))(t)
		d, out := demoOf(false)
		d.analyses, d.killed = a, nil
		d.runs = make(chan run, 3)
		for _, r := range []record{
			{AnalysisID: "none", Token: 1}, {AnalysisID: id, Token: 2}, {AnalysisID: id, Token: 1},
		} {
			d.runs <- run{w, &r}
		}
		failure := d.killOne(t.Context())
		<-w.done
		if failure != nil || len(d.runs) != 0 {
			t.Fatalf("%v, %d runs left, %s", failure, len(d.runs), out)
		}
		want := killedRun{
			Worker: 4, ID: id, Token: 1, Percent: 40, checkpoint: checkpoint, ExpiresAt: d.killed.ExpiresAt,
		}
		if *d.killed != want || want.ExpiresAt.IsZero() {
			t.Errorf("%+v; want %+v", d.killed, want)
		}
	}
	b.Merge(t, "a", map[string]any{"status": "READY"})
	if d := (&demo{analyses: a}); d.middle(t.Context(), run{record: &record{AnalysisID: "a", Token: 1}}) {
		t.Error("a finished run is killed")
	}
}
