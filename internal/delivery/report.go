package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// maxReportWarnings limits the log lines about the reports of one run.
const maxReportWarnings = 10

// errStalled is the cause with which a run's context ends if the run has reported nothing
// for StallTimeout.
var errStalled = errors.New("worker: the run has reported nothing for too long")

// reporter writes the reports of one run with the lock's renewals. It is safe for
// concurrent use.
type reporter struct {
	guard    *Guard
	id       string
	hold     *analysislock.Hold
	measured *Run // gets the number of checkpoints

	ctx   context.Context // for the log
	stall *time.Timer     // ends the run after StallTimeout; nil: no limit
	ended chan struct{}   // closed when the run has ended

	acts
	skipped  []string // acts of earlier attempts that the run has not asked for, once it has ended
	admitted bool     // Admit has taken the guard's room for one large result

	mu       sync.Mutex
	commits  int // that the run waits for, and is not stalled meanwhile
	warnings int
	warned   map[string]bool // the problems that Warn has logged
}

// batchInterval is the least time between two commits of Batcher's reports.
const batchInterval = time.Second

// errEnded is the error of a call after the end of its run, as by a goroutine that it left behind.
var errEnded = errors.New("worker: the run has ended")

// unknownError is an error after which a commit may have been made.
type unknownError struct{ error }

// Is makes errors.Is(err, orchestrator.ErrUnknown) hold.
func (e unknownError) Is(target error) bool { return target == orchestrator.ErrUnknown }

// Unwrap returns the cause.
func (e unknownError) Unwrap() error { return e.error }

// outcome returns the error of the hold about a commit as the run gets it.
func outcome(err error) error {
	if !errors.Is(err, lease.ErrUnavailable) {
		return err
	}
	if lost, ok := errors.AsType[*lease.LostError](err); ok { // as the run's context says
		err = lost
	}
	return unknownError{err}
}

// open begins the reports of a run. stop ends the run's context.
func (r *reporter) open(ctx context.Context, stop context.CancelCauseFunc) {
	r.ctx, r.ended, r.warned = context.WithoutCancel(ctx), make(chan struct{}), map[string]bool{}
	if r.guard.StallTimeout > 0 {
		r.stall = time.AfterFunc(r.guard.StallTimeout, func() { stop(errStalled) })
	}
	r.hold.Written = r.written
}

// close ends the run's reports. Later ones change nothing.
func (r *reporter) close() {
	close(r.ended)
	if r.stall != nil {
		r.stall.Stop()
	}
}

// over returns errEnded after the end of the run.
func (r *reporter) over() error {
	select {
	case <-r.ended:
		return errEnded
	default:
		return nil
	}
}

// Report implements orchestrator.Reporter.
func (r *reporter) Report(report orchestrator.Report) {
	if r.over() != nil {
		r.Invalid("the run has ended")
		return
	}
	r.hold.Report(r.receive(report), r.guard.CheckpointInterval, nil)
}

// Commit implements orchestrator.Reporter.
func (r *reporter) Commit(ctx context.Context, report orchestrator.Report) error {
	if err := r.over(); err != nil {
		return err
	}
	written := make(chan error, 1)
	r.hold.Report(r.receive(report), 0, func(err error) { written <- err })
	return r.await(ctx, written)
}

// CommitSoon implements orchestrator.Batcher.
func (r *reporter) CommitSoon(report orchestrator.Report, done func(error)) {
	r.waits(1)
	r.hold.Report(r.receive(report), batchInterval, func(err error) {
		r.waits(-1)
		done(outcome(err))
	})
}

// await returns the outcome of a commit. If ctx or the run ends first, that is an unknownError: what
// ends the run commits it too.
func (r *reporter) await(ctx context.Context, written <-chan error) error {
	r.waits(1)
	defer r.waits(-1)
	select {
	case err := <-written:
		return outcome(err)
	case <-ctx.Done():
		return unknownError{context.Cause(ctx)}
	case <-r.ended:
		return unknownError{errEnded}
	}
}

// waits adds n to the commits that the run waits for. It is not stalled while there is one.
func (r *reporter) waits(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commits += n
	switch {
	case r.stall == nil || r.over() != nil:
	case r.commits == 0:
		r.stall.Reset(r.guard.StallTimeout)
	case r.commits == n:
		r.stall.Stop()
	}
}

// Begin implements orchestrator.Marker.
func (r *reporter) Begin(ctx context.Context, name string, again bool) (*orchestrator.Effect, error) {
	if err := r.over(); err != nil {
		return nil, err
	}
	written := make(chan error, 1)
	earlier, begun, err := r.hold.Begin(name, again, func(err error) { written <- err })
	r.ask(name)
	switch {
	case err != nil:
		return nil, r.refuse(RefusedAct(name, err))
	case !begun:
		return (*orchestrator.Effect)(earlier), nil
	}

	if err = r.await(ctx, written); err != nil { // the caller does not act, so this attempt leaves no marker
		r.hold.Mark(name, earlier)
	}
	if unknown, ok := errors.AsType[unknownError](err); ok { // the act has certainly not begun
		err = unknown.error
	}
	if errors.Is(err, lease.ErrRefused) {
		return nil, r.refuse(RefusedAct(name, err))
	}
	return nil, err
}

// End implements orchestrator.Marker.
func (r *reporter) End(ctx context.Context, name string, done *orchestrator.Effect) error {
	if err := r.over(); err != nil {
		return err
	}
	r.ask(name)
	written := make(chan error, 1)
	err := r.hold.End(name, (*analysislock.Effect)(done), func(err error) { written <- err })
	if err == nil {
		err = r.await(ctx, written)
	}
	return EndError(err)
}

// receive restarts the timer of StallTimeout, and converts the report for the lock.
func (r *reporter) receive(report orchestrator.Report) analysislock.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stall != nil && r.stall.Stop() { // otherwise the run is being ended, or waits for a commit
		r.stall.Reset(r.guard.StallTimeout)
	}
	return analysislock.Report{
		Fraction: report.Progress, Message: report.Message, Checkpoint: (*analysislock.Checkpoint)(report.Checkpoint),
	}
}

// Invalid implements orchestrator.Reporter.
func (r *reporter) Invalid(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.warnings++; r.warnings <= maxReportWarnings {
		r.guard.Log.WarnContext(r.ctx, "a report is ignored", "analysis_id", r.id, "problem", problem,
			"last_warning", r.warnings == maxReportWarnings)
	}
}

// Admit implements orchestrator.Admitter. The attempt leaves when it has ended. A run that must stop does
// not wait: others may hold their place for a minute while Firestore does not answer.
func (r *reporter) Admit(ctx context.Context) {
	if r.guard.Large != nil {
		r.admitted = r.guard.Large.Acquire(ctx, 1) == nil
	}
}

// Warn implements orchestrator.Warner.
func (r *reporter) Warn(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.warned[problem] {
		return
	}
	r.warned[problem] = true
	r.guard.Log.WarnContext(r.ctx, "the analyzer's output is doubtful", "analysis_id", r.id, "problem", problem)
}

// written handles the outcome of a commit with a report.
func (r *reporter) written(c *analysislock.Checkpoint, err error) {
	switch {
	case errors.Is(err, lease.ErrRefused): // the error is not logged: it may quote the report
		r.Invalid("the document cannot hold it beside its other fields")
	case err == nil && c != nil && c.Value != nil:
		text, _ := json.Marshal(c.Value) // it was stored, so it is JSON
		r.measured.Checkpoints++
		r.guard.Telemetry.Record(r.ctx, telemetry.CheckpointSize, float64(len(text)))
	}
}
