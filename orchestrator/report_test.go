package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// recorder is a Reporter that writes down what it gets.
type recorder struct {
	mu      sync.Mutex
	reports []string
	invalid []string
	warned  []string
	newest  map[string]any // by the field of the report
}

func (r *recorder) Report(report orchestrator.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest == nil {
		r.newest = map[string]any{}
	}
	var parts []string
	if report.Progress != nil {
		r.newest["progress"] = *report.Progress
		parts = append(parts, fmt.Sprint(*report.Progress))
	}
	if report.Message != nil {
		r.newest["message"] = *report.Message
		text := fmt.Sprintf("%.20q", *report.Message)
		if n := len(*report.Message); n > 50 {
			text += fmt.Sprint(" of ", n)
		}
		parts = append(parts, text)
	}
	if report.Checkpoint != nil {
		r.newest["checkpoint"] = report.Checkpoint.Value
		parts = append(parts, fmt.Sprintf("%.20s", fmt.Sprint(report.Checkpoint.Value)))
	}
	r.reports = append(r.reports, strings.Join(parts, " "))
}

func (r *recorder) Commit(ctx context.Context, report orchestrator.Report) error {
	r.Report(report)
	return ctx.Err()
}

func (r *recorder) Invalid(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.invalid = append(r.invalid, problem)
}

func (r *recorder) Warn(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warned = append(r.warned, problem)
}

// reported are lines of reports, with what a Reporter gets of them.
var reported = []struct{ line, report, invalid string }{
	{line: `{"progress":0.5,"message":"half","checkpoint":{"page":5}}`, report: `0.5 "half" map[page:5]`},
	{line: "\uFEFF" + `{"checkpoint":1234567890123456.78}`, report: `1.2345678901234568e+`},
	{line: `  {"checkpoint":null}`, report: `<nil>`},
	{line: `{"message":"x` + strings.Repeat("é", 600) + `"}`, report: `"x` + strings.Repeat("é", 19) + `" of 1023`},
	{line: `{"message":"` + strings.Repeat("é", 512) + `"}`, report: `"` + strings.Repeat("é", 20) + `" of 1024`},
	{line: `{"progress":0}`, report: `0`},
	{
		line: `{"message":"` + strings.Repeat("m", 15<<10) +
			`","checkpoint":"` + strings.Repeat("c", 256<<10-2) + `"}`,
		report: `"` + strings.Repeat("m", 20) + `" of 1024 ` + strings.Repeat("c", 20),
	},
	{line: ``},
	{line: "{\"progress\":0.25}\r", report: `0.25`},
	{line: "\r"},
	{line: `not JSON`, invalid: "a report is not an object of JSON"},
	{line: `null`, invalid: "a report has no progress, message or checkpoint"},
	{line: `{"page":0.5,"message":null}`, invalid: "a report has no progress, message or checkpoint"},
	{line: `{"progress":1.01}`, invalid: "a progress is not between 0 and 1"},
	{line: `{"progress":-0.01}`, invalid: "a progress is not between 0 and 1"},
	{line: `{"progress":NaN}`, invalid: "a report is not an object of JSON"},
	{line: `{"progress":1e999}`, invalid: "the progress of a report has a wrong type"},
	{line: "{\"message\":\"\xff\"}", invalid: "a report is not valid UTF-8"},
	{line: `{"progress":"half"}`, invalid: "the progress of a report has a wrong type"},
	{line: `{"message":7}`, invalid: "the message of a report has a wrong type"},
	{line: `{"checkpoint":{"__x__":1}}`, invalid: "a checkpoint cannot be stored in a document"},
	{line: `{"checkpoint":"` + strings.Repeat("x", 256<<10-1) + `"}`, invalid: "a checkpoint is over 256 KiB"},
	{line: strings.Repeat("[", 100_000), invalid: "a report is not an object of JSON"},
	{line: `{"message":"` + strings.Repeat("x", 10<<20) + `"}`, invalid: "a report is too long"},
	{line: `{"progress":0.6}`, report: `0.6`},
}

// lines returns the URL of an endpoint that answers lines.
func lines(t *testing.T, text string) string {
	t.Helper()
	return answerer(t, 200, "application/x-ndjson; charset=utf-8", text)
}

func TestEndpoint_Reports(t *testing.T) {
	var sent strings.Builder
	var reports, invalid []string
	for _, c := range reported {
		sent.WriteString(c.line + "\n")
		if c.report != "" {
			reports = append(reports, c.report)
		}
		if c.invalid != "" {
			invalid = append(invalid, c.invalid)
		}
	}
	var got recorder
	result, err := post(t.Context(), t, lines(t, sent.String()+`{"result":7}`), orchestrator.Job{Reporter: &got})
	want7(t, result, err)
	equal(t, got.reports, reports)
	equal(t, got.invalid, invalid)
	equal(t, got.warned, []string{"a number has more digits than a document can hold: it is rounded"})
}

func TestEndpoint_LineTypes(t *testing.T) {
	for _, name := range []string{
		"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines",
		"application/x-jsonlines", "application/jsonlines", "application/x-ldjson", "text/x-ndjson", "text/jsonl",
		"application/x-json-stream", "application/stream+json", "Application/JSONL; charset=utf-8",
	} {
		for _, begin := range []string{"", "{\"progress\":0.5}\n", "\uFEFF"} {
			var got recorder
			url := answerer(t, 200, name, begin+`{"result":7}`)
			result, err := post(t.Context(), t, url, orchestrator.Job{Reporter: &got})
			want7(t, result, err)
			wantWarning(t, name, got.warned, "")
		}
	}
}

func TestEndpoint_LastLine(t *testing.T) {
	for _, text := range []string{
		`{"result":7}` + "\n" + `{"result":8}`,
		`{"checkpoint":[[1]],"result":7}`,
		`{"checkpoint":"` + strings.Repeat("x", 1<<19) + `","result":7}`, // no report is as long
		`{"progress":0.7,"message":null,"checkpoint":null,"result":null,"error":null}` + is7,
		`{"progress":0.7,"result":7,"error":null}` + strings.Repeat("\n{}", 100),
	} {
		got, err := post(t.Context(), t, lines(t, text), orchestrator.Job{})
		want7(t, got, err)
	}
	for text, want := range map[string]string{
		`{"error":{"message":"no such page","permanent":true}}`: "analyzer_rejected: no such page",
		`{"error":"busy"}`:      "reported an error",
		`{"progress":0.7}`:      "answered without a result",
		"{\"result\":\"\xff\"}": "result_invalid: result is not valid UTF-8",
		`{"result":"` + strings.Repeat("x", 8<<20) + `"}`:             "result_too_large",
		`{"result":null,"error":{"message":"boom","permanent":true}}`: "analyzer_rejected: boom",
	} {
		_, err := post(t.Context(), t, lines(t, text), orchestrator.Job{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %q", text, err, want)
		}
	}
}

func TestEndpoint_BrokenLines(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, `{"checkpoint":1}`+"\n"+`{"checkpoint":2}`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	var got recorder
	_, err := post(t.Context(), t, s.URL, orchestrator.Job{Reporter: &got})
	wantRetry(t, err, "unexpected EOF")
	equal(t, got.reports, []string{"1"})
}

func TestEndpoint_LinesAfterResult(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		for r.Context().Err() == nil { // until the worker closes the connection
			_, _ = io.WriteString(w, `{"result":7}`+"\n")
		}
	})
	var got recorder
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := post(ctx, t, s.URL, orchestrator.Job{Reporter: &got})
	want7(t, result, err)
	equal(t, len(got.invalid), 0)
}

func TestJob_Report(t *testing.T) {
	var got recorder
	for _, job := range []orchestrator.Job{{Reporter: &got}, {}} { // without a Reporter nothing fails
		job.Report(0.25, "\xff")
		job.Report(math.NaN(), "")
	}
	equal(t, got.reports, []string{`0.25 "�"`})
	equal(t, got.invalid, []string{"a progress is not between 0 and 1"})
}

func TestJob_Checkpoint(t *testing.T) {
	var got recorder
	job := orchestrator.Job{Reporter: &got}
	for _, v := range []any{struct{ Page int }{2}, nil} {
		if err := job.Checkpoint(t.Context(), v); err != nil {
			t.Errorf("%v: %v", v, err)
		}
	}
	for _, v := range []any{func() {}, [][]int{{1}}, strings.Repeat("x", 256<<10)} {
		if err := job.Checkpoint(t.Context(), v); err == nil || errors.Is(err, orchestrator.ErrUnknown) {
			t.Errorf("%T: %v", v, err)
		}
	}
	equal(t, got.reports, []string{`map[Page:2]`, `<nil>`})

	if err := (orchestrator.Job{}).Checkpoint(t.Context(), 1); !errors.Is(err, orchestrator.ErrNoGuard) {
		t.Errorf("without a guard: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := job.Checkpoint(ended, 1); err == nil {
		t.Error("no error of the commit")
	}
}
