package examplestest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"taskguard/orchestrator"
)

// Continues interrupts the analyzer of an example in the middle, and checks that a second
// attempt continues from the newest checkpoint.
func Continues(t *testing.T, spec string) {
	t.Helper()
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}

	result, all, err := attempt(t, analyzer, 5, 0, nil)
	if err != nil || !reflect.DeepEqual(result, sum(5)) || len(all) != 5 {
		t.Fatalf("%v, %v; reports: %v", result, err, all)
	}

	_, all, err = attempt(t, analyzer, 1_000_000_000, 3, nil) // too many pages for one attempt
	if err == nil || len(all) < 3 {
		t.Fatalf("%v; reports: %v", err, all)
	}

	last := all[len(all)-1]
	want := sum(last.Done + 2)
	result, all, err = attempt(t, analyzer, last.Done+2, 0, &last)
	if err != nil || !reflect.DeepEqual(result, want) || len(all) != 2 || all[0].Done != last.Done+1 {
		t.Errorf("from %v: %v, %v, want %v; reports: %v", last, result, err, want, all)
	}
}

// sum returns the result for a number of pages.
func sum(pages int) any { return map[string]any{"sum": int64(pages) * int64(pages+1) / 2} }

// attempt runs the analyzer until it ends, and interrupts it after limit reports; 0: never.
func attempt(t *testing.T, a orchestrator.Analyzer, pages, limit int, from *state) (any, []state, error) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	r := &reports{t: t, limit: limit, interrupt: interrupt}
	input := fmt.Sprintf(`{"name":"\"pages\": 7","pages":%d,"seconds":0}`, pages)
	job := orchestrator.Job{Input: json.RawMessage(input), Reporter: r}
	if from != nil {
		job.Resume, _ = json.Marshal(from)
	}

	result, err := orchestrator.Run(ctx, a, job)
	return result, r.all, err
}

// state is the checkpoint of the examples' analyzers.
type state struct {
	Done int `json:"done"` // pages
	Sum  int `json:"sum"`
}

// reports is a Reporter that interrupts a run after limit reports.
type reports struct {
	orchestrator.Reporter // nil: a program or an endpoint never calls Commit

	t         *testing.T
	limit     int
	interrupt context.CancelFunc

	mu  sync.Mutex
	all []state
}

func (r *reports) Report(report orchestrator.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s state
	text, _ := json.Marshal(report.Checkpoint)
	if err := json.Unmarshal(text, &s); err != nil || s.Done == 0 || report.Message == nil {
		r.t.Errorf("a report without a checkpoint or a message: %s, %v", text, err)
	}
	if r.all = append(r.all, s); len(r.all) == r.limit {
		r.interrupt()
	}
}

func (r *reports) Invalid(problem string) { r.t.Error(problem) }
