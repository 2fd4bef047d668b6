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

// Options configures a Guard. Every field has a default. [FromEnv] reads them from the environment variables listed in
// docs/reference.md.
type Options struct {
	// Project is the Google Cloud project. The default is GOOGLE_CLOUD_PROJECT, or the metadata server's answer.
	Project  string
	Database string // the Firestore database; the default is (default)
	// Emulator is the host:port of a Firestore emulator. FIRESTORE_EMULATOR_HOST overrides it.
	Emulator string
	// Collection has the documents of the kind analysis. The default is analyses.
	Collection string

	// Queue is the Cloud Tasks queue for submitted work, for the next attempt, and after a crash. Without a Queue
	// nothing is enqueued, and a delivery that must be repeated is answered by an error.
	Queue Queue
	// Auth checks the caller of each request. The default requires an OIDC token of the Queue's Caller. With an
	// emulator the default checks nobody.
	Auth Authenticator
	// NoHTTP is for a program that only calls [Work.Run]. Its handlers refuse every request, so it needs no Auth, and
	// its RunTimeout may be as long as MaxRunTime.
	NoHTTP bool

	Lock lease.Policy // the locks' times; 10 attempts if MaxAttempts is zero
	// RunTimeout limits one run. The default is 25 minutes, or MaxRunTime if that is shorter.
	RunTimeout time.Duration
	// MaxRunTime limits the time from the first attempt to the last. The default is 24 hours.
	MaxRunTime time.Duration
	// CheckpointInterval is how long a reported checkpoint may wait for its commit. The default is 10 seconds.
	CheckpointInterval time.Duration
	// StallTimeout ends a run that reports nothing for this long, except a run of Do. Zero means no limit.
	StallTimeout time.Duration
	// RetryMin and RetryMax bound the wait before the next attempt, with a Queue. The defaults are 30 seconds and 10
	// minutes. If you set only one, the other adapts.
	RetryMin, RetryMax time.Duration
	MaxRuns            int // how many deliveries run at once, of all kinds; the default is 100
	// KeyField is a field of the documents, such as tenant or input.account. At most KeyLimit documents of a kind
	// with the same value run at a time. It is for the kinds without KeyFields. A Kind with a Start is refused.
	KeyField string
	KeyLimit int  // how many run at a time, unless the Kind has a KeyLimit; the default is 1
	KeyHold  bool // keeps the key of a document until its next attempt, for all kinds; see Kind
	// Keep sets expireAt, for a TTL policy, this long after a document is finished. Zero sets none.
	Keep time.Duration
	// SelfTest is the input on which POST /internal/self-test runs the work, without a document, to test a release.
	// Without it the route answers 404.
	SelfTest json.RawMessage

	Log            *slog.Logger         // the default is slog.Default()
	MeterProvider  metric.MeterProvider // receives metrics, if it is set
	TracerProvider trace.TracerProvider // receives spans, if it is set

	// FirestoreOptions and QueueOptions configure the clients' connections.
	FirestoreOptions, QueueOptions []option.ClientOption
}

// Queue is a Cloud Tasks queue, and how its tasks call this service.
//
//	Name         string // projects/P/locations/L/queues/Q
//	TargetURL    string // the base URL of this service
//	Caller       string // the service account whose OIDC token the tasks carry; without it they carry none
//	Audience     string // the audience of that token; the default is TargetURL
//	EmulatorHost string // host:port of an emulator of Cloud Tasks
//
// Check returns what is wrong with it, and Filled adds the defaults.
type Queue = taskqueue.Config

// Authenticator checks the caller of a request. Check returns nil to let the caller in. An error that matches
// ErrForbidden is answered 403, ErrNoKeys 503, and any other 401. Check is called concurrently. Its error is logged, so
// it must not contain a token.
type Authenticator interface {
	Check(r *http.Request) error
}

// Errors of an Authenticator.
var (
	ErrForbidden = taskauth.ErrForbidden // the caller is known, and may not call
	ErrNoKeys    = taskauth.ErrNoKeys    // the keys to check a caller are not available now
)

// OIDC returns an Authenticator that accepts Google's ID tokens for this audience and these service accounts. Set it as
// Options.Auth itself, because Open makes it fetch Google's keys: inside another Authenticator it refuses every request
// with ErrNoKeys. Open refuses an empty audience.
func OIDC(audience string, accounts ...string) Authenticator {
	return tokens{Audience: audience, Accounts: accounts}
}

// tokens are the claims of a valid token. Open makes the verifier, which fetches keys.
type tokens taskauth.Options

// Check implements Authenticator, before Open.
func (tokens) Check(*http.Request) error { return ErrNoKeys }

// CheckedByProxy returns an Authenticator that accepts every request, for a service whose
// callers Cloud Run (roles/run.invoker) or another proxy checks.
func CheckedByProxy() Authenticator { return always{} }

// always answers every request in the same way.
type always struct{ err error }

// Check implements Authenticator.
func (a always) Check(*http.Request) error { return a.err }

// Why a Guard refuses every request: nobody has said who may call, or nobody is expected to.
var (
	errNoAuth = errors.New("worker: nothing checks the callers: set Options.Auth, or Options.Queue with a Caller")
	errNoHTTP = errors.New("worker: Options.NoHTTP is set: this program answers no requests")
)

// check returns the problems of o, after its defaults have been filled in. Each begins with the field, and
// wraps an error that begins with the environment variable for this field.
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
			"%q differs from the audience of the Queue's tasks, %q", accepted.Audience, o.Queue.Audience)
	}

	refuse(o.RunTimeout <= 0, "RunTimeout", "RUN_TIMEOUT", "%v is not positive", o.RunTimeout)
	refuse(o.RunTimeout > longest && !o.NoHTTP, "RunTimeout", "RUN_TIMEOUT",
		"%v is over %v: %s", o.RunTimeout, longest, reason)
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
	refuse(o.KeyLimit < 0, "KeyLimit", "CONCURRENCY_LIMIT", "%d is negative", o.KeyLimit)
	if o.KeyField != "" {
		add("KeyField", env.Named("CONCURRENCY_KEY", Kind{}.concurrency(o).Check()))
	}
	add("Keep", env.CheckKeep(o.Keep, queued))
	refuse(o.SelfTest != nil && !json.Valid(o.SelfTest), "SelfTest", "SMOKE_INPUT", "it is not JSON")
	return problems
}

// Filled returns o with defaults for the durations and numbers that are zero, and for the Queue. The defaults adapt to
// the fields that you have set.
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

// complete returns o with the defaults of its zero fields, or an error if they cannot work.
func (o Options) complete() (Options, error) {
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

// maxRetry is the longest wait before an attempt.
const maxRetry = 12 * time.Hour

// authenticator returns what checks the callers of all requests.
func (o Options) authenticator() (Authenticator, error) {
	if o.NoHTTP {
		return always{errNoHTTP}, nil
	}
	switch auth := o.Auth.(type) {
	case nil:
		if o.Emulator == "" {
			return always{errNoAuth}, nil
		}
		return CheckedByProxy(), nil
	case tokens:
		auth.Log = o.Log
		return taskauth.New(taskauth.Options(auth))
	}
	return o.Auth, nil
}
