package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"

	"taskguard/repo"
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
	return c.change(ctx, args[0], func(cl *client, id string) (repo.Analysis, string, error) {
		was, err := cl.analyses.Unlock(ctx, id)
		status := was.Status
		if status == repo.Processing {
			status = repo.Queued
		}
		return was, status, err
	})
}

// requeue opens an analysis again from attempt one. It is refused while locked.
func requeue(ctx context.Context, c *call) error {
	c.takesJSON(changedAsJSON)
	args, err := c.parse(1, 1)
	if err != nil {
		return err
	}
	return c.change(ctx, args[0], func(cl *client, id string) (repo.Analysis, string, error) {
		was, err := cl.analyses.Requeue(ctx, id)
		return was, repo.Queued, err
	})
}

// change makes one change to one document, logs it, and books a delivery.
func (c *call) change(ctx context.Context, id string, apply func(cl *client, id string) (was repo.Analysis, status string, err error)) (err error) {
	if err := checkID(id); err != nil {
		return err
	}
	cl, err := c.connect(ctx, mayQueue, repo.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	was, status, err := apply(cl, id)
	if err != nil {
		return cl.explain(id, err)
	}
	done := changed{ID: id, Was: was.Status, Status: status, Lock: lockOf(&was), Delivery: notNeeded}
	attrs := []any{
		"command", c.name, "analysis_id", id, "project", cl.place.project, "by", operator(),
		"status_was", was.Status, "lock_held", done.Lock.Held, "lock_owner", was.Lock.Owner, "lock_token", was.Lock.Token,
	}
	if c.name == "unlock" && was.Lock.Owner == "" && was.Status == status {
		c.log().InfoContext(ctx, "nobody held it: nothing is changed", attrs...)
	} else {
		c.log().WarnContext(ctx, "changed by an operator", attrs...)
	}
	if status != repo.Ready && status != repo.Failed {
		if done.Delivery, err = cl.deliver(ctx, c.name, id); err != nil {
			return err
		}
	}
	if done.Delivery == noneMade && c.json { // the text says it itself
		printTo(c.err, "taskguard %s: TASK_QUEUE is not set: the document is changed, but no delivery was booked\n", c.name)
	}
	return c.tell(done)
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
