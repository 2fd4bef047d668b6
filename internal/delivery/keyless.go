package delivery

import (
	"cmp"
	"context"
	"sync/atomic"

	"taskguard/internal/telemetry"
	"taskguard/lease/analysislock"
)

// keylessLimit is after how many runs without a key, and none with one, a process warns.
const keylessLimit = 100

// Keyless counts the runs of a kind with keys until one has a key. The zero value is ready.
type Keyless struct {
	runs  atomic.Int64 // without a key
	found atomic.Bool  // a run had a key
}

// watchKeys logs one warning if none of the first runs of this process has a key: the field may be misspelt, or be
// no text, number or boolean, and a limit that protects others must be seen to work.
func (runner *Runner) watchKeys(ctx context.Context, acq analysislock.Acquisition) {
	switch {
	case runner.Keyless == nil, !acq.Acquired, runner.Keyless.found.Load():
	case acq.Key != "":
		runner.Keyless.found.Store(true)
	case runner.Keyless.runs.Add(1) == keylessLimit:
		runner.Log.WarnContext(ctx, "no analysis has a key, so no limit is in force: see CONCURRENCY_KEY",
			"runs", keylessLimit, "kind", cmp.Or(runner.Names.Kind, "analysis"))
	}
}

// measureParked records how many analyses wait for a slot of their key. An error does not stop the recovery.
func (runner *Runner) measureParked(ctx context.Context) {
	n, err := runner.Parked(ctx)
	if err != nil {
		runner.Log.WarnContext(ctx, "the number of parked analyses is unknown", "error", err)
		return
	}
	runner.Telemetry.Record(ctx, telemetry.Parked, float64(n))
}
