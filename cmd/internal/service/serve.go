// Package service runs a service as a process on Cloud Run: it has Cloud Logging's lines, an HTTP
// server with limits, telemetry's exporters, and a stop within the 10 s that Cloud Run allows.
package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"taskguard/internal/build"
	"taskguard/internal/children"
	"taskguard/internal/env"
	"taskguard/internal/telemetry"
)

// Limits bound the time and bytes of clients and of a stop.
type Limits struct {
	Header      time.Duration // until a request's header has arrived
	Request     time.Duration // until the whole request has arrived
	Idle        time.Duration // how long a connection may wait for its next request
	HeaderBytes int
	Drain       time.Duration // how long Service.Drain may take after a stop
	Answers     time.Duration // how long the last answers may take after Drain
	Flush       time.Duration // how long Service.Flush may take, while the answers are sent
}

// DefaultLimits stop within 9 s; Cloud Run kills at 10 s.
func DefaultLimits() Limits {
	return Limits{
		Header: 10 * time.Second, Request: 30 * time.Second, Idle: 2 * time.Minute, HeaderBytes: 64 << 10,
		Drain: 8 * time.Second, Answers: 500 * time.Millisecond, Flush: 2 * time.Second,
	}
}

// Server returns a server. It has no WriteTimeout: long runs answer late.
func (m Limits) Server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: m.Header, ReadTimeout: m.Request, IdleTimeout: m.Idle,
		MaxHeaderBytes: m.HeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Service is an HTTP service with the steps of its stop.
type Service struct {
	Handler    http.Handler
	Limits     Limits
	Background []func(context.Context) // run in the background until their context ends
	Drain      func(context.Context)   // lets no work begin, and waits for that in progress until its context ends
	Flush      func(context.Context)   // called once after Drain, and returns soon after its context ends; nil: none
	Log        *slog.Logger
}

// Serve logs config, and answers requests on l, each in its trace, until ctx ends or l fails.
// Then it stops, drains, and sends the last answers; while it drains, it answers requests of
// health. When all goroutines have ended, it returns the listener's error, or nil after the end
// of ctx.
func (s Service) Serve(ctx context.Context, l net.Listener, config ...slog.Attr) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server := s.Limits.Server(telemetry.Traced(s.Handler), s.Log)

	var others sync.WaitGroup
	for _, run := range s.Background {
		others.Go(func() { run(ctx) })
	}
	served := make(chan error, 1)
	others.Go(func() { served <- server.Serve(l) })

	s.Log.LogAttrs(ctx, slog.LevelInfo, "serving", append([]slog.Attr{
		slog.String("address", l.Addr().String()), slog.Int64("memory_limit", debug.SetMemoryLimit(-1)),
		slog.String("version", build.Release), slog.String("commit", build.Commit()),
	}, config...)...)
	select {
	case err = <-served:
	case <-ctx.Done():
	}

	s.Log.InfoContext(ctx, "stopping")
	stop()
	s.shut(context.WithoutCancel(ctx), server)
	others.Wait()
	return err
}

// shut drains, flushes, and closes every connection, within Limits.
func (s Service) shut(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, s.Limits.Drain+s.Limits.Answers)
	defer cancel()
	draining, cancel := context.WithTimeout(ctx, s.Limits.Drain)
	defer cancel()
	s.Drain(draining)

	var flushing sync.WaitGroup
	defer flushing.Wait()
	if s.Flush != nil {
		flushing.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.Limits.Flush)
			defer cancel()
			s.Flush(ctx)
		})
	}

	answering, cancel := context.WithTimeout(ctx, s.Limits.Answers)
	defer cancel()
	if server.Shutdown(answering) != nil { // a connection is still open
		_ = server.Close()
	}
}

// Process is the part of a service's environment that all services have.
type Process struct {
	env.Firestore
	Port      int
	LogFormat string
	LogLevel  slog.Level
	Telemetry Telemetry
	Limits    Limits // not from the environment
}

// ReadProcess reads the variables of a service. metrics reports whether it has metrics.
func ReadProcess(e *env.Environment, service string, metrics bool) Process {
	return Process{
		Firestore: e.Firestore(),
		Port:      e.Integer("PORT", 8080, 0, 65535),
		LogFormat: e.OneOf("LOG_FORMAT", "json", "text"),
		LogLevel:  e.Level("LOG_LEVEL"),
		Telemetry: readTelemetry(e, service, metrics),
		Limits:    DefaultLimits(),
	}
}

// Exit runs main, the main function of the program name, which takes no arguments. It prints the
// error of main, and ends the process with the exit code that main returns.
func Exit(name string,
	main func(ctx context.Context, lookup func(string) (string, bool), stdout io.Writer) (int, error),
) {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, name+" takes no arguments: it is configured by environment; see docs/reference.md")
		os.Exit(2)
	}
	go children.Reap(context.Background()) // ends with the process
	code, err := main(context.Background(), os.LookupEnv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// collectLess raises the collector's GOGC from 100 to 400 where a memory limit is in force, unless
// GOGC is set. A delivery leaves garbage many times the size of what lives, so at 100 the collector
// takes up to a third of the CPU. Near the limit the runtime collects as often as it must.
func collectLess() {
	if os.Getenv("GOGC") == "" && debug.SetMemoryLimit(-1) != math.MaxInt64 {
		debug.SetGCPercent(400)
	}
}

// Main serves on p.Port, on all interfaces, until SIGTERM or SIGINT. If p has no project,
// it asks the metadata server. It returns the exit code: 0, 2 for a configuration
// error, 1 for another. Unless GOMEMLIMIT is set, it sets the runtime's memory limit to
// nine tenths of the container's. See collectLess for GOGC.
func (p *Process) Main(
	ctx context.Context, stdout io.Writer, serve func(ctx context.Context, l net.Listener, log *slog.Logger) error,
) (int, error) {
	_, _ = memlimit.Set() // sets no limit without a readable cgroup; the line "serving" shows the limit
	collectLess()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process

	if p.Project == "" {
		var err error
		if p.Project, err = env.ProjectHere(ctx, p.Emulator); err != nil {
			return 2, err
		}
		p.Telemetry.Project = p.Project
	}

	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(p.Port)))
	if err != nil {
		return 1, fmt.Errorf("PORT: %w", err)
	}
	if err := serve(ctx, l, telemetry.NewLogger(stdout, p.LogFormat, p.LogLevel)); err != nil {
		return 1, err
	}
	return 0, nil
}
