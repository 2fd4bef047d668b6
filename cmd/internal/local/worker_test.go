package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"

	"taskguard/cmd/internal/cli"
	"taskguard/orchestrator"
)

// reporter is a Reporter of one method.
type reporter struct {
	orchestrator.Reporter

	report func()
}

func (r reporter) Report(orchestrator.Report) { r.report() }

func TestSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported []time.Duration
		began, failure, ended := time.Now(), error(nil), errors.New("ended")
		report := func() { reported = append(reported, time.Since(began)) }
		job := orchestrator.Job{Reporter: reporter{report: report}}
		analyze := func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			for _, progress := range []float64{0.25, 0.75} {
				job.Reporter.Report(orchestrator.Report{Progress: &progress})
			}
			return "done", failure
		}
		run := slowed(orchestrator.AnalyzerFunc(analyze), 8*time.Second)

		result, err := run(t.Context(), job)
		took := time.Since(began)
		want := []time.Duration{2 * time.Second, 6 * time.Second}
		if !slices.Equal(reported, want) || took != 8*time.Second {
			t.Errorf("reports after %v, the end after %v", reported, took)
		}
		if result != "done" || err != nil {
			t.Errorf("%v, %v", result, err)
		}
		failure = errors.New("failure")
		if _, err := run(t.Context(), job); !errors.Is(err, failure) || time.Since(began) != 14*time.Second {
			t.Errorf("%v after %v; want the failure without a wait", err, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ended)
		failure = nil
		if _, err := run(ctx, job); !errors.Is(err, ended) || len(reported) != 4 {
			t.Errorf("%v, reports after %v; want the end, and no report", err, reported)
		}
	})
}

func TestLogTo_Full(t *testing.T) {
	var errs bytes.Buffer
	c := &cli.Call{Name: "worker", Streams: cli.Streams{Out: io.Discard, Err: &errs}}
	log, err := logTo(c, slog.New(slog.DiscardHandler), "/dev/full", slog.LevelInfo)
	must.OK(t, err)
	log.Info("one")
	log.Info("two")
	if got := errs.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "/dev/full: no space left") {
		t.Errorf("%q; want one warning", got)
	}
}

func TestLogged(t *testing.T) {
	for _, resume := range []json.RawMessage{nil, json.RawMessage("1")} {
		var out bytes.Buffer
		analyze := func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			_, err := io.WriteString(job.Stderr, "line\n")
			return "done", err
		}
		run := logged(orchestrator.AnalyzerFunc(analyze), slog.New(slog.NewJSONHandler(&out, nil)))
		result, err := run(t.Context(), orchestrator.Job{AnalysisID: "x", LockToken: 4, Resume: resume})
		if result != "done" || err != nil {
			t.Errorf("%v, %v", result, err)
		}
		lines := json.NewDecoder(&out)
		for _, want := range []record{
			{Message: runMessage, AnalysisID: "x", Token: 4, Continues: resume != nil},
			{Message: "line", AnalysisID: "x", Stderr: true},
		} {
			var got record
			if err := lines.Decode(&got); err != nil || got != want {
				t.Errorf("%+v, %v; want %+v", got, err, want)
			}
		}
	}
}
