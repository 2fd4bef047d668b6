package delivery

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// Creator creates documents; repo.Analyses does.
type Creator interface {
	// CreateBooked creates a QUEUED document. task makes of its createdAt the name of the task
	// that is booked for it; nil: none is. If the id is taken, its error is Submit's exists.
	CreateBooked(ctx context.Context, id string, input any, task func(created time.Time) string) error
	Get(ctx context.Context, id string) (analysislock.Analysis, error)
}

// Submission is the result of Submit.
type Submission struct {
	Created bool   // false: the document existed
	Booked  bool   // a delivery is booked: now, or by an earlier call
	Already bool   // it was booked by an earlier call
	Status  string // of the document: QUEUED, PROCESSING, READY or FAILED, whatever words its Fields map
}

// Errors of Submit.
var (
	ErrOtherInput = errors.New("a document with this id exists with another input")
	// ErrNotBooked: the document exists, and Submit may be called again.
	ErrNotBooked = errors.New("the document exists, but its delivery is not booked")
)

// Submit creates a document unless it exists, and books its delivery unless it is finished or
// no queue is configured. It may be repeated. input is a value that orchestrator.Storable
// returned. exists is the error of Create for an id that is taken. Errors: those of CreateBooked and
// Get; ErrOtherInput, after which nothing is booked; ErrNotBooked.
func (g *Guard) Submit(
	ctx context.Context, docs Creator, exists error, id string, input any,
) (s Submission, err error) {
	task := func(created time.Time) string { return g.firstTask(id, created) }
	if g.Queue == nil {
		task = nil
	}
	err = docs.CreateBooked(ctx, id, input, task)
	if s.Created = err == nil; !s.Created && !errors.Is(err, exists) {
		return s, err
	}

	d, err := docs.Get(ctx, id)
	s.Status = d.Status
	switch {
	case err != nil:
		return s, fmt.Errorf("%w: %w", ErrNotBooked, err)
	case !reflect.DeepEqual(d.Input, input):
		return s, ErrOtherInput
	case g.Queue == nil, d.Finished():
		return s, nil
	}
	s.Already, err = g.BookDocument(ctx, d)
	s.Booked = err == nil
	return s, err
}

// BookDocument books a delivery of the unfinished document d, which the Queue may have already. Its
// error is ErrNotBooked.
func (g *Guard) BookDocument(ctx context.Context, d analysislock.Analysis) (already bool, err error) {
	// An earlier call may have crashed before it booked. If it did book, the task's name is
	// taken and nothing is booked here. If that task is lost, recovery books another.
	name := g.firstTask(d.ID, d.CreatedAt)
	if taskqueue.ValidName(d.BookedTask) {
		name = d.BookedTask
	}
	already, err = g.Book(ctx, d.ID, taskqueue.Task{Name: name, At: d.NextAttemptAt})
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotBooked, err)
	}
	return already, err
}

// firstTask returns the name of the first task of a document.
func (g *Guard) firstTask(id string, created time.Time) string {
	return g.Kind.task("submit", id, iso8601.Format(created))
}
