package worker

import (
	"cmp"
	"encoding/json"
	"errors"

	"taskguard/internal/delivery"
	"taskguard/internal/env"
	"taskguard/repo"
)

// FromEnv reads Options from the worker's environment variables with lookup, such as os.LookupEnv.
// docs/reference.md lists them. FromEnv ignores PORT and the variables for the analyzer, logs and telemetry.
// You can change any field of the result: a variable that is not set leaves a zero field, whose default
// Open fits to the others. The error has one line for each problem, which names the variable.
func FromEnv(lookup func(name string) (string, bool)) (Options, error) { return fromEnv(lookup, false) }

// FromEnvNoHTTP is like FromEnv, for a program that runs work only by [Work.Run]: it sets NoHTTP, ignores
// TASK_AUTH and its variables, and lets RUN_TIMEOUT be as long as MAX_RUN_TIME.
func FromEnvNoHTTP(lookup func(name string) (string, bool)) (Options, error) {
	return fromEnv(lookup, true)
}

func fromEnv(lookup func(name string) (string, bool), noHTTP bool) (Options, error) {
	e := env.NewEnvironment(lookup)
	firestore := e.Firestore()
	o := Options{
		Project: firestore.Project, Database: firestore.Database, Emulator: firestore.Emulator,
		Collection:         e.Checked("ANALYSES_COLLECTION", "analyses", repo.CheckCollection),
		Lock:               e.LockPolicy(),
		RunTimeout:         e.Duration("RUN_TIMEOUT", 0),
		CheckpointInterval: e.Duration("CHECKPOINT_INTERVAL", 0),
		StallTimeout:       e.DurationOrZero("STALL_TIMEOUT", 0),
		MaxRunTime:         e.Duration("MAX_RUN_TIME", 0),
		MaxRuns:            e.Integer("MAX_RUNS", 0, 1, 1_000_000),
		KeyField:           e.Text("CONCURRENCY_KEY", ""),
		KeyLimit:           e.Integer("CONCURRENCY_LIMIT", 0, 1, 1000),
		KeyHold:            e.OneOf("CONCURRENCY_RETRY", "pass", "hold") == "hold",
		NoHTTP:             noHTTP,
	}

	var auth env.TaskAuth
	if !noHTTP {
		auth = e.TaskAuth(firestore.Emulator, "", false)
	}
	switch auth.Mode {
	case "oidc":
		o.Auth = tokens(auth.Token)
	case "iam":
		o.Auth = CheckedByProxy()
	}
	o.Queue, o.Keep = e.TaskQueue(), e.KeepFinished()
	if input := e.Text("SMOKE_INPUT", ""); input != "" {
		o.SelfTest = json.RawMessage(input)
	}

	if o.Queue == (Queue{}) {
		e.Unused("belongs to TASK_QUEUE, which is not set", "RETRY_MIN", "RETRY_MAX",
			"CONCURRENCY_KEY", "CONCURRENCY_LIMIT", "CONCURRENCY_RETRY")
	} else {
		unsigned := auth.Mode == "none" || noHTTP && o.Queue.EmulatorHost+firestore.Emulator != ""
		e.Refuse(!unsigned && o.Queue.Caller == "", "TASK_CALLER",
			"must be set with TASK_QUEUE, to the service account that calls this worker")
	}
	o.RetryMin, o.RetryMax = e.Duration("RETRY_MIN", 0), e.Duration("RETRY_MAX", 0)

	// A variable that is not set has a fixed default, which another variable may contradict.
	complete := o
	complete.RunTimeout = cmp.Or(o.RunTimeout, delivery.DefaultRunTimeout)
	complete.RetryMin = cmp.Or(o.RetryMin, delivery.DefaultMinRetry)
	complete.RetryMax = cmp.Or(o.RetryMax, delivery.DefaultMaxRetry)
	if o.Queue.Caller == "" || auth.Token.Audience == "" { // which is reported, if it is a problem
		complete.Auth = CheckedByProxy()
	}
	for _, problem := range complete.Filled().check() {
		e.Add(errors.Unwrap(problem))
	}
	return o, e.Err()
}
