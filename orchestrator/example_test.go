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
	// orchestrator: invalid_input: want {n}
}
