// Package service is the worker as a process: environment → Config → wire →
// serve. cmd/worker is it alone; cmd/taskguard's demo and local start it too.
package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"cloud.google.com/go/compute/metadata"

	"taskguard/repo"
	"taskguard/worker"
)

// Limits of the server, against slow clients. There is no WriteTimeout: it
// would cut long runs after they have finished.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// drain is how long after SIGTERM a run may go on; Cloud Run kills at 10 s.
	drain = 8 * time.Second
)

// Main runs the worker until SIGTERM or SIGINT and answers the exit code: 0, 2
// for a configuration error, 1 for any other.
func Main(ctx context.Context, lookup func(string) (string, bool), stdout io.Writer) (int, error) {
	cfg, err := ParseConfig(lookup)
	if err != nil {
		return 2, err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	if cfg.Project == "" {
		if cfg.Project, err = project(ctx, cfg.Emulator); err != nil {
			return 2, err
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(cfg.Port)))
	if err != nil {
		return 1, fmt.Errorf("PORT: %w", err)
	}
	if err := Serve(ctx, cfg, l, newLogger(stdout, cfg.LogFormat, cfg.LogLevel)); err != nil {
		return 1, err
	}
	return 0, nil
}

// Serve answers on l until ctx ends; then it stops claiming, cancels the runs,
// and gives them 8 s to release their locks and answer.
func Serve(ctx context.Context, cfg Config, l net.Listener, log *slog.Logger) error {
	analyses, err := repo.Open(ctx, cfg.Project, repo.Options{
		Database: cfg.Database, Collection: cfg.Collection, Policy: cfg.Policy, Log: log,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	handler := worker.NewServer(work, &worker.Guard{
		Locks: analyses, Records: analyses, Analyzer: cfg.Analyzer, Instance: instance(ctx),
		RunTimeout: cfg.RunTimeout, Log: log,
	})
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		handler.AwaitReady(ctx, analyses.Ping)
	}()
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	log.InfoContext(ctx, "serving", "address", l.Addr().String(), "analyzer", redact(cfg.AnalyzerSpec), "lock_ttl", cfg.Policy.TTL.String())
	select {
	case err = <-served:
	case <-ctx.Done():
		log.InfoContext(ctx, "stopping")
		cancel(worker.ErrStopping)
		drained, done := context.WithTimeout(context.WithoutCancel(ctx), drain)
		if server.Shutdown(drained) != nil {
			log.WarnContext(ctx, "a run is still going: its lock is kept until it expires")
		}
		done()
	}
	<-ready
	return errors.Join(err, analyses.Close())
}

// project asks the metadata server, which only Google's machines have.
func project(ctx context.Context, emulator string) (string, error) {
	const problem = "GOOGLE_CLOUD_PROJECT: not set, and no metadata server tells it"
	if emulator != "" {
		return "", errors.New("GOOGLE_CLOUD_PROJECT: must be set with FIRESTORE_EMULATOR_HOST, to any name")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if !metadata.OnGCEWithContext(ctx) {
		return "", errors.New(problem)
	}
	id, err := metadata.ProjectIDWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", problem, err)
	}
	return id, nil
}

// instance begins the owner of each delivery. The hostname is the same on
// every replica of Cloud Run, so it is never part of it.
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
