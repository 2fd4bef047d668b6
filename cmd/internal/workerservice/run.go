package workerservice

import (
	"context"
	"log/slog"
	"sync"

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

// Run runs one analysis of the kind k, as worker.Work.Run does. The end of ctx stops the run as gently as
// the stop of the worker, and within the same time.
func Run(ctx context.Context, cfg Config, k worker.Kind, id string, log *slog.Logger) (worker.RunResult, error) {
	guard, exports, err := open(ctx, cfg, log)
	if err != nil {
		return worker.RunResult{}, err
	}
	lasting := context.WithoutCancel(ctx)
	stop := sync.OnceFunc(func() {
		stopping, cancel := context.WithTimeout(lasting, cfg.Limits.Drain)
		defer cancel()
		if err := guard.Shutdown(stopping); err != nil {
			log.WarnContext(ctx, "not everything has ended", "error", err)
		}
		exports.Stop(stopping)
	})
	defer stop()

	k.Run = cfg.Analyzer.Analyze
	work, err := guard.Register(k)
	if err != nil {
		return worker.RunResult{}, err
	}
	defer context.AfterFunc(ctx, stop)()
	return work.Run(lasting, id)
}
