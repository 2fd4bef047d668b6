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
)

// changed is the output of unlock, requeue, cancel and delete with --json.
type changed struct {
	ID       string           `json:"id"`
	Was      string           `json:"was"` // status
	Status   string           `json:"status"`
	Lock     lockInfo         `json:"lock_was"`
	Delivery console.Delivery `json:"delivery"`
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
	return changeAll(ctx, c, nil, args, console.Unlock)
}

// Requeue opens analyses again from attempt one. It is refused while one is locked.
func Requeue(ctx context.Context, c *cli.Call) error {
	fresh := c.Flags.Bool("fresh", false, "delete the checkpoint: the next run begins anew")
	var b bulk
	ids, err := b.parse(c)
	if err != nil {
		return err
	}
	if *fresh {
		return changeAll(ctx, c, &b, ids, console.RequeueFresh)
	}
	return changeAll(ctx, c, &b, ids, console.Requeue)
}

// Cancel makes analyses FAILED. A worker that runs one loses its lock and writes nothing.
func Cancel(ctx context.Context, c *cli.Call) error {
	var b bulk
	c.Flags.BoolVar(&b.running, "running", false, "with a filter: cancel also those that a worker holds; their runs end at the next heartbeat")
	ids, err := b.parse(c)
	if err != nil {
		return err
	}
	return changeAll(ctx, c, &b, ids, console.Cancel)
}

const remove = console.Change("delete")

// deleted and missing are statuses in the output of remove.
const deleted, missing = "DELETED", "MISSING"

// Delete deletes the documents of analyses. It is refused while one is locked. A missing one
// counts as deleted.
func Delete(ctx context.Context, c *cli.Call) error {
	c.TakesKind(firstKind)
	c.TakesJSON("print a JSON line for each analysis")
	ids, err := c.Parse(1, -1)
	if err != nil {
		return err
	}
	return changeAll(ctx, c, nil, ids, remove)
}

// apply makes a change for who. It returns the analysis as it was before, and the
// status after the change.
func (cl *Client) apply(ctx context.Context, what console.Change, id, who string, seen *analysislock.Seen) (was analysislock.Analysis, status string, err error) {
	switch what {
	case console.Requeue, console.RequeueFresh:
		was, err = cl.analyses.Requeue(ctx, id, seen, what == console.RequeueFresh)
		return was, analysislock.Queued, err
	case console.Cancel:
		was, err = cl.analyses.Cancel(ctx, id, who, seen)
		return was, analysislock.Failed, err
	case remove:
		was, err = cl.analyses.Delete(ctx, id)
		return was, deleted, err
	}
	was, err = cl.analyses.Unlock(ctx, id, seen)
	if status = was.Status; status == analysislock.Processing {
		status = analysislock.Queued
	}
	return was, status, err
}

// changeAll makes a change to each document; without ids, to those that b selects. After
// one that is refused or fails it continues with the next.
func changeAll(ctx context.Context, c *cli.Call, b *bulk, ids []string, what console.Change) (err error) {
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
	}
	queue := optionalQueue
	if what == console.Cancel || what == remove {
		queue = noQueue
	}
	cl, err := connect(ctx, c, queue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	if len(ids) == 0 {
		return b.run(ctx, c, cl, what)
	}
	var failed error
	for _, id := range ids {
		err := cl.changeOne(ctx, c, id, what)
		if ctx.Err() != nil || len(ids) == 1 {
			return err
		}
		if err != nil {
			failed = cli.ExitError{Code: cli.Report(ctx, c.Err, c.Name, err)}
		}
	}
	return failed
}

// changeOne makes one change and prints it.
func (cl *Client) changeOne(ctx context.Context, c *cli.Call, id string, what console.Change) error {
	done, err := cl.change(ctx, what, id, nil, operator(), c.Log())
	if what == remove && errors.Is(err, lease.ErrNotFound) { // as after a first attempt
		done, err = changed{ID: id, Was: missing, Status: deleted, Delivery: console.NotNeeded}, nil
	}
	switch {
	case errors.Is(err, errNotBooked):
		return fmt.Errorf("%w; repeat the command", err)
	case err != nil:
		return cl.explain(id, err)
	}
	if c.JSON {
		if done.Delivery == console.None {
			cli.Print(c.Err, "taskguard %s: TASK_QUEUE is not set: the document is changed, but no delivery was booked\n", c.Name)
		}
		return c.PrintJSON(done)
	}
	note := map[console.Delivery]string{
		console.Booked: "a delivery is booked", console.NotNeeded: "it is finished and needs no delivery",
		console.None: "no delivery is booked, as TASK_QUEUE is not set",
	}[done.Delivery]
	switch {
	case what == console.Cancel && done.Was == done.Status:
		note = "it was cancelled before: nothing is changed"
	case what == console.Cancel && done.Lock.Held:
		note = "it is cancelled, and its run ends at its next heartbeat"
	case what == console.Cancel:
		note = "it is cancelled"
	case what == remove && done.Was == missing:
		note = "there was no such document: nothing is changed"
	case what == remove:
		note = "it was " + statusOrNone(done.Was)
		if !analysislock.Finished(done.Was) {
			note += ": a task that is still booked for it is answered 404 and ends at its sixth delivery, with an alert"
		}
	}
	_, err = fmt.Fprintf(c.Out, "%s is %s; %s\n", printable.Line(done.ID), printable.Line(statusOrNone(done.Status)), note)
	return err
}

// change makes one change to one document for who, logs it, and books a delivery unless
// the analysis is finished then. If the change is made, done is not the zero value, and
// err is the booking's. The change is refused if the document is no longer as seen; nil:
// it is not compared.
func (cl *Client) change(ctx context.Context, what console.Change, id string, seen *analysislock.Seen, who string, log *slog.Logger) (done changed, err error) {
	was, status, err := cl.apply(ctx, what, id, who, seen)
	if err != nil {
		return changed{}, err
	}
	done = changed{ID: id, Was: was.Status, Status: status, Lock: lockOf(&was), Delivery: console.NotNeeded}
	if kind := cl.place.Other(); kind != "" {
		log = log.With("kind", kind)
	}
	attrs := []any{
		"command", what, "analysis_id", id, "project", cl.place.Project, "by", who,
		"status_was", was.Status, "lock_held", done.Lock.Held, "lock_owner", was.Lock.Owner, "lock_token", was.Lock.Token,
	}
	switch {
	case what == console.Cancel && was.Status == status:
		log.InfoContext(ctx, "it was cancelled before: nothing is changed", attrs...)
	case what == console.Unlock && was.Lock.Owner == "" && was.Status == status && was.NextAttemptAt.IsZero() && was.Malformed == nil:
		log.InfoContext(ctx, "it was not locked: nothing is changed", attrs...)
	default:
		log.InfoContext(ctx, "changed by an operator", attrs...)
	}
	if what != remove && !analysislock.Finished(done.Status) {
		done.Delivery, err = cl.deliver(ctx, string(what), id)
	}
	return done, err
}

// operator returns the user who runs this program.
func operator() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}
