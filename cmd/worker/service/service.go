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
	"sync"
	"syscall"
	"time"

	"cloud.google.com/go/compute/metadata"

	"taskguard/orchestrator"
	"taskguard/repo"
	"taskguard/worker"
	"taskguard/worker/taskauth"
	"taskguard/worker/taskqueue"
)

// limits bound what clients, and a stop, may take.
type limits struct {
	header      time.Duration // for a request's header to arrive
	request     time.Duration // for all of it
	idle        time.Duration // between two requests of a connection
	headerBytes int
	drain       time.Duration // after a stop: for runs to end, release their locks and answer
	answers     time.Duration // after that: for answers to leave
}

// defaultLimits stop within 9 s: an analyzer that ignores SIGTERM is killed at
// 5 s, its lock's release takes at most 2 s and the booking of another delivery
// 0.7 s; Cloud Run kills at 10 s.
func defaultLimits() limits {
	return limits{
		header: 10 * time.Second, request: 30 * time.Second, idle: 2 * time.Minute, headerBytes: 64 << 10,
		drain: 8 * time.Second, answers: 500 * time.Millisecond,
	}
}

// server has no WriteTimeout: it would cut off the answers of long runs.
func (m limits) server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: m.header, ReadTimeout: m.request, IdleTimeout: m.idle,
		MaxHeaderBytes: m.headerBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Main runs the worker until SIGTERM or SIGINT and answers the exit code: 0, 2
// for a configuration error, 1 for any other. A program with an analyzer of its
// own gives it as own; nil is the environment's.
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

// Serve answers on l until ctx ends or l fails; then it stops claiming, cancels
// the runs, and gives them 8 s to release their locks, book deliveries and
// answer. Its error is the listener's, or of what it could not open; that ctx
// has ended is none.
func Serve(ctx context.Context, cfg Config, l net.Listener, log *slog.Logger) error {
	w, err := wire(ctx, cfg, log)
	if err != nil {
		return errors.Join(err, w.close(), l.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	handler := worker.NewServer(work, w.guard, w.auth())
	server := cfg.limits.server(handler, log)
	var others sync.WaitGroup
	others.Go(func() {
		handler.AwaitReady(ctx, func(ctx context.Context) error { return cfg.located(w.analyses.Ping(ctx)) })
	})
	if w.verifier != nil {
		others.Go(func() { w.verifier.Run(ctx) })
	}
	served := make(chan error, 1)
	others.Go(func() { served <- server.Serve(l) })
	log.LogAttrs(ctx, slog.LevelInfo, "serving", append([]slog.Attr{slog.String("address", l.Addr().String())}, cfg.attrs()...)...)
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	log.InfoContext(ctx, "stopping")
	stop()
	cancel(worker.ErrStopping)
	cfg.limits.shut(context.WithoutCancel(ctx), server, handler, log)
	others.Wait()
	return errors.Join(err, w.close())
}

// wired is what the worker is made of.
type wired struct {
	guard    *worker.Guard
	analyses *repo.Analyses
	queue    *taskqueue.Queue   // nil: none
	verifier *taskauth.Verifier // nil: others check who calls
}

// wire opens what cfg names, without a call yet. What it answers is to be
// closed, also beside an error.
func wire(ctx context.Context, cfg Config, log *slog.Logger) (w wired, err error) {
	w.analyses, err = repo.Open(ctx, cfg.Project, repo.Options{
		Database: cfg.Database, Collection: cfg.Collection, Policy: cfg.Policy, Log: log,
	})
	if err != nil {
		return w, err
	}
	w.guard = &worker.Guard{
		Locks: w.analyses, Records: w.analyses, Backlog: w.analyses, Analyzer: cfg.Analyzer, Instance: instance(ctx),
		RunTimeout: cfg.RunTimeout, Log: log,
	}
	if cfg.Queue != nil {
		if w.queue, err = taskqueue.Open(ctx, *cfg.Queue); err != nil {
			return w, err
		}
		w.guard.Queue = w.queue
	}
	switch cfg.Auth {
	case "oidc":
		cfg.Token.Log = log
		w.verifier, err = taskauth.New(ctx, cfg.Token)
	case "iam", "none": // checked by others
	default:
		err = fmt.Errorf("TASK_AUTH: %q is not one of oidc, iam, none", cfg.Auth)
	}
	return w, err
}

// auth is the verifier, or no Authenticator at all.
func (w wired) auth() worker.Authenticator {
	if w.verifier == nil {
		return nil
	}
	return w.verifier
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

// shut returns when the runs have ended, or their time is over, and every
// connection is closed. Until the runs have ended, health is still answered.
func (m limits) shut(ctx context.Context, server *http.Server, handler *worker.Server, log *slog.Logger) {
	draining, done := context.WithTimeout(ctx, m.drain)
	defer done()
	if left := handler.Drain(draining); left > 0 {
		log.WarnContext(ctx, "runs are still going: their locks are kept until they expire", "runs", left)
	}
	answering, done := context.WithTimeout(ctx, m.answers)
	defer done()
	if server.Shutdown(answering) != nil { // a client has not sent its request
		_ = server.Close()
	}
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
