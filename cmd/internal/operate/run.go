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

// happened says in words what a run has done. err is that of worker.Work.Run.
func happened(r worker.RunResult, err error) string {
	failure, at, next := "", iso8601.Format(r.RetryAt), "; no delivery is booked"
	if r.Code != "" {
		failure = ", " + r.Code + ": " + r.Message
	}
	switch {
	case r.Booked:
		next = "; the next delivery is booked"
	case r.Status != "": // the lock was lost, as another program has finished the analysis
		next = "; it is " + r.Status
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
	case "locked":
		return "is locked by another run until " + at + ", and longer if that renews the lock" + next
	case "waiting":
		return "is not due: its next attempt begins at " + at + next
	case "retry":
		return "failed for now" + failure + next
	case "continued":
		return "passed RUN_TIMEOUT with a new checkpoint, from which the next attempt continues" + next
	case "shutting_down":
		return "was stopped, and can run again" + next
	case "lock_lost":
		return "lost its lock: nothing of this run is written" + next
	}
	return "cannot be finished now: " + text.Error(cmp.Or(errors.Unwrap(err), err))
}
