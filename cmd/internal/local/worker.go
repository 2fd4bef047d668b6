package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/orchestrator"
)

// orphanGrace is how long a worker may take to end its runs after the death of its parent,
// with which the embedded Firestore has died too.
const orphanGrace = time.Second

// Worker runs cmd/worker on the loopback interface, and reports each run that begins.
func Worker(ctx context.Context, c *cli.Call) error {
	until := c.Flags.Bool("until-stdin-closes", false, "end when standard input closes, as when the parent dies")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	cfg, err := workerservice.ParseConfig(c.Lookup)
	if err != nil {
		return cli.EnvironmentError{Err: err}
	}
	if cfg.Project == "" {
		return cli.EnvironmentError{Err: errors.New("GOOGLE_CLOUD_PROJECT: must be set")}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if *until {
		go func() { // runs until the process ends: a read of standard input cannot be interrupted
			_, _ = io.Copy(io.Discard, c.In)
			cancel()
			time.Sleep(orphanGrace)
			os.Exit(cli.ExitFailed)
		}()
	}

	log := slog.New(slog.NewJSONHandler(c.Out, &slog.HandlerOptions{Level: cfg.LogLevel}))
	cfg.Analyzer = logged(cfg.Analyzer, log)
	l, err := cli.Listen("PORT", "127.0.0.1:"+strconv.Itoa(cfg.Port))
	if err != nil {
		return err
	}
	return workerservice.Serve(ctx, cfg, l, log)
}

// logged returns an analyzer that logs the begin and the standard error of each run.
func logged(analyzer orchestrator.Analyzer, log *slog.Logger) orchestrator.AnalyzerFunc {
	return func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		log := log.With("analysis_id", job.AnalysisID)
		log.InfoContext(ctx, runMessage, "lock_token", job.LockToken, "continues", job.Resume != nil)
		job.Stderr = slog.NewLogLogger(log.With("stderr", true).Handler(), slog.LevelInfo).Writer()
		return analyzer.Analyze(ctx, job)
	}
}

// Analyze runs builtin:document as the program of exec:, slowly enough to be watched. It also
// writes its reports to standard error.
func Analyze(ctx context.Context, c *cli.Call) error {
	wait := c.Flags.Duration("wait", 0, "how long a whole run takes; one that continues takes its part of it")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	var job orchestrator.Job
	if err := json.NewDecoder(c.In).Decode(&job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}

	slow := &slowReporter{ctx: ctx, wait: *wait, journal: c.Err, reports: io.Discard}
	if fd, err := strconv.Atoi(c.Value("REPORT_FD")); err == nil {
		slow.reports = os.NewFile(uintptr(fd), "REPORT_FD")
	}
	job.Reporter = slow
	document, err := orchestrator.New("builtin:document", orchestrator.Options{})
	if err != nil {
		return err
	}

	result, err := document.Analyze(ctx, job)
	if err == nil {
		err = slow.reach(1) // all of a run without reports
	}
	var permanent *orchestrator.PermanentError
	switch {
	case errors.As(err, &permanent):
		return cli.ExitError{Code: 65, Err: errors.New(permanent.Message)} // as exec: expects it
	case err != nil:
		return err
	}
	return c.PrintJSON(result)
}

// slowReporter is a Reporter that delays each report by a part of wait, in proportion to its
// progress. It writes the reports as lines of JSON to reports, and for people to journal.
type slowReporter struct {
	orchestrator.Reporter // nil: builtin:document calls Report only

	ctx              context.Context
	wait             time.Duration
	reports, journal io.Writer

	begun bool
	done  float64 // of the work
}

// Report implements orchestrator.Reporter.
func (r *slowReporter) Report(report orchestrator.Report) {
	if !r.begun { // the first report of a run that continues is not at 0
		r.begun, r.done = true, *report.Progress
	}
	if r.reach(*report.Progress) == nil { // on an error the part has not been finished
		cli.Print(r.journal, "%.0f%% %s\n", 100*r.done, *report.Message)
		_ = json.NewEncoder(r.reports).Encode(report) // fails only after the worker's end
	}
}

// reach waits for the time of the work up to progress, or returns the error of ctx.
func (r *slowReporter) reach(progress float64) error {
	select {
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-time.After(time.Duration(float64(r.wait) * (progress - r.done))):
	}
	r.done = progress
	return nil
}
