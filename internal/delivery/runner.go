package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/semaphore"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// Locks acquires the lock on an analysis, or starts its run elsewhere, and reads the work of its attempt;
// analysislock.Locks does.
type Locks interface {
	AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration, o analysislock.AcquireOptions,
	) (analysislock.Acquisition, error)
	Work(ctx context.Context, h *analysislock.Hold) (analysislock.Work, error)
	Delay(ctx context.Context, skipped analysislock.Acquisition, wait time.Duration, task func(next time.Time) string,
	) (next time.Time, err error)
	Start(ctx context.Context, id, owner string, begin func(context.Context) error) (analysislock.Acquisition, error)
}

// Queue books deliveries; taskqueue.Queue does.
type Queue interface {
	// Book makes sure that t is in the queue. already reports that its name was taken.
	Book(ctx context.Context, t taskqueue.Task) (already bool, err error)
	// Find returns the state of the task of that name at now.
	Find(ctx context.Context, name string, now time.Time) (taskqueue.Presence, error)
}

// OrphanFinder finds orphaned analyses, and marks those for which a delivery is booked;
// repo.Analyses does.
type OrphanFinder interface {
	// Orphaned returns readings of up to limit unfinished analyses that only another delivery
	// can finish, and whose booked delivery, if any, is late. more reports that there may be others.
	Orphaned(ctx context.Context, limit int) (due []lease.Cell[analysislock.Analysis], more bool, err error)
	// MarkDue records that the next attempt may begin now, and the name of the task that is booked
	// for it, which task makes of that time. It returns the name, or lease.ErrConflict if the
	// analysis is no longer orphaned. If its document has no room for that, the error is
	// lease.ErrRefused, or an *analysislock.UnrecordableError, which reports that it is now FAILED.
	MarkDue(ctx context.Context, read lease.Cell[analysislock.Analysis],
		task func(next time.Time) string) (booked string, err error)
}

// Keys ends the slots of analyses that have a key, and finds the analyses that wait for a slot. repo.Analyses
// implements it.
type Keys interface {
	// Leave frees a slot or reserves it, and Wake is for a slot that was not used; see analysislock.Locks. They
	// return the parked analyses for which a slot is free.
	Leave(ctx context.Context, s *analysislock.Slot, next time.Time) (parked []analysislock.Analysis, err error)
	Wake(ctx context.Context, key, id string, finished bool) (parked []analysislock.Analysis, err error)
	// Wakeable returns such analyses of all keys.
	Wakeable(ctx context.Context) ([]analysislock.Analysis, error)
}

// Runner runs each piece of work of one kind once at a time, and finishes it once. It is safe for
// concurrent use (SEEDS G1).
type Runner struct {
	Names   TaskNames
	Locks   Locks
	Queue   Queue        // nil: nothing is booked, and nothing recovered
	Orphans OrphanFinder // Recover asks it
	Keys    Keys         // nil: analyses have no key
	// Oldest reads the oldest unfinished analysis, whose age Recover measures; nil: not measured.
	Oldest func(ctx context.Context) (oldest analysislock.Analysis, found bool, err error)
	// Parked counts the analyses that wait for a slot of their key; nil: not counted.
	Parked   func(ctx context.Context) (int64, error)
	Scope    string // the path of the documents' collection, a part of each act's idempotency key
	Instance string // revision/instance; each delivery's owner name begins with it
	// RunTimeout limits one run. A run that passes it without a new checkpoint has failed temporarily.
	RunTimeout time.Duration
	// CheckpointInterval is the shortest time between two commits for reports.
	CheckpointInterval time.Duration
	// RetryUncertain reports that the caller clears up uncertain acts, as Do's does. A run that ends with
	// one is then tried again. Otherwise its analysis becomes FAILED, and an operator answers.
	RetryUncertain bool
	// HoldKeys keeps the slot of an analysis that must run again until its next attempt.
	HoldKeys     bool
	StallTimeout time.Duration // limits the time between two reports of a run; zero: no limit
	// RetryMin and RetryMax bound the wait after a temporary failure, if Queue is set.
	RetryMin, RetryMax time.Duration
	// Large admits one large result at a time, from its decoding to the commit: each may take a
	// hundred times its bytes in memory. Nil: no limit.
	Large     *semaphore.Weighted
	Log       *slog.Logger
	Telemetry *telemetry.Telemetry // nil: none
	Keyless   *Keyless             // nil: a process without a key in any analysis does not warn
}

// Causes with which a run's context ends, besides lease.ErrLost.
var (
	// ErrStopping is the cause with which the caller cancels Deliver's context when
	// the process must stop; a *StopError also has the times of the stop.
	ErrStopping = errors.New("worker: shutting down")
	errDeadline = errors.New("worker: the run passed its deadline")
	errRunTime  = errors.New("worker: the analysis took longer than MAX_RUN_TIME")
	errStalled  = errors.New("worker: the run has reported nothing for too long") // for StallTimeout
)

// Codes of lastError and error. Analyzers have their own, and analysislock has more.
const (
	CodeFailed           = "analyzer_failed"
	CodePanicked         = "analyzer_panicked"
	CodeInputUnavailable = "input_unavailable"
	CodeRunTimeout       = "run_timeout"
	CodeStalled          = "stalled"
)

// Codes returns every code that an error of a document can have, if no analyzer has named it.
func Codes() []string {
	return []string{
		CodeFailed, CodePanicked, CodeInputUnavailable, CodeRunTimeout, CodeStalled,
		orchestrator.CodeAnalyzerRejected, orchestrator.CodeInvalidInput, orchestrator.CodeInvalidOutput,
		orchestrator.CodeResultInvalid, orchestrator.CodeResultTooLarge,
		orchestrator.CodeActReused, orchestrator.CodeActNameInvalid, orchestrator.CodeActsFull,
		orchestrator.CodeActInSelfTest, analysislock.ActUncertain, "effect_result_invalid",
		analysislock.AttemptsExhausted, analysislock.RunTimeExhausted, analysislock.NotStarted,
		analysislock.Cancelled, analysislock.Crashed, analysislock.Unrecordable,
	}
}

// Defaults of variables of the environment.
const (
	DefaultRunTimeout         = 25 * time.Minute
	DefaultMaxRunTime         = 24 * time.Hour
	DefaultCheckpointInterval = 10 * time.Second
	// With these bounds of the wait, ten attempts span at least 55 minutes.
	DefaultMinRetry = 30 * time.Second
	DefaultMaxRetry = 10 * time.Minute
)

// TaskNames are the names that tell the tasks of one kind from the tasks of others. The zero value is for
// analyses.
type TaskNames struct {
	Kind    string // name of the kind; empty: analysis
	IDField string // name of the id in a request and an answer; empty: taskqueue's default
	Path    string // path of the route for its tasks; empty: taskqueue's default
}

// Task returns the name of a task. Tasks of two kinds have different names.
func (n TaskNames) Task(parts ...string) string {
	if n.Kind != "" {
		parts = append(parts, "kind "+n.Kind)
	}
	return taskqueue.Name(parts...)
}

// Delivery is one delivery of a task.
type Delivery struct {
	AnalysisID string
	Task       string                // the task's short name, or the id of a message
	Tries      int                   // the number of this try of the task, from 1; zero: unknown
	Analyzer   orchestrator.Analyzer // nil: book another delivery in the queue, and do not run
	Place      *Place                // where a suspect can run alone; nil: suspects run as any other
	Alone      bool                  // the process runs nothing else
	// Start begins the run of the analysis elsewhere. Nil: it runs here.
	Start func(ctx context.Context, id string) error
}
