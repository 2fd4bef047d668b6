package operate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/user"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/worker"
)

// verb is a change that an operator makes, as the log names it.
type verb string

const (
	verbUnlock       = verb(console.Unlock)
	verbRequeue      = verb(console.Requeue)
	verbRequeueFresh = verb(console.RequeueFresh)
	verbCancel       = verb(console.Cancel)
	verbDelete       = verb("delete")
	verbResolve      = verb("resolve")
)

// Bookings that go with a change, in its output.
const (
	deliveryBooked    = string(console.Booked)
	deliveryNotNeeded = string(console.NotNeeded) // it is finished
	deliveryNone      = string(console.None)      // no queue is named
)

// Statuses in the output of delete.
const deleted, missing = "DELETED", "MISSING"

// changed is the output of unlock, requeue, cancel and delete with --json.
type changed struct {
	ID       string   `json:"id"`
	Was      string   `json:"was"` // status
	Status   string   `json:"status"`
	Lock     lockInfo `json:"lock_was"`
	Delivery string   `json:"delivery"`

	finished bool // before the change
}

// Unlock releases a lock of any owner by force. A worker that still runs the analysis
// loses its lock and writes nothing. A finished analysis needs no delivery, and none is
// booked. With --room it releases the lock of a document's room instead.
func Unlock(ctx context.Context, c *cli.Call) error {
	room := c.Flags.String("room", "", "take the lock of this document `room` instead of an analysis's")
	c.TakesKind(firstKind)
	c.TakesJSON("print what was changed as one JSON line")
	args, err := c.Parse(0, 1)
	switch {
	case err != nil:
		return err
	case *room != "" && (len(args) > 0 || c.Given("kind")):
		return cli.UsageError("an ID and --room exclude each other, as do --kind and --room")
	case *room != "":
		return unlockRoom(ctx, c, *room)
	case len(args) == 0:
		return c.MissingArgument()
	}
	return changeAll(ctx, c, verbUnlock, args, nil)
}

// Requeue opens analyses again from attempt one. It is refused while one is locked.
func Requeue(ctx context.Context, c *cli.Call) error {
	fresh := c.Flags.Bool("fresh", false, "delete the checkpoint and the marked acts: the next run begins anew")
	var b bulk
	ids, err := b.parse(c)
	if err != nil {
		return err
	}
	if *fresh {
		return changeAll(ctx, c, verbRequeueFresh, ids, &b)
	}
	return changeAll(ctx, c, verbRequeue, ids, &b)
}

// Cancel makes analyses FAILED. A worker that runs one loses its lock and writes nothing.
func Cancel(ctx context.Context, c *cli.Call) error {
	var b bulk
	c.Flags.BoolVar(&b.running, "running", false,
		"with a filter: cancel also those that a worker holds; their runs end at the next heartbeat")
	ids, err := b.parse(c)
	if err != nil {
		return err
	}
	return changeAll(ctx, c, verbCancel, ids, &b)
}

// Delete deletes the documents of analyses. It is refused while one is locked. A missing one
// counts as deleted.
func Delete(ctx context.Context, c *cli.Call) error {
	c.TakesKind(firstKind)
	c.TakesJSON("print a JSON line for each analysis")
	ids, err := c.Parse(1, -1)
	if err != nil {
		return err
	}
	return changeAll(ctx, c, verbDelete, ids, nil)
}

// changeAll makes a change to each document; without ids, to those that b selects. After
// one that is refused or fails it continues with the next.
func changeAll(ctx context.Context, c *cli.Call, v verb, ids []string, b *bulk) (err error) {
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
	}
	queue := optionalQueue
	if v == verbCancel || v == verbDelete {
		queue = noQueue
	}
	cl, err := connect(ctx, c, queue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()

	if len(ids) == 0 {
		return b.run(ctx, c, cl, v)
	}
	var failed error
	for _, id := range ids {
		err := cl.changeOne(ctx, c, v, id)
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			failed = cli.ExitError{Code: cli.Report(ctx, c.Err, c.Name, err)}
		}
	}
	return failed
}

// changeOne makes one change and prints it.
func (cl *Client) changeOne(ctx context.Context, c *cli.Call, v verb, id string) error {
	done, err := cl.change(ctx, v, id, nil, operator(), c.Log())
	return cl.printChange(c, v, id, done, err)
}

// printChange prints a change, or explains its error.
func (cl *Client) printChange(c *cli.Call, v verb, id string, done changed, err error) error {
	if v == verbDelete && errors.Is(err, lease.ErrNotFound) { // as after a first attempt
		done, err = changed{ID: id, Was: missing, Status: deleted, Delivery: deliveryNotNeeded}, nil
	}
	switch {
	case errors.Is(err, errNotBooked):
		return fmt.Errorf("%w; repeat the command", err)
	case err != nil:
		return cl.explain(id, err)
	}

	if !c.JSON {
		cli.Print(c.Out, "%s is %s; %s\n",
			printable.Line(done.ID), printable.Line(statusOrNone(done.Status)), done.note(v))
		return nil
	}
	if done.Delivery == deliveryNone {
		c.Notice("TASK_QUEUE is not set: the document is changed, but no delivery was booked")
	}
	return c.PrintJSON(done)
}

// note describes for people what the change has done.
func (done *changed) note(v verb) string {
	switch {
	case v == verbCancel && done.Was == done.Status:
		return "it was cancelled before: nothing is changed"
	case v == verbCancel && done.Lock.Held:
		return "it is cancelled, and its run ends at its next heartbeat"
	case v == verbCancel:
		return "it is cancelled"
	case v == verbDelete && done.Was == missing:
		return "there was no such document: nothing is changed"
	case v == verbDelete && done.finished:
		return "it was " + done.Was
	case v == verbDelete:
		return "it was " + statusOrNone(done.Was) +
			": a task that is still booked for it is answered 404 and ends at its sixth delivery, with an alert"
	case done.Delivery == deliveryBooked:
		return "a delivery is booked"
	case done.Delivery == deliveryNone:
		return "no delivery is booked, as TASK_QUEUE is not set"
	}
	return "it is finished and needs no delivery"
}

// errNotBooked is the error of a change that is made, but whose delivery is not booked.
var errNotBooked = errors.New("the document is changed, but its delivery is not booked")

// change makes one change to one document for who, logs it, and books a delivery unless
// the analysis is finished then. If the change is made, done is not the zero value, and
// err is the booking's. The change is refused if the document is no longer as seen; nil:
// it is not compared.
func (cl *Client) change(
	ctx context.Context, v verb, id string, seen *analysislock.Seen, who string, log *slog.Logger,
) (done changed, err error) {
	return cl.changeBy(ctx, v, id, who, log, func(task string) (analysislock.Analysis, string, error) {
		return cl.apply(ctx, v, id, seen, who, task)
	})
}

// changeBy is change, where apply makes the change; see Client.apply.
func (cl *Client) changeBy(ctx context.Context, v verb, id, who string, log *slog.Logger,
	apply func(task string) (was analysislock.Analysis, status string, err error),
) (done changed, err error) {
	task := cl.NewTask(id)
	was, status, err := apply(task)
	if err != nil {
		return changed{}, err
	}
	done = changed{ID: id, Was: was.Status, Status: status, Lock: lockOf(&was), Delivery: deliveryNotNeeded,
		finished: was.Finished()}
	cl.log(ctx, log, v, &was, &done, who)
	if v == verbDelete || analysislock.Finished(status) || done.finished && status == was.Status {
		return done, nil
	}

	err = cl.Book(ctx, id, task)
	switch {
	case errors.Is(err, worker.ErrNoQueue):
		done.Delivery = deliveryNone
	case err != nil:
		return done, fmt.Errorf("%w: %w", errNotBooked, explainQueue(err))
	default:
		done.Delivery = deliveryBooked
	}
	return done, nil
}

// apply makes a change for who; task is booked after it. It returns the analysis as it was
// before, and the status after the change.
func (cl *Client) apply(
	ctx context.Context, v verb, id string, seen *analysislock.Seen, who, task string,
) (was analysislock.Analysis, status string, err error) {
	switch v {
	case verbRequeue, verbRequeueFresh:
		was, err = cl.Analyses.Requeue(ctx, id, seen, v == verbRequeueFresh, task)
		return was, analysislock.Queued, err
	case verbCancel:
		was, err = cl.Analyses.Cancel(ctx, id, who, seen)
		return was, analysislock.Failed, err
	case verbDelete:
		was, err = cl.Analyses.Delete(ctx, id)
		return was, deleted, err
	case verbUnlock:
		was, err = cl.Analyses.Unlock(ctx, id, seen, task)
		if was.Status == analysislock.Processing {
			return was, analysislock.Queued, err
		}
		return was, was.Status, err
	}
	return was, "", fmt.Errorf("operate: no change %q", v)
}

// log logs a change that who has made.
func (cl *Client) log(
	ctx context.Context, log *slog.Logger, v verb, was *analysislock.Analysis, done *changed, who string,
) {
	if kind := cl.place.Other(); kind != "" {
		log = log.With("kind", kind)
	}
	log = log.With(
		"command", v, "analysis_id", done.ID, "project", cl.place.Project, "by", who, "status_was", was.Status,
		"lock_held", done.Lock.Held, "lock_owner", was.Lock.Owner, "lock_token", was.Lock.Token)

	same := was.Status == done.Status
	free := was.Lock.Owner == "" && was.NextAttemptAt.IsZero() && was.Malformed == nil
	switch {
	case v == verbCancel && same:
		log.InfoContext(ctx, "it was cancelled before: nothing is changed")
	case v == verbUnlock && same && free:
		log.InfoContext(ctx, "it was not locked: nothing is changed")
	default:
		log.InfoContext(ctx, "changed by an operator")
	}
}

// operator returns the user who runs this program.
func operator() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}
