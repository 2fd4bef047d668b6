// Package kinds has the kinds of work of the service echoservice.
package kinds

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"taskguard/worker"
)

// Analyses are documents analyses/{id} with the names of the contract.
var Analyses = worker.Kind{Run: worker.Typed(countWords)}

// Jobs are documents jobs/{id} of another application, which has its own names for the
// status, the input and the result.
var Jobs = worker.Kind{
	Name: "job", Collection: "jobs", Path: "/tasks/job",
	Fields: worker.Fields{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		Input: "payload", Result: "output", Error: "failure",
	},
	Run: worker.Typed(addPages),
}

// Text is the input of an analysis.
type Text struct{ Text string }

func countWords(_ context.Context, in Text, _ worker.Job) (map[string]int, error) {
	return map[string]int{"words": len(strings.Fields(in.Text))}, nil
}

// Book is the input of a job. A page takes Milliseconds.
type Book struct{ Pages, Milliseconds int }

// state is the checkpoint of a job.
type state struct{ Done, Sum int }

// addPages adds up the numbers of the pages, and continues from the last checkpoint.
func addPages(ctx context.Context, in Book, job worker.Job) (sum int, err error) {
	var s state
	if job.Resume != nil {
		if err := json.Unmarshal(job.Resume, &s); err != nil {
			return 0, err
		}
	}
	for s.Done < in.Pages {
		select {
		case <-ctx.Done(): // the lock is lost, the time is over, or the service stops
			return 0, context.Cause(ctx)
		case <-time.After(time.Duration(in.Milliseconds) * time.Millisecond):
		}
		s.Done++
		s.Sum += s.Done
		if err := job.Checkpoint(ctx, s); err != nil {
			return 0, err
		}
	}
	return s.Sum, nil
}
