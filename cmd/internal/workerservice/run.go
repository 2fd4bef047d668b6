package workerservice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"taskguard/orchestrator"
	"taskguard/worker"
)

// ParseRunConfig is like ParseConfig, for Run: nobody calls the process, so it ignores TASK_AUTH, PORT and
// SMOKE_INPUT, and RUN_TIMEOUT may be as long as MAX_RUN_TIME. MAX_RUNS is 1, so an attempt that crashes counts as
// alone. ANALYZER has no default: the wrong one could finish the analysis.
func ParseRunConfig(lookup func(string) (string, bool)) (Config, error) {
	one := func(name string) (string, bool) {
		switch name {
		case "MAX_RUNS":
			return "1", true
		case "PORT", "SMOKE_INPUT":
			return "", false
		}
		return lookup(name)
	}
	c, e := parseConfig(one, worker.FromEnvNoHTTP)
	e.Refuse(e.Text("ANALYZER", "") == "", "ANALYZER",
		"must be set: exec:PROGRAM ARG…, http://…, https://… or builtin:document")
	e.Refuse(c.Job != "", "ANALYZER", "%s starts this command in a job: want the analyzer that does the work",
		c.AnalyzerSpec)
	return c, e.Err()
}

// ErrNotOpened is the error of a Run that has not begun because a client could not be made: the settings or
// the credentials are wrong.
var ErrNotOpened = errors.New("nothing was run")

var errNotEnded = errors.New("the run has not ended in the time of the stop: its lock is kept until it expires")

// grace is for the return of a run that has ended just before the end of the stop.
const grace = 250 * time.Millisecond

// Run runs one analysis of the kind k, as worker.Work.Run does, and copies the standard error of its program
// to stderr. The end of ctx stops the run as gently as the stop of the worker, and within the same time: a run
// that has not ended by then is given up.
func Run(ctx context.Context, cfg Config, k worker.Kind, id string, log *slog.Logger, stderr io.Writer,
) (worker.RunResult, error) {
	guard, exports, err := open(ctx, cfg, log)
	if err != nil {
		return worker.RunResult{}, fmt.Errorf("%w: %w", ErrNotOpened, err)
	}
	cfg.warnOfMisspelt(ctx, log)
	lasting := context.WithoutCancel(ctx)
	stop := func() {
		stopping, cancel := context.WithTimeout(lasting, cfg.Limits.Drain)
		defer cancel()
		if err := guard.Shutdown(stopping); err != nil {
			log.WarnContext(ctx, "not everything has ended", "error", err)
		}
		exports.Stop(stopping)
	}

	k.Run = func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		job.Stderr = stderr
		return cfg.Analyzer.Analyze(ctx, job)
	}
	work, err := guard.Register(k)
	if err != nil {
		stop()
		return worker.RunResult{}, err
	}

	r, ended := worker.RunResult{}, make(chan struct{})
	go func() {
		defer close(ended)
		r, err = work.Run(lasting, id)
	}()
	select {
	case <-ended:
		stop()
		return r, err
	case <-ctx.Done():
		stop()
	}
	select {
	case <-ended:
		return r, err
	case <-time.After(grace):
		return worker.RunResult{Outcome: "unavailable"}, errNotEnded
	}
}
