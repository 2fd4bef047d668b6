package examplestest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"taskguard/orchestrator"
)

// analyze runs the analyzer of an example.
func analyze(ctx context.Context, t *testing.T, spec string, job orchestrator.Job) (any, error) {
	t.Helper()
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return orchestrator.Run(ctx, analyzer, job)
}

// Continues interrupts the analyzer of an example in the middle, and checks that a second
// attempt continues from the newest checkpoint.
func Continues(t *testing.T, spec string) {
	t.Helper()
	job := func(pages int, r *reports) orchestrator.Job {
		input := fmt.Sprintf(`{"name":"\"pages\": 7","pages":%d,"seconds":0}`, pages)
		return orchestrator.Job{Input: json.RawMessage(input), Reporter: r}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	before := &reports{t: t, third: interrupt}
	_, err := analyze(ctx, t, spec, job(1_000_000_000, before)) // too many pages for one attempt
	if err == nil || len(before.all) < 3 || before.all[0].Done != 1 {
		t.Fatalf("%v; reports: %v", err, before.all)
	}

	last := before.all[len(before.all)-1]
	pages, after := last.Done+2, &reports{t: t, third: func() {}}
	second := job(pages, after)
	second.Resume, _ = json.Marshal(last)
	result, err := analyze(t.Context(), t, spec, second)
	want := map[string]any{"sum": int64(pages) * int64(pages+1) / 2}
	if err != nil || !reflect.DeepEqual(result, want) || len(after.all) != 2 || after.all[0].Done != last.Done+1 {
		t.Errorf("from %v: %v, %v, want %v; reports: %v", last, result, err, want, after.all)
	}
}

// state is the checkpoint of the examples' analyzers.
type state struct {
	Done int `json:"done"` // pages
	Sum  int `json:"sum"`
}

// reports is a Reporter that calls third after the third report.
type reports struct {
	orchestrator.Reporter // nil: these analyzers never call Commit

	t     *testing.T
	third func()
	all   []state
}

func (r *reports) Report(report orchestrator.Report) {
	var s state
	text, _ := json.Marshal(report.Checkpoint)
	if err := json.Unmarshal(text, &s); err != nil || s.Done == 0 || report.Message == nil {
		r.t.Errorf("a report without a checkpoint or a message: %s, %v", text, err)
	}
	if r.all = append(r.all, s); len(r.all) == 3 {
		r.third()
	}
}

func (r *reports) Invalid(problem string) { r.t.Error(problem) }

// Charges runs an example that charges once, for a document whose act has not begun, is
// done, and is uncertain.
func Charges(t *testing.T, spec string) {
	t.Helper()
	done := &orchestrator.Effect{Done: true, Result: json.RawMessage(`{"charged":4200}`)}
	for name, tc := range map[string]struct {
		before *orchestrator.Effect
		ledger string // each line is a charge
		ended  string
	}{
		"not begun": {nil, orchestrator.Job{}.Key("charge") + " 4200\n", "charge true map[charged:4200]"},
		"done":      {done, "", ""},
		"uncertain": {&orchestrator.Effect{}, "", ""},
	} {
		m := &marker{reports: reports{t: t}, ledger: filepath.Join(t.TempDir(), "ledger"), before: tc.before}
		input, _ := json.Marshal(map[string]any{"cents": 4200, "ledger": m.ledger})
		result, err := analyze(t.Context(), t, spec, orchestrator.Job{Input: input, Reporter: m})
		charged, _ := os.ReadFile(m.ledger) // missing: no charge
		if string(charged) != tc.ledger || m.ended != tc.ended {
			t.Errorf("%s: charged %q, ended %q, want %q, %q", name, charged, m.ended, tc.ledger, tc.ended)
		}

		uncertain := errors.As(err, new(*orchestrator.UncertainError))
		succeeded := err == nil && reflect.DeepEqual(result, map[string]any{"charged": int64(4200)})
		if uncertain != (name == "uncertain") || succeeded == uncertain {
			t.Errorf("%s: %v, %v", name, result, err)
		}
	}
}

// marker is a Marker of a document with one act. Until it has begun, nothing may be charged.
type marker struct {
	reports

	ledger string
	before *orchestrator.Effect
	ended  string
}

func (m *marker) Begin(_ context.Context, name string, _ bool) (*orchestrator.Effect, error) {
	if _, err := os.Stat(m.ledger); name != "charge" || err == nil {
		return nil, fmt.Errorf("the act %q begins after the charge", name)
	}
	return m.before, nil
}

func (m *marker) End(_ context.Context, name string, done bool, result any) error {
	m.ended += fmt.Sprint(name, " ", done, " ", result)
	return nil
}
