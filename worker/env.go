package worker

import (
	"encoding/json"
	"slices"

	"taskguard/internal/delivery"
	"taskguard/internal/env"
	"taskguard/repo"
)

// FromEnv reads Options from the variables of the worker, with lookup such as os.LookupEnv:
// those in docs/reference.md but PORT, ANALYZER, ANALYZER_OUTPUT and those of logs and telemetry. Its
// error has one line for each problem, which names the variable.
func FromEnv(lookup func(name string) (string, bool)) (Options, error) {
	e := env.NewEnvironment(lookup)
	at := e.Firestore()
	o := Options{
		Project: at.Project, Database: at.Database, Emulator: at.Emulator,
		Collection:         e.Checked("ANALYSES_COLLECTION", "analyses", repo.CheckCollection),
		Lock:               e.LockPolicy(),
		RunTimeout:         e.Duration("RUN_TIMEOUT", delivery.DefaultRunTimeout),
		CheckpointInterval: e.Duration("CHECKPOINT_INTERVAL", delivery.DefaultCheckpointInterval),
		StallTimeout:       e.DurationOrZero("STALL_TIMEOUT", 0),
		MaxRunTime:         e.Duration("MAX_RUN_TIME", delivery.DefaultMaxRunTime),
		MaxRuns:            e.Integer("MAX_RUNS", 100, 1, 1_000_000),
		Pessimistic:        e.OneOf("FIRESTORE_TRANSACTIONS", "optimistic", "pessimistic") == "pessimistic",
	}

	auth := e.TaskAuth(at.Emulator, "", false)
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

	for _, p := range o.check() {
		e.Add(p.err)
	}
	return o, e.Err()
}

// queue reads the queue of the follow-ups, their target and their caller.
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
