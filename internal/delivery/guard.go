package delivery

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// Locks acquires the lock on an analysis; analysislock.Locks does.
type Locks interface {
	AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration,
		early func(analysislock.Analysis) bool) (analysislock.Acquisition, error)
}

// Guard runs each analysis once at a time and finishes it once (G1). It is
// safe for concurrent use.
type Guard struct {
	Kind    Kind // zero: analyses
	Locks   Locks
	Queue   Queue        // nil: nothing is booked, and nothing recovered
	Orphans OrphanFinder // for Recover
	// Oldest reads the oldest unfinished analysis, whose age Recover reports; nil: it does not.
	Oldest     func(ctx context.Context) (oldest analysislock.Analysis, found bool, err error)
	Analyzer   orchestrator.Analyzer
	Instance   string        // begins the owner of each delivery: revision/instance
	RunTimeout time.Duration // of one run; passing it is a temporary failure, unless the run has advanced
	// CheckpointInterval is the shortest time between two commits for reports.
	CheckpointInterval time.Duration
	StallTimeout       time.Duration // ends a run that reports nothing for so long; zero: no limit
	// RetryMin and RetryMax bound the wait after a temporary failure, if Queue is set.
	RetryMin, RetryMax time.Duration
	Log                *slog.Logger
	Telemetry          *telemetry.Telemetry // nil: none
}

// Causes with which a run's context ends, besides lease.ErrLost.
var (
	// ErrStopping is the cause with which the caller cancels Deliver's context when
	// the process must stop; a *StopError also has a deadline.
	ErrStopping = errors.New("worker: shutting down")
	errDeadline = errors.New("worker: the run passed its deadline")
	errRunTime  = errors.New("worker: the analysis took longer than MAX_RUN_TIME")
)

// StopError is ErrStopping with a deadline for the release of locks and the booking of
// deliveries.
type StopError struct{ Deadline time.Time }

func (e *StopError) Error() string { return ErrStopping.Error() }

// Unwrap makes errors.Is(err, ErrStopping) hold.
func (e *StopError) Unwrap() error { return ErrStopping }

// Kind names a kind of work. The zero Kind is that of analyses.
type Kind struct {
	Name    string // empty: analysis
	IDField string // of the body of a request and of an answer; empty: analysis_id
	Path    string // of the URL; empty: /internal/tasks/analysis
}

const (
	analysis      = "analysis"
	analysisField = "analysis_id"
	analysisPath  = "/internal/tasks/analysis"
)

// other returns the name of a kind that is not analysis, and "" for analysis.
func (k Kind) other() string {
	if k.Name == analysis {
		return ""
	}
	return k.Name
}

// task returns the name of a task. The names of two kinds differ.
func (k Kind) task(parts ...string) string {
	if other := k.other(); other != "" {
		parts = append(parts, "kind "+other)
	}
	return taskqueue.Name(parts...)
}

// Delivery is one delivery of a task.
type Delivery struct {
	AnalysisID string
	Task       string // the task's short name, or the id of a message
	Tries      int    // which of the task's tries this is, from 1; zero: unknown
	BookOnly   bool   // book another delivery in the queue, and do not run
}

// Deliver handles one delivery: acquire, run under heartbeats, and finish in one
// fenced commit or release. When it returns, nothing that it started is running. ctx
// ends only with the process, not when the caller hangs up.
func (g *Guard) Deliver(ctx context.Context, d Delivery) Outcome {
	// A new owner for each delivery: with one owner for each process, 22 of 200 runs overlapped.
	a := &attempt{Guard: g, id: d.AnalysisID, task: d.Task, owner: g.Instance + "/" + rand.Text()}
	deliver := a.deliver
	if d.BookOnly {
		deliver = a.forward
	}
	o := deliver(ctx)
	o.Measures = a.measured
	if o.Ran {
		g.Telemetry.Ran(ctx, o.Case.String(), o.Run)
	}
	return o
}

// attempt is one delivery while it is handled.
type attempt struct {
	*Guard
	id, task, owner string
	acq             analysislock.Acquisition
	hold            *analysislock.Hold // once acquired
	reason          string             // how the analyzer failed, if it did; safe to log
	measured        Measures
}

func (a *attempt) deliver(ctx context.Context) Outcome {
	if ctx.Err() != nil {
		return Outcome{Case: NotClaimed, ID: validID(a.id), Err: ErrStopping}
	}
	acq, err := a.acquire(ctx)
	switch {
	case err != nil:
		return refusal(a.id, err)
	case acq.Acquired:
		o := a.run(ctx)
		if a.hold.Adoptable() {
			o = a.adopt(ctx, o)
		}
		o.ID, o.Token = a.id, acq.Grant.Token
		o.Reason = cmp.Or(o.Reason, a.reason)
		return o
	case acq.Reason == analysislock.AlreadyFinished:
		return Outcome{Case: AlreadyFinished, ID: a.id, Status: acq.Status}
	case acq.Reason == analysislock.AttemptsExhausted:
		return Outcome{Case: Failed, ID: a.id, Token: acq.Grant.Token, Err: lease.ErrExhausted, Code: acq.Reason}
	case acq.Reason == analysislock.RunTimeExhausted:
		return Outcome{Case: Failed, ID: a.id, Token: acq.Grant.Token, Err: errRunTime, Code: acq.Reason}
	case acq.Reason == analysislock.Unrecordable:
		return Outcome{Case: Failed, ID: a.id, Token: acq.Grant.Token, Err: analysislock.ErrUnrecordable, Code: acq.Reason}
	case acq.Reason == analysislock.Waiting:
		return a.wait(ctx)
	}
	return a.follow(ctx)
}

// acquire acquires the lock. A stop does not cancel it: a lock could be acquired without
// the worker knowing it, and would not be released.
func (a *attempt) acquire(ctx context.Context) (analysislock.Acquisition, error) {
	ctx, span := a.Telemetry.Start(context.WithoutCancel(ctx), telemetry.Acquire)
	began, m := time.Now(), &a.measured
	early := a.isNext
	if a.Queue == nil { // nothing was booked for a later time
		early = nil
	}
	acq, err := a.Locks.AcquireAnalysisLock(ctx, a.id, a.owner, 0, early)
	m.Asked, m.Acquire = true, time.Since(began)
	a.acq, a.hold = acq, acq.Hold
	outcome := acq.Reason
	switch {
	case err != nil:
		outcome = "error"
	case acq.Acquired:
		outcome = "acquired"
	}
	if acq.Grant.Owner == a.owner { // it has acquired the lock, or recorded that no attempt is left
		m.Owner, m.Attempt, m.Stolen = a.owner, acq.Attempt, acq.Stolen
	}
	if acq.First {
		m.ToStart = acq.Hold.Age()
		a.Telemetry.Started(ctx, m.ToStart)
	}
	a.Telemetry.Acquired(ctx, outcome, m.Acquire)
	span.Close(outcome, err != nil)
	return acq, err
}

// refusal returns the outcome of an acquisition that failed with err.
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

// run runs the analyzer under the lock, and records the result or releases the lock.
func (a *attempt) run(ctx context.Context) Outcome {
	acq := a.acq
	limit, passed := a.RunTimeout, errDeadline
	if acq.RunTime > 0 && acq.RunTime <= limit {
		limit, passed = acq.RunTime, errRunTime
	}
	timed, cancel := context.WithTimeoutCause(ctx, limit, passed)
	defer cancel()
	timed, end := context.WithCancelCause(timed)
	defer end(nil)
	result, began, cause, err := a.analyze(timed, end, orchestrator.Job{AnalysisID: a.id, LockToken: acq.Grant.Token, Attempt: acq.Attempt})
	var lost *lease.LostError
	var permanent *orchestrator.PermanentError
	switch {
	case err == nil:
		return a.complete(ctx, result)
	case errors.As(err, &lost):
		if lost.Reason == lease.OutOfTime { // the lock may still be ours
			a.release(ctx, analysislock.OutcomeLockLost, false)
		}
		return a.lockLost(ctx, err)
	case errors.As(err, &permanent):
		message := permanent.Message
		if message == "" && permanent.Err != nil {
			message = permanent.Err.Error()
		}
		return a.fail(ctx, cmp.Or(analysislock.BoundCode(permanent.Code), orchestrator.CodeAnalyzerRejected), message)
	case errors.Is(cause, ErrStopping):
		return a.stopped(ctx)
	case !began: // the input could not be read
		if o := a.retry(ctx, "input_unavailable", "the input could not be read"); o.Case == RetryBooked {
			return o
		}
		return Outcome{Case: FinishUnknown, Err: err}
	}
	code := "analyzer_failed"
	var failure *orchestrator.FailureError
	var panicked *orchestrator.PanicError
	switch {
	case errors.Is(cause, errDeadline):
		if o, ended := a.continued(ctx); ended {
			return o
		}
		a.Telemetry.TimedOut(ctx, "run_timeout")
		code, err = "run_timeout", fmt.Errorf("the run took longer than RUN_TIMEOUT, %v, without a new checkpoint", a.RunTimeout)
	case errors.Is(cause, errRunTime):
		a.Telemetry.TimedOut(ctx, analysislock.RunTimeExhausted)
		return a.fail(ctx, analysislock.RunTimeExhausted, strings.TrimPrefix(cause.Error(), "worker: "))
	case errors.Is(cause, errStalled):
		a.Telemetry.TimedOut(ctx, "stalled")
		code, err = "stalled", fmt.Errorf("the run reported nothing for longer than STALL_TIMEOUT, %v", a.StallTimeout)
	case errors.As(err, &failure):
		code = cmp.Or(analysislock.BoundCode(failure.Code), code)
	case errors.As(err, &panicked):
		code = "analyzer_panicked"
		a.Log.ErrorContext(ctx, "the analyzer panicked", "analysis_id", a.id, "stack", string(panicked.Stack[:min(4096, len(panicked.Stack))]))
	}
	message := strings.TrimPrefix(err.Error(), "orchestrator: ") // the document is for users
	if acq.Last {
		return a.exhaust(ctx, code, message)
	}
	return a.retry(ctx, code, message)
}

// reasonOf returns how an analyzer failed, without its message, which may contain its input. It
// is empty if the end of its context ended it, or if the code of the error is the reason.
func reasonOf(err error) string {
	var failure *orchestrator.FailureError
	switch {
	case err == nil, errors.As(err, new(*orchestrator.PermanentError)):
		return ""
	case errors.As(err, &failure) && failure.Reason != "":
		return failure.Reason
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	}
	return fmt.Sprintf("the analyzer returned a %T", err)
}

// analyze runs the analyzer while the lock is refreshed. end ends ctx. began is true if its
// input was read. cause is why ctx had ended when the analyzer did: a stop that comes later
// has not stopped the run.
func (a *attempt) analyze(ctx context.Context, end context.CancelCauseFunc, job orchestrator.Job) (result any, began bool, cause, err error) {
	ctx, span := a.Telemetry.Start(ctx, telemetry.Run)
	a.Telemetry.Began(ctx, job.Attempt, a.measured.Stolen)
	failed := true // also if it panics
	defer func() {
		a.Telemetry.Ended(ctx)
		span.Close("", failed)
	}()
	started := time.Now()
	err = a.hold.Run(ctx, func(ctx context.Context, w analysislock.Work) (err error) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		reports := a.newReporter(ctx, end)
		defer reports.close()
		job.Input, job.Resume, job.Reporter, began = w.Input, w.Checkpoint, reports, true
		result, err = orchestrator.Run(ctx, a.Analyzer, job)
		cause, a.reason = context.Cause(ctx), reasonOf(err)
		return err
	}, a.renewed)
	if !began {
		cause = context.Cause(ctx)
	}
	a.measured.Ran, a.measured.Run = true, time.Since(started)
	a.lost(ctx, err)
	failed = err != nil
	return result, began, cause, err
}

// renewed measures a heartbeat; see lease.Renewed.
func (a *attempt) renewed(ctx context.Context, took time.Duration, err error) {
	outcome := "renewed"
	switch {
	case err == nil:
		a.measured.Heartbeats++
	case errors.Is(err, lease.ErrLost):
		outcome = "lost"
	default:
		outcome = "failed"
	}
	a.Telemetry.Renewed(ctx, outcome, took)
	a.Telemetry.Past(ctx, telemetry.Heartbeat, outcome, took, err != nil)
}

// lost measures the loss of the lock, if err, from a run or a finish, reports one.
func (a *attempt) lost(ctx context.Context, err error) {
	var lost *lease.LostError
	if errors.As(err, &lost) && !a.hold.Adoptable() {
		a.measured.Lost = strings.ReplaceAll(lost.Reason, " ", "_")
		if e := a.hold.Lost().Error; lost.Reason == lease.Finished && e != nil && e.Code == analysislock.Cancelled {
			a.measured.Lost = analysislock.Cancelled
		}
		a.Telemetry.Lost(ctx, a.measured.Lost)
	}
}

// lockLost returns the outcome of the loss err. A finished or deleted analysis needs no other
// delivery. For any other, a follow-up is booked for the time after the present lock has
// expired: the other owner's, or this one's if it is out of time.
func (a *attempt) lockLost(ctx context.Context, err error) Outcome {
	o := Outcome{Case: LockLost, Err: err}
	var lost *lease.LostError
	over := errors.As(err, &lost) && (lost.Reason == lease.Finished || lost.Reason == lease.Deleted)
	last := a.hold.Lost()
	if over && lost.Reason == lease.Finished {
		o.Status = last.Status
	}
	if over && a.Queue != nil || !over && a.followUp(ctx, last.Lock.Token, last.Lock.ExpiresAt) {
		o.Case = LockLostOver
	}
	return o
}

// adopt ends a run whose analysis another program, such as the analyzer, has finished under this
// run's lock: it frees the lock and drops the run's own outcome, which it returns if the lock
// was lost meanwhile.
func (a *attempt) adopt(ctx context.Context, own Outcome) Outcome {
	status := a.hold.Lost().Status
	err := a.traced(ctx, telemetry.Finish, a.hold.Adopt)
	switch {
	case errors.Is(err, lease.ErrLost):
		return own
	case err != nil:
		return Outcome{Case: FinishUnknown, Err: err}
	}
	a.Log.WarnContext(ctx, "the run's own result is dropped", "analysis_id", a.id,
		"problem", "the status was set to "+status+" during the run")
	if status == analysislock.Failed {
		return Outcome{Case: Failed, Status: status}
	}
	a.ready(ctx)
	return Outcome{Case: Ran, Status: status}
}

// ready measures the time to READY.
func (a *attempt) ready(ctx context.Context) {
	a.measured.ToReady = a.hold.Age()
	a.Telemetry.Ready(ctx, a.measured.ToReady)
}

func (a *attempt) complete(ctx context.Context, result any) Outcome {
	err := a.traced(ctx, telemetry.Finish, func(ctx context.Context) error { return a.hold.Complete(ctx, result) })
	if errors.Is(err, lease.ErrRefused) { // the document has other fields too, whose size is unknown here
		a.Log.WarnContext(ctx, "Firestore refused the result", "analysis_id", a.id) // the error is not logged: it may quote the result
		return a.fail(ctx, orchestrator.CodeResultTooLarge, "result: the document cannot hold it beside its other fields")
	}
	if err == nil {
		a.ready(ctx)
	}
	return a.finished(ctx, Outcome{Case: Ran}, err)
}

func (a *attempt) fail(ctx context.Context, code, message string) Outcome {
	err := a.traced(ctx, telemetry.Finish, func(ctx context.Context) error { return a.hold.Fail(ctx, code, message) })
	return a.finished(ctx, Outcome{Case: Failed, Err: errors.New(message), Code: code}, err)
}

// exhaust records the temporary failure of the last attempt.
func (a *attempt) exhaust(ctx context.Context, code, message string) Outcome {
	summary := fmt.Sprintf("attempt %d was the last: %s", a.acq.Attempt, message)
	err := a.traced(ctx, telemetry.Finish, func(ctx context.Context) error { return a.hold.Exhaust(ctx, summary, code, message) })
	return a.finished(ctx, Outcome{Case: Failed, Err: errors.New(summary), Code: analysislock.AttemptsExhausted}, err)
}

// finished returns o if the finish was recorded, else the outcome for its error.
func (a *attempt) finished(ctx context.Context, o Outcome, err error) Outcome {
	a.lost(ctx, err)
	switch {
	case err == nil:
		return o
	case errors.Is(err, lease.ErrLost):
		return a.lockLost(ctx, err)
	case errors.Is(err, lease.ErrMalformed):
		return Outcome{Case: Corrupted, Err: err}
	case errors.Is(err, lease.ErrRefused): // not even an error fits into the document
		return a.retry(ctx, "unrecordable", "the document cannot hold the outcome beside its other fields")
	}
	return Outcome{Case: FinishUnknown, Err: err}
}

// release releases the lock; refund takes back the attempt.
func (a *attempt) release(ctx context.Context, outcome string, refund bool) bool {
	return a.released(ctx, func(ctx context.Context) error { return a.hold.Release(ctx, outcome, refund) })
}

// released reports whether release succeeded. A failure is a warning, since the lock
// expires by itself (G8).
func (a *attempt) released(ctx context.Context, release func(ctx context.Context) error) bool {
	err := a.traced(ctx, telemetry.Release, release)
	if err != nil {
		a.Log.WarnContext(ctx, "lock not released", "analysis_id", a.id, "error", err)
	}
	return err == nil
}

// traced calls do inside a span of that name.
func (a *attempt) traced(ctx context.Context, name string, do func(ctx context.Context) error) error {
	ctx, span := a.Telemetry.Start(ctx, name)
	err := do(ctx)
	span.Close("", err != nil)
	return err
}
