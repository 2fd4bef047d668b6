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
	"os"
	"regexp"
	"strings"

	"google.golang.org/api/option"

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
	guard, exports, err := open(ctx, cfg, log)
	if err != nil {
		return err
	}
	var kind worker.Kind
	if cfg.Job == "" {
		kind.Run = cfg.Analyzer.Analyze
	} else if kind.Start, err = startJob(ctx, cfg.Job, cfg.JobOptions...); err != nil {
		return err
	}
	work, err := guard.Register(kind)
	if err != nil {
		return err
	}
	routes, err := guard.Routes(work)
	if err != nil {
		return err
	}

	cfg.Auth.Warn(ctx, log)
	cfg.warnOfMisspelt(ctx, log)
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

// open opens the Guard and the exporters that cfg describes.
func open(ctx context.Context, cfg Config, log *slog.Logger) (*worker.Guard, *service.Exports, error) {
	if strings.HasPrefix(cfg.AnalyzerSpec, execScheme) {
		if err := conceal(); err != nil {
			log.WarnContext(ctx, "the analyzer's program can read the environment of this process", "error", err)
		}
	}

	o := cfg.Options
	o.Project, o.Log = cfg.Project, log
	exports, err := cfg.Telemetry.Export(ctx, log)
	if err != nil {
		return nil, nil, err
	}
	o.MeterProvider, o.TracerProvider = exports.Meters, exports.Tracers
	guard, err := worker.Open(ctx, o)
	return guard, exports, err
}

// Config is the worker's environment, read and checked.
type Config struct {
	service.Process
	Options      worker.Options
	Auth         env.TaskAuth
	Analyzer     orchestrator.Analyzer // nil with a Job
	AnalyzerSpec string
	Job          string // the Cloud Run job whose executions run the analyses; empty: they run here
	// JobOptions configure the connection to the Cloud Run Admin API.
	JobOptions []option.ClientOption

	variables *env.Environment
}

// execScheme begins an ANALYZER that is a program.
const execScheme = "exec:"

var variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\*?|\*)$`)

// ParseConfig reads the environment through lookup. Its error has one line for each
// problem, which names the variable.
func ParseConfig(lookup func(string) (string, bool)) (Config, error) {
	c, e := parseConfig(lookup, worker.FromEnv)
	c.Auth = e.TaskAuth(c.Emulator, "", false)
	e.Refuse(c.Job != "" && c.Options.Queue == (worker.Queue{}), "TASK_QUEUE",
		"missing: ANALYZER=job:… needs it, because recovery enqueues a run that died in the job")
	e.Refuse(c.Job != "" && c.Options.KeyField != "", "CONCURRENCY_KEY",
		"cannot be used with ANALYZER=job:…, which would start an execution for each analysis that only waits: "+
			"run the analyses in the worker, or unset it")
	return c, e.Err()
}

type lookup = func(string) (string, bool)

// parseConfig reads everything but TASK_AUTH, and the options with fromEnv.
func parseConfig(l lookup, fromEnv func(lookup) (worker.Options, error)) (c Config, e *env.Environment) {
	e = env.NewEnvironment(l)
	c.variables = e
	o, err := fromEnv(e.Lookup)
	e.Add(err)
	c.Options = o.Filled()
	if o.KeyField == "" && o.Queue != (worker.Queue{}) {
		e.Unused("belongs to CONCURRENCY_KEY, which is not set", "CONCURRENCY_LIMIT", "CONCURRENCY_RETRY")
	}
	c.Process = service.ReadProcess(e, "taskguard-worker", true)
	c.AnalyzerSpec = e.Text("ANALYZER", "builtin:document")
	c.readAnalyzer(e)
	return c, e
}

// readAnalyzer reads the variables of the analyzer that AnalyzerSpec names.
func (c *Config) readAnalyzer(e *env.Environment) {
	options := orchestrator.Options{
		AnyOutput: e.OneOf("ANALYZER_OUTPUT", "json", "any") == "any", Env: e.List("ANALYZER_ENV"),
	}
	if !strings.HasPrefix(c.AnalyzerSpec, execScheme) {
		e.Unused("belongs to ANALYZER=exec:…", "ANALYZER_ENV")
	}
	for name := range strings.SplitSeq(e.Text("ANALYZER_ENV", "*"), ",") {
		name = strings.TrimSpace(name)
		e.Refuse(!variable.MatchString(name), "ANALYZER_ENV",
			"%q is not a variable's name, or the beginning of one and a *", name)
	}

	if job, ok := strings.CutPrefix(c.AnalyzerSpec, jobScheme); ok {
		c.Job = job
		e.Refuse(!jobName.MatchString(job), "ANALYZER", "%q is not job:projects/P/locations/L/jobs/J", c.AnalyzerSpec)
		e.Unused("needs an analyzer that runs here, and ANALYZER=job:… starts runs elsewhere", "SMOKE_INPUT")
		return
	}
	var err error
	if c.Analyzer, err = orchestrator.New(c.AnalyzerSpec, options); err != nil {
		e.Problem("ANALYZER", "%s", text.Error(err))
	}
}

// Withheld returns the names of the variables of an environment that the analyzer's program does not get. It returns
// false if the analyzer is not a program.
func (c Config) Withheld(environment []string) ([]string, bool) {
	program, ok := c.Analyzer.(interface{ Withheld([]string) []string })
	if !ok {
		return nil, false
	}
	return program.Withheld(environment), true
}

// warnOfMisspelt logs a warning of each variable whose name may be misspelt. Those that the analyzer's program gets may
// be its own.
func (c Config) warnOfMisspelt(ctx context.Context, log *slog.Logger) {
	environment := os.Environ()
	if withheld, ok := c.Withheld(environment); ok {
		environment = withheld
	}
	c.variables.WarnOfMisspelt(ctx, log, environment)
}

// attrs returns the configuration, for the log.
func (c Config) attrs() []slog.Attr {
	o := c.Options
	withheld, _ := c.Withheld(os.Environ())
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
		slog.String("concurrency_key", o.KeyField), slog.Int("concurrency_limit", o.KeyLimit),
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
