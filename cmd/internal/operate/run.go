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
	code, words := happened(r, err)
	sentence := printable.Line(id + " " + words)
	switch {
	case c.JSON:
		_ = c.PrintJSON(struct { // cli.Run reports its error
			ID string `json:"id"`
			worker.RunResult
		}{id, r})
	case code == cli.ExitDone:
		cli.Print(c.Out, "%s\n", sentence)
	}
	if code != cli.ExitDone {
		return cli.ExitError{Code: code, Err: errors.New(sentence)}
	}
	return nil
}

// outcomes has the exit code and the words for each outcome of a run. Any other is an outage.
var outcomes = map[string]struct {
	code  int
	words string
}{
	"ready":            {cli.ExitDone, "is READY"},
	"already_finished": {cli.ExitDone, "was finished before: nothing was run"},
	"failed":           {cli.ExitFailed, "is FAILED"},
	"not_found":        {cli.ExitFailed, "does not exist"},
	"malformed":        {cli.ExitFailed, "cannot be read: taskguard unlock makes it usable"},
	"locked":           {exitLater, "is locked by another run, which may renew the lock"},
	"waiting":          {exitLater, "is not due"},
	"suspect":          {exitLater, "has killed its workers, perhaps, and this process runs something else"},
	"retry":            {exitLater, "failed for now"},
	"continued":        {exitLater, "passed RUN_TIMEOUT with a new checkpoint, from which the next attempt continues"},
	"shutting_down":    {exitLater, "was stopped, and can run again"},
	"lock_lost":        {exitLater, "lost its lock: nothing of this run is written"},
}

// happened returns the exit code of a run, and says in words what it has done. err is that of worker.Work.Run.
func happened(r worker.RunResult, err error) (code int, words string) {
	row, known := outcomes[r.Outcome]
	code, words = row.code, row.words
	if !known {
		code, words = exitLater, "cannot be finished now: "+text.Error(cmp.Or(errors.Unwrap(err), err))
	}
	if r.Code != "" {
		words += ", " + r.Code + ": " + r.Message
	}
	if !r.RetryAt.IsZero() {
		words += ", until " + iso8601.Format(r.RetryAt)
	}

	switch {
	case r.Booked:
		words += "; the next delivery is booked"
	case r.Status != "" && code == exitLater: // another program has finished the analysis
		words += "; it is " + r.Status
	case code == exitLater:
		words += "; no delivery is booked"
	}
	return code, words
}
