// Package workerservice runs the worker as a process: it reads the environment, opens a
// worker.Guard and serves its routes. cmd/worker runs only this package; the commands demo and
// local of cmd/taskguard start it too.
package workerservice

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"

	"taskguard/cmd/internal/service"
	"taskguard/worker"
)

// Main runs the worker until SIGTERM or SIGINT and returns the exit code: 0, 2 for a
// configuration error, 1 for any other error.
func Main(ctx context.Context, lookup func(string) (string, bool), stdout io.Writer) (int, error) {
	cfg, err := ParseConfig(lookup)
	if err != nil {
		return 2, err
	}
	return cfg.Main(ctx, stdout, func(ctx context.Context, l net.Listener, log *slog.Logger) error {
		return Serve(ctx, cfg, l, log)
	})
}

// Serve answers on l until ctx ends or l fails. Then it takes no more deliveries, cancels the
// runs, and gives them 8 s to release their locks, book deliveries and answer. Its error is that
// of the listener, or of a connection that it could not open. After the end of ctx it is nil.
func Serve(ctx context.Context, cfg Config, l net.Listener, log *slog.Logger) error {
	defer func() { _ = l.Close() }() // where nothing was served
	if strings.HasPrefix(cfg.AnalyzerSpec, execScheme) {
		if err := conceal(); err != nil {
			log.WarnContext(ctx, "the analyzer's program can read the environment of this process", "error", err)
		}
	}

	o := cfg.Options
	o.Project, o.Log = cfg.Project, log
	exports, err := cfg.Telemetry.Export(ctx, log)
	if err != nil {
		return err
	}
	o.MeterProvider, o.TracerProvider = exports.Meters, exports.Tracers
	guard, err := worker.Open(ctx, o)
	if err != nil {
		return err
	}
	work, err := guard.Register(worker.Kind{Run: cfg.Analyzer.Analyze})
	if err != nil {
		return err
	}
	routes, err := guard.Routes(work)
	if err != nil {
		return err
	}

	cfg.Auth.Warn(ctx, log)
	running := service.Service{
		Handler: routes,
		Limits:  cfg.Limits, Flush: exports.Stop, Log: log,
		// Of the 8 s, an analyzer that ignores SIGTERM takes 5 s. 2.5 s remain for the release of
		// its lock and the booking of another delivery.
		Drain: func(ctx context.Context) {
			if err := guard.Shutdown(ctx); err != nil {
				log.WarnContext(ctx, "not everything has ended", "error", err)
			}
		},
	}
	return running.Serve(ctx, l, cfg.attrs()...)
}
