package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Submission is the result of Submit.
type Submission struct {
	Created bool   // false: the document existed
	Booked  bool   // a delivery is booked: now, or by an earlier call
	Already bool   // it was booked by an earlier call
	Status  string // of analyses, whatever words Fields has: QUEUED, READY and so on
}

// Errors of Submit.
var (
	// ErrOtherInput reports that a document with this id exists with another input.
	ErrOtherInput = errors.New("a document with this id exists with another input")
	// ErrNotBooked reports that the document exists, but the queue refused its delivery, or did not
	// answer. Call Submit again, which books it once; otherwise recovery does.
	ErrNotBooked = errors.New("the document exists, but its delivery may not be booked")
)

// NewDocument returns the fields of a document of a kind, for a Create in a transaction of the
// caller, so that the work exists exactly if the other writes of the transaction do. The document
// must be in the kind's Collection. encoding/json must be able to encode input. Firestore sets
// createdAt and updatedAt to the time of the commit. After the commit call [Book]; if the process
// dies before it does, recovery books the delivery within one TTL and a minute.
//
// Errors: the kind is not usable; an *orchestrator.PermanentError for an input that Firestore
// cannot hold. NewDocument makes no call.
func NewDocument(k Kind, input any) (map[string]any, error) {
	k, err := k.Filled()
	if err != nil {
		return nil, err
	}
	value, err := orchestrator.StorableInput(input)
	if err != nil {
		return nil, fmt.Errorf("worker: new document: %w", err)
	}
	return k.Fields.Document(value), nil
}

// Book books a delivery of the document id of a kind in the Guard's Queue, unless the document is
// finished. It is idempotent: the task's name is the bookedTask of the document; without one it is
// made of the id and createdAt, and nothing is booked while a delivery runs the document.
//
// Errors: lease.ErrNotFound; ErrNotBooked, also without a Queue, after which Book may be called
// again, or recovery books it; lease.ErrInvalidKey; lease.ErrUnavailable; ErrStopping after Shutdown.
func Book(ctx context.Context, g *Guard, k Kind, id string) error {
	defer g.lifecycle.Track()()
	if g.work.Err() != nil {
		return ErrStopping
	}
	kind, err := g.register(k)
	if err != nil {
		return err
	}
	d, err := kind.analyses.Summary(ctx, id)
	switch {
	case err != nil:
	case kind.guard.Queue == nil:
		err = fmt.Errorf("%w: there is no Queue", ErrNotBooked)
	case !d.Finished():
		_, err = kind.book(ctx, d)
	}
	if err != nil {
		err = fmt.Errorf("worker: book %q: %w", id, err)
	}
	return err
}

// Submit creates a document of a kind, and books its delivery in the Guard's Queue. id is the
// document's id, and encoding/json must be able to encode input. Submit is idempotent: if the
// id is derived from a request, a repeated request changes nothing. A document that exists keeps
// its state; if it has another input, Submit books nothing and returns ErrOtherInput. Without a
// Queue no delivery is booked. Submit makes one call to Firestore, and a second, a read, if the
// document exists.
//
// Other errors: lease.ErrInvalidKey for an id that Firestore cannot hold; lease.ErrRefused or
// an *orchestrator.PermanentError for an input that it cannot hold; lease.ErrUnavailable,
// after which the document may exist; ErrNotBooked; ErrStopping after Shutdown.
func Submit(ctx context.Context, g *Guard, k Kind, id string, input any) (s Submission, err error) {
	defer g.lifecycle.Track()()
	if g.work.Err() != nil {
		return s, ErrStopping
	}
	kind, err := g.register(k)
	if err != nil {
		return s, err
	}
	value, err := orchestrator.StorableInput(input)
	if err == nil {
		s, err = kind.submit(ctx, id, value)
	}
	if err != nil {
		err = fmt.Errorf("worker: submit %q: %w", id, err)
	}
	return s, err
}

// submit is Submit with an input that orchestrator.Storable has returned.
func (k *guarded) submit(ctx context.Context, id string, input any) (s Submission, err error) {
	var with repo.CreateOptions
	if k.guard.Queue != nil {
		with.Task = k.guard.Kind.Task("submit", id, rand.Text())
	}
	err = k.analyses.Create(ctx, id, input, with)
	d := analysislock.Analysis{ID: id, Status: analysislock.Queued, BookedTask: with.Task}
	if s.Created = err == nil; !s.Created {
		if !errors.Is(err, repo.ErrExists) {
			return s, err
		}
		d, err = k.analyses.Get(ctx, id)
	}

	s.Status = d.Status
	switch {
	case err != nil:
		return s, fmt.Errorf("%w: %w", ErrNotBooked, err)
	case !s.Created && !reflect.DeepEqual(d.Input, input):
		return s, ErrOtherInput
	case k.guard.Queue == nil, d.Finished():
		return s, nil
	}
	s.Already, err = k.book(ctx, d)
	s.Booked = err == nil
	return s, err
}

// book books a delivery of the unfinished document d, which the Queue may have already. Its error
// is ErrNotBooked.
func (k *guarded) book(ctx context.Context, d analysislock.Analysis) (already bool, err error) {
	name := d.BookedTask
	if !taskqueue.ValidName(name) {
		if lease.Held(d.Lock, d.ReadAt) { // the delivery that runs it was booked
			return true, nil
		}
		name = k.guard.Kind.Task("submit", d.ID, iso8601.Format(d.CreatedAt))
	}

	// An earlier call may have crashed before it booked. If it did book, the task's name is
	// taken and nothing is booked here. If that task is lost, recovery books another.
	already, err = k.guard.Book(ctx, d.ID, taskqueue.Task{Name: name, At: d.NextAttemptAt})
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotBooked, err)
	}
	return already, err
}

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
//	Abandoned int         // 0: only the route counts the records of Do
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
