package worker

import (
	"encoding/json"
	"slices"
	"time"

	"taskguard/internal/cloudrun"
	"taskguard/internal/delivery"
)

// FromEnv reads Options from the variables of the worker, with lookup such as os.LookupEnv:
// those in docs/reference.md but PORT, ANALYZER, ANALYZER_OUTPUT and those of logs and telemetry. Its
// error has one line for each problem, which names the variable.
func FromEnv(lookup func(name string) (string, bool)) (Options, error) {
	e := cloudrun.NewEnvironment(lookup)
	at := e.Firestore()
	o := Options{
		Project: at.Project, Database: at.Database, Emulator: at.Emulator,
		Collection:         e.Collection("ANALYSES_COLLECTION", "analyses"),
		Lock:               e.LockPolicy(),
		RunTimeout:         e.Duration("RUN_TIMEOUT", delivery.DefaultRunTimeout),
		CheckpointInterval: e.Duration("CHECKPOINT_INTERVAL", delivery.DefaultCheckpointInterval),
		StallTimeout:       e.DurationOrZero("STALL_TIMEOUT", 0),
		MaxRunTime:         e.Duration("MAX_RUN_TIME", delivery.DefaultMaxRunTime),
		MaxRuns:            e.Integer("MAX_RUNS", 100, 1, 1_000_000),
		Pessimistic:        e.OneOf("FIRESTORE_TRANSACTIONS", "optimistic", "pessimistic") == "pessimistic",
	}
	if o.RunTimeout > 24*time.Hour {
		e.Problem("RUN_TIMEOUT", "%v is over 24h, and Cloud Run ends a request after one", o.RunTimeout)
	}
	if o.CheckpointInterval < time.Second {
		e.Problem("CHECKPOINT_INTERVAL", "%v is under 1s", o.CheckpointInterval)
	}
	if o.StallTimeout >= o.RunTimeout {
		e.Problem("STALL_TIMEOUT", "%v is not under RUN_TIMEOUT, %v", o.StallTimeout, o.RunTimeout)
	}
	if o.MaxRunTime < o.RunTimeout {
		e.Problem("MAX_RUN_TIME", "%v is under RUN_TIMEOUT, %v", o.MaxRunTime, o.RunTimeout)
	}
	auth := e.TaskAuth(at.Emulator, "", false)
	switch auth.Mode {
	case "oidc":
		o.Auth = tokens(auth.Token)
	case "iam":
		o.Auth = CheckedByProxy()
	}
	o.Queue, o.Keep = queue(e, auth), e.KeepFinished()
	o.RetryMin, o.RetryMax = retries(e, o.Queue != Queue{})

	if input := e.Text("SMOKE_INPUT", ""); input != "" {
		if o.SelfTest = json.RawMessage(input); !json.Valid(o.SelfTest) {
			e.Problem("SMOKE_INPUT", "is not JSON")
		}
	}
	return o, e.Err()
}

// queue reads the queue of the follow-ups, their target and their caller.
func queue(e *cloudrun.Environment, auth cloudrun.TaskAuth) Queue {
	c := e.TaskQueue()
	if c == nil {
		return Queue{}
	}
	switch {
	case auth.Mode == "none":
	case c.Caller == "":
		e.Problem("TASK_CALLER", "must be set with TASK_QUEUE, to the service account that calls this worker")
	case auth.Mode == "oidc" && len(auth.Token.Accounts) > 0 && !slices.Contains(auth.Token.Accounts, c.Caller):
		e.Problem("TASK_CALLER", "%q is not in TASK_SERVICE_ACCOUNTS: this worker would refuse its own follow-ups", c.Caller)
	}
	return Queue{Name: c.Queue, TargetURL: c.TargetURL, Caller: c.Caller, Audience: c.Audience, EmulatorHost: c.EmulatorHost}
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
	case longest > maxRetry:
		e.Problem("RETRY_MAX", "%v is over 12h", longest)
	}
	return shortest, longest
}
