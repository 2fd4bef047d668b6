package orchestrator_test

import (
	"context"
	"encoding/json"
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
}

func (r *recorder) Report(report orchestrator.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	if report.Progress != nil {
		parts = append(parts, fmt.Sprint(*report.Progress))
	}
	if report.Message != nil {
		text := fmt.Sprintf("%.20q", *report.Message)
		if n := len(*report.Message); n > 50 {
			text += fmt.Sprint(" of ", n)
		}
		parts = append(parts, text)
	}
	if report.Checkpoint != nil {
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
	{line: `{"progress":1}`, report: `1`},
	{line: "\uFEFF" + `{"checkpoint":1234567890123456.78}`, report: `1.2345678901234568e+`},
	{line: `  {"checkpoint":null}`, report: `<nil>`},
	{line: `{"message":"x` + strings.Repeat("é", 600) + `"}`, report: `"x` + strings.Repeat("é", 19) + `" of 1023`},
	{line: `{"message":"` + strings.Repeat("é", 512) + `"}`, report: `"` + strings.Repeat("é", 20) + `" of 1024`},
	{line: `{"progress":0}`, report: `0`},
	{line: `{"message":"` + strings.Repeat("m", 15<<10) + `","checkpoint":"` + strings.Repeat("c", 256<<10-2) + `"}`, report: `"` + strings.Repeat("m", 20) + `" of 1024 ` + strings.Repeat("c", 20)},
	{line: ``},
	{line: "{\"progress\":0.25}\r", report: `0.25`},
	{line: "\r"},
	{line: `not JSON`, invalid: "a report is not an object of JSON"},
	{line: `null`, invalid: "a report has no progress, message or checkpoint"},
	{line: `{}`, invalid: "a report has no progress, message or checkpoint"},
	{line: `{"page":0.5,"message":null}`, invalid: "a report has no progress, message or checkpoint"},
	{line: `{"progress":1.01}`, invalid: "a progress is not between 0 and 1"},
	{line: `{"progress":-0.01}`, invalid: "a progress is not between 0 and 1"},
	{line: `{"progress":NaN}`, invalid: "a report is not an object of JSON"},
	{line: `{"progress":1e999}`, invalid: "the progress of a report has a wrong type"},
	{line: `[{"progress":0.5}]`, invalid: "a report is not an object of JSON"},
	{line: "{\"message\":\"\xff\"}", invalid: "a report is not valid UTF-8"},
	{line: `{"progress":"half"}`, invalid: "the progress of a report has a wrong type"},
	{line: `{"message":7}`, invalid: "the message of a report has a wrong type"},
	{line: `{"checkpoint":[[1]]}`, invalid: "a checkpoint cannot be stored in a document"},
	{line: `{"checkpoint":{"__x__":1}}`, invalid: "a checkpoint cannot be stored in a document"},
	{line: `{"checkpoint":"` + strings.Repeat("x", 256<<10-1) + `"}`, invalid: "a checkpoint is over 256 KiB"},
	{line: `{"checkpoint":` + strings.Repeat(`{"a":`, 21) + "1" + strings.Repeat("}", 22), invalid: "a checkpoint cannot be stored in a document"},
	{line: strings.Repeat("[", 100_000), invalid: "a report is not an object of JSON"},
	{line: `{"message":"` + strings.Repeat("x", 10<<20) + `"}`, invalid: "a report is too long"},
	{line: `{"progress":0.6}`, report: `0.6`},
}

func checkReports(t *testing.T, got *recorder, more ...string) {
	t.Helper()
	var reports, invalid []string
	for _, c := range reported {
		if c.report != "" {
			reports = append(reports, c.report)
		}
		if c.invalid != "" {
			invalid = append(invalid, c.invalid)
		}
	}
	equal(t, got.reports, reports)
	equal(t, got.invalid, append(invalid, more...))
	equal(t, got.warned, []string{"a number has more digits than a document can hold: it is rounded"})
}

func reportLines() string {
	var b strings.Builder
	for _, c := range reported {
		b.WriteString(c.line + "\n")
	}
	return b.String()
}

func TestAnEndpointReportsByLines(t *testing.T) {
	for last, c := range map[string]struct{ result, err string }{
		`{"result":{"ok":true}}` + "\n" + `{"result":7}`: {result: "map[ok:true]"},
		`{"result":null}`:                 {result: "<nil>"},
		`{"progress":"x","result":7}`:     {result: "7"},
		`{"message":1,"result":7}`:        {result: "7"},
		`{"checkpoint":[[1]],"result":7}`: {result: "7"},
		`{"checkpoint":"` + strings.Repeat("x", 256<<10) + `","result":7}`: {result: "7"},
		`{"error":{"message":"no such page","permanent":true}}`:            {err: "analyzer_rejected: no such page"},
		`{"error":{"message":"busy"}}`:                                     {err: "reported an error: busy"},
		`{"error":{"code":"no_page","message":"m","permanent":true}}`:      {err: "no_page: m"},
		`{"error":{"code":"not valid","message":"m","permanent":true}}`:    {err: "analyzer_rejected: m"},
		`{"error":"busy"}`:      {err: "reported an error"},
		`{"progress":0.7}`:      {err: "answered without a result"},
		"{\"result\":\"\xff\"}": {err: "result_invalid: result is not valid UTF-8"},
		`{"result":"` + strings.Repeat("x", 8<<20) + `"}`:                                                                   {err: "result_too_large"},
		`{"progress":0.7,"message":null,"checkpoint":null,"result":null,"error":null}` + "\n" + `{"result":7,"error":null}`: {result: "7"},
		`{"result":null,"error":{"message":"boom","permanent":true}}`:                                                       {err: "analyzer_rejected: boom"},
		`{"progress":0.7,"result":7}` + strings.Repeat("\n{}", 100):                                                         {result: "7"},

		`{"result":"` + strings.Repeat("x", 1<<19) + `"}`: {result: strings.Repeat("x", 1<<19)}, // no report is as long
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-ndjson; charset=utf-8")
			_, _ = io.WriteString(w, last)
		})
		got, err := post(t.Context(), t, s.URL, orchestrator.Job{})
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || c.err == "" && (err != nil || fmt.Sprint(got) != c.result) {
			t.Errorf("%.60s: %v, %v; want %+v", last, got, err, c)
		}
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var job struct {
			Checkpoint json.RawMessage `json:"checkpoint"`
		}
		_ = json.NewDecoder(r.Body).Decode(&job)
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, reportLines()+`{"result":`+string(job.Checkpoint)+`}`)
	})
	var got recorder
	result, err := post(t.Context(), t, s.URL, orchestrator.Job{Reporter: &got, Resume: json.RawMessage(`{"page":4}`)})
	if err != nil || fmt.Sprint(result) != "map[page:4]" {
		t.Errorf("%v, %v", result, err)
	}
	checkReports(t, &got)
}

func TestTheReportsBeforeABrokenConnectionCount(t *testing.T) {
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

func TestNothingIsReadAfterTheLineWithTheResult(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		for r.Context().Err() == nil { // until the worker closes the connection
			_, _ = io.WriteString(w, `{"result":7}`+"\n")
		}
	})
	var got recorder
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if result, err := post(ctx, t, s.URL, orchestrator.Job{Reporter: &got}); err != nil || result != int64(7) || len(got.invalid) > 0 {
		t.Errorf("%v, %v; invalid: %q", result, err, got.invalid)
	}
}

func TestAnAnalyzerInGoReports(t *testing.T) {
	var got recorder
	work := orchestrator.AnalyzerFunc(func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		job.Report(0.25, "\xff")
		job.Report(math.NaN(), "")
		for _, v := range []any{struct{ Page int }{2}, nil, func() {}, [][]int{{1}}, strings.Repeat("x", 256<<10)} {
			if err := job.Checkpoint(ctx, v); err != nil {
				job.Report(1, err.Error())
			}
		}
		return nil, nil
	})
	for _, job := range []orchestrator.Job{{Reporter: &got}, {}} { // without a Reporter nothing fails
		if _, err := orchestrator.Run(t.Context(), work, job); err != nil {
			t.Error(err)
		}
	}
	equal(t, got.reports, []string{`0.25 "�"`, `map[Page:2]`, `<nil>`, `1 "json: unsupported ty"`, `1 "orchestrator: the ch" of 109`, `1 "orchestrator: a chec" of 58`})
	equal(t, got.invalid, []string{"a progress is not between 0 and 1"})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (orchestrator.Job{Reporter: &got}).Checkpoint(ended, 1); err == nil {
		t.Error("no error of the commit")
	}
}
