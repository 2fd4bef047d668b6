// Package operate has the commands with which an operator submits analyses and operates
// on them: submit, status, unlock, cancel, requeue, delete, recover, console, doctor, version.
package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// Client is the documents of a kind of work and the queue, as the environment names them.
type Client struct {
	place      cli.Place
	analyses   *repo.Analyses
	db         *repo.Database
	queue      *taskqueue.Queue // nil: none is named
	runTimeout time.Duration    // the worker's
}

// firstKind describes the kind that a command uses without --kind.
const firstKind = "the first"

// queueUse is whether a command needs the queue.
type queueUse int

const (
	noQueue queueUse = iota
	optionalQueue
	requiredQueue
)

// connect reads the environment and opens what it names, of the kind of --kind or else of
// the first.
func connect(ctx context.Context, c *cli.Call, use queueUse) (*Client, error) {
	all, err := connectAll(ctx, c, use, repo.Options{})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// connectAll is like connect, of the kind of --kind or else of all kinds. They share the
// connections, which close of any of them ends.
func connectAll(ctx context.Context, c *cli.Call, use queueUse, o repo.Options) (all []*Client, err error) {
	e := c.Environment()
	o.Keep = e.KeepFinished()
	var cfg taskqueue.Config
	var runTimeout time.Duration
	if use != noQueue {
		cfg = e.TaskQueue()
		runTimeout = e.Duration("RUN_TIMEOUT", delivery.DefaultRunTimeout)
		switch {
		case cfg.Name == "" && use == requiredQueue:
			e.Problem("TASK_QUEUE", "must be set")
		case cfg.Name != "" && cfg.Caller == "" && cfg.EmulatorHost == "":
			e.Problem("TASK_CALLER", "must be set, to the service account that the worker accepts")
		}
	}
	places, err := c.Places(e)
	if err != nil {
		return nil, err
	}
	err = cli.Reach(ctx, cli.FirestoreEmulator, places[0].Emulator, cli.AdviceRestart)
	if err == nil {
		err = cli.Reach(ctx, cli.TasksEmulator, cfg.EmulatorHost, cli.AdviceRestart)
	}
	if err != nil {
		return nil, err
	}
	db, err := repo.Connect(ctx, places[0].Project, places[0].Options(o))
	if err != nil {
		return nil, err
	}
	var queue *taskqueue.Queue
	if cfg.Name != "" {
		if queue, err = taskqueue.Open(ctx, cfg); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	for i := range places {
		cl := &Client{place: places[i], db: db, queue: queue, runTimeout: runTimeout}
		if cl.analyses, err = db.Analyses(places[i].Options(o)); err != nil {
			return nil, errors.Join(err, cl.close())
		}
		all = append(all, cl)
	}
	return all, nil
}

func (cl *Client) close() error {
	if cl.queue == nil {
		return cl.db.Close()
	}
	return errors.Join(cl.queue.Close(), cl.db.Close())
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
	if _, err := cl.guard().Book(ctx, id, taskqueue.Task{Name: taskqueue.Name(verb, id, rand.Text())}); err != nil {
		return console.None, fmt.Errorf("%w: %w", errNotBooked, err)
	}
	return console.Booked, nil
}

// Book books in the queue, and adds to its error what to correct.
func (cl *Client) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	already, err = cl.queue.Book(ctx, t)
	if status.Code(err) == codes.NotFound {
		err = fmt.Errorf("the queue does not exist: correct TASK_QUEUE (%w)", err)
	}
	return already, err
}

// guard returns what books deliveries of the kind.
func (cl *Client) guard() *delivery.Guard {
	k := cl.place.Kind
	return &delivery.Guard{Kind: delivery.Kind{Name: k.Name, IDField: k.IDField, Path: k.Path}, Orphans: cl.analyses, Queue: cl, RunTimeout: cl.runTimeout}
}

// explain adds what the operator needs to know to the errors of a change.
func (cl *Client) explain(id string, err error) error {
	var held *lease.HeldError
	switch {
	case errors.Is(err, lease.ErrNotFound):
		return fmt.Errorf("no %s %q in collection %s of project %s", cl.place.Name, id, cl.place.Collection, cl.place.Project)
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

func statusOrNone(status string) string { return cmp.Or(status, "without status") }
