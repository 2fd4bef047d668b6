package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker/telemetry"
)

// Locks is the lock on an analysis; repo.Analyses has it.
type Locks interface {
	AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (analysislock.Acquisition, error)
	HoldAnalysisLock(ctx context.Context, id, owner string, body func(ctx context.Context, input json.RawMessage) error, renewed ...lease.Renewed) error
	ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error
	PeekAnalysisLock(ctx context.Context, id string) (analysislock.Acquisition, error)
}

// Records takes what a run came to; repo.Analyses does.
type Records interface {
	Complete(ctx context.Context, id, owner string, result any) error
	Fail(ctx context.Context, id, owner, code, message string) error
	Retry(ctx context.Context, id, owner, code, message string) error
}

// Guard runs each analysis once at a time and finishes it once (G1). It is
// safe for concurrent use.
type Guard struct {
	Locks      Locks
	Records    Records
	Queue      Queue   // nil: nothing is booked, and nothing recovered
	Backlog    Backlog // for Recover
	Analyzer   orchestrator.Analyzer
	Instance   string        // begins the owner of each delivery: revision/instance
	RunTimeout time.Duration // of one run; passing it is a failure for now
	Log        *slog.Logger
	Telemetry  *telemetry.Telemetry // nil: none
}

// Causes with which a run's context ends, beside lease.ErrLost.
var (
	// ErrStopping is the cause with which the caller ends Deliver's context when
	// the process is to stop; a *StopError is one with a deadline.
	ErrStopping = errors.New("worker: shutting down")
	errDeadline = errors.New("worker: the run passed its deadline")
)

// StopError is ErrStopping with the time by which locks are to be released and
// deliveries booked.
type StopError struct{ Deadline time.Time }

func (e *StopError) Error() string { return ErrStopping.Error() }

// Unwrap makes errors.Is(err, ErrStopping) hold.
func (e *StopError) Unwrap() error { return ErrStopping }

// Delivery is one delivery of a task.
type Delivery struct {
	AnalysisID string
	Task       string // the task's short name, from X-CloudTasks-TaskName
}

// deliver is Deliver, of a Guard whose seams are measured.
func (g *Guard) deliver(ctx context.Context, d Delivery) Outcome {
	id := d.AnalysisID
	if ctx.Err() != nil {
		return Outcome{Case: NotClaimed, ID: possible(id), Err: ErrStopping}
	}
	owner := g.Instance + "/" + rand.Text() // new for each delivery: 22 overlaps in 200 runs came of one per process
	// Not cut short by a stop: a lock might be taken that nobody knows of.
	acq, err := g.Locks.AcquireAnalysisLock(context.WithoutCancel(ctx), id, owner, 0)
	switch {
	case err != nil:
		return refusal(id, err)
	case acq.Acquired:
		o := g.run(ctx, id, owner, acq)
		o.ID, o.Token = id, acq.Grant.Token
		return o
	case acq.Reason == analysislock.AlreadyFinished:
		return Outcome{Case: AlreadyFinished, ID: id, Status: acq.Status}
	case acq.Reason == analysislock.AttemptsExhausted:
		return Outcome{Case: Failed, ID: id, Token: acq.Grant.Token, Err: lease.ErrExhausted, Code: analysislock.AttemptsExhausted}
	}
	return g.follow(ctx, d, acq)
}

// refusal is the outcome of an acquisition that could not be decided.
func refusal(id string, err error) Outcome {
	o := Outcome{Case: Unavailable, ID: id, Err: err}
	switch {
	case errors.Is(err, lease.ErrInvalidKey):
		o.Case = BadRequest
	case errors.Is(err, lease.ErrNotFound):
		o.Case = NotFound
	case errors.Is(err, lease.ErrMalformed), errors.Is(err, lease.ErrRefused):
		o.Case = Malformed
	}
	return o
}

// run is what follows an acquisition.
func (g *Guard) run(ctx context.Context, id, owner string, acq analysislock.Acquisition) Outcome {
	job := orchestrator.Job{AnalysisID: id, LockToken: acq.Grant.Token, Attempt: acq.Attempt}
	timed, cancel := context.WithTimeoutCause(ctx, g.RunTimeout, errDeadline)
	defer cancel()
	var result any
	began := false
	err := g.Locks.HoldAnalysisLock(timed, id, owner, func(ctx context.Context, input json.RawMessage) (err error) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		job.Input, began = input, true
		result, err = orchestrator.Run(ctx, g.Analyzer, job)
		return err
	})
	var lost *lease.LostError
	var permanent *orchestrator.PermanentError
	switch {
	case err == nil:
		return g.complete(ctx, id, owner, result)
	case errors.As(err, &lost):
		if lost.Reason == lease.OutOfTime { // the lock may still be ours
			g.release(ctx, id, owner, false)
		}
		return Outcome{Case: LockLost, Err: err}
	case errors.As(err, &permanent):
		return g.fail(ctx, id, owner, permanent.Code, permanent.Message)
	case errors.Is(context.Cause(ctx), ErrStopping):
		return g.stopped(ctx, id, owner)
	case !began: // the input could not be read
		g.released(ctx, id, g.Records.Retry(ctx, id, owner, "input_unavailable", "the input could not be read"))
		return Outcome{Case: Unfinished, Err: err}
	}
	code, reason := "analyzer_failed", ""
	var failure *orchestrator.FailureError
	var panicked *orchestrator.PanicError
	switch cause := context.Cause(timed); {
	case errors.As(err, &failure):
		code, reason = cmp.Or(failure.Code, code), failure.Reason
	case errors.Is(cause, errDeadline):
		code, err = "run_timeout", cause
	case errors.As(err, &panicked):
		code = "analyzer_panicked"
		g.Log.ErrorContext(ctx, "the analyzer panicked", "analysis_id", id, "stack", string(panicked.Stack[:min(4096, len(panicked.Stack))]))
	}
	if acq.Last {
		o := g.fail(ctx, id, owner, analysislock.AttemptsExhausted, fmt.Sprintf("attempt %d was the last: %v", acq.Attempt, err))
		o.Reason = reason
		return o
	}
	g.released(ctx, id, g.Records.Retry(ctx, id, owner, code, err.Error()))
	return Outcome{Case: Retry, Err: err, Code: code, Reason: reason}
}

func (g *Guard) complete(ctx context.Context, id, owner string, result any) Outcome {
	err := g.Records.Complete(ctx, id, owner, result)
	if errors.Is(err, lease.ErrRefused) { // the document has other fields too, which nobody else could count
		g.Log.WarnContext(ctx, "Firestore refused the result", "analysis_id", id) // its words may quote the result
		return g.fail(ctx, id, owner, orchestrator.CodeResultTooLarge, "result: the document cannot hold it beside its other fields")
	}
	return g.finished(ctx, id, owner, Outcome{Case: Ran}, err)
}

func (g *Guard) fail(ctx context.Context, id, owner, code, message string) Outcome {
	err := g.Records.Fail(ctx, id, owner, code, message)
	return g.finished(ctx, id, owner, Outcome{Case: Failed, Err: errors.New(message), Code: code}, err)
}

// finished is o if the finish was written, and why not otherwise.
func (g *Guard) finished(ctx context.Context, id, owner string, o Outcome, err error) Outcome {
	switch {
	case err == nil:
		return o
	case errors.Is(err, lease.ErrLost), errors.Is(err, lease.ErrNotFound):
		return Outcome{Case: LockLost, Err: err}
	case errors.Is(err, lease.ErrMalformed):
		return Outcome{Case: Spoilt, Err: err}
	case errors.Is(err, lease.ErrRefused): // not even an error fits into the document
		g.release(ctx, id, owner, false)
		return Outcome{Case: Retry, Err: err, Code: "unrecordable"}
	}
	return Outcome{Case: Unfinished, Err: err}
}

// release frees the lock.
func (g *Guard) release(ctx context.Context, id, owner string, refund bool) bool {
	return g.released(ctx, id, g.Locks.ReleaseAnalysisLock(ctx, id, owner, refund))
}

// released takes the answer to a release. A failed one is a warning, since the
// lock expires by itself (G8).
func (g *Guard) released(ctx context.Context, id string, err error) bool {
	if err != nil {
		g.Log.WarnContext(ctx, "lock not released", "analysis_id", id, "error", err)
	}
	return err == nil
}
