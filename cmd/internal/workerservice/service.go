// Package workerservice runs the worker as a process: it reads the environment, opens a
// worker.Guard and serves its routes. cmd/worker runs only this package; the commands demo and
// local of cmd/taskguard start it too.
package workerservice

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"

	"taskguard/cmd/internal/service"
	"taskguard/internal/env"
	"taskguard/internal/text"
	"taskguard/orchestrator"
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

	cfg.Auth.Warn(ctx, log)
	running := service.Service{
		Handler: guard.Routes(worker.Kind{Run: cfg.Analyzer.Analyze}),
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

// Config is the worker's environment, read and checked.
type Config struct {
	service.Process
	Options      worker.Options
	Auth         env.TaskAuth
	Analyzer     orchestrator.Analyzer
	AnalyzerSpec string
}

// execScheme begins an ANALYZER that is a program.
const execScheme = "exec:"

var variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\*?|\*)$`)

// ParseConfig reads the environment through lookup. Its error has one line for each
// problem, which names the variable.
func ParseConfig(lookup func(string) (string, bool)) (c Config, err error) {
	e := env.NewEnvironment(lookup)
	if c.Options, err = worker.FromEnv(lookup); err != nil {
		e.Add(err)
	}
	c.Options = c.Options.Filled()
	c.Process = service.ReadProcess(e, "taskguard-worker", true)
	c.Auth = e.TaskAuth(c.Emulator, "", false)
	c.AnalyzerSpec = e.Text("ANALYZER", "builtin:document")
	options := orchestrator.Options{
		JSON: e.OneOf("ANALYZER_OUTPUT", "any", "json") == "json", Env: e.List("ANALYZER_ENV"),
	}
	if !strings.HasPrefix(c.AnalyzerSpec, execScheme) {
		e.Unused("belongs to ANALYZER=exec:…", "ANALYZER_ENV")
	}
	for name := range strings.SplitSeq(e.Text("ANALYZER_ENV", "*"), ",") {
		name = strings.TrimSpace(name)
		e.Refuse(!variable.MatchString(name), "ANALYZER_ENV",
			"%q is not a variable's name, or the beginning of one and a *", name)
	}
	if c.Analyzer, err = orchestrator.New(c.AnalyzerSpec, options); err != nil {
		e.Problem("ANALYZER", "%s", text.Error(err))
	}
	return c, e.Err()
}

// attrs returns the configuration, for the log.
func (c Config) attrs() []slog.Attr {
	o := c.Options
	var withheld []string // names
	if program, ok := c.Analyzer.(interface{ Withheld() []string }); ok {
		withheld = program.Withheld()
	}
	return []slog.Attr{
		slog.String("task_auth", c.Auth.Mode), slog.String("task_keys", redact(c.Auth.Token.KeysURL)),
		slog.String("task_queue", o.Queue.Name), slog.String("project", c.Project),
		slog.String("database", c.Database), slog.String("collection", o.Collection),
		slog.String("emulator", c.Emulator), slog.String("analyzer", redact(c.AnalyzerSpec)),
		slog.String("analyzer_env_withheld", strings.Join(withheld, ",")),
		slog.String("lock_ttl", o.Lock.TTL.String()), slog.String("lock_heartbeat", o.Lock.Heartbeat.String()),
		slog.Int("max_attempts", o.Lock.MaxAttempts), slog.String("run_timeout", o.RunTimeout.String()),
		slog.String("checkpoint_interval", o.CheckpointInterval.String()),
		slog.String("stall_timeout", o.StallTimeout.String()),
		slog.String("max_run_time", o.MaxRunTime.String()), slog.String("retry_min", o.RetryMin.String()),
		slog.String("retry_max", o.RetryMax.String()), slog.Int("max_runs", o.MaxRuns),
		slog.String("keep_finished", o.Keep.String()),
		c.Telemetry.Attr(),
	}
}

// redact removes what may be secret from a URL or a command.
func redact(spec string) string {
	if u, err := url.Parse(spec); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	name, _, _ := strings.Cut(spec, " ")
	return name
}
