package worker

import (
	"context"
	"crypto/rand"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/repo"
)

// Operator reads and changes the documents of one kind, as the commands of taskguard do. It is
// safe for concurrent use, until the Shutdown of its Guard.
type Operator struct {
	// Analyses has the documents. Its Unlock and Requeue book no delivery: they take the name of
	// a NewTask, which Book books after them.
	Analyses *repo.Analyses
	guard    *delivery.Guard
}

// Recovery is the result of Operator.Recover.
//
//	Found   int           // orphaned documents, without those that could not be marked
//	Booked  int           // deliveries that this call booked for them
//	Waiting int           // those whose booked task is in the queue: no other was booked for them
//	More    bool          // there may be others, for the next call
//	Oldest  time.Duration // the age of the oldest unfinished document; zero: none, or unknown
type Recovery = delivery.Recovery

// ErrNoQueue reports that the Guard has no Queue.
var ErrNoQueue = delivery.ErrNoQueue

// Operator returns the Operator of a kind, whose Run it does not need. A kind with the name do is
// that of the records of Do in its Collection: they have no deliveries.
func (g *Guard) Operator(k Kind) (*Operator, error) {
	if k.Name == recordsName {
		records, err := g.recordsOf(DoOptions{Collection: k.Collection})
		if err != nil {
			return nil, err
		}
		return &Operator{records.analyses, records.guard}, nil
	}
	kind, err := g.register(k)
	if err != nil {
		return nil, err
	}
	guard := *kind.guard
	guard.Oldest = nil // only the route reports its age
	return &Operator{kind.analyses, &guard}, nil
}

// NewTask returns a new name of a task for the document id; without a Queue, none.
func (o *Operator) NewTask(id string) (task string) {
	if o.guard.Queue == nil {
		return ""
	}
	return taskqueue.Name("operator", id, rand.Text())
}

// Book books a delivery of the document id for now, under a name of NewTask. A delivery too many
// is harmless. Errors: ErrNoQueue, and those of Cloud Tasks, with their gRPC status.
func (o *Operator) Book(ctx context.Context, id, task string) error {
	if o.guard.Queue == nil {
		return ErrNoQueue
	}
	_, err := o.guard.Book(ctx, id, taskqueue.Task{Name: task})
	return err
}

// Recover books a delivery for each orphaned document, as the handler of Recovery does. It
// takes at most 50 s, and returns the first error with the result. Without a Queue the error is
// ErrNoQueue.
func (o *Operator) Recover(ctx context.Context) (Recovery, error) { return o.guard.Recover(ctx) }
