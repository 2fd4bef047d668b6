package workerservice_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"taskguard/internal/workerservice"
	"taskguard/orchestrator"
)

// A worker with an analyzer of its own is this main.
func ExampleMain() {
	words := orchestrator.AnalyzerFunc(func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		var input struct{ Text string }
		if err := json.Unmarshal(job.Input, &input); err != nil {
			return nil, &orchestrator.PermanentError{Code: orchestrator.CodeInvalidInput, Message: "want {text}", Err: err}
		}
		return map[string]int{"words": len(strings.Fields(input.Text))}, nil
	})
	code, err := workerservice.Main(context.Background(), os.LookupEnv, os.Stdout, words)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
