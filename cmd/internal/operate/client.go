// Package operate has the commands with which an operator submits analyses and operates
// on them: submit, status, unlock, cancel, requeue, delete, recover, console, doctor, version.
package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/console"
	"taskguard/internal/delivery"
	"taskguard/internal/printable"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// Client is the database and the queue that the environment names.
type Client struct {
	place      cli.Place
	analyses   *repo.Analyses
	queue      *taskqueue.Queue // nil: none is named
	runTimeout time.Duration    // the worker's
}

// queueUse is whether a command needs the queue.
type queueUse int

const (
	noQueue queueUse = iota
	optionalQueue
	requiredQueue
)

// connect reads the environment and opens what it names.
func connect(ctx context.Context, c *cli.Call, use queueUse, o repo.Options) (*Client, error) {
	e := c.Environment()
	cl := &Client{place: cli.NewPlace(e, "")}
	o.Keep = e.KeepFinished()
	var cfg *taskqueue.Config
	if use != noQueue {
		cfg = e.TaskQueue()
		cl.runTimeout = e.Duration("RUN_TIMEOUT", delivery.DefaultRunTimeout)
		switch {
		case cfg == nil && use == requiredQueue:
			e.Problem("TASK_QUEUE", "must be set")
		case cfg != nil && cfg.Caller == "" && cfg.EmulatorHost == "":
			e.Problem("TASK_CALLER", "must be set, to the service account that the worker accepts")
		}
	}
	if err := cli.Check(e); err != nil {
		return nil, err
	}
	err := cli.Reach(ctx, cli.FirestoreEmulator, cl.place.Emulator, cli.AdviceRestart)
	if err == nil && cfg != nil {
		err = cli.Reach(ctx, cli.TasksEmulator, cfg.EmulatorHost, cli.AdviceRestart)
	}
	if err != nil {
		return nil, err
	}
	if cl.analyses, err = cl.place.Open(ctx, o); err != nil || cfg == nil {
		return cl, err
	}
	if cl.queue, err = taskqueue.Open(ctx, *cfg); err != nil {
		return nil, errors.Join(err, cl.analyses.Close())
	}
	return cl, nil
}

func (cl *Client) close() error {
	if cl.queue == nil {
		return cl.analyses.Close()
	}
	return errors.Join(cl.queue.Close(), cl.analyses.Close())
}

// lockPolicy reads the workers' policy, whose TTL decides what is orphaned.
func lockPolicy(c *cli.Call) (lease.Policy, error) {
	e := c.Environment()
	p := e.LockPolicy()
	return p, cli.Check(e)
}

// errNotBooked is the error of a change that is made, but whose delivery is not booked.
var errNotBooked = errors.New("the document is changed, but its delivery is not booked")

// deliver books a delivery of id for now. Each call books a new one: one too many
// does no harm.
func (cl *Client) deliver(ctx context.Context, verb, id string) (console.Delivery, error) {
	if cl.queue == nil {
		return console.None, nil
	}
	if _, err := cl.queue.Book(ctx, cl.task(taskqueue.Name(verb, id, rand.Text()), id)); err != nil {
		return console.None, fmt.Errorf("%w: %w", errNotBooked, explainBooking(err))
	}
	return console.Booked, nil
}

// explainBooking adds what to correct after a booking that failed.
func explainBooking(err error) error {
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("the queue does not exist: correct TASK_QUEUE (%w)", err)
	}
	return err
}

// task is a delivery of id for now.
func (cl *Client) task(name, id string) taskqueue.Task {
	return taskqueue.Task{Name: name, AnalysisID: id, Deadline: delivery.DispatchDeadline(cl.runTimeout)}
}

// explain adds what the operator needs to know to the errors of a change.
func (cl *Client) explain(id string, err error) error {
	var held *lease.HeldError
	switch {
	case errors.Is(err, lease.ErrNotFound):
		return fmt.Errorf("no analysis %q in collection %s of project %s", id, cl.place.Collection, cl.place.Project)
	case errors.As(err, &held):
		return fmt.Errorf("%q is locked by %s until %s%s; cancel it first, or, if its worker is dead, only unlock it",
			id, printable.Line(held.Owner), iso8601.Format(held.ExpiresAt), cli.Duration(held.Remaining, ", for %s more"))
	case errors.Is(err, lease.ErrFinished):
		return fmt.Errorf("%q is finished: there is nothing to cancel", id)
	case errors.Is(err, lease.ErrMalformed):
		return fmt.Errorf("%w; taskguard unlock gives it a usable one", err)
	}
	return err
}

// checkID refuses an id that no analysis can have.
func checkID(id string) error {
	if err := analysislock.CheckID(id); err != nil {
		return cli.UsageError(strings.TrimPrefix(err.Error(), lease.ErrInvalidKey.Error()+": "))
	}
	return nil
}

func statusOrNone(status string) string {
	if status == "" {
		return "without status"
	}
	return status
}
