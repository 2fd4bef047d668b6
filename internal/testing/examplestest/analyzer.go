package examplestest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"taskguard/orchestrator"
)

// Continues checks that the analyzer of an example continues from the newest checkpoint.
func Continues(t *testing.T, spec string) {
	t.Helper()
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}

	var newest json.RawMessage
	for _, pages := range [][]int{{1, 2, 3}, {4, 5}} { // the second job continues the first
		last, reported := pages[len(pages)-1], &reports{t: t}
		job := orchestrator.Job{Resume: newest, Reporter: reported}
		job.Input = fmt.Appendf(nil, `{"name":"\"pages\": 7","pages":%d,"seconds":0}`, last)
		result, err := orchestrator.Run(t.Context(), analyzer, job)

		want := map[string]any{"sum": int64(last * (last + 1) / 2)}
		if err != nil || !reflect.DeepEqual(result, want) || !slices.Equal(reported.pages, pages) {
			t.Errorf("from %s: %v, %v after the pages %v, want %v after %v", newest, result, err, reported.pages, want, pages)
		}
		newest = reported.newest
	}
}

// reports is a Reporter that keeps the pages that are done, and the newest checkpoint.
type reports struct {
	orchestrator.Reporter // nil: these analyzers never call Commit

	t      *testing.T
	pages  []int
	newest json.RawMessage
}

func (r *reports) Report(report orchestrator.Report) {
	var state struct{ Done int }
	r.newest, _ = json.Marshal(report.Checkpoint)
	if err := json.Unmarshal(r.newest, &state); err != nil || report.Message == nil {
		r.t.Errorf("a report without a checkpoint or a message: %s, %v", r.newest, err)
	}
	r.pages = append(r.pages, state.Done)
}

func (r *reports) Invalid(problem string) { r.t.Error(problem) }
