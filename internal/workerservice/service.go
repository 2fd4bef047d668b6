// Package workerservice runs the worker as a process: environment → Config → wire → serve.
// cmd/worker consists of it; cmd/taskguard's demo and local start it too.
package workerservice

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"cloud.google.com/go/compute/metadata"

	"taskguard/internal/cloudrun"
	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Main runs the worker until SIGTERM or SIGINT and returns the exit code: 0, 2 for a
// configuration error, 1 for any other error. A program with an analyzer of its own
// passes it as own; nil means that of the environment.
func Main(ctx context.Context, lookup func(string) (string, bool), stdout io.Writer, own orchestrator.Analyzer) (int, error) {
	cfg, err := ParseConfig(lookup)
	if err != nil {
		return 2, err
	}
	if own != nil {
		if v, _ := lookup("ANALYZER"); v != "" {
			return 2, errors.New("ANALYZER: this program has an analyzer of its own; unset it")
		}
		cfg.Analyzer, cfg.AnalyzerSpec = own, "own"
	}
	return cfg.Main(ctx, stdout, func(ctx context.Context, l net.Listener, log *slog.Logger) error {
		return Serve(ctx, cfg, l, log)
	})
}

// Serve answers on l until ctx ends or l fails; then it takes no more deliveries,
// cancels the runs, and gives them 8 s to release their locks, book deliveries and
// answer. It returns the error of the listener or of what it could not open, and nil
// after the end of ctx.
func Serve(ctx context.Context, cfg Config, l net.Listener, log *slog.Logger) error {
	w, err := wire(ctx, cfg, log)
	if err != nil {
		return errors.Join(err, w.close(), l.Close())
	}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	handler := delivery.NewServer(work, w.guard, w.auth)
	handler.MaxRuns = cfg.MaxRuns
	w.background = append(w.background, func(ctx context.Context) {
		handler.AwaitReady(ctx, func(ctx context.Context) error { return cloudrun.Located(cfg.Emulator, w.analyses.Ping(ctx)) })
	})
	service := cloudrun.Service{
		Handler: handler, Limits: cfg.Limits, Flush: w.exports.Stop, Log: log,
		// Of the 8 s an analyzer that ignores SIGTERM takes 5 s; 2.5 s are left for the
		// release of its lock and the booking of another delivery.
		Stop: func() {
			cancel(&delivery.StopError{Deadline: time.Now().Add(cfg.Limits.Drain - cfg.Limits.Answers)})
		},
		Drain: func(ctx context.Context) {
			if left := handler.Drain(ctx); left > 0 {
				log.WarnContext(ctx, "runs are still going: their locks are kept until they expire", "runs", left)
			}
		},
		Background: w.background,
	}
	return errors.Join(service.Serve(ctx, l, cfg.attrs()...), w.close())
}

// wired holds the parts of the worker.
type wired struct {
	exports    *cloudrun.Exports
	guard      *delivery.Guard
	analyses   *repo.Analyses
	queue      *taskqueue.Queue        // nil: none
	auth       delivery.Authenticator  // nil: a proxy in front checks
	background []func(context.Context) // run while the service serves
}

// wire opens what cfg names and makes no call. The caller closes the result, also
// after an error.
func wire(ctx context.Context, cfg Config, log *slog.Logger) (w wired, err error) {
	w.analyses, err = repo.Open(ctx, cfg.Project, repo.Options{
		Database: cfg.Database, Collection: cfg.Collection, Emulator: cfg.Emulator, Policy: cfg.Policy, MaxRunTime: cfg.MaxRunTime, Pessimistic: cfg.Pessimistic, Log: log,
	})
	if err != nil {
		return w, err
	}
	w.guard = &delivery.Guard{
		Locks: w.analyses, Orphans: w.analyses, Oldest: w.analyses.OldestUnfinished, Analyzer: cfg.Analyzer, Instance: instance(ctx),
		RunTimeout: cfg.RunTimeout, CheckpointInterval: cfg.Checkpoint, StallTimeout: cfg.Stall, RetryMin: cfg.RetryMin, RetryMax: cfg.RetryMax, Log: log,
	}
	if cfg.Queue != nil {
		if w.queue, err = taskqueue.Open(ctx, *cfg.Queue); err != nil {
			return w, err
		}
		w.guard.Queue = w.queue
	}
	verifier, ours, err := cfg.Tasks.Verifier(ctx, log)
	if err != nil {
		return w, err
	}
	if ours {
		w.auth, w.background = verifier, append(w.background, verifier.Run)
	}
	// Last of all, so that only the service has to stop the exports.
	if w.exports, err = cfg.Telemetry.Export(ctx, log); err == nil && w.exports.On {
		w.guard.Telemetry, err = telemetry.New(w.exports.Meters, w.exports.Tracers)
	}
	return w, err
}

func (w wired) close() (err error) {
	if w.queue != nil {
		err = w.queue.Close()
	}
	if w.analyses != nil {
		err = errors.Join(err, w.analyses.Close())
	}
	return err
}

// instance returns the beginning of the owner of each delivery. The hostname is the
// same on every replica of Cloud Run, so it is not part of it.
func instance(ctx context.Context) string {
	revision := os.Getenv("K_REVISION")
	if revision == "" {
		return "local/" + rand.Text()[:8]
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	id, err := metadata.InstanceIDWithContext(ctx)
	if err != nil {
		id = rand.Text()
	}
	return revision + "/" + id[:min(16, len(id))]
}
