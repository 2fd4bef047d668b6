package workerservice

import (
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"taskguard/internal/cloudrun"
	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/orchestrator"
)

// Config is the worker's environment, read and checked.
type Config struct {
	cloudrun.Process
	Collection   string
	Policy       lease.Policy
	RunTimeout   time.Duration
	Checkpoint   time.Duration // the longest that a report waits
	Stall        time.Duration // 0: off
	MaxRunTime   time.Duration
	RetryMin     time.Duration // the wait after the first attempt, with a Queue
	RetryMax     time.Duration
	MaxRuns      int // deliveries handled at once
	Pessimistic  bool
	Analyzer     orchestrator.Analyzer
	AnalyzerSpec string
	Tasks        cloudrun.TaskAuth
	Queue        *taskqueue.Config // nil: no follow-ups and no recovery
}

// ParseConfig reads the environment through lookup. Its error has one line for each
// problem, which names the variable.
func ParseConfig(lookup func(string) (string, bool)) (Config, error) {
	e := cloudrun.NewEnvironment(lookup)
	c := Config{
		Process:      e.Process("taskguard-worker", true),
		Collection:   e.Collection("ANALYSES_COLLECTION", "analyses"),
		Policy:       e.LockPolicy(),
		RunTimeout:   e.Duration("RUN_TIMEOUT", delivery.DefaultRunTimeout),
		Checkpoint:   e.Duration("CHECKPOINT_INTERVAL", delivery.DefaultCheckpointInterval),
		Stall:        e.DurationOrZero("STALL_TIMEOUT", 0),
		MaxRunTime:   e.Duration("MAX_RUN_TIME", delivery.DefaultMaxRunTime),
		MaxRuns:      e.Integer("MAX_RUNS", 100, 1, 1_000_000),
		Pessimistic:  e.OneOf("FIRESTORE_TRANSACTIONS", "optimistic", "pessimistic") == "pessimistic",
		AnalyzerSpec: e.Text("ANALYZER", "builtin:document"),
	}
	if c.RunTimeout > 24*time.Hour {
		e.Problem("RUN_TIMEOUT", "%v is over 24h, and Cloud Run ends a request after one", c.RunTimeout)
	}
	if c.Checkpoint < time.Second {
		e.Problem("CHECKPOINT_INTERVAL", "%v is under 1s", c.Checkpoint)
	}
	if c.Stall >= c.RunTimeout {
		e.Problem("STALL_TIMEOUT", "%v is not under RUN_TIMEOUT, %v", c.Stall, c.RunTimeout)
	}
	if c.MaxRunTime < c.RunTimeout {
		e.Problem("MAX_RUN_TIME", "%v is under RUN_TIMEOUT, %v", c.MaxRunTime, c.RunTimeout)
	}
	var err error
	output := orchestrator.Options{JSON: e.OneOf("ANALYZER_OUTPUT", "any", "json") == "json"}
	if c.Analyzer, err = orchestrator.New(c.AnalyzerSpec, output); err != nil {
		e.Problem("ANALYZER", "%s", strings.TrimPrefix(err.Error(), "orchestrator: "))
	}
	c.Tasks = e.TaskAuth(c.Emulator, "", false)
	c.Queue = queue(e, c.Tasks)
	c.RetryMin, c.RetryMax = retries(e, c.Queue != nil)
	return c, e.Err()
}

// queue reads the queue of the follow-ups, their target and their caller.
func queue(e *cloudrun.Environment, auth cloudrun.TaskAuth) *taskqueue.Config {
	c := e.TaskQueue()
	if c == nil {
		return nil
	}
	switch {
	case auth.Mode == "none":
	case c.Caller == "":
		e.Problem("TASK_CALLER", "must be set with TASK_QUEUE, to the service account that calls this worker")
	case auth.Mode == "oidc" && len(auth.Token.Accounts) > 0 && !slices.Contains(auth.Token.Accounts, c.Caller):
		e.Problem("TASK_CALLER", "%q is not in TASK_SERVICE_ACCOUNTS: this worker would refuse its own follow-ups", c.Caller)
	}
	return c
}

// retries reads the bounds of the wait between attempts.
func retries(e *cloudrun.Environment, queue bool) (shortest, longest time.Duration) {
	if !queue {
		e.Unused("belongs to TASK_QUEUE, which is not set", "RETRY_MIN", "RETRY_MAX")
	}
	shortest, longest = e.Duration("RETRY_MIN", delivery.DefaultMinRetry), e.Duration("RETRY_MAX", delivery.DefaultMaxRetry)
	switch {
	case shortest > longest:
		e.Problem("RETRY_MIN", "%v is over RETRY_MAX, %v", shortest, longest)
	case longest > 12*time.Hour:
		e.Problem("RETRY_MAX", "%v is over 12h", longest)
	}
	return shortest, longest
}

// attrs returns the configuration, for the log.
func (c Config) attrs() []slog.Attr {
	queue := "" // none
	if c.Queue != nil {
		queue = c.Queue.Queue
	}
	return []slog.Attr{
		slog.String("task_auth", c.Tasks.Mode), slog.String("task_keys", redact(c.Tasks.Token.KeysURL)), slog.String("task_queue", queue),
		slog.String("project", c.Project), slog.String("database", c.Database), slog.String("collection", c.Collection),
		slog.String("emulator", c.Emulator), slog.String("analyzer", redact(c.AnalyzerSpec)),
		slog.String("lock_ttl", c.Policy.TTL.String()), slog.String("lock_heartbeat", c.Policy.Heartbeat.String()),
		slog.Int("max_attempts", c.Policy.MaxAttempts), slog.String("run_timeout", c.RunTimeout.String()),
		slog.String("checkpoint_interval", c.Checkpoint.String()), slog.String("stall_timeout", c.Stall.String()), slog.String("max_run_time", c.MaxRunTime.String()),
		slog.String("retry_min", c.RetryMin.String()), slog.String("retry_max", c.RetryMax.String()),
		slog.Int("max_runs", c.MaxRuns), slog.Bool("pessimistic", c.Pessimistic),
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
