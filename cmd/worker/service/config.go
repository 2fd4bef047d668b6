package service

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
	"taskguard/worker"
	"taskguard/worker/taskauth"
	"taskguard/worker/taskqueue"
)

// Config is the worker's environment, read and checked.
type Config struct {
	Port         int
	Project      string // empty: from the metadata server
	Database     string
	Emulator     string // FIRESTORE_EMULATOR_HOST, which Google's library reads itself
	Collection   string
	Policy       lease.Policy
	RunTimeout   time.Duration
	Analyzer     orchestrator.Analyzer
	AnalyzerSpec string
	Auth         string            // oidc, iam or none
	Token        taskauth.Options  // with oidc
	Queue        *taskqueue.Config // nil: no follow-ups and no recovery
	LogFormat    string
	LogLevel     slog.Level

	limits limits // not of the environment
}

// ParseConfig reads the environment through lookup. Its error holds one line a
// problem, each naming its variable.
func ParseConfig(lookup func(string) (string, bool)) (Config, error) {
	e := environment{lookup: lookup}
	c := Config{
		Port:         e.integer("PORT", 8080, 0, 65535),
		Project:      e.name("GOOGLE_CLOUD_PROJECT", ""),
		Database:     e.name("FIRESTORE_DATABASE", "(default)"),
		Emulator:     e.address("FIRESTORE_EMULATOR_HOST"),
		Collection:   e.text("ANALYSES_COLLECTION", "analyses"),
		RunTimeout:   e.duration("RUN_TIMEOUT", worker.DefaultRunTimeout),
		AnalyzerSpec: e.text("ANALYZER", "builtin:document"),
		LogFormat:    e.oneOf("LOG_FORMAT", "json", "text"),
		LogLevel:     e.level("LOG_LEVEL"),
		limits:       defaultLimits(),
	}
	if c.RunTimeout > 24*time.Hour {
		e.problem("RUN_TIMEOUT", "%v is over 24h, and Cloud Run ends a request after one", c.RunTimeout)
	}
	c.Policy = e.policy()
	err := repo.CheckCollection(c.Collection)
	if err != nil {
		e.problem("ANALYSES_COLLECTION", "%v", err)
	}
	if c.Analyzer, err = orchestrator.New(c.AnalyzerSpec, orchestrator.Options{}); err != nil {
		e.problem("ANALYZER", "%v", err)
	}
	c.Auth = e.auth(c.Emulator)
	c.Token = e.token(c.Auth)
	c.Queue = e.queue(c.Auth, c.Token)
	return c, errors.Join(e.problems...)
}

// environment reads variables and gathers what is wrong with them. An empty
// variable counts as unset.
type environment struct {
	lookup   func(string) (string, bool)
	problems []error
}

func (e *environment) problem(name, format string, args ...any) {
	e.problems = append(e.problems, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

func (e *environment) text(name, def string) string {
	if v, ok := e.lookup(name); ok && v != "" {
		return v
	}
	return def
}

// name is a text that will be part of a resource's path.
func (e *environment) name(name, def string) string {
	v := e.text(name, def)
	if strings.ContainsFunc(v, func(r rune) bool { return r == '/' || r <= ' ' || r > '~' }) {
		e.problem(name, "%q is not a name", v)
	}
	return v
}

func (e *environment) address(name string) string {
	v := e.text(name, "")
	if _, port, err := net.SplitHostPort(v); v != "" && (err != nil || port == "" || strings.Contains(v, "/")) {
		e.problem(name, "%q is not host:port", v)
	}
	return v
}

func (e *environment) integer(name string, def, lo, hi int) int {
	v := e.text(name, "")
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < lo || n > hi {
		e.problem(name, "%q is not a number from %d to %d", v, lo, hi)
		return def
	}
	return n
}

func (e *environment) duration(name string, def time.Duration) time.Duration {
	v := e.text(name, "")
	if v == "" {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		e.problem(name, "%q is not a positive duration such as 300s or 25m", v)
		return def
	}
	return d
}

func (e *environment) oneOf(name string, def string, others ...string) string {
	v := e.text(name, def)
	if v == def {
		return v
	}
	for _, o := range others {
		if v == o {
			return v
		}
	}
	e.problem(name, "%q is not one of %s", v, strings.Join(append([]string{def}, others...), ", "))
	return def
}

// list reads what is separated by commas.
func (e *environment) list(name string) (all []string) {
	for part := range strings.SplitSeq(e.text(name, ""), ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

func (e *environment) level(name string) (l slog.Level) {
	if v := e.text(name, "info"); l.UnmarshalText([]byte(v)) != nil {
		e.problem(name, "%q is not one of debug, info, warn, error", v)
	}
	return l
}

func (e *environment) policy() lease.Policy {
	p := lease.Policy{
		TTL:         e.duration("LOCK_TTL", lease.DefaultTTL),
		MaxAttempts: e.integer("MAX_ATTEMPTS", 10, 1, 1_000_000),
	}
	p.Heartbeat = e.duration("LOCK_HEARTBEAT", p.TTL/3)
	if err := p.Check(); err != nil {
		e.problem("LOCK_TTL, LOCK_HEARTBEAT", "%v", err)
	}
	return p
}

// auth wants the mode said, and refuses what contradicts it.
func (e *environment) auth(emulator string) string {
	mode := e.text("TASK_AUTH", "")
	switch mode {
	case "":
		e.problem("TASK_AUTH", "must be set: oidc (the worker verifies tokens), iam (Cloud Run's check in front), or none together with FIRESTORE_EMULATOR_HOST")
	case "oidc", "iam":
	case "none":
		if emulator == "" {
			e.problem("TASK_AUTH", "none is for emulators: it needs FIRESTORE_EMULATOR_HOST")
		}
	default:
		e.problem("TASK_AUTH", "%q is not one of oidc, iam, none", mode)
	}
	return mode
}

// stray refuses variables that are set and would mean nothing.
func (e *environment) stray(why string, names ...string) {
	for _, name := range names {
		if e.text(name, "") != "" {
			e.problem(name, "%s", why)
		}
	}
}

// token reads what a valid token says.
func (e *environment) token(mode string) taskauth.Options {
	o := taskauth.Options{
		Audience: e.text("TASK_AUDIENCE", ""), Accounts: e.list("TASK_SERVICE_ACCOUNTS"), KeysURL: e.text("TASK_JWKS_URL", ""),
	}
	if mode != "oidc" {
		e.stray("belongs to TASK_AUTH=oidc", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS", "TASK_JWKS_URL")
		return taskauth.Options{}
	}
	if o.Audience == "" {
		e.problem("TASK_AUDIENCE", "must be set with TASK_AUTH=oidc, to the audience of the queue's tokens")
	}
	if len(o.Accounts) == 0 {
		e.problem("TASK_SERVICE_ACCOUNTS", "must be set with TASK_AUTH=oidc, to the accounts that may call, separated by commas")
	}
	for _, account := range o.Accounts {
		if !strings.Contains(account, "@") {
			e.problem("TASK_SERVICE_ACCOUNTS", "%q is not the e-mail address of a service account", account)
		}
	}
	if u, err := url.Parse(o.KeysURL); o.KeysURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil) {
		e.problem("TASK_JWKS_URL", "is not an http or https URL")
	}
	return o
}

// queue reads where follow-ups are booked, whom they call and as whom.
func (e *environment) queue(mode string, token taskauth.Options) *taskqueue.Config {
	c := taskqueue.Config{
		Queue: e.text("TASK_QUEUE", ""), TargetURL: e.text("TASK_TARGET_URL", ""), Caller: e.text("TASK_CALLER", ""),
		Audience: token.Audience, EmulatorHost: e.text("CLOUD_TASKS_EMULATOR_HOST", ""),
	}
	if c.Queue == "" {
		e.stray("belongs to TASK_QUEUE, which is not set", "TASK_TARGET_URL", "TASK_CALLER", "CLOUD_TASKS_EMULATOR_HOST")
		return nil
	}
	if err := c.Check(); err != nil {
		e.problems = append(e.problems, err)
	}
	switch {
	case mode == "none":
	case c.Caller == "":
		e.problem("TASK_CALLER", "must be set with TASK_QUEUE, to the service account that calls this worker")
	case mode == "oidc" && len(token.Accounts) > 0 && !slices.Contains(token.Accounts, c.Caller):
		e.problem("TASK_CALLER", "%q is not in TASK_SERVICE_ACCOUNTS: this worker would refuse its own follow-ups", c.Caller)
	}
	return &c
}

// attrs is the configuration in force, for the log.
func (c Config) attrs() []slog.Attr {
	queue := "" // none
	if c.Queue != nil {
		queue = c.Queue.Queue
	}
	return []slog.Attr{
		slog.String("task_auth", c.Auth), slog.String("task_keys", redact(c.Token.KeysURL)), slog.String("task_queue", queue),
		slog.String("project", c.Project), slog.String("database", c.Database), slog.String("collection", c.Collection),
		slog.String("emulator", c.Emulator), slog.String("analyzer", redact(c.AnalyzerSpec)),
		slog.String("lock_ttl", c.Policy.TTL.String()), slog.String("lock_heartbeat", c.Policy.Heartbeat.String()),
		slog.Int("max_attempts", c.Policy.MaxAttempts), slog.String("run_timeout", c.RunTimeout.String()),
	}
}

// located is an error of Firestore's with where it was looked for.
func (c Config) located(err error) error {
	if err == nil || c.Emulator == "" {
		return err
	}
	return fmt.Errorf("emulator %s: %w", c.Emulator, err)
}

// redact is a URL without what may be secret in it.
func redact(spec string) string {
	if u, err := url.Parse(spec); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	name, _, _ := strings.Cut(spec, " ")
	return name
}
