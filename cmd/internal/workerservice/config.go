package workerservice

import (
	"log/slog"
	"net/url"
	"regexp"
	"strings"

	"taskguard/cmd/internal/service"
	"taskguard/internal/env"
	"taskguard/internal/text"
	"taskguard/orchestrator"
	"taskguard/worker"
)

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
		slog.Bool("pessimistic", o.Pessimistic), slog.String("keep_finished", o.Keep.String()),
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
