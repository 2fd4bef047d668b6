package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/cmd/worker/service"
	"taskguard/orchestrator"
)

// workerPID tells an analyzer which process to live as long as.
const workerPID = "TASKGUARD_WORKER_PID"

// orphanGrace is how long a worker whose parent is gone may take to end its
// runs; Firestore may be gone with the parent.
const orphanGrace = time.Second

// workerProcess is cmd/worker, but on the loopback interface alone, as no
// Google front end stands before it here, and reporting each run that begins.
func workerProcess(ctx context.Context, c *call) error {
	until := c.flags.Bool("until-stdin-closes", false, "end when standard input does, as when the parent dies")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	cfg, err := service.ParseConfig(c.lookup)
	if err != nil {
		return environmentError{err}
	}
	if cfg.Project == "" {
		return environmentError{missing("GOOGLE_CLOUD_PROJECT")}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if *until {
		go func() { // ends with the process: nothing interrupts a read of standard input
			_, _ = io.Copy(io.Discard, c.in)
			cancel()
			time.Sleep(orphanGrace)
			os.Exit(exitFailed)
		}()
	}
	if err := os.Setenv(workerPID, strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(c.out, &slog.HandlerOptions{Level: cfg.LogLevel}))
	cfg.Analyzer = announced(cfg.Analyzer, log)
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.Port)))
	if err != nil {
		return fmt.Errorf("PORT: %w", err)
	}
	return service.Serve(ctx, cfg, l, log)
}

// announced logs the beginning and the standard error of each run, for the parent to read.
func announced(a orchestrator.Analyzer, log *slog.Logger) orchestrator.AnalyzerFunc {
	return func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		fleet.Announce(ctx, log, fleet.Run{AnalysisID: job.AnalysisID, Token: job.LockToken, Attempt: job.Attempt})
		job.Stderr = fleet.Stderr(log, job.AnalysisID)
		return a.Analyze(ctx, job)
	}
}
