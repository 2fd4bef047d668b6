package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/semaphore"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease/analysislock"
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
	// RetryUncertain reports that the caller clears up uncertain acts, as Do's does. A run that ends with
	// one is then tried again. Otherwise its analysis becomes FAILED, and an operator answers.
	RetryUncertain bool
	StallTimeout   time.Duration // limits the time between two reports of a run; zero: no limit
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
