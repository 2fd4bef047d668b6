package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

const (
	recoverLimit = 10_000 // analyses that one call books
	// recoverTimeout limits a call; the next call is due in a minute.
	recoverTimeout = 50 * time.Second
	maxBookings    = 32 // at the same time
	// marksPerSecond limits the marks of one call: each writes times that grow into the indexes of
	// the collection, and Firestore takes 500 such writes a second.
	marksPerSecond = 250
)

// Recovery is the result of a call of Recover.
type Recovery struct {
	Found  int `json:"found"`  // orphaned analyses that this call could mark
	Booked int `json:"booked"` // deliveries that this call booked for them
	// Waiting counts the ones whose booked task is in the queue: no other was booked for them.
	Waiting int  `json:"waiting"`
	More    bool `json:"more"` // there may be others, for the next call
	// Abandoned is the number of records of Do with an act whose callers have not come back. Only
	// the route counts them.
	Abandoned int `json:"abandoned,omitzero"`
	// Oldest is the age of the oldest unfinished analysis; zero: there is none, or it is unknown.
	Oldest time.Duration `json:"-"`
}

// measureOldest returns the age of the oldest unfinished analysis, or zero if there is none. An
// error does not stop the recovery: the age is then zero too.
func (runner *Runner) measureOldest(ctx context.Context) time.Duration {
	oldest, _, err := runner.Oldest(ctx)
	if err != nil {
		runner.Log.WarnContext(ctx, "the age of the oldest unfinished analysis is unknown", "error", err)
		return 0
	}
	age := oldest.Age(oldest.ReadAt)
	runner.Telemetry.Record(ctx, telemetry.OldestAge, age.Seconds())
	return age
}

// ErrNoQueue is Recover's error without a Queue.
var ErrNoQueue = errors.New("worker: no queue is configured: TASK_QUEUE is not set")

// Recover books a delivery for each orphaned analysis: its worker died after the delivery was acknowledged, its
// booked delivery was lost, or it was never delivered. If the document has the name of a booked task, Recover
// asks the queue for it, and books none if it is there. Where the queue does not answer, it books as if the task
// were lost, and logs one warning. It marks each first, so that neither it nor another call finds it again
// within one TTL. A booking that fails does not delay the others; Recover returns the first error with the
// result. It takes at most 50 s; the next call books the rest. It is safe for concurrent use.
func (runner *Runner) Recover(ctx context.Context) (Recovery, error) {
	if runner.Queue == nil {
		return Recovery{}, ErrNoQueue
	}
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()

	due, more, err := runner.Orphans.Orphaned(ctx, recoverLimit)
	r := Recovery{Found: len(due), More: more}
	if err != nil && len(due) == 0 {
		return r, fmt.Errorf("worker: recover: %w", err)
	}

	call := &recovery{Runner: runner}
	var booking errgroup.Group
	booking.SetLimit(maxBookings)
	if runner.Oldest != nil {
		booking.Go(func() error {
			r.Oldest = runner.measureOldest(ctx)
			return nil
		})
	}
	if runner.Parked != nil {
		booking.Go(func() error {
			runner.measureParked(ctx)
			return nil
		})
	}
	booking.Go(func() error { return call.wakeAll(ctx) })
	begun := call.rebookAll(ctx, due, &booking)
	err = errors.Join(err, booking.Wait())

	r.Booked, r.Waiting = int(call.booked.Load()), int(call.waiting.Load())
	r.Found, r.More = begun-int(call.skipped.Load()), more || begun < len(due)
	runner.Telemetry.Record(ctx, telemetry.Stuck, float64(r.Found-r.Waiting))
	runner.Telemetry.Record(ctx, telemetry.Recoveries, float64(r.Booked))
	if err != nil {
		r.More = true
		return r, fmt.Errorf("worker: recover: %w", err)
	}
	return r, nil
}

// RecoverAll calls Recover of all runners at once, and adds their results.
func RecoverAll(ctx context.Context, runners []*Runner) (all Recovery, err error) {
	results, errs := make([]Recovery, len(runners)), make([]error, len(runners))
	var calls sync.WaitGroup
	for i, runner := range runners {
		calls.Go(func() {
			if results[i], errs[i] = runner.Recover(ctx); errs[i] != nil && runner.Names.Kind != "" {
				errs[i] = fmt.Errorf("kind %q: %w", runner.Names.Kind, errs[i])
			}
		})
	}
	calls.Wait()

	for _, r := range results {
		all.Found += r.Found
		all.Booked += r.Booked
		all.Waiting += r.Waiting
		all.More = all.More || r.More
		all.Oldest = max(all.Oldest, r.Oldest)
	}
	return all, errors.Join(errs...)
}

// recovery is one call of Recover.
type recovery struct {
	*Runner
	booked, waiting, skipped atomic.Int64
	unanswered               atomic.Bool // the queue has not answered whether it has a task
}

// rebookAll begins to rebook the orphans, marksPerSecond at most, until ctx ends. It returns how many
// it has begun; the next call of Recover finds the others.
func (r *recovery) rebookAll(ctx context.Context, due []lease.Cell[analysislock.Analysis], calls *errgroup.Group) int {
	pace := time.NewTicker(time.Second / marksPerSecond)
	defer pace.Stop()
	for i := range due {
		if i > 0 {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return i
			}
		}
		calls.Go(func() error { return r.rebook(ctx, due[i]) })
	}
	return len(due)
}

// rebook marks an orphaned analysis, and books its next attempt for now unless the task that was
// booked for it is in the queue. It skips an analysis that is no longer orphaned, or whose full
// document could not be marked.
func (r *recovery) rebook(ctx context.Context, read lease.Cell[analysislock.Analysis]) error {
	orphan := read.Doc
	found := r.find(ctx, &orphan)
	if found == taskqueue.Underway { // it is acquired now, or found by the next call
		r.waiting.Add(1)
		return nil
	}
	name, err := r.Orphans.MarkDue(ctx, read, func(next time.Time) string {
		if found == taskqueue.Waiting {
			return orphan.BookedTask
		}
		return r.nextName(orphan.ID, orphan.Lock.Token, next)
	})

	full, isFull := errors.AsType[*analysislock.UnrecordableError](err)
	switch {
	case err == nil && found == taskqueue.Waiting:
		r.waiting.Add(1)
		return nil
	case err == nil: // in no trace: thousands of runs would be one
		if _, err = r.Book(telemetry.Detached(ctx), orphan.ID, taskqueue.Task{Name: name}); err == nil {
			r.booked.Add(1)
		}
		return err
	case errors.Is(err, lease.ErrUnavailable): // also after conflicts
		return err
	case errors.Is(err, lease.ErrConflict):
	case isFull:
		r.Log.ErrorContext(ctx, "analysis FAILED: its document is full",
			"analysis_id", orphan.ID, "code", analysislock.Unrecordable)
		r.logOpenActs(ctx, orphan.ID, orphan.Lock.Token, full.OpenActs)
	case errors.Is(err, lease.ErrRefused):
		r.Log.WarnContext(ctx, "analysis not recovered: its document is full", "analysis_id", orphan.ID)
	default:
		return err
	}

	r.skipped.Add(1)
	return nil
}

// find asks the queue for the task that was booked for an orphan. If the queue does not answer one
// question, find asks it no more during this call of Recover. The task that a PROCESSING
// orphan names was booked after the crash, because an acquisition deletes the name. An orphan of an
// earlier version's worker may still have the name of the task that crashed.
func (r *recovery) find(ctx context.Context, orphan *analysislock.Analysis) taskqueue.Presence {
	if orphan.BookedTask == "" || r.unanswered.Load() {
		return taskqueue.Absent
	}
	found, err := r.Queue.Find(ctx, orphan.BookedTask, orphan.ReadAt)
	if err != nil && ctx.Err() == nil && !r.unanswered.Swap(true) {
		r.Log.WarnContext(ctx, "deliveries may be enqueued twice: the queue does not say whether it has them",
			"error", err)
	}
	return found
}
