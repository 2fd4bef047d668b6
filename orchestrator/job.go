package orchestrator

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
)

// Job is one attempt at one analysis.
type Job struct {
	AnalysisID string          `json:"analysis_id"`
	LockToken  int64           `json:"lock_token"` // fencing token: larger for each later attempt, for side effects elsewhere
	Attempt    int             `json:"attempt"`    // from 1
	Input      json.RawMessage `json:"input"`      // nil or empty is encoded as null

	// Stderr, unless nil, also gets an exec: program's standard error. It may hold the input.
	Stderr io.Writer `json:"-"`
}

// Result is what the analysis's document will hold: anything encoding/json can
// encode, within [Storable]'s limits.
type Result any

// Analyzer does the work of one analysis. Analyze blocks until it is done and
// nothing that it started runs on, or soon after ctx has ended; it is called
// concurrently. A [*PermanentError] anywhere in its error's chain says that
// retrying cannot help; any other error is for now, and the job comes again.
type Analyzer interface {
	Analyze(ctx context.Context, job Job) (Result, error)
}

// AnalyzerFunc is an Analyzer made of one function.
type AnalyzerFunc func(ctx context.Context, job Job) (Result, error)

// Analyze calls f.
func (f AnalyzerFunc) Analyze(ctx context.Context, job Job) (Result, error) { return f(ctx, job) }

// encode is the form in which a job leaves the process: one line of JSON.
func (j Job) encode() ([]byte, error) {
	if len(j.Input) == 0 {
		j.Input = nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // not for a browser: leave < and & readable
	if err := e.Encode(j); err != nil {
		return nil, &PermanentError{Code: CodeInvalidInput, Message: "the input is not JSON", Err: err}
	}
	return b.Bytes(), nil
}
