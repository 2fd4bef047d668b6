package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/user"

	"taskguard/lease/analysislock"
	"taskguard/repo"
	"taskguard/worker/console"
)

// changed is what unlock and requeue print with --json.
type changed struct {
	ID       string   `json:"id"`
	Was      string   `json:"was"` // status
	Status   string   `json:"status"`
	Lock     lockInfo `json:"lock_was"`
	Delivery delivery `json:"delivery"`
}

const changedAsJSON = "print what was changed as one JSON document"

// unlock is an operator's forced release, whoever holds the lock. A worker that
// still runs finds its lock lost and writes nothing. A finished analysis needs
// no delivery, and none is booked. With --room it is a document's room instead.
func unlock(ctx context.Context, c *call) error {
	room := c.flags.String("room", "", "take the lock of this document `room`, in the place of an analysis's")
	c.takesJSON(changedAsJSON)
	args, err := c.parse(0, 1)
	switch {
	case err != nil:
		return err
	case *room != "" && len(args) > 0:
		return usageError("an ID and --room exclude each other")
	case *room != "":
		return c.unlockRoom(ctx, *room)
	case len(args) == 0:
		return usageError("missing argument: want " + c.arguments)
	}
	return c.change(ctx, args[0], unlocking)
}

// requeue opens an analysis again from attempt one. It is refused while locked.
func requeue(ctx context.Context, c *call) error {
	c.takesJSON(changedAsJSON)
	args, err := c.parse(1, 1)
	if err != nil {
		return err
	}
	return c.change(ctx, args[0], requeueing)
}

// change is what an operator may do to one analysis.
type change struct {
	name  string
	apply func(a *repo.Analyses, ctx context.Context, id string, seen *analysislock.Seen) (was analysislock.Analysis, err error)
	then  func(status string) string // the next status, of the one it was
}

var (
	unlocking = change{"unlock", (*repo.Analyses).Unlock, func(status string) string {
		if status == analysislock.Processing {
			return analysislock.Queued
		}
		return status
	}}
	requeueing = change{"requeue", (*repo.Analyses).Requeue, func(string) string { return analysislock.Queued }}
)

// change makes one change to one document, logs it, and books a delivery.
func (c *call) change(ctx context.Context, id string, what change) (err error) {
	if err := checkID(id); err != nil {
		return err
	}
	cl, err := c.connect(ctx, mayQueue, repo.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	done, err := cl.change(ctx, what, id, nil, operator(), c.log())
	if err != nil {
		return cl.explain(id, err)
	}
	if done.Delivery == noneMade && c.json { // the text says it itself
		printTo(c.err, "taskguard %s: TASK_QUEUE is not set: the document is changed, but no delivery was booked\n", c.name)
	}
	return c.tell(done)
}

// change makes one change to one document for who, logs it, and books a delivery.
// Where it has made the change, done is not the zero value: err is the booking's.
// seen is all that it may be made of; nil: whatever is there.
func (cl *client) change(ctx context.Context, what change, id string, seen *analysislock.Seen, who string, log *slog.Logger) (done changed, err error) {
	was, err := what.apply(cl.analyses, ctx, id, seen)
	if err != nil {
		return changed{}, err
	}
	done = changed{ID: id, Was: was.Status, Status: what.then(was.Status), Lock: lockOf(&was), Delivery: notNeeded}
	attrs := []any{
		"command", what.name, "analysis_id", id, "project", cl.place.project, "by", who,
		"status_was", was.Status, "lock_held", done.Lock.Held, "lock_owner", was.Lock.Owner, "lock_token", was.Lock.Token,
	}
	if what.name == unlocking.name && was.Lock.Owner == "" && was.Status == done.Status && was.Malformed == nil {
		log.InfoContext(ctx, "nobody held it: nothing is changed", attrs...)
	} else {
		log.WarnContext(ctx, "changed by an operator", attrs...)
	}
	if !finished(done.Status) {
		done.Delivery, err = cl.deliver(ctx, what.name, id)
	}
	return done, err
}

// changes are what the console may do, as unlock and requeue do it.
type changes struct {
	*client
	log *slog.Logger
}

var _ console.Operator = changes{}

// Unlock implements console.Operator.
func (c changes) Unlock(ctx context.Context, id, who string, seen console.Seen) (console.Delivery, error) {
	return c.make(ctx, unlocking, id, who, analysislock.Seen(seen))
}

// Requeue implements console.Operator.
func (c changes) Requeue(ctx context.Context, id, who string, seen console.Seen) (console.Delivery, error) {
	return c.make(ctx, requeueing, id, who, analysislock.Seen(seen))
}

func (c changes) make(ctx context.Context, what change, id, who string, seen analysislock.Seen) (console.Delivery, error) {
	done, err := c.change(ctx, what, id, &seen, who, c.log)
	if err != nil && done == (changed{}) {
		return "", err
	}
	if err != nil {
		c.log.WarnContext(ctx, "no delivery is booked", "command", what.name, "analysis_id", id, "by", who, "error", err)
		return console.Failed, nil
	}
	return console.Delivery(done.Delivery), nil
}

// tell says what came of it. What was before, and whose lock it was, is in the
// log line that goes with it.
func (c *call) tell(done changed) error {
	if c.json {
		return json.NewEncoder(c.out).Encode(done)
	}
	what := map[delivery]string{
		booked: "a delivery is booked", notNeeded: "it is finished and needs no delivery",
		noneMade: "no delivery is booked, as TASK_QUEUE is not set",
	}
	_, err := fmt.Fprintf(c.out, "%s is %s; %s\n", visible(done.ID), visible(orNone(done.Status)), what[done.Delivery])
	return err
}

// operator is who runs this program, as the operating system knows them.
func operator() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}

func orNone(status string) string {
	if status == "" {
		return "without status"
	}
	return status
}
