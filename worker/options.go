package worker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/api/option"

	"taskguard/internal/delivery"
	"taskguard/internal/env"
	"taskguard/internal/taskauth"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/repo"
)

// Options configures a Guard. A zero field has the default of the worker's variable of the same
// meaning; docs/reference.md describes these variables, and FromEnv reads them.
type Options struct {
	Project  string // empty: GOOGLE_CLOUD_PROJECT, or that of Google's metadata server
	Database string // empty: (default)
	Emulator string // host:port of a Firestore emulator; FIRESTORE_EMULATOR_HOST takes precedence
	// Collection is that of the kind analysis, unless the Kind names one; empty: analyses.
	Collection string

	// Queue books deliveries: of submitted work, of the next attempt, and after a crash. The
	// zero Queue books nothing: a delivery that must be repeated is answered by an error.
	Queue Queue
	// Auth checks the caller of each request. Nil: no caller is checked if an emulator is used;
	// else a request needs an OIDC token of the Queue's Caller for its audience.
	Auth Authenticator

	Lock       lease.Policy  // MaxAttempts zero: 10
	RunTimeout time.Duration // of one run; zero: 25 min, or MaxRunTime if that is shorter
	MaxRunTime time.Duration // of all attempts at one piece of work; zero: 24 h
	// CheckpointInterval is the longest time from a reported checkpoint to its commit; zero: 10 s.
	CheckpointInterval time.Duration
	// StallTimeout ends a run, unless it is one of Do, that has reported nothing for so long.
	// Zero: no limit.
	StallTimeout time.Duration
	// RetryMin and RetryMax bound the wait before the next attempt, with a Queue; zero: 30 s
	// and 10 min, or the other one if that would be beyond it.
	RetryMin, RetryMax time.Duration
	MaxRuns            int           // deliveries handled at once, of all kinds; zero: 100
	Keep               time.Duration // from a document's finish to its expireAt; zero: no expireAt
	// SelfTest is the input of the run that POST /internal/self-test of Routes makes, without a
	// document, for a release; nil: that route answers 404.
	SelfTest json.RawMessage

	Log            *slog.Logger         // nil: slog.Default()
	MeterProvider  metric.MeterProvider // nil: no metrics
	TracerProvider trace.TracerProvider // nil: no spans

	// FirestoreOptions and QueueOptions are for the clients' connections.
	FirestoreOptions, QueueOptions []option.ClientOption
}

// Queue is a queue of Cloud Tasks, and how its tasks call this service.
//
//	Name         string // projects/P/locations/L/queues/Q
//	TargetURL    string // the base URL of this service
//	Caller       string // the service account whose OIDC token the tasks carry; empty: no token
//	Audience     string // of that token; empty: TargetURL
//	EmulatorHost string // host:port of an emulator; empty: Google's
//
// Its methods Check and Filled return its problems, and the Queue with its defaults.
type Queue = taskqueue.Config

// Authenticator checks the caller of a request. It returns nil if the caller may pass. An
// error that matches ErrForbidden is answered 403, ErrNoKeys 503, and any other 401. The
// error is logged, so it must not contain a token. Check is called concurrently.
type Authenticator interface {
	Check(r *http.Request) error
}

// Errors of an Authenticator.
var (
	ErrForbidden = taskauth.ErrForbidden // the caller is known, and may not call
	ErrNoKeys    = taskauth.ErrNoKeys    // no caller can be checked now
)

// OIDC returns an Authenticator that accepts Google's ID tokens for audience, of one of the
// service accounts. Open refuses an empty audience; the Guard fetches Google's keys. The
// Authenticator works only as Options.Auth itself.
func OIDC(audience string, accounts ...string) Authenticator {
	return tokens{Audience: audience, Accounts: accounts}
}

// tokens configures the verifier that Open makes.
type tokens taskauth.Options

// Check implements Authenticator, before Open.
func (tokens) Check(*http.Request) error { return ErrNoKeys }

// CheckedByProxy returns an Authenticator that accepts every request, for a service whose
// callers Cloud Run (roles/run.invoker) or another proxy checks.
func CheckedByProxy() Authenticator { return checkedByProxy{} }

type checkedByProxy struct{}

// Check implements Authenticator.
func (checkedByProxy) Check(*http.Request) error { return nil }

// check returns the problems of o. Each begins with a field, and wraps an error that begins with the
// variable of the same meaning. check expects that no field needs a default.
func (o Options) check() (problems []error) {
	add := func(field string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s, %w", field, err))
		}
	}
	refuse := func(wrong bool, field, variable, format string, args ...any) {
		if wrong {
			add(field, fmt.Errorf(variable+": "+format, args...))
		}
	}

	add("Project", env.Named("GOOGLE_CLOUD_PROJECT", env.CheckName(o.Project)))
	add("Database", env.Named("FIRESTORE_DATABASE", env.CheckName(o.Database)))
	add("Emulator", env.Named("FIRESTORE_EMULATOR_HOST", env.CheckAddress(o.Emulator)))
	add("Collection", env.Named("ANALYSES_COLLECTION", repo.CheckCollection(cmp.Or(o.Collection, "analyses"))))
	add("Lock", env.Named("LOCK_TTL, LOCK_HEARTBEAT", o.Lock.Check()))

	queued := o.Queue != (Queue{})
	longest, reason := 24*time.Hour, "Cloud Run ends a request after one hour"
	if queued {
		longest, reason = taskqueue.MaxDeadline, "Cloud Tasks then delivers the task again"
		add("Queue", o.Queue.Check())
		add("Queue", env.Named("CLOUD_TASKS_EMULATOR_HOST", env.CheckAddress(o.Queue.EmulatorHost)))
	}
	if accepted, ok := o.Auth.(tokens); ok && queued && len(accepted.Accounts) > 0 {
		refuse(!slices.Contains(accepted.Accounts, o.Queue.Caller), "Auth", "TASK_CALLER",
			"%q is not in TASK_SERVICE_ACCOUNTS: this worker would refuse its own tasks", o.Queue.Caller)
		refuse(accepted.Audience != o.Queue.Audience, "Auth", "TASK_AUDIENCE",
			"%q is not that of the Queue's tasks, %q", accepted.Audience, o.Queue.Audience)
	}

	refuse(o.RunTimeout <= 0, "RunTimeout", "RUN_TIMEOUT", "%v is not positive", o.RunTimeout)
	refuse(o.RunTimeout > longest, "RunTimeout", "RUN_TIMEOUT", "%v is over %v: %s", o.RunTimeout, longest, reason)
	refuse(o.CheckpointInterval < time.Second, "CheckpointInterval", "CHECKPOINT_INTERVAL",
		"%v is under 1s", o.CheckpointInterval)
	refuse(o.StallTimeout < 0, "StallTimeout", "STALL_TIMEOUT", "%v is negative", o.StallTimeout)
	refuse(o.StallTimeout >= o.RunTimeout, "StallTimeout", "STALL_TIMEOUT",
		"%v is not under RUN_TIMEOUT, %v", o.StallTimeout, o.RunTimeout)
	refuse(o.MaxRunTime < o.RunTimeout, "MaxRunTime", "MAX_RUN_TIME",
		"%v is under RUN_TIMEOUT, %v", o.MaxRunTime, o.RunTimeout)
	refuse(o.MaxRuns < 0, "MaxRuns", "MAX_RUNS", "%d is negative", o.MaxRuns)
	refuse(o.RetryMin < 0, "RetryMin", "RETRY_MIN", "%v is negative", o.RetryMin)
	refuse(o.RetryMin > o.RetryMax, "RetryMin", "RETRY_MIN", "%v is over RETRY_MAX, %v", o.RetryMin, o.RetryMax)
	refuse(o.RetryMax > maxRetry, "RetryMax", "RETRY_MAX", "%v is over 12h", o.RetryMax)
	add("Keep", env.CheckKeep(o.Keep, queued))
	refuse(o.SelfTest != nil && !json.Valid(o.SelfTest), "SelfTest", "SMOKE_INPUT", "it is not JSON")
	return problems
}

// Filled returns o with the defaults of its zero durations and numbers, and of the Queue. A default
// that is related to another field fits that field.
func (o Options) Filled() Options {
	o.Lock.TTL = cmp.Or(o.Lock.TTL, lease.DefaultTTL)
	o.Lock.Heartbeat = cmp.Or(o.Lock.Heartbeat, o.Lock.TTL/3)
	o.Lock.MaxAttempts = cmp.Or(o.Lock.MaxAttempts, 10)
	o.MaxRuns = cmp.Or(o.MaxRuns, 100)
	o.Queue = o.Queue.Filled()

	o.MaxRunTime = cmp.Or(o.MaxRunTime, delivery.DefaultMaxRunTime)
	o.RunTimeout = cmp.Or(o.RunTimeout, min(delivery.DefaultRunTimeout, o.MaxRunTime))
	o.CheckpointInterval = cmp.Or(o.CheckpointInterval, delivery.DefaultCheckpointInterval)
	if o.RetryMax == 0 {
		o.RetryMax = max(delivery.DefaultMaxRetry, o.RetryMin)
	}
	o.RetryMin = cmp.Or(o.RetryMin, min(delivery.DefaultMinRetry, o.RetryMax))
	return o
}

// filled returns o with the defaults of its zero fields, or an error if they cannot work.
func (o Options) filled() (Options, error) {
	o = o.Filled()
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Emulator = cmp.Or(os.Getenv("FIRESTORE_EMULATOR_HOST"), o.Emulator)
	o.Project = cmp.Or(o.Project, os.Getenv("GOOGLE_CLOUD_PROJECT"))
	if o.Auth == nil && o.Emulator == "" && o.Queue.Caller != "" {
		o.Auth = OIDC(o.Queue.Audience, o.Queue.Caller)
	}

	err, emulated := errors.Join(o.check()...), o.Emulator+o.Queue.EmulatorHost != ""
	if err == nil && emulated && os.Getenv("K_SERVICE") != "" {
		err = errors.New("an emulator is named on Cloud Run, where K_SERVICE is set")
	}
	return o, err
}

// maxRetry is the longest wait before an attempt. A later time would not be credible.
const maxRetry = 12 * time.Hour

// authenticator returns the Authenticator of all requests.
func (o Options) authenticator() (Authenticator, error) {
	switch auth := o.Auth.(type) {
	case nil:
		return CheckedByProxy(), nil // unless an emulator is used, each handler panics
	case tokens:
		auth.Log = o.Log
		return taskauth.New(taskauth.Options(auth))
	}
	return o.Auth, nil
}
