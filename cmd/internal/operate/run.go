package operate

import (
	"cmp"
	"context"
	"errors"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/env"
	"taskguard/internal/telemetry"
	"taskguard/internal/text"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// exitLater is the exit code of a run that has not finished its analysis, as a later one can: EX_TEMPFAIL of
// sysexits.h.
const exitLater = 75

// ran is the output of run --json.
type ran struct {
	ID      string              `json:"id"`
	Outcome string              `json:"outcome"`
	Status  string              `json:"status,omitempty"`
	Attempt int                 `json:"attempt,omitempty"`
	Token   int64               `json:"lock_token,omitempty"`
	Error   *analysislock.Error `json:"error,omitempty"`
	RetryAt string              `json:"retry_at,omitempty"`
	Booked  bool                `json:"booked"` // the queue has the next delivery
}

// Run runs one analysis in this process, as a delivery does in the worker.
func Run(ctx context.Context, c *cli.Call) error {
	c.TakesKind(firstKind)
	c.TakesJSON("print what happened as one JSON line")
	args, err := c.Parse(1, 1)
	if err != nil {
		return err
	}
	id := args[0]
	if err := checkID(id); err != nil {
		return err
	}

	c.Lookup = withProject(ctx, c)
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

	log := telemetry.NewLogger(c.Err, cmp.Or(c.Value("LOG_FORMAT"), "text"), cfg.LogLevel)
	r, err := workerservice.Run(ctx, cfg, places[0].Kind, id, log)
	switch {
	case r.Outcome == "" && ctx.Err() != nil: // the run has outlived the stop
		return cli.ExitError{Code: exitLater, Err: err}
	case r.Outcome == "":
		return err
	}
	return report(c, id, r, err)
}

// report prints how the run of an analysis has ended with r and err, and returns the exit code as an error.
func report(c *cli.Call, id string, r worker.RunResult, err error) error {
	line := ran{ID: id, Outcome: r.Outcome, Status: r.Status, Attempt: r.Attempt, Token: r.Token, Booked: r.Booked}
	if r.Code != "" {
		line.Error = &analysislock.Error{Code: r.Code, Message: r.Message}
	}
	if !r.RetryAt.IsZero() {
		line.RetryAt = iso8601.Format(r.RetryAt)
	}
	sentence := printable.Line(id + " " + line.happened(err))

	switch {
	case c.JSON:
		_ = c.PrintJSON(line) // cli.Run reports its error
	case err == nil:
		cli.Print(c.Out, "%s\n", sentence)
	}
	switch line.Outcome {
	case "ready", "already_finished":
		return nil
	case "failed", "not_found", "malformed":
		return errors.New(sentence)
	}
	return cli.ExitError{Code: exitLater, Err: errors.New(sentence)}
}

// happened says in words what the run has done. err is that of worker.Work.Run.
func (r *ran) happened(err error) string {
	failure := ""
	if r.Error != nil {
		failure = ", " + r.Error.Code + ": " + r.Error.Message
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
	case "malformed":
		return text.Error(err) + "; taskguard unlock makes it usable"
	}

	next := "; no delivery is booked"
	switch {
	case r.Booked && r.RetryAt != "" && r.Outcome == "retry":
		next = "; the next attempt is booked for " + r.RetryAt
	case r.Booked:
		next = "; the next delivery is booked"
	case r.Status != "": // the lock was lost, as another program has finished the analysis
		next = "; it is " + r.Status
	}
	switch r.Outcome {
	case "locked":
		return "is locked by another run until " + r.RetryAt + ", and longer if that renews the lock" + next
	case "waiting":
		return "is not due: its next attempt begins at " + r.RetryAt + next
	case "retry":
		return "failed for now" + failure + next
	case "continued":
		return "passed RUN_TIMEOUT with a new checkpoint, from which the next attempt continues" + next
	case "shutting_down":
		return "was stopped, and can run again" + next
	case "lock_lost":
		return "lost its lock: nothing of this run is written" + next
	}
	return "was not finished: " + text.Error(cmp.Or(errors.Unwrap(err), err))
}

// withProject returns the environment of c. Without a project it adds the machine's, as the worker does.
func withProject(ctx context.Context, c *cli.Call) cli.Lookup {
	const name = "GOOGLE_CLOUD_PROJECT"
	lookup := c.Lookup
	if c.Value(name) != "" || c.Value(cli.FirestoreEmulator) != "" {
		return lookup
	}
	project, _ := env.ProjectHere(ctx, "") // Places reports that there is none
	return func(variable string) (string, bool) {
		if variable == name {
			return project, project != ""
		}
		return lookup(variable)
	}
}
