package worker

import (
	"context"
	"crypto/rand"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Documents reads and changes the documents of one kind. [repo.Analyses] describes the methods.
//
// Get, Summary, KeyState, Unlock, Requeue, Cancel, Resolve, Delete and RaiseToken take one document. Find, Page, Count,
// Active, Backlog, Failures, Codes, Unfinished, OldestUnfinished, Unfound, UnknownStatus, Uncertain and Abandoned are
// about many. Fields returns the vocabulary, and Now Firestore's time.
type Documents interface {
	Get(ctx context.Context, id string) (analysislock.Analysis, error)
	Summary(ctx context.Context, id string) (analysislock.Analysis, error)
	KeyState(ctx context.Context, d *analysislock.Analysis, count bool) (repo.KeyState, error)
	Unlock(ctx context.Context, id, who string, seen *analysislock.Seen, task string) (analysislock.Analysis, error)
	Requeue(ctx context.Context, id, who string, seen *analysislock.Seen, fresh bool, task string) (
		analysislock.Analysis, error)
	Cancel(ctx context.Context, id, who string, seen *analysislock.Seen) (analysislock.Analysis, error)
	Resolve(ctx context.Context, id, who string, seen *analysislock.Seen, act string, answer analysislock.Answer,
		task string) (analysislock.Analysis, error)
	Delete(ctx context.Context, id string) (before analysislock.Analysis, err error)
	RaiseToken(ctx context.Context, id string, minimum int64) (analysislock.Analysis, error)

	Find(ctx context.Context, f repo.Filter, after string, limit int) ([]analysislock.Analysis, error)
	Page(ctx context.Context, f repo.Filter, after string, limit int) (
		found []analysislock.Analysis, next string, at time.Time, err error)
	Count(ctx context.Context, f repo.Filter) (int64, error)
	Active(ctx context.Context, limit int) (running, waiting, stuck []analysislock.Analysis, at time.Time, err error)
	Backlog(ctx context.Context, stuck int) (repo.Backlog, error)
	Failures(ctx context.Context, limit int) (all []repo.Failure, left int, err error)
	Codes(ctx context.Context, limit int) ([]string, error)
	Unfinished(ctx context.Context, limit int) ([]analysislock.Analysis, error)
	OldestUnfinished(ctx context.Context) (oldest analysislock.Analysis, found bool, err error)
	Unfound(ctx context.Context, limit int) ([]analysislock.Analysis, error)
	UnknownStatus(ctx context.Context, limit int) ([]analysislock.Analysis, error)
	Uncertain(ctx context.Context, limit int) ([]analysislock.Analysis, error)
	Abandoned(ctx context.Context, limit int) ([]analysislock.Analysis, error)

	Fields() Fields
	Now(ctx context.Context) (time.Time, error)
}

// Operator reads and changes the documents of one kind, as the commands of taskguard do. It is safe for concurrent use,
// until its Guard's Shutdown.
type Operator struct {
	// Unlock, Requeue and Resolve enqueue nothing. Pass them a name from NewTask, and then call Book with that name.
	Documents
	runner *delivery.Runner
}

// Recovery is the result of Operator.Recover.
//
//	Found     int           // how many orphaned documents there are, except any that could not be marked
//	Booked    int           // how many of them this call enqueued
//	Waiting   int           // how many still have a task in the queue
//	More      bool          // there may be others: call again
//	Abandoned int           // how many records of Do are abandoned; an Operator does not count them
//	Oldest    time.Duration // the age of the oldest unfinished document, if it is known
type Recovery = delivery.Recovery

// ErrNoQueue reports that the Guard has no Queue.
var ErrNoQueue = delivery.ErrNoQueue

// Operator returns the Operator of the kind.
func (w *Work) Operator() *Operator {
	runner := *w.runner
	runner.Oldest = nil // only the route reports its age
	return &Operator{w.analyses, &runner}
}

// ActKey returns what job.Key returns for an act of the document id. It is empty for analysislock.Unreadable, which
// stands for acts whose names are lost.
func (o *Operator) ActKey(id, act string) string {
	if act == analysislock.Unreadable {
		return ""
	}
	return orchestrator.ActKey(o.runner.Scope, id, act)
}

// NewTask returns a new name for a task of the document id, or "" without a Queue.
func (o *Operator) NewTask(id string) (task string) {
	if o.runner.Queue == nil {
		return ""
	}
	return taskqueue.Name("operator", id, rand.Text())
}

// Book enqueues the document id for now, under a name from NewTask. One delivery too many is harmless. Errors:
// ErrNoQueue, and errors of Cloud Tasks with their gRPC status.
func (o *Operator) Book(ctx context.Context, id, task string) error {
	if o.runner.Queue == nil {
		return ErrNoQueue
	}
	_, err := o.runner.Book(ctx, id, taskqueue.Task{Name: task})
	return err
}

// Recover enqueues each orphaned document, as the handler of Recovery does. It takes at most 50 s, and returns the
// first error with the result. Without a Queue the error is ErrNoQueue.
func (o *Operator) Recover(ctx context.Context) (Recovery, error) { return o.runner.Recover(ctx) }
