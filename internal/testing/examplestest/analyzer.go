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
	// attempt runs the analyzer until it has ended, or has reported so many times.
	attempt := func(pages, most int, from *state) (result any, reported []state, err error) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		r := &reports{t: t, most: most, interrupt: interrupt}
		job := orchestrator.Job{Input: json.RawMessage(fmt.Sprintf(`{"name":"\"pages\": 7","pages":%d,"seconds":0}`, pages)), Reporter: r}
		if from != nil {
			job.Resume, _ = json.Marshal(from)
		}
		result, err = orchestrator.Run(ctx, analyzer, job)
		return result, r.all, err
	}
	if result, all, err := attempt(5, 0, nil); err != nil || !reflect.DeepEqual(result, map[string]any{"sum": int64(15)}) || len(all) != 5 {
		t.Fatalf("%v, %v; reports: %v", result, err, all)
	}
	_, all, err := attempt(1_000_000_000, 3, nil) // of which no attempt sees the end
	if err == nil || len(all) < 3 {
		t.Fatalf("%v; reports: %v", err, all)
	}
	last := all[len(all)-1]
	pages := last.Done + 2
	result, all, err := attempt(pages, 0, &last)
	want := map[string]any{"sum": int64(pages) * int64(pages+1) / 2}
	if err != nil || !reflect.DeepEqual(result, want) || len(all) != 2 || all[0].Done != last.Done+1 {
		t.Errorf("from %v: %v, %v, want %v; reports: %v", last, result, err, want, all)
	}
}

// state is the checkpoint of the examples' analyzers.
type state struct {
	Done int `json:"done"` // pages
	Sum  int `json:"sum"`
}

// reports is a Reporter that interrupts a run after so many reports as most.
type reports struct {
	orchestrator.Reporter // nil: only Go's analyzers commit

	t         *testing.T
	most      int
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
	if r.all = append(r.all, s); len(r.all) == r.most {
		r.interrupt()
	}
}

func (r *reports) Invalid(problem string) { r.t.Error(problem) }
