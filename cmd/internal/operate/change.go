package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// deleted is the status in the output of delete.
const deleted = "DELETED"

// changed is the output of unlock, requeue, cancel, resolve and delete with --json.
type changed struct {
	ID       string           `json:"id"`
	Was      string           `json:"was"` // the status before
	Status   string           `json:"status"`
	Lock     lockInfo         `json:"lock_was"`
	Delivery console.Delivery `json:"delivery"`
}

// Unlock releases a lock of any owner by force. A worker that still runs the analysis
// loses its lock and writes nothing. A finished analysis needs no delivery, and none is
// booked. With --room it releases the lock of a document's room instead.
func Unlock(lookup cli.Lookup) *cobra.Command {
	var room string
	cmd := &cobra.Command{
		Use: "unlock ID | --room ROOM", GroupID: cli.Change, Args: cli.Args(0, 1),
		Short: "Release a dead worker's lock, and enqueue the analysis again",
		Long: "Even a live worker loses its lock: its run and the next one overlap until its next heartbeat. " +
			"To stop a live run, use cancel. A finished analysis is not enqueued.",
		Example:     "taskguard unlock report-9\ntaskguard unlock --room invoice-42",
		Annotations: cli.Reads(optionalQueueVariables + " With --room: " + cli.RoomVariables + ", and no queue."),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, args []string) error {
			switch {
			case room != "" && (len(args) > 0 || c.Flags.Changed("kind")):
				return cli.UsageError("an ID and --room exclude each other, as do --kind and --room")
			case room != "":
				return unlockRoom(ctx, c, room)
			case len(args) == 0:
				return c.MissingArgument()
			}
			return changeAll(ctx, c, console.Unlock, args, nil)
		}),
	}
	cmd.Flags().StringVar(&room, "room", "", "unlock this document `room` instead of an analysis")
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print the change as one line of JSON")
	return cmd
}

// Requeue opens analyses again from attempt one. It is refused while one is locked.
func Requeue(lookup cli.Lookup) *cobra.Command {
	var b bulk
	var fresh bool
	cmd := &cobra.Command{
		Use: "requeue ID… | FILTER", GroupID: cli.Change,
		Short: "Run analyses again: reset them to QUEUED and enqueue them",
		Long: "The attempts start at 0 again, and the next run resumes from the checkpoint. A locked analysis is refused. " +
			"A filter skips READY analyses unless you give --status READY.",
		Example:     "taskguard requeue report-8\ntaskguard requeue --status FAILED --code ocr_down --rate 5",
		Annotations: cli.Reads(optionalQueueVariables),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, ids []string) error {
			if fresh {
				return b.changeMany(ctx, c, console.RequeueFresh, ids)
			}
			return b.changeMany(ctx, c, console.Requeue, ids)
		}),
	}
	cmd.Flags().BoolVar(&fresh, "fresh", false, "also delete the checkpoint and recorded side effects: start over")
	b.declare(cmd, lookup)
	return cmd
}

// Cancel makes analyses FAILED. A worker that runs one loses its lock and writes nothing.
func Cancel(lookup cli.Lookup) *cobra.Command {
	var b bulk
	cmd := &cobra.Command{
		Use: "cancel ID… | FILTER", GroupID: cli.Change,
		Short: "Stop analyses: mark them FAILED with the code cancelled",
		Long:  "A run stops at its next heartbeat, and its result is discarded.",
		Example: "taskguard cancel report-7\n" +
			"taskguard cancel --status QUEUED --older-than 2d --dry-run",
		Annotations: cli.Reads(cli.DatabaseVariables),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, ids []string) error {
			return b.changeMany(ctx, c, console.Cancel, ids)
		}),
	}
	cmd.Flags().BoolVar(&b.running, "running", false,
		"with a filter: also cancel running analyses; each run stops at its next heartbeat")
	b.declare(cmd, lookup)
	return cmd
}

// Delete deletes the documents of analyses. It is refused while one is locked, and fails for a
// missing one.
func Delete(lookup cli.Lookup) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete ID…", GroupID: cli.Change, Args: cli.Args(1, -1),
		Short:       "Delete analyses with their inputs and results",
		Long:        "It does not ask. A locked analysis is refused.",
		Example:     "taskguard delete report-3",
		Annotations: cli.Reads(cli.DatabaseVariables),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, ids []string) error {
			return changeAll(ctx, c, console.Delete, ids, nil)
		}),
	}
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print a JSON line for each analysis")
	return cmd
}

// changeAll changes the analyses with these ids, or without ids all that b selects. After a change
// that fails, it continues with the next.
func changeAll(ctx context.Context, c *cli.Call, verb console.Verb, ids []string, b *bulk) (err error) {
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
	}
	queue := optionalQueue
	if verb == console.Cancel || verb == console.Delete {
		queue = noQueue
	}
	cl, err := connect(ctx, c, queue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()

	if len(ids) == 0 {
		return b.run(ctx, c, cl, verb)
	}
	var failed error
	for _, id := range ids {
		err := cl.changeOne(ctx, c, console.Change{Verb: verb, ID: id, Who: operator()}, c.Log())
		switch {
		case ctx.Err() != nil && errors.Is(err, console.ErrUnconfirmed): // not only that it was interrupted
			return cli.ExitError{Code: cli.ExitInterrupted, Err: err}
		case ctx.Err() != nil:
			return err
		}
		if err != nil {
			failed = cli.ExitError{Code: cli.Report(ctx, c.Err, c.Name, err)}
		}
	}
	return failed
}

// changeOne makes one change and prints it.
func (cl *Client) changeOne(ctx context.Context, c *cli.Call, request console.Change, log *slog.Logger) error {
	done, err := cl.change(ctx, request, log)
	switch {
	case errors.Is(err, console.ErrNotBooked) && request.Verb == console.Resolve: // again it would be refused
		return fmt.Errorf("%w; %s %s enqueues it", err, cl.place.Command("requeue"), printable.Line(request.ID))
	case errors.Is(err, console.ErrNotBooked):
		return fmt.Errorf("%w; repeat the command", err)
	case err != nil:
		return cl.explain(request.ID, err)
	case c.JSON && done.Delivery == console.None:
		c.Notice("TASK_QUEUE is not set: the document changed, but nothing was enqueued")
	}
	if request.Verb == console.Unlock && done.Lock.Held {
		c.Notice("%s was locked: if its worker is alive, its run and the next one overlap for up to %v",
			printable.Line(request.ID), cl.lock.Silence())
	}

	if c.JSON {
		return c.PrintJSON(done)
	}
	cli.Print(c.Out, "%s is %s; %s\n",
		printable.Line(done.ID), printable.Line(statusOrNone(done.Status)), done.note(request.Verb))
	return nil
}

// note describes for people what the change has done.
func (done *changed) note(verb console.Verb) string {
	switch {
	case verb == console.Cancel && done.Was == done.Status:
		return "it was cancelled before: nothing is changed"
	case verb == console.Cancel && done.Lock.Held:
		return "its run ends at its next heartbeat"
	case verb == console.Cancel || verb == console.Delete:
		return "it was " + statusOrNone(done.Was)
	case done.Delivery == console.Booked:
		return "enqueued"
	case done.Delivery == console.None:
		return "not enqueued: TASK_QUEUE is not set, or this is a record of Do"
	}
	return "it is finished and needs no delivery"
}

// change makes one change to one document and logs it. It books a delivery unless the analysis is
// finished then. An error with a zero done means that nothing was changed, except ErrUnconfirmed: it may
// have been. With another done, the change was made, but not the booking.
func (cl *Client) change(ctx context.Context, c console.Change, log *slog.Logger) (done changed, err error) {
	task := cl.NewTask(c.ID)
	was, status, err := cl.apply(ctx, c, task)
	if errors.Is(err, lease.ErrMayBeWritten) {
		err = fmt.Errorf("%w: %w", console.ErrUnconfirmed, err)
		cl.about(log, c).WarnContext(ctx, mayHaveChanged, "error", err)
	}
	if err != nil {
		return changed{}, err
	}
	done = changed{c.ID, was.Status, status, lockOf(&was), console.NotNeeded}
	cl.log(ctx, log, c, &was, status)
	unchanged := status == was.Status // the kind may have further words for finished
	if c.Verb == console.Delete || analysislock.Finished(status) || unchanged && was.Finished() {
		return done, nil
	}

	err = cl.Book(ctx, c.ID, task)
	switch {
	case errors.Is(err, worker.ErrNoQueue):
		done.Delivery = console.None
	case err != nil:
		return done, fmt.Errorf("%w: %w", console.ErrNotBooked, explainQueue(err))
	default:
		done.Delivery = console.Booked
	}
	return done, nil
}

// apply makes a change; task is booked after it. It returns the analysis as it was before, and
// the status after the change.
func (cl *Client) apply(
	ctx context.Context, c console.Change, task string,
) (was analysislock.Analysis, status string, err error) {
	switch c.Verb {
	case console.Cancel:
		was, err = cl.Cancel(ctx, c.ID, c.Who, c.Seen)
		return was, analysislock.Failed, err
	case console.Delete:
		was, err = cl.Delete(ctx, c.ID)
		return was, deleted, err
	case console.Unlock:
		was, err = cl.Unlock(ctx, c.ID, c.Who, c.Seen, task)
		if was.Status != analysislock.Processing {
			return was, was.Status, err
		}
	case console.Resolve:
		was, err = cl.Resolve(ctx, c.ID, c.Who, c.Seen, c.Act, c.Answer, task)
		if console.Final(&was) {
			return was, was.Status, err
		}
	default:
		was, err = cl.Requeue(ctx, c.ID, c.Who, c.Seen, c.Verb == console.RequeueFresh, task)
	}
	return was, analysislock.Queued, err
}

// log logs a change.
func (cl *Client) log(
	ctx context.Context, log *slog.Logger, c console.Change, was *analysislock.Analysis, status string,
) {
	log = cl.about(log, c).With("status_was", was.Status, "lock_held", lockOf(was).Held,
		"lock_owner", was.Lock.Owner, "lock_token", was.Lock.Token)

	free := was.Lock.Owner == "" && was.NextAttemptAt.IsZero() && was.Malformed == nil
	if was.Status == status && (c.Verb == console.Cancel || c.Verb == console.Unlock && free) {
		log.InfoContext(ctx, "nothing is changed")
		return
	}
	log.InfoContext(ctx, "changed by an operator")
}

// mayHaveChanged is the log's message of a change whose outcome is unknown.
const mayHaveChanged = "an operator's change is not confirmed"

// about returns a log that names the change and the operator.
func (cl *Client) about(log *slog.Logger, c console.Change) *slog.Logger {
	if kind := cl.place.Other(); kind != "" {
		log = log.With("kind", kind)
	}
	if c.Act != "" {
		log = log.With("effect", c.Act, "done", c.Answer.Done)
	}
	return log.With("command", c.Verb, "analysis_id", c.ID, "project", cl.place.Project, "by", c.Who)
}

// operator returns the user who runs this program, and the machine: user@host.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// answer is the flags of resolve.
type answer struct {
	result  string
	token   int64
	notDone bool
}

// Resolve answers an uncertain act of an analysis, and books a delivery. It is refused while the
// analysis is locked, and if its state or the act has changed since it was read.
func Resolve(lookup cli.Lookup) *cobra.Command {
	var a answer
	cmd := &cobra.Command{
		Use: "resolve ID NAME (--done JSON | --not-done)", GroupID: cli.Change, Args: cli.Args(2, 2),
		Short: "Say whether an uncertain side effect happened, then retry",
		Long: "`taskguard status --uncertain` lists the side effects to resolve, with the idempotency keys by which " +
			"their receivers know them. Give --done the JSON that your code expects: you cannot change it later.",
		Example: "taskguard resolve order-1 charge --done '{\"charged\": 4200}'\n" +
			"taskguard resolve order-2 charge --not-done",
		Annotations: cli.Reads(optionalQueueVariables),
		RunE:        cli.Bind(lookup, a.resolve),
	}
	flags := cmd.Flags()
	flags.StringVar(&a.result, "done", "", "the side effect happened: record this `JSON` as its result")
	flags.Int64Var(&a.token, "token", 0, "only if it began under this lock `token`; 0: any")
	flags.BoolVar(&a.notDone, "not-done", false, "you know that it did not happen: the next attempt does it")
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print the change as one line of JSON")
	return cmd
}

// resolve answers the act of an analysis.
func (a *answer) resolve(ctx context.Context, c *cli.Call, args []string) (err error) {
	request := console.Change{Verb: console.Resolve, ID: args[0], Act: args[1], Who: operator()}
	if err := checkID(request.ID); err != nil {
		return err
	}
	if c.Flags.Changed("done") == a.notDone {
		return cli.UsageError("want either --done JSON or --not-done")
	}
	if !a.notDone {
		if request.Answer, err = console.Done(a.result); err != nil {
			return cli.UsageError("--done: " + err.Error())
		}
	}

	cl, err := connect(ctx, c, optionalQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	return cl.resolve(ctx, c, request, a.token)
}

// resolve prints the act, and answers it if the analysis is still in the state that was read. A
// token other than 0 must be the one with which the act was begun.
func (cl *Client) resolve(ctx context.Context, c *cli.Call, request console.Change, token int64) error {
	read, err := cl.Summary(ctx, request.ID)
	if err != nil {
		return cl.explain(request.ID, err)
	}
	if act, marked := read.Acts[request.Act]; marked {
		if token != 0 && act.Token != token {
			return fmt.Errorf("the act %s, not with %d", actText(request.Act, act), token)
		}
		c.Notice("%s: the act %s", printable.Line(request.ID), actText(request.Act, act))
	}
	if open := read.Acts.Open(); !slices.Contains(open, request.Act) {
		names := cmp.Or(strings.Join(open, ", "), "none")
		return fmt.Errorf("%q has no uncertain act %q; its uncertain acts: %s",
			request.ID, request.Act, printable.Line(names))
	}
	request.Seen = console.StateOf(&read)
	return cl.changeOne(ctx, c, request, c.Log())
}

// printActs prints the acts that names returns of each analysis, a row each. status ID shows their times and tokens.
func (cl *Client) printActs(c *cli.Call, all []analysislock.Analysis, names func(analysislock.Acts) []string) {
	rows := table{{"ID", "ACT", "SINCE", "STATE", "KEY"}}
	for i := range all {
		a := &all[i]
		for _, name := range names(a.Acts) {
			act := a.Acts[name]
			rows = append(rows, []string{
				printable.Line(a.ID), printable.Line(name), ago(a, act.At), act.State, cl.ActKey(a.ID, name),
			})
		}
	}
	rows.fold(cmp.Or(c.Columns(), widest)).print(c, "", 0)
}

// actText describes an act for people.
func actText(name string, e analysislock.Act) string {
	text := fmt.Sprintf("%s: %s at %s with lock token %d", printable.Line(name), e.State, iso8601.Format(e.At), e.Token)
	if e.ResultError != "" {
		text += ", its result is not stored: " + printable.Line(e.ResultError)
	}
	return text
}
