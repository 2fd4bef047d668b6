package worker

import (
	"encoding/json"
	"errors"
	"slices"

	"taskguard/internal/delivery"
	"taskguard/internal/env"
	"taskguard/repo"
)

// FromEnv reads Options from the worker's variables with lookup, such as os.LookupEnv.
// docs/reference.md lists them; FromEnv ignores PORT and those of the analyzer, logs and telemetry.
// Its error has one line for each problem, which names the variable.
func FromEnv(lookup func(name string) (string, bool)) (Options, error) {
	e := env.NewEnvironment(lookup)
	firestore := e.Firestore()
	o := Options{
		Project: firestore.Project, Database: firestore.Database, Emulator: firestore.Emulator,
		Collection:         e.Checked("ANALYSES_COLLECTION", "analyses", repo.CheckCollection),
		Lock:               e.LockPolicy(),
		RunTimeout:         e.Duration("RUN_TIMEOUT", delivery.DefaultRunTimeout),
		CheckpointInterval: e.Duration("CHECKPOINT_INTERVAL", delivery.DefaultCheckpointInterval),
		StallTimeout:       e.DurationOrZero("STALL_TIMEOUT", 0),
		MaxRunTime:         e.Duration("MAX_RUN_TIME", delivery.DefaultMaxRunTime),
		MaxRuns:            e.Integer("MAX_RUNS", 100, 1, 1_000_000),
		Pessimistic:        e.OneOf("FIRESTORE_TRANSACTIONS", "optimistic", "pessimistic") == "pessimistic",
	}

	auth := e.TaskAuth(firestore.Emulator, "", false)
	switch auth.Mode {
	case "oidc":
		o.Auth = tokens(auth.Token)
	case "iam":
		o.Auth = CheckedByProxy()
	}
	o.Queue, o.Keep = queue(e, auth), e.KeepFinished()
	if input := e.Text("SMOKE_INPUT", ""); input != "" {
		o.SelfTest = json.RawMessage(input)
	}

	if o.Queue == (Queue{}) {
		e.Unused("belongs to TASK_QUEUE, which is not set", "RETRY_MIN", "RETRY_MAX")
	}
	o.RetryMin = e.Duration("RETRY_MIN", delivery.DefaultMinRetry)
	o.RetryMax = e.Duration("RETRY_MAX", delivery.DefaultMaxRetry)

	for _, problem := range o.check() {
		e.Add(errors.Unwrap(problem))
	}
	return o, e.Err()
}

// queue reads the queue, and checks that this worker accepts its tasks.
func queue(e *env.Environment, auth env.TaskAuth) Queue {
	c := e.TaskQueue()
	switch {
	case c == (Queue{}), auth.Mode == "none":
	case c.Caller == "":
		e.Problem("TASK_CALLER", "must be set with TASK_QUEUE, to the service account that calls this worker")
	case auth.Mode == "oidc" && len(auth.Token.Accounts) > 0 && !slices.Contains(auth.Token.Accounts, c.Caller):
		e.Problem("TASK_CALLER",
			"%q is not in TASK_SERVICE_ACCOUNTS: this worker would refuse its own follow-ups", c.Caller)
	}
	return c
}
