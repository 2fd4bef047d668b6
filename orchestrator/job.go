package orchestrator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime/debug"
	"strings"

	"go.opentelemetry.io/otel/propagation"
)

// Job is one attempt at one analysis.
type Job struct {
	AnalysisID string          `json:"analysis_id"` // the id of the document
	LockToken  int64           `json:"lock_token"`  // fencing token: larger for each later attempt
	Attempt    int             `json:"attempt"`     // 1 for the first
	Input      json.RawMessage `json:"input"`       // nil or empty is encoded as null
	// SelfTest is true in a self-test, which has no document: its input must not lead to an act.
	SelfTest bool `json:"self_test,omitempty"`
	// Resume is the newest checkpoint that an earlier attempt reported; nil: none.
	Resume json.RawMessage `json:"checkpoint,omitempty"`

	// Stderr, unless nil, also receives the standard error of an exec: program. That may
	// contain the input.
	Stderr io.Writer `json:"-"`
	// Scope is any text that differs between collections: equal ids in two of them get different Keys.
	Scope string `json:"-"`
	// Reporter receives the reports of the run. A guard sets it; nil drops them, and permits no act.
	Reporter Reporter `json:"-"`
}

// Result is the result of an analysis: anything that encoding/json can encode,
// within [Storable]'s limits.
type Result = any

// Analyzer does the work of one analysis. Analyze blocks until it and all that it
// started have ended; it ends soon after ctx. It is called concurrently. A
// [*PermanentError] in its error's chain means that a retry cannot help. After any
// other error the job is retried.
type Analyzer interface {
	Analyze(ctx context.Context, job Job) (Result, error)
}

// AnalyzerFunc makes a function an Analyzer.
type AnalyzerFunc func(ctx context.Context, job Job) (Result, error)

// Analyze calls f.
func (f AnalyzerFunc) Analyze(ctx context.Context, job Job) (Result, error) { return f(ctx, job) }

// Run runs one job and returns its result as [Storable] converts it. It blocks until
// the analyzer returns; stopping when ctx ends is up to the analyzer. A panic, also
// one while the result is encoded, becomes a [*PanicError].
func Run(ctx context.Context, a Analyzer, job Job) (result any, err error) {
	defer func() {
		if v := recover(); v != nil {
			result, err = nil, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()

	r, err := a.Analyze(ctx, job)
	if err != nil {
		return nil, err
	}
	return job.storable(ctx, r)
}

// encode returns the job as one line of JSON, with the acts of which a call tells an endpoint.
func (j Job) encode(told map[string]*actReply) ([]byte, error) {
	if len(j.Input) == 0 {
		j.Input = nil
	}
	line, err := encodeLine(struct {
		Job
		Acts map[string]*actReply `json:"effects,omitempty"`
	}{j, told})
	if err != nil {
		return nil, invalidInput("the input is not JSON", err)
	}
	return append(line, '\n'), nil
}

// encodeLine returns v as JSON on one line. It leaves < and & readable: it is not for a browser.
func encodeLine(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// traceHeaders returns the span of ctx as W3C's traceparent and tracestate. It is
// empty if ctx has no span.
func traceHeaders(ctx context.Context) propagation.MapCarrier {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier
}

// Options configures [New]. The zero value is the default.
type Options struct {
	// AnyOutput stores output that is not JSON as a string, and empty output as null. Without it
	// both are a [FailureError] with [CodeInvalidOutput]: they are more often the HTML of an error
	// page, or a program that did nothing, than a result.
	AnyOutput bool
	// Env lists the variables that a program gets from this process's environment, in
	// addition to the default ones: names, or prefixes of names with a * at the end.
	Env []string
}

// New returns the analyzer that spec names:
//
//   - builtin:document
//   - exec:PROGRAM ARG…, split at white space, with no shell and no quoting
//   - http://… or https://…
//
// It starts no program and sends no request; for exec: it looks the program up on
// PATH now. Its errors show no password or query of a URL. The package's
// documentation describes each analyzer.
func New(spec string, o Options) (Analyzer, error) {
	scheme, rest, _ := strings.Cut(spec, ":")
	switch {
	case spec == "builtin:document":
		return documentAnalyzer{}, nil
	case scheme == "exec":
		return newProgram(rest, o)
	case scheme == "http", scheme == "https":
		return newEndpoint(spec, o)
	}
	return nil, errors.New("orchestrator: the analyzer is not builtin:document, exec:PROGRAM ARG…, http://… or https://…")
}
