package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// Locks acquires the lock on an analysis; analysislock.Locks does.
type Locks interface {
	AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration, o analysislock.AcquireOptions,
	) (analysislock.Acquisition, error)
}

// Guard runs each analysis once at a time and finishes it once. It is safe for concurrent
// use (SEEDS G1).
type Guard struct {
	Kind    Kind // zero: analyses
	Locks   Locks
	Queue   Queue        // nil: nothing is booked, and nothing recovered
	Orphans OrphanFinder // for Recover
	// Oldest reads the oldest unfinished analysis, whose age Recover measures; nil: not measured.
	Oldest     func(ctx context.Context) (oldest analysislock.Analysis, found bool, err error)
	Scope      string        // of the keys of acts: the path of the documents' collection
	Instance   string        // begins the owner of each delivery: revision/instance
	RunTimeout time.Duration // of one run. Without a new checkpoint, passing it is a temporary failure
	// CheckpointInterval is the shortest time between two commits for reports.
	CheckpointInterval time.Duration
	// Answers reports that the caller answers uncertain acts, as Do's does. They end no work.
	Answers      bool
	StallTimeout time.Duration // limits the time between two reports of a run; zero: no limit
	// RetryMin and RetryMax bound the wait after a temporary failure, if Queue is set.
	RetryMin, RetryMax time.Duration
	// Large admits one large result at a time, from its decoding to the commit: each may take a
	// hundred times its bytes in memory. Nil: no limit.
	Large     *semaphore.Weighted
	Log       *slog.Logger
	Telemetry *telemetry.Telemetry // nil: none
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

// Codes of lastError and error, beside the analyzer's own and those of analysislock.
const (
	CodeFailed           = "analyzer_failed"
	CodePanicked         = "analyzer_panicked"
	CodeInputUnavailable = "input_unavailable"
	CodeRunTimeout       = "run_timeout"
	CodeStalled          = "stalled"
)

// Defaults of variables of the environment.
const (
	DefaultRunTimeout         = 25 * time.Minute
	DefaultMaxRunTime         = 24 * time.Hour
	DefaultCheckpointInterval = 10 * time.Second
	// With these bounds of the wait, ten attempts span at least 55 minutes.
	DefaultMinRetry = 30 * time.Second
	DefaultMaxRetry = 10 * time.Minute
)

// Kind names a kind of work. The zero Kind is that of analyses.
type Kind struct {
	Name    string // empty: analysis
	IDField string // of the body of a request and of an answer; empty: taskqueue's default
	Path    string // of the URL; empty: taskqueue's default
}

// Task returns the name of a task. Tasks of two kinds have different names.
func (k Kind) Task(parts ...string) string {
	if k.Name != "" {
		parts = append(parts, "kind "+k.Name)
	}
	return taskqueue.Name(parts...)
}

// Delivery is one delivery of a task.
type Delivery struct {
	AnalysisID string
	Task       string                // the task's short name, or the id of a message
	Tries      int                   // the number of this try of the task, from 1; zero: unknown
	Analyzer   orchestrator.Analyzer // nil: book another delivery in the queue, and do not run
}

// Deliver handles one delivery: acquire, run under heartbeats, and finish in one fenced
// commit or release. When it returns, nothing that it started is running. ctx ends only
// with the process, not when the caller hangs up.
func (g *Guard) Deliver(ctx context.Context, d Delivery) (o Outcome) {
	// A new owner for each delivery: with one owner for each process, 22 of 200 runs overlapped.
	a := &attempt{Guard: g, Delivery: d, owner: g.Instance + "/" + rand.Text()}
	switch {
	case d.Analyzer == nil:
		o = a.forward(ctx)
	case ctx.Err() != nil:
		o = Outcome{Case: NotClaimed, ID: ValidID(a.AnalysisID), Err: ErrStopping}
	default:
		o = a.deliver(ctx)
	}

	switch o.Case {
	case Ran, Failed, AlreadyFinished, Forwarded:
		o.Settled = true
	}
	o.Measures = a.measured
	if o.Ran {
		g.Telemetry.Record(ctx, telemetry.RunDuration, o.Run.Seconds(), telemetry.ByOutcome(o.Case.String()))
	}
	return o
}

// attempt is one delivery while it is handled.
type attempt struct {
	*Guard
	Delivery

	owner    string
	acq      analysislock.Acquisition
	hold     *analysislock.Hold // once acquired
	measured Measures

	skipped  []string // acts of earlier attempts that the run has not asked for
	admitted bool     // by Large
}

// deliver acquires the lock and runs the analyzer, or handles the refusal.
func (a *attempt) deliver(ctx context.Context) Outcome {
	acq, err := a.acquire(ctx)
	switch {
	case err != nil:
		return refusal(a.AnalysisID, err)
	case acq.Acquired:
		o := a.run(ctx)
		o.ID, o.Token = a.AnalysisID, acq.Grant.Token
		return o
	}

	switch acq.Reason {
	case analysislock.AlreadyFinished:
		return Outcome{Case: AlreadyFinished, ID: a.AnalysisID, Status: acq.Status}
	case analysislock.AttemptsExhausted:
		return a.exhausted(ctx, lease.ErrExhausted)
	case analysislock.RunTimeExhausted:
		return a.exhausted(ctx, errRunTime)
	case analysislock.Unrecordable:
		return a.exhausted(ctx, analysislock.ErrUnrecordable)
	case analysislock.Waiting:
		return a.wait(ctx)
	}
	return a.locked(ctx)
}

// exhausted returns the outcome of an acquisition that has recorded FAILED because of err.
func (a *attempt) exhausted(ctx context.Context, err error) Outcome {
	a.uncertain(ctx, a.acq.Uncertain)
	return Outcome{Case: Failed, ID: a.AnalysisID, Token: a.acq.Grant.Token, Err: err, Code: a.acq.Reason}
}

// acquire acquires the lock. A stop does not cancel it: the commit could still succeed, and
// the lock would not be released.
func (a *attempt) acquire(ctx context.Context) (analysislock.Acquisition, error) {
	ctx, span := a.Telemetry.Start(context.WithoutCancel(ctx), telemetry.Acquire)
	var o analysislock.AcquireOptions
	if a.Queue != nil { // otherwise nothing was booked for a later time
		o.Early = a.isNext
	}
	// A delivery is probably a skip if it is not the first try of its task, or a follow-up.
	if a.Tries <= 1 && !strings.HasSuffix(a.Task, followSuffix) {
		o.Want = lease.LeaseAndWork
	}
	began := time.Now()
	acq, err := a.Locks.AcquireAnalysisLock(ctx, a.AnalysisID, a.owner, 0, o)
	a.acq, a.hold = acq, acq.Hold

	m := &a.measured
	m.Asked, m.Acquire = true, time.Since(began)
	if acq.Grant.Owner == a.owner { // acquired, or recorded as FAILED
		m.Owner, m.Attempt, m.Stolen = a.owner, acq.Attempt, acq.Stolen
	}
	if acq.First {
		m.ToStart = acq.Hold.Age()
		a.Telemetry.RecordAge(ctx, telemetry.StartDuration, m.ToStart)
	}

	outcome := acq.Reason
	switch {
	case err != nil:
		outcome = "error"
	case acq.Acquired:
		outcome = "acquired"
	}
	a.Telemetry.Record(ctx, telemetry.AcquireDuration, m.Acquire.Seconds(), telemetry.ByOutcome(outcome))
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
