package operate

import (
	"cmp"
	"context"
	"errors"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/telemetry"
	"taskguard/internal/text"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// exitLater is the exit code of a run that has not finished its analysis, as a later one can: EX_TEMPFAIL of
// sysexits.h.
const exitLater = 75

// Run runs one analysis in this process, as a delivery does in the worker.
func Run(ctx context.Context, c *cli.Call) error {
	c.TakesKind(firstKind)
	c.TakesJSON("print what happened as one JSON line")
	args, err := c.Parse(1, 1)
	if err == nil {
		err = checkID(args[0])
	}
	if err != nil {
		return err
	}

	e := c.Environment()
	cfg, err := workerservice.ParseRunConfig(c.Lookup)
	e.Add(err)
	places, err := c.Places(e)
	if err == nil {
		err = cli.Reach(ctx, cli.FirestoreEmulator, cfg.Options.Emulator)
	}
	if err == nil {
		err = cli.Reach(ctx, cli.TasksEmulator, cfg.Options.Queue.EmulatorHost)
	}
	if err != nil {
		return err
	}

	id, log := args[0], telemetry.NewLogger(c.Err, cmp.Or(c.Value("LOG_FORMAT"), "text"), cfg.LogLevel)
	r, err := workerservice.Run(ctx, cfg, places[0].Kind, id, log)
	if r.Outcome == "" {
		return err
	}
	sentence := printable.Line(id + " " + happened(r, err))
	switch {
	case c.JSON:
		_ = c.PrintJSON(struct { // cli.Run reports its error
			ID string `json:"id"`
			worker.RunResult
		}{id, r})
	case err == nil:
		cli.Print(c.Out, "%s\n", sentence)
	}

	switch r.Outcome {
	case "ready", "already_finished":
		return nil
	case "failed", "not_found", "malformed":
		return errors.New(sentence)
	}
	return cli.ExitError{Code: exitLater, Err: errors.New(sentence)}
}

// unfinished has in words why a run has not finished its analysis, by its outcome.
var unfinished = map[string]string{
	"locked":        "is locked by another run, which may renew the lock",
	"waiting":       "is not due",
	"retry":         "failed for now",
	"continued":     "passed RUN_TIMEOUT with a new checkpoint, from which the next attempt continues",
	"shutting_down": "was stopped, and can run again",
	"lock_lost":     "lost its lock: nothing of this run is written",
}

// happened says in words what a run has done. err is that of worker.Work.Run.
func happened(r worker.RunResult, err error) string {
	failure, next := "", "; no delivery is booked"
	if r.Code != "" {
		failure = ", " + r.Code + ": " + r.Message
	}
	switch {
	case r.Booked:
		next = "; the next delivery is booked"
	case r.Status != "": // another program has finished the analysis
		next = "; it is " + r.Status
	}
	if !r.RetryAt.IsZero() {
		next = ", until " + iso8601.Format(r.RetryAt) + next
	}

	switch r.Outcome {
	case "ready":
		return "is READY"
	case "already_finished":
		return "was " + r.Status + " before: nothing was run"
	case "failed":
		return "is FAILED" + failure
	case "not_found":
		return "does not exist"
	}
	return cmp.Or(unfinished[r.Outcome], "cannot be finished now: "+text.Error(cmp.Or(errors.Unwrap(err), err))) +
		failure + next
}
