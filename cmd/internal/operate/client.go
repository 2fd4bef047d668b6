// Package operate has the commands with which an operator submits analyses and operates
// on them: submit, run, status, unlock, cancel, requeue, delete, recover, console, doctor, env.
// They are a client of package worker.
package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/taskqueue"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// Client operates on the documents of a kind of work that the environment names.
type Client struct {
	*worker.Operator
	guard      *worker.Guard
	work       *worker.Work
	place      cli.Place
	books      bool          // TASK_QUEUE names a queue
	runTimeout time.Duration // the worker's
	lock       lease.Policy  // the worker's
}

// firstKind describes the kind that a command uses without --kind.
const firstKind = "the first"

// Environment variables that the help of several commands names.
const (
	queueVariables = cli.DatabaseVariables + "; TASK_QUEUE, TASK_TARGET_URL, TASK_CALLER, TASK_AUDIENCE, " +
		"CLOUD_TASKS_EMULATOR_HOST, and the worker's RUN_TIMEOUT (25m)"
	optionalQueueVariables = queueVariables + ". Without TASK_QUEUE only the document changes, and nothing is enqueued."
)

// queueUse is whether a command needs the queue.
type queueUse int

const (
	noQueue queueUse = iota
	optionalQueue
	requiredQueue
	submitQueue // required, for tasks whose runs Cloud Tasks waits for
)

// connect reads the environment and opens what it names, of the kind of --kind or else of
// the first.
func connect(ctx context.Context, c *cli.Call, use queueUse) (*Client, error) {
	all, err := connectAll(ctx, c, use, nil)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// connectAll is like connect, of the kind of --kind or else of all kinds. They share a Guard,
// which close of any of them ends. Without a log the Guard logs nothing.
func connectAll(ctx context.Context, c *cli.Call, use queueUse, log *slog.Logger) (all []*Client, err error) {
	e := c.Environment()
	o := worker.Options{
		Lock: e.LockPolicy(), // the workers', whose TTL decides what is orphaned
		Keep: e.KeepFinished(),
		// An operator's change of a parked analysis takes it out of the line of its key.
		KeyField: e.Text("CONCURRENCY_KEY", ""), KeyLimit: e.Integer("CONCURRENCY_LIMIT", 0, 1, 1000),
		Auth: worker.CheckedByProxy(), // no request is served
		Log:  cmp.Or(log, slog.New(slog.DiscardHandler)),
	}
	if use != noQueue {
		o.Queue, o.RunTimeout = e.TaskQueue(), e.Duration("RUN_TIMEOUT", 25*time.Minute)
		if use == submitQueue && o.RunTimeout > taskqueue.MaxDeadline {
			e.Problem("RUN_TIMEOUT", fmt.Sprintf("%v is over %v: Cloud Tasks then delivers the task again",
				o.RunTimeout, taskqueue.MaxDeadline))
		}
		emulator := o.Queue.EmulatorHost + c.Value(cli.FirestoreEmulator)
		switch {
		case o.Queue.Name == "" && use >= requiredQueue:
			e.Problem("TASK_QUEUE", "must be set")
		case o.Queue.Name != "" && o.Queue.Caller == "" && emulator == "":
			e.Problem("TASK_CALLER", "must be set, to the service account that the worker accepts")
		}
	}
	places, err := c.Places(e)
	if err != nil {
		return nil, err
	}

	store, runTimeout := places[0].Firestore, o.RunTimeout
	err = cli.Reach(ctx, cli.FirestoreEmulator, store.Emulator)
	if err == nil {
		err = cli.Reach(ctx, cli.TasksEmulator, o.Queue.EmulatorHost)
	}
	if err != nil {
		return nil, err
	}

	o.Project, o.Database, o.Emulator = store.Project, store.Database, store.Emulator
	o.RunTimeout = min(runTimeout, taskqueue.MaxDeadline)
	guard, err := worker.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	for i := range places {
		work, err := guard.Register(places[i].Kind)
		if err != nil {
			return nil, errors.Join(cli.EnvironmentError{Err: err}, guard.Shutdown(ctx))
		}
		all = append(all, &Client{work.Operator(), guard, work, places[i], o.Queue.Name != "", runTimeout, o.Lock})
	}
	return all, nil
}

func (cl *Client) close() error { return cl.guard.Shutdown(context.Background()) }

// explainQueue adds to the error of a booking what to correct. Firestore's NotFound is another.
func explainQueue(err error) error {
	var booking *taskqueue.BookingError
	if errors.As(err, &booking) && status.Code(booking.Err) == codes.NotFound {
		return fmt.Errorf("the queue does not exist: correct TASK_QUEUE (%w)", err)
	}
	return err
}

// explain adds to the errors of a change what the operator needs to know.
func (cl *Client) explain(id string, err error) error {
	var held *lease.HeldError
	switch place := cl.place; {
	case errors.Is(err, lease.ErrNotFound):
		return fmt.Errorf("no %s %q in collection %s of project %s", place.Name, id, place.Collection, place.Project)
	case errors.As(err, &held):
		until := iso8601.Format(held.ExpiresAt) + cli.Duration(held.Remaining, ", for %s more")
		return fmt.Errorf("%q is locked by %s until %s, and longer if its worker renews the lock; "+
			"cancel it or, if its worker is dead, only unlock it",
			id, printable.Line(held.Owner), until)
	case errors.Is(err, lease.ErrFinished):
		return fmt.Errorf("%q is finished: there is nothing to cancel", id)
	case errors.Is(err, analysislock.ErrUncertain):
		return fmt.Errorf("%q has an act that may have been done: %s %s shows it, resolve answers it",
			id, place.Command("status"), printable.Line(id))
	case errors.Is(err, analysislock.ErrNotUncertain):
		return fmt.Errorf("%q has no uncertain act of that name: perhaps it was answered before", id)
	case errors.Is(err, analysislock.ErrAllActs):
		return fmt.Errorf(`"*" stands for all acts of %q, because their records were overwritten: look each of them up; `+
			"if none was done, answer --not-done; else complete the work by hand", id)
	case errors.Is(err, lease.ErrMalformed):
		return fmt.Errorf("%w; %s gives it a usable one", err, place.Command("unlock"))
	}
	return err
}

// checkID refuses an id that no analysis can have.
func checkID(id string) error {
	if err := analysislock.CheckID(id); err != nil {
		return cli.UsageError(text.Error(err, lease.ErrInvalidKey))
	}
	return nil
}

func statusOrNone(status string) string { return cmp.Or(status, "without status") }
