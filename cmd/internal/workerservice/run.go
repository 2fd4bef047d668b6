package workerservice

import (
	"context"
	"errors"
	"log/slog"

	"taskguard/worker"
)

// ParseRunConfig is like ParseConfig, for Run: nobody calls the process, so it ignores TASK_AUTH, and
// RUN_TIMEOUT may be as long as MAX_RUN_TIME.
func ParseRunConfig(lookup func(string) (string, bool)) (Config, error) {
	c, e := parseConfig(lookup, worker.FromEnvNoHTTP)
	e.Refuse(c.Job != "", "ANALYZER", "%s starts this command in a job: want the analyzer that does the work",
		c.AnalyzerSpec)
	return c, e.Err()
}

// errLeft is why a run has no result.
var errLeft = errors.New("the run did not end in time: its lock is kept until it expires")

// Run runs one analysis of the kind k, as worker.Work.Run does. The end of ctx stops the run as gently as
// the stop of the worker, and within the same time.
func Run(ctx context.Context, cfg Config, k worker.Kind, id string, log *slog.Logger) (worker.RunResult, error) {
	guard, exports, err := open(ctx, cfg, log)
	if err != nil {
		return worker.RunResult{}, err
	}
	k.Run = cfg.Analyzer.Analyze
	work, err := guard.Register(k)
	if err != nil {
		return worker.RunResult{}, errors.Join(err, guard.Shutdown(ctx))
	}

	var result worker.RunResult
	lasting, ended := context.WithoutCancel(ctx), make(chan error, 1)
	go func() { // a run that outlives the stop ends with the process
		r, err := work.Run(lasting, id)
		result = r
		ended <- err
	}()
	select {
	case err = <-ended:
		ended <- err // for the wait after the stop
	case <-ctx.Done():
	}

	stopping, cancel := context.WithTimeout(lasting, cfg.Limits.Drain)
	defer cancel()
	if err := guard.Shutdown(stopping); err != nil {
		log.WarnContext(ctx, "not everything has ended", "error", err)
	}
	flushing, cancel := context.WithTimeout(lasting, cfg.Limits.Flush)
	defer cancel()
	exports.Stop(flushing)

	select {
	case err := <-ended:
		return result, err
	case <-stopping.Done():
		return worker.RunResult{}, errLeft
	}
}
