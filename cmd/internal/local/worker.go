package local

import (
	"context"
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

// Worker runs cmd/worker on the loopback interface, and reports each run that begins. It ends when
// its standard input closes, as when the process that has started it dies.
func Worker(ctx context.Context, c *cli.Call) error {
	slow := c.Flags.Duration("slow", 0, "how long a run of builtin:document takes, as in the demo")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	cfg, err := workerservice.ParseConfig(c.Lookup)
	if err != nil {
		return cli.EnvironmentError{Err: err}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // runs until the process ends: a read of standard input cannot be interrupted
		_, _ = io.Copy(io.Discard, c.In)
		cancel()
		time.Sleep(orphanGrace)
		os.Exit(cli.ExitFailed)
	}()

	log := slog.New(slog.NewJSONHandler(c.Out, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if *slow > 0 {
		cfg.Analyzer = slowed(cfg.Analyzer, *slow)
	}
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

// slowed returns builtin:document with runs that take so long.
func slowed(document orchestrator.Analyzer, run time.Duration) orchestrator.AnalyzerFunc {
	return func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		r := &slowReporter{Reporter: job.Reporter, ctx: ctx, run: run}
		job.Reporter = r
		result, err := document.Analyze(ctx, job)
		if err == nil {
			err = r.reach(1) // all of a run without reports
		}
		return result, err
	}
}

// slowReporter delays each report by a part of run, in proportion to its progress.
type slowReporter struct {
	orchestrator.Reporter

	ctx  context.Context
	run  time.Duration
	done float64 // of the work
}

// Report implements orchestrator.Reporter.
func (r *slowReporter) Report(report orchestrator.Report) {
	if r.reach(*report.Progress) == nil { // on an error the part has not been finished
		r.Reporter.Report(report)
	}
}

// reach waits for the time of the work up to progress, or returns the error of ctx.
func (r *slowReporter) reach(progress float64) error {
	select {
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	case <-time.After(time.Duration(float64(r.run) * (progress - r.done))):
	}
	r.done = progress
	return nil
}
