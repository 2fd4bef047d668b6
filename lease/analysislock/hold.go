package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"taskguard/lease"
)

// Hold is one acquisition of an analysis's lock. One goroutine calls its methods one after another,
// except Report, Mark and Effect: Run, then Complete, Fail, Retry or Release, which end it.
type Hold struct {
	lease *lease.Hold[Analysis]
	work  func(ctx context.Context, c lease.Cell[Analysis]) (Work, error)
	given json.RawMessage // the checkpoint that Run was given
	// Written is called after each commit with a report, with the checkpoint if it had one;
	// see Report. Nil: it is not called. It is set before the first Report.
	Written func(c *Checkpoint, err error)

	mu         sync.Mutex
	progress   Progress
	checkpoint *Checkpoint // the newest that was reported, until it is written
	committed  *Checkpoint // the newest that was written
	waiting    []waiter    // for the marks and reports that are not yet written
	settled    int         // the number of those before them
	effects    Effects     // the marked acts, also those that are not yet written
	stored     Effects     // those of the last commit
	marks      int         // the number of calls of Mark that changed effects
}

// Run runs body with the analysis's work while it refreshes the lock; see
// lease.Hold.Run. lease.ErrUnavailable: the input could not be read, and body did not
// run. Run calls each function of renewed after each refresh.
func (h *Hold) Run(ctx context.Context, body func(ctx context.Context, w Work) error, renewed ...lease.Renewed) error {
	return h.lease.Run(ctx, func(ctx context.Context, _ Analysis, _ lease.Grant) error {
		w, err := h.work(ctx, h.lease.Cell())
		if err != nil {
			return err
		}
		h.given, h.effects, h.stored = w.Checkpoint, w.Effects, w.Effects
		return body(ctx, w)
	}, renewed...)
}

// Age returns the analysis's Age at the present, by the store's clock.
func (h *Hold) Age() time.Duration {
	d := h.lease.Doc()
	return d.Age(h.lease.Now())
}

// Refresh moves the lock's expiry to ttl from now. A zero ttl is the Policy's. Refresh revives
// an expired lock that no other owner has taken. If the lock is lost, it returns
// lease.ErrLost. It tries for up to 15 s. Run refreshes the lock by itself. (SEEDS G6, G7)
func (h *Hold) Refresh(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return h.lease.Renew(ctx, ttl)
}

// Complete makes the analysis READY with result, a value as orchestrator.Run returns
// it, and frees the lock in the same commit. If the lock is no longer held, it changes
// nothing and returns lease.ErrLost. lease.ErrRefused: the store cannot hold the result; the
// lock is kept. It tries for up to 60 s, also when ctx has ended.
func (h *Hold) Complete(ctx context.Context, result any) error {
	now := h.lease.Now()
	return h.lease.Finish(ctx, func(d *Analysis) {
		d.Status, d.Result, d.Error, d.LastError = Ready, result, nil, nil
		d.Progress, d.Checkpoint = nil, &Checkpoint{}
		d.unbook()
		d.end(now, OutcomeReady, "", "")
	})
}

// Fail makes the analysis FAILED, in the same way as Complete makes it READY, and keeps its
// checkpoint. The code and the message are made valid UTF-8 and cut after 64 and 4,096 bytes.
func (h *Hold) Fail(ctx context.Context, code, message string) error {
	return h.fail(ctx, code, message, nil)
}

// Exhaust is Fail with AttemptsExhausted after the last attempt has failed temporarily with
// this code and message, which it records as LastError. summary is the message of the error.
func (h *Hold) Exhaust(ctx context.Context, summary, code, message string) error {
	return h.fail(ctx, AttemptsExhausted, summary, newError(code, message))
}

func (h *Hold) fail(ctx context.Context, code, message string, last *Error) error {
	now := h.lease.Now()
	return h.lease.Finish(ctx, func(d *Analysis) {
		d.fail(code, message)
		if last != nil {
			d.LastError = last
		}
		d.end(now, OutcomeFailed, code, message)
	})
}

// Adoptable reports whether the lock was lost only because another program, such as the
// analysis itself, has set the status to READY or FAILED.
func (h *Hold) Adoptable() bool { return h.lease.Adoptable() }

// Adopt frees the lock of an Adoptable analysis, as Complete or Fail does, and keeps the status,
// the result and the error that the other program has set.
func (h *Hold) Adopt(ctx context.Context) error {
	now := h.lease.Now()
	return h.lease.Adopt(ctx, func(d *Analysis) {
		outcome := OutcomeFailed
		d.unbook()
		if d.Closed() {
			outcome, d.LastError, d.Progress, d.Checkpoint = OutcomeReady, nil, nil, &Checkpoint{}
		}
		d.end(now, outcome, "", "")
	})
}

// Retry releases the lock after a temporary failure, which it records as LastError. The
// next attempt may begin at next, which is wait from now by the store's clock, or zero if wait is
// zero. task names the task that is booked for it, which the same commit records; nil: none. refund
// subtracts the attempt. Code and message are made valid and cut as by Fail; if the document has no
// room for the message, Retry releases the lock without it. If the lock is not held any more, it
// changes nothing and returns lease.ErrLost.
func (h *Hold) Retry(ctx context.Context, code, message string, wait time.Duration, refund bool,
	task func(next time.Time) string,
) (next time.Time, err error) {
	now, booked := h.lease.Now(), ""
	if wait > 0 {
		next = now.Add(wait).Truncate(time.Millisecond)
	}
	if task != nil {
		booked = task(next)
	}

	release := func(failure *Error) error {
		return h.lease.Release(ctx, func(d *Analysis) {
			d.queue()
			d.LastError, d.NextAttemptAt, d.BookedTask = failure, next, booked
			d.end(now, OutcomeRetry, failure.Code, failure.Message)
			if n := len(d.History); refund && n > 0 {
				d.History[n-1].Uncounted = d.uncounted() + 1
			}
		}, refund)
	}
	err = release(newError(code, message))
	if errors.Is(err, lease.ErrRefused) {
		err = release(newError(code, ""))
	}
	return next, err
}

// Uncounted returns how many attempts in a row before this one were refunded by Retry.
func (h *Hold) Uncounted() int {
	d := h.lease.Doc()
	return d.uncounted()
}

// Release clears the lock if it is still held, changes PROCESSING back to QUEUED, and
// records the outcome of the attempt and task, the name of the task that is booked next, if any;
// refund subtracts the attempt. Otherwise it changes nothing and returns nil. It tries for 2 s,
// or until the deadline of ctx if that is later, also when ctx has been cancelled. (SEEDS G8)
func (h *Hold) Release(ctx context.Context, outcome string, refund bool, task string) error {
	now := h.lease.Now()
	err := h.lease.Release(ctx, func(d *Analysis) {
		d.queue()
		d.BookedTask = task
		d.end(now, outcome, "", "")
	}, refund)
	if errors.Is(err, lease.ErrLost) {
		return nil
	}
	return err
}
