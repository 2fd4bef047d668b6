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
	*attempt
	ctx   context.Context // of the log
	stall *time.Timer     // ends the run after StallTimeout; nil: no limit

	acts

	mu       sync.Mutex
	warnings int
}

// newReporter returns the reporter of a run. stop ends the run's context.
func (a *attempt) newReporter(ctx context.Context, stop context.CancelCauseFunc) *reporter {
	r := &reporter{attempt: a, ctx: context.WithoutCancel(ctx)}
	if a.StallTimeout > 0 {
		r.stall = time.AfterFunc(a.StallTimeout, func() { stop(errStalled) })
	}
	a.hold.Written = r.written
	return r
}

// close stops the timer of StallTimeout.
func (r *reporter) close() {
	if r.stall != nil {
		r.stall.Stop()
	}
}

// Report implements orchestrator.Reporter.
func (r *reporter) Report(report orchestrator.Report) {
	r.hold.Report(r.receive(report), r.CheckpointInterval, nil)
}

// Commit implements orchestrator.Reporter.
func (r *reporter) Commit(ctx context.Context, report orchestrator.Report) error {
	written := make(chan error, 1)
	r.hold.Report(r.receive(report), 0, func(err error) { written <- err })
	return r.await(ctx, written)
}

// await returns the outcome of a commit, or the cause of ctx.
func (r *reporter) await(ctx context.Context, written <-chan error) error {
	if r.stall != nil && r.stall.Stop() { // the run waits for Firestore, and is not stalled
		defer r.stall.Reset(r.StallTimeout)
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Begin implements orchestrator.Marker.
func (r *reporter) Begin(ctx context.Context, name string, again bool) (*orchestrator.Effect, error) {
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
	if errors.Is(err, lease.ErrRefused) {
		return nil, r.refuse(RefusedAct(name, err))
	}
	return nil, err
}

// End implements orchestrator.Marker.
func (r *reporter) End(ctx context.Context, name string, done *orchestrator.Effect) error {
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
	if r.stall != nil && r.stall.Stop() { // otherwise the run is being ended
		r.stall.Reset(r.StallTimeout)
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
		r.Log.WarnContext(r.ctx, "a report is ignored", "analysis_id", r.AnalysisID, "problem", problem,
			"last_warning", r.warnings == maxReportWarnings)
	}
}

// Warn implements orchestrator.Warner.
func (r *reporter) Warn(problem string) {
	r.Log.WarnContext(r.ctx, "the analyzer's output is doubtful", "analysis_id", r.AnalysisID, "problem", problem)
}

// written handles the outcome of a commit with a report.
func (r *reporter) written(c *analysislock.Checkpoint, err error) {
	switch {
	case errors.Is(err, lease.ErrRefused): // the error is not logged: it may quote the report
		r.Invalid("the document cannot hold it beside its other fields")
	case err == nil && c != nil && c.Value != nil:
		text, _ := json.Marshal(c.Value) // it was stored, so it is JSON
		r.measured.Checkpoints++
		r.Telemetry.Record(r.ctx, telemetry.CheckpointSize, float64(len(text)))
	}
}
