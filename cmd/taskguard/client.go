package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
	"taskguard/worker"
	"taskguard/worker/taskqueue"
)

// client is what submit, status, unlock, requeue and recover work on.
type client struct {
	place      place
	analyses   *repo.Analyses
	queue      *taskqueue.Queue // nil: none is named
	runTimeout time.Duration    // the worker's, where a queue is named
}

// queueUse is what a command wants of the queue.
type queueUse int

const (
	noQueue queueUse = iota
	mayQueue
	mustQueue
)

// connect reads the environment and opens what use asks for.
func (c *call) connect(ctx context.Context, use queueUse, o repo.Options) (*client, error) {
	p, err := c.place()
	if err != nil {
		return nil, err
	}
	cl := &client{place: p}
	var cfg taskqueue.Config
	named := false
	if use != noQueue {
		if cfg, named, err = c.queueConfig(); err != nil {
			return nil, err
		}
		if use == mustQueue && !named {
			return nil, environmentError{missing("TASK_QUEUE")}
		}
		if cl.runTimeout, err = c.duration("RUN_TIMEOUT", worker.DefaultRunTimeout); err != nil {
			return nil, err
		}
	}
	if err := reach(ctx, firestoreEmulator, p.emulator, adviceRestart); err != nil {
		return nil, err
	}
	if named {
		if err := reach(ctx, tasksEmulator, cfg.EmulatorHost, adviceRestart); err != nil {
			return nil, err
		}
	}
	if err := cl.open(ctx, o, cfg, named); err != nil {
		return nil, err
	}
	return cl, nil
}

// open opens the documents and, where one is named, the queue.
func (cl *client) open(ctx context.Context, o repo.Options, cfg taskqueue.Config, named bool) (err error) {
	if cl.analyses, err = cl.place.open(ctx, o); err != nil || !named {
		return err
	}
	if cl.queue, err = taskqueue.Open(ctx, cfg); err != nil {
		return errors.Join(err, cl.analyses.Close())
	}
	return nil
}

func (cl *client) close() error {
	if cl.queue == nil {
		return cl.analyses.Close()
	}
	return errors.Join(cl.queue.Close(), cl.analyses.Close())
}

// delivery is what became of the booking that goes with an operator's change.
type delivery string

const (
	booked    delivery = "booked"
	notNeeded delivery = "not_needed" // finished
	noneMade  delivery = "none"       // no queue is named
)

// deliver books a delivery of id for now. Its name is new: an operator who
// asks again wants another, and one too many does no harm.
func (cl *client) deliver(ctx context.Context, verb, id string) (delivery, error) {
	if cl.queue == nil {
		return noneMade, nil
	}
	if _, err := cl.queue.Book(ctx, cl.task(id, verb)); err != nil {
		return noneMade, fmt.Errorf("the document is changed, but %w; repeat the command", err)
	}
	return booked, nil
}

// task is a delivery of id for now, under a name of its own.
func (cl *client) task(id, verb string) taskqueue.Task {
	return taskqueue.Task{Name: taskqueue.Name(verb, id, rand.Text()), AnalysisID: id, Deadline: worker.DispatchDeadline(cl.runTimeout)}
}

// explain puts the answers that an operator meets into words.
func (cl *client) explain(id string, err error) error {
	var held *lease.HeldError
	switch {
	case errors.Is(err, lease.ErrNotFound):
		collection := cl.place.collection
		if collection == "" {
			collection = "analyses"
		}
		return fmt.Errorf("no analysis %q in collection %s of project %s", id, collection, cl.place.project)
	case errors.As(err, &held):
		return fmt.Errorf("%q is locked by %s until %s%s; wait, or unlock it first",
			id, visible(held.Owner), iso8601.Format(held.ExpiresAt), within(held.Remaining, ", for %s more"))
	case errors.Is(err, lease.ErrMalformed):
		return fmt.Errorf("%w; taskguard unlock gives it a usable one", err)
	}
	return err
}

// checkID refuses, as wrong usage, an id that no analysis can have.
func checkID(id string) error {
	if err := analysislock.CheckID(id); err != nil {
		return usageError(strings.TrimPrefix(err.Error(), lease.ErrInvalidKey.Error()+": "))
	}
	return nil
}

// within puts d into format, unless it is longer than anyone counts: a time of
// day says more then.
func within(d time.Duration, format string) string {
	switch {
	case d > time.Hour:
		return ""
	case d >= time.Minute:
		return fmt.Sprintf(format, d.Round(time.Second))
	}
	return fmt.Sprintf(format, fmt.Sprintf("%.1f s", d.Seconds()))
}
