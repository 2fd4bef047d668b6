package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

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
func Run(lookup cli.Lookup) *cobra.Command {
	cmd := &cobra.Command{
		Use: "run ID", GroupID: cli.RunThem, Args: cli.Args(1, 1),
		Short: "Run one analysis in this process, under its lock",
		Long: "Use it as a Cloud Run job, on a GPU machine, or to debug.\n\n" +
			"Exit 0: READY, now or already. 1: FAILED, or no such analysis. 2: wrong usage or environment. " +
			"75: not finished: another run holds the lock, the attempt failed and will be retried, the lock was lost, " +
			"or the run was stopped.\n\n" +
			"SIGTERM and Ctrl-C stop the run, release the lock and enqueue the next delivery, " +
			"within 9 seconds. A second one ends the process at once; its lock expires.",
		Example: "RUN_TIMEOUT=3h ANALYZER=exec:./transcribe taskguard run recording-17",
		Annotations: cli.Reads("ANALYZER (required), KINDS and the worker's variables, see docs/reference.md. " +
			"TASK_AUTH, MAX_RUNS and PORT are ignored. RUN_TIMEOUT (25m) may be as long as MAX_RUN_TIME (24h). " +
			"LOG_FORMAT (text)."),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runOne(cmd.Context(), cli.NewCall(cmd, lookup), args[0])
		},
	}
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print what happened as one JSON line")
	return cmd
}

func runOne(ctx context.Context, c *cli.Call, id string) error {
	if err := checkID(id); err != nil {
		return err
	}

	e := c.Environment()
	cfg, err := workerservice.ParseRunConfig(c.Lookup)
	e.Add(err)
	places, err := c.Places(e)
	if err != nil {
		return err
	}
	err = cmp.Or(cli.Reach(ctx, cli.FirestoreEmulator, cfg.Options.Emulator),
		cli.Reach(ctx, cli.TasksEmulator, cfg.Options.Queue.EmulatorHost))
	if err != nil {
		return cli.ExitError{Code: exitLater, Err: err}
	}

	format := cmp.Or(c.Value("LOG_FORMAT"), "text")
	log := telemetry.NewLogger(c.Err, format, cfg.LogLevel)
	if format == "text" {
		log = slog.New(quiet{log.Handler()})
	}
	r, err := workerservice.Run(ctx, cfg, places[0].Kind, id, log, c.Err)
	switch {
	case errors.Is(err, workerservice.ErrNotOpened) && ctx.Err() != nil:
		return cli.ExitError{Code: exitLater, Err: err}
	case errors.Is(err, workerservice.ErrNotOpened): // it calls no server: credentials are missing, for example
		return cli.EnvironmentError{Err: errors.New(text.Error(err))}
	case r.Outcome == "":
		return err
	}

	code, words := happened(r, err)
	sentence := printable.Line(id + " " + words)
	switch {
	case c.JSON:
		err = c.PrintJSON(struct {
			ID string `json:"id"`
			worker.RunResult
		}{id, r})
	case code == cli.ExitDone:
		_, err = fmt.Fprintln(c.Out, sentence)
	default:
		err = nil
	}
	switch {
	case err != nil && code == cli.ExitDone: // whoever sees exit 1 must not think that the run failed
		return fmt.Errorf("%s, and standard output cannot be written: %w", sentence, err)
	case code != cli.ExitDone && (c.JSON || format != "text"): // a line says it already
		return cli.ExitError{Code: code}
	case code != cli.ExitDone:
		return cli.ExitError{Code: code, Err: errors.New(sentence)}
	}
	return nil
}

// quiet drops the log line of the delivery: for people, the sentence says the same.
type quiet struct{ slog.Handler }

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "delivery" {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// outcomes has the exit code and the words for each outcome of a run. Any other is an outage. In the words, %s
// is the time of RetryAt, with a preposition.
var outcomes = map[string]struct {
	code  int
	words string
}{
	"ready":            {cli.ExitDone, "is READY"},
	"already_finished": {cli.ExitDone, "was %s before: nothing was run"},
	"failed":           {cli.ExitFailed, "is FAILED"},
	"not_found":        {cli.ExitFailed, "does not exist"},
	"malformed":        {cli.ExitFailed, "cannot be read"},
	"locked":           {exitLater, "is locked by another run until %s, unless that renews the lock"},
	"waiting":          {exitLater, "is not due before %s"},
	"key_busy":         {exitLater, "waits: as many of its key run as may"},
	"suspect":          {exitLater, "is kept back: its last runs killed their workers, and this process is busy"},
	"retry":            {exitLater, "failed, and is tried again at %s"},
	"continued":        {exitLater, "passed RUN_TIMEOUT with a new checkpoint, from which the next attempt continues"},
	"shutting_down":    {exitLater, "was stopped, and can run again"},
	"lock_lost":        {exitLater, "lost its lock: nothing of this run is written"},
}

// happened returns the exit code of a run, and its outcome in words. err is the error of worker.Work.Run.
func happened(r worker.RunResult, err error) (code int, words string) {
	row, known := outcomes[r.Outcome]
	code, words = row.code, row.words
	switch {
	case !known:
		code, words = exitLater, "cannot be finished now: "+text.Error(cmp.Or(errors.Unwrap(err), err))
	case r.Outcome == "already_finished":
		words = fmt.Sprintf(words, r.Status)
	case strings.Contains(words, "%s") && r.RetryAt.IsZero(): // nothing is booked
		words = strings.NewReplacer(", and is tried again at %s", "", " before %s", "", " until %s", "").Replace(words)
	case strings.Contains(words, "%s"):
		words = fmt.Sprintf(words, iso8601.Format(r.RetryAt))
	}
	switch {
	case r.Outcome == "malformed":
		words += ": " + text.Error(cmp.Or(errors.Unwrap(err), err))
	case r.Code != "":
		words += ": " + r.Code + ": " + r.Message
	}

	switch {
	case r.Booked:
		words += "; the next delivery is enqueued"
	case r.Status != "" && code == exitLater: // another program has finished the analysis
		words += "; it is " + r.Status
	case code == exitLater:
		words += "; nothing is enqueued"
	}
	return code, words
}
