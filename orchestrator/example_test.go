package orchestrator_test

import (
	"context"
	"encoding/json"
	"fmt"

	"taskguard/orchestrator"
)

// A program's own analyzer is a function.
func ExampleAnalyzer() {
	double := orchestrator.AnalyzerFunc(func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		var in struct{ N int }
		if err := json.Unmarshal(job.Input, &in); err != nil {
			return nil, &orchestrator.PermanentError{Code: orchestrator.CodeInvalidInput, Message: "want {n}", Err: err}
		}
		return map[string]int{"double": 2 * in.N}, nil
	})
	result, err := orchestrator.Run(context.Background(), double, orchestrator.Job{
		AnalysisID: "a1", Attempt: 1, Input: json.RawMessage(`{"n": 21}`),
	})
	fmt.Println(result, err)
	_, err = orchestrator.Run(context.Background(), double, orchestrator.Job{Input: json.RawMessage(`"x"`)})
	fmt.Println(err)
	// Output:
	// map[double:42] <nil>
	// invalid_input: want {n}
}

// pages continues where an earlier attempt was interrupted.
func pages(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	var input struct{ Pages int }
	if err := json.Unmarshal(job.Input, &input); err != nil {
		return nil, &orchestrator.PermanentError{Code: orchestrator.CodeInvalidInput, Message: "want {pages}", Err: err}
	}
	state := struct{ Done, Sum int }{}
	if job.Resume != nil {
		if err := json.Unmarshal(job.Resume, &state); err != nil {
			return nil, err
		}
	}
	for state.Done < input.Pages {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		state.Sum += state.Done + 1 // the expensive work on one page
		state.Done++
		job.Report(float64(state.Done)/float64(input.Pages), fmt.Sprintf("page %d of %d", state.Done, input.Pages))
		if err := job.Checkpoint(context.WithoutCancel(ctx), state); err != nil { // commits the last page, too
			return nil, err
		}
	}
	return map[string]int{"sum": state.Sum}, nil
}

// journal is a Reporter that prints checkpoints, and interrupts a run after the second.
type journal struct {
	interrupt func()
	newest    json.RawMessage
}

func (*journal) Report(orchestrator.Report) {}
func (*journal) Invalid(string)             {}
func (j *journal) Commit(_ context.Context, r orchestrator.Report) (err error) {
	if j.newest, err = json.Marshal(r.Checkpoint); string(j.newest) == `{"Done":2,"Sum":3}` {
		j.interrupt()
	}
	fmt.Println("committed", string(j.newest))
	return err
}

// An analyzer that stores a checkpoint after each part of its work repeats none of them.
func ExampleJob_Checkpoint() {
	ctx, interrupt := context.WithCancel(context.Background())
	j := &journal{interrupt: interrupt}
	job := orchestrator.Job{Attempt: 1, Input: json.RawMessage(`{"pages": 3}`), Reporter: j}
	_, err := orchestrator.Run(ctx, orchestrator.AnalyzerFunc(pages), job)
	fmt.Println(err)

	job.Attempt, job.Resume = 2, j.newest
	fmt.Println(orchestrator.Run(context.Background(), orchestrator.AnalyzerFunc(pages), job))
	// Output:
	// committed {"Done":1,"Sum":1}
	// committed {"Done":2,"Sum":3}
	// context canceled
	// committed {"Done":3,"Sum":6}
	// map[sum:6] <nil>
}
