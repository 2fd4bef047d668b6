package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"

	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Submission is the result of Submit.
type Submission struct {
	Created bool   // this call created the document
	Booked  bool   // a delivery is booked, by this call or an earlier one
	Already bool   // an earlier call booked it
	Status  string // QUEUED, PROCESSING, READY or FAILED, whatever the words in Fields are
}

// Errors of Submit.
var (
	// ErrOtherInput reports that a document with this id exists with another input.
	ErrOtherInput = errors.New("a document with this id exists with another input")
	// ErrNotBooked reports that the document exists, but the queue refused its delivery or did not
	// answer. Call Submit again, or leave it to recovery. The delivery is booked only once.
	ErrNotBooked = errors.New("the document exists, but may not be enqueued")
)

// NewDocument returns the fields of a document, for a Create in your own transaction: the work then exists
// only if the transaction's other writes do. Create the document in the kind's Collection. encoding/json
// must be able to encode input. Firestore sets createdAt and updatedAt to the time of the commit. After the
// commit call [Work.Book]. If the process dies before that, recovery books the delivery within one TTL and
// a minute.
//
// NewDocument makes no call. Its error is an *orchestrator.PermanentError for an input that Firestore
// cannot hold.
func (w *Work) NewDocument(input any) (map[string]any, error) {
	value, err := orchestrator.StorableInput(input)
	if err != nil {
		return nil, fmt.Errorf("worker: new document: %w", err)
	}
	return w.Fields.Document(value), nil
}

// Book books a delivery of the document id in the Guard's Queue, unless the document is finished. You can
// call it as often as you like: the task's name is the document's bookedTask. A document without a
// bookedTask gets a name made of its id and createdAt, and nothing is booked while a delivery runs it.
//
// Errors: lease.ErrNotFound; ErrNotBooked, also without a Queue; lease.ErrInvalidKey;
// lease.ErrUnavailable; ErrStopping after Shutdown. After ErrNotBooked call Book again, or leave it to recovery.
func (w *Work) Book(ctx context.Context, id string) error {
	defer w.service.lifecycle.Track()()
	if w.service.work.Err() != nil {
		return ErrStopping
	}
	d, err := w.analyses.Summary(ctx, id)
	switch {
	case err != nil:
	case w.runner.Queue == nil:
		err = fmt.Errorf("%w: there is no Queue", ErrNotBooked)
	case !d.Finished():
		_, err = w.book(ctx, d)
	}
	if err != nil {
		err = fmt.Errorf("worker: enqueue %q: %w", id, err)
	}
	return err
}

// Submit creates the document id with an input, and books its delivery in the Guard's Queue, if there is
// one. encoding/json must be able to encode input. Derive the id from the request, and a repeated request
// changes nothing: a document that exists keeps its state. If it has another input, Submit books nothing
// and returns ErrOtherInput. Submit writes once, and reads only a document that exists. The runs continue the
// trace of ctx, as they do after Book.
//
// Other errors: lease.ErrInvalidKey for an id that Firestore cannot hold; lease.ErrRefused or
// an *orchestrator.PermanentError for an input that it cannot hold; lease.ErrUnavailable,
// after which the document may exist; ErrNotBooked; ErrStopping after Shutdown.
func (w *Work) Submit(ctx context.Context, id string, input any) (s Submission, err error) {
	defer w.service.lifecycle.Track()()
	if w.service.work.Err() != nil {
		return s, ErrStopping
	}
	if w.Name == recordsName {
		return s, errors.New("worker: submit: records of Do are made only by calls of Do")
	}
	value, err := orchestrator.StorableInput(input)
	if err == nil {
		s, err = w.submit(ctx, id, value)
	}
	if err != nil {
		err = fmt.Errorf("worker: submit %q: %w", id, err)
	}
	return s, err
}

// submit submits an input that Firestore can hold.
func (w *Work) submit(ctx context.Context, id string, input any) (s Submission, err error) {
	var fields repo.CreateOptions
	if w.runner.Queue != nil {
		fields.Task = w.runner.Names.Task("submit", id, rand.Text())
	}
	err = w.analyses.Create(ctx, id, input, fields)
	d := analysislock.Analysis{ID: id, Status: analysislock.Queued, BookedTask: fields.Task}
	if s.Created = err == nil; !s.Created {
		if !errors.Is(err, repo.ErrExists) {
			return s, err
		}
		d, err = w.analyses.Get(ctx, id)
	}

	s.Status = d.Status
	switch {
	case err != nil:
		return s, fmt.Errorf("%w: %w", ErrNotBooked, err)
	case !s.Created && !reflect.DeepEqual(d.Input, input):
		return s, ErrOtherInput
	case w.runner.Queue == nil, d.Finished():
		return s, nil
	}
	s.Already, err = w.book(ctx, d)
	s.Booked = err == nil
	return s, err
}

// book books a delivery of the unfinished document d, unless the Queue has it. Its error is ErrNotBooked.
func (w *Work) book(ctx context.Context, d analysislock.Analysis) (already bool, err error) {
	name := d.BookedTask
	if !taskqueue.ValidName(name) {
		if lease.Held(d.Lock, d.ReadAt) { // the delivery that runs it was booked
			return true, nil
		}
		name = w.runner.Names.Task("submit", d.ID, iso8601.Format(d.CreatedAt))
	}

	// An earlier call may have crashed before it booked. If it did book, the task's name is
	// taken and nothing is booked here. If that task is lost, recovery books another.
	already, err = w.runner.Book(ctx, d.ID, taskqueue.Task{Name: name, At: d.NextAttemptAt})
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotBooked, err)
	}
	return already, err
}
