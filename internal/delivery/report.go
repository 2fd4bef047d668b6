package delivery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// maxReportWarnings limits the log lines about the reports of one run.
const maxReportWarnings = 10

// reporter writes the reports of one run with the lock's renewals. It is safe for
// concurrent use.
type reporter struct {
	runner   *Runner
	id       string
	hold     *analysislock.Hold
	measures *Run            // gets the number of checkpoints
	resumed  json.RawMessage // the checkpoint that the run was given; nil: none

	held         context.Context         // of the run, which a stop ends last; see Outlast
	running      context.Context         // ends with the run, with the cause errEnded
	cancel       context.CancelCauseFunc // ends running
	stall        *time.Timer             // ends the run if it has reported nothing for stallTimeout
	stallTimeout time.Duration

	acts
	skipped  []string // acts that earlier attempts have done, and that the run has not asked for
	admitted bool     // Admit has taken the runner's room for one large result

	warnings atomic.Int32
	problems sync.Map // that Warn has logged, by text
	mu       sync.Mutex
	commits  int // the run waits for so many, and is not stalled meanwhile
	progress analysislock.Progress

	// The lock's writer sets committed and measures. The delivery reads them after the run.
	committed *analysislock.Checkpoint // the newest
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

// asRunSees returns the error of the hold about a commit as the run gets it.
func asRunSees(err error) error {
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
	r.running, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	r.stallTimeout = cmp.Or(r.runner.StallTimeout, math.MaxInt64)
	r.stall = time.AfterFunc(r.stallTimeout, func() { stop(errStalled) })
}

// close ends the run's reports. Later ones change nothing.
func (r *reporter) close() {
	r.cancel(errEnded)
	r.stall.Stop()
}

// Report implements orchestrator.Reporter.
func (r *reporter) Report(report orchestrator.Report) {
	if r.running.Err() != nil {
		r.Invalid("the run has ended")
		return
	}
	r.send(report, r.runner.CheckpointInterval, nil)
}

// Commit implements orchestrator.Reporter.
func (r *reporter) Commit(ctx context.Context, report orchestrator.Report) error {
	if err := context.Cause(r.running); err != nil {
		return err
	}
	written := make(chan error, 1)
	r.send(report, 0, func(err error) { written <- err })
	return r.await(ctx, written)
}

// CommitSoon implements orchestrator.Batcher.
func (r *reporter) CommitSoon(report orchestrator.Report, done func(error)) {
	r.waits(1)
	r.send(report, batchInterval, func(err error) {
		r.waits(-1)
		done(asRunSees(err))
	})
}

// await returns the outcome of a commit. If ctx or the run ends first, that is an unknownError: what
// ends the run commits it too.
func (r *reporter) await(ctx context.Context, written <-chan error) error {
	r.waits(1)
	defer r.waits(-1)
	select {
	case err := <-written:
		return asRunSees(err)
	case <-ctx.Done():
		return unknownError{context.Cause(ctx)}
	case <-r.running.Done():
		return unknownError{errEnded}
	}
}

// waits adds n to the commits that the run waits for. It is not stalled while there is one.
func (r *reporter) waits(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.commits
	r.commits += n
	switch {
	case r.running.Err() != nil:
	case r.commits == 0:
		r.stall.Reset(r.stallTimeout)
	case before == 0:
		r.stall.Stop()
	}
}

// Begin implements orchestrator.Marker.
func (r *reporter) Begin(ctx context.Context, name string, again bool) (*orchestrator.Act, error) {
	if err := cmp.Or(context.Cause(r.running), context.Cause(ctx)); err != nil {
		return nil, err // no act begins after its run's end, however fast its commit would be
	}
	r.names.Store(name, true)
	token, now := r.hold.Grant().Token, r.now()
	changed, earlier, err := r.hold.Doc().Acts.Begin(name, token, now, again)
	if changed == nil && err == nil { // an earlier attempt's record answers, even while a commit hangs
		return (*orchestrator.Act)(earlier), nil
	}
	begin := &analysislock.Beginning{Name: name, Token: token, Now: now, Again: again}
	written := make(chan error, 1)
	r.hold.Send(begin.Change(func(err error) { written <- err }))

	err = r.await(ctx, written)
	switch unknown, ok := errors.AsType[unknownError](err); {
	case err == nil && begin.Begun:
		return nil, nil //nolint:nilnil // there is no earlier record
	case err == nil:
		return (*orchestrator.Act)(begin.Earlier), nil
	case ok: // the caller does not act, so this attempt leaves no marker, and the act has certainly not begun
		r.hold.Send(begin.Undo())
		return nil, unknown.error
	case errors.Is(err, analysislock.ErrReused), errors.Is(err, analysislock.ErrFull), errors.Is(err, lease.ErrRefused):
		return nil, r.refuse(RefusedAct(name, err))
	}
	return nil, err
}

// End implements orchestrator.Marker: it records how an act ended.
func (r *reporter) End(ctx context.Context, name string, done *orchestrator.Act) error {
	if err := context.Cause(r.running); err != nil {
		return err
	}
	r.names.Store(name, true)
	written := make(chan error, 1)
	end := (*analysislock.Act)(done)
	r.hold.Send(analysislock.ActEnded(name, r.hold.Grant().Token, r.now(), end, func(err error) { written <- err }))
	return EndError(r.await(ctx, written))
}

// now estimates Firestore's present time, as documents store it.
func (r *reporter) now() time.Time { return r.hold.Now().Truncate(time.Millisecond) }

// send sends a report to the lock's next commit, which may be made delay after the last one. It
// restarts the timer of StallTimeout. done is called with the outcome.
func (r *reporter) send(report orchestrator.Report, delay time.Duration, done func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stall.Stop() { // otherwise the run is being ended, or waits for a commit
		r.stall.Reset(r.stallTimeout)
	}

	r.progress.At = r.now()
	r.progress.Fraction = cmp.Or(report.Progress, r.progress.Fraction)
	if report.Message != nil {
		r.progress.Message = *report.Message
	}
	checkpoint := (*analysislock.Checkpoint)(report.Checkpoint)
	changes := []analysislock.Change{analysislock.Progressed(r.progress)}
	if checkpoint != nil {
		changes = append(changes, analysislock.Checkpointed(checkpoint))
	}
	for i := range changes {
		changes[i].Delay = delay
	}
	last := &changes[len(changes)-1] // analysislock.shed drops the progress last, so no commit has less
	last.Written, last.Done = func(err error) { r.written(checkpoint, err) }, done
	r.hold.Send(changes...)
}

// Invalid implements orchestrator.Reporter.
func (r *reporter) Invalid(problem string) {
	if n := r.warnings.Add(1); n <= maxReportWarnings {
		r.runner.Log.WarnContext(r.running, "a report is ignored", "analysis_id", r.id, "problem", problem,
			"last_warning", n == maxReportWarnings)
	}
}

// Admit implements orchestrator.Admitter. The attempt leaves when it has ended. A run that must stop does
// not wait: others may hold their place for a minute while Firestore does not answer.
func (r *reporter) Admit(ctx context.Context) {
	if r.runner.Large != nil {
		r.admitted = r.runner.Large.Acquire(ctx, 1) == nil
	}
}

// Warn implements orchestrator.Warner. It logs a problem once.
func (r *reporter) Warn(problem string) {
	if _, again := r.problems.LoadOrStore(problem, true); !again {
		r.runner.Log.WarnContext(r.running, "the analyzer's output is doubtful",
			"analysis_id", r.id, "problem", problem)
	}
}

// written handles the outcome of a commit with a report.
func (r *reporter) written(c *analysislock.Checkpoint, err error) {
	switch {
	case errors.Is(err, lease.ErrRefused): // the error is not logged: it may quote the report
		r.Invalid("the document cannot hold it beside its other fields")
	case err == nil && c != nil:
		r.committed = c
		if c.Value == nil {
			return
		}
		text, _ := json.Marshal(c.Value) // it was stored, so it is JSON
		r.measures.Checkpoints++
		r.runner.Telemetry.Record(context.WithoutCancel(r.running), telemetry.CheckpointSize, float64(len(text)))
	}
}

// advanced reports whether the run has committed another checkpoint than the one it resumed from.
func (r *reporter) advanced() bool {
	if r.committed == nil || r.committed.Value == nil {
		return false
	}
	committed, err := json.Marshal(r.committed.Value) // sorts the keys of maps, as resumed has them
	resumed, _ := json.Marshal(r.resumed)
	return err == nil && !bytes.Equal(committed, resumed)
}
