package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// run is a call of the analyzer under the lock.
type run struct {
	result  any
	err     error  // of the analyzer, unless the lock was lost or the input could not be read
	failure error  // always the analyzer's
	reason  string // how the analyzer failed; safe to log
	began   bool   // the input was read
	cause   error  // of the end of the run's context, if that ended before the analyzer
}

// run runs the analyzer under the lock. It records the result, or releases the lock, and reports the
// acts that are left open.
func (a *attempt) run(ctx context.Context) Outcome {
	defer a.leave()
	r := a.analyze(ctx)
	o := a.record(ctx, r)
	if a.hold.Adoptable() {
		o = a.adopt(ctx, o)
	}
	a.reportOpen(ctx, o)
	a.reportForgotten(ctx, o)
	o.RunErr, o.Reason = r.failure, r.reason
	return o
}

// leave makes room for the next large result.
func (a *attempt) leave() {
	if a.admitted {
		a.Large.Release(1)
	}
}

// reportOpen reports the open acts that no later attempt asks for by itself: those of an analysis
// that has ended, and those of earlier calls that a call of Do or Idempotent could not clear up.
func (a *attempt) reportOpen(ctx context.Context, o Outcome) {
	switch {
	case o.Case == Ran || o.Case == Failed:
		open := a.hold.OpenEffects(0)
		a.uncertain(ctx, len(open), "effects", open)
	case o.Case == Retry && a.Answers:
		open := a.hold.OpenEffects(a.acq.Grant.Token)
		a.uncertain(ctx, len(open), "effects", open)
	case o.Case == LockLost && o.Status != "": // it was cancelled, for example
		a.uncertain(ctx, a.hold.Lost().OpenEffects)
	}
}

// record records how the run has ended: it finishes the analysis or releases the lock.
func (a *attempt) record(ctx context.Context, r run) Outcome {
	var lost *lease.LostError
	var uncertain *orchestrator.UncertainError
	var permanent *orchestrator.PermanentError
	switch {
	case r.err == nil:
		return a.complete(ctx, r.result)
	case errors.As(r.err, &lost):
		if lost.Reason == lease.OutOfTime { // the lock may still be ours
			a.release(ctx, analysislock.OutcomeLockLost, false, "")
		}
		return a.lockLost(ctx, r.err)
	case errors.As(r.err, &uncertain) && uncertain.Key == a.AnalysisID: // not that of a call of Do
		message := uncertain.Error()
		if a.Answers {
			return a.retry(ctx, analysislock.EffectUncertain, message, 0)
		}
		return a.fail(ctx, analysislock.EffectUncertain, message)
	case errors.As(r.err, &permanent):
		message := permanent.Message
		if message == "" && permanent.Err != nil {
			message = orchestrator.Text(permanent.Err)
		}
		code := cmp.Or(analysislock.BoundCode(permanent.Code), orchestrator.CodeAnalyzerRejected)
		return a.fail(ctx, code, message)
	case errors.Is(r.cause, ErrStopping):
		return a.stopped(ctx)
	case !r.began:
		o := a.retry(ctx, CodeInputUnavailable, "the input could not be read", 0)
		if o.Case == Retry && o.Settled {
			return o
		}
		return Outcome{Case: FinishUnknown, Err: r.err}
	case errors.Is(r.cause, errRunTime):
		a.Telemetry.Record(ctx, telemetry.Timeouts, 1, telemetry.ByReason(analysislock.RunTimeExhausted))
		return a.fail(ctx, analysislock.RunTimeExhausted, orchestrator.Text(r.cause))
	case errors.Is(r.cause, errDeadline):
		if o, ended := a.continued(ctx); ended {
			return o
		}
	}

	code, message := a.failure(ctx, r)
	wait := r.wait()
	if a.acq.Last && a.counts(wait) {
		return a.exhaust(ctx, code, message)
	}
	return a.retry(ctx, code, message, wait)
}

// maxUncounted is how many attempts in a row are not counted because they have asked for a wait.
const maxUncounted = 100

// counts reports whether an attempt counts that has failed and has asked for this wait; zero: none.
func (a *attempt) counts(wait time.Duration) bool {
	return wait == 0 || a.hold.Uncounted() >= maxUncounted
}

// UncertainMessage is the message of the ERROR line about open acts, which an alert counts.
const UncertainMessage = "an act is uncertain"

// uncertain reports so many open acts of an analysis that has ended, with what is known of them: an
// operator must answer them. A later attempt would ask for an act by itself.
func (a *attempt) uncertain(ctx context.Context, open int, known ...any) {
	if open == 0 {
		return
	}
	a.Telemetry.Record(ctx, telemetry.UncertainActs, float64(open))
	if a.Kind.Name != "" {
		known = append(known, "kind", a.Kind.Name)
	}
	a.Log.With(known...).ErrorContext(ctx, UncertainMessage,
		"analysis_id", a.AnalysisID, "lock_token", a.acq.Grant.Token)
}

// failure measures a temporary failure, and returns its code and its message for the document.
func (a *attempt) failure(ctx context.Context, r run) (code, message string) {
	var failure *orchestrator.FailureError
	var panicked *orchestrator.PanicError
	switch {
	case errors.Is(r.cause, errDeadline):
		a.Telemetry.Record(ctx, telemetry.Timeouts, 1, telemetry.ByReason(CodeRunTimeout))
		return CodeRunTimeout,
			fmt.Sprintf("the run took longer than RUN_TIMEOUT, %v, without a new checkpoint", a.RunTimeout)
	case errors.Is(r.cause, errStalled):
		a.Telemetry.Record(ctx, telemetry.Timeouts, 1, telemetry.ByReason(CodeStalled))
		return CodeStalled,
			fmt.Sprintf("the run reported nothing for longer than STALL_TIMEOUT, %v", a.StallTimeout)
	case errors.As(r.err, &failure):
		code = analysislock.BoundCode(failure.Code)
	case errors.As(r.err, &panicked):
		code = CodePanicked
		stack := string(panicked.Stack[:min(4096, len(panicked.Stack))])
		a.Log.ErrorContext(ctx, "the analyzer panicked", "analysis_id", a.AnalysisID, "stack", stack)
	}
	return cmp.Or(code, CodeFailed), orchestrator.Text(r.err) // the document is for users
}

// wait returns the wait that the analyzer has asked for; zero: none. An analyzer that was ended by
// a limit of time does not choose the wait.
func (r run) wait() time.Duration {
	var later *orchestrator.RetryAfterError
	if r.cause != nil || !errors.As(r.err, &later) {
		return 0
	}
	return later.After()
}

// reasonOf returns how an analyzer failed, without its message, which may contain its input. It
// is empty after the end of the analyzer's context, and if the code of the error is the reason.
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

// analyze runs the analyzer while the lock is renewed, within the limits of time.
func (a *attempt) analyze(ctx context.Context) (r run) {
	limit, cause := a.RunTimeout, errDeadline
	if a.acq.RunTime > 0 && a.acq.RunTime <= limit {
		limit, cause = a.acq.RunTime, errRunTime
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, cause)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	ctx, span := a.Telemetry.Start(ctx, telemetry.Run)
	a.Telemetry.Record(ctx, telemetry.RunsActive, 1)
	a.Telemetry.Record(ctx, telemetry.RunAttempt, float64(a.acq.Attempt))
	if a.measured.Stolen {
		a.Telemetry.Record(ctx, telemetry.Steals, 1)
	}
	failed := true // also if it panics
	defer func() {
		a.Telemetry.Record(ctx, telemetry.RunsActive, -1)
		span.Close("", failed)
	}()

	started := time.Now()
	r.err = a.hold.Run(ctx, func(ctx context.Context, w analysislock.Work) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.began = true
		r.result, r.failure = a.call(ctx, stop, w)
		r.cause, r.reason = context.Cause(ctx), reasonOf(r.failure)
		return r.failure
	}, a.renewed)
	if !r.began {
		r.cause = context.Cause(ctx)
	}
	a.measured.Ran, a.measured.Run = true, time.Since(started)
	failed = r.err != nil
	return r
}

// call calls the analyzer with the work and a reporter. stop ends ctx.
func (a *attempt) call(ctx context.Context, stop context.CancelCauseFunc, w analysislock.Work) (any, error) {
	reports := a.newReporter(ctx, stop)
	defer reports.close()
	result, err := orchestrator.Run(ctx, a.Analyzer, orchestrator.Job{
		AnalysisID: a.AnalysisID, LockToken: a.acq.Grant.Token, Attempt: a.acq.Attempt,
		Input: w.Input, Resume: w.Checkpoint, Scope: a.Scope, Reporter: reports,
	})
	if w.Checkpoint == nil { // else the run may have continued after them
		a.skipped = reports.forgotten(w.Effects)
	}
	return result, reports.judge(err)
}

// reportForgotten warns of acts that earlier attempts have done, and that a run has not asked for before
// it became READY: a release may have renamed an act, and done it again under its new name.
func (a *attempt) reportForgotten(ctx context.Context, o Outcome) {
	if o.Case == Ran && len(a.skipped) > 0 {
		a.Log.WarnContext(ctx, "acts of an earlier attempt were not asked for",
			"analysis_id", a.AnalysisID, "lock_token", a.acq.Grant.Token, "effects", a.skipped)
	}
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
	a.Telemetry.Record(ctx, telemetry.HeartbeatDuration, took.Seconds(), telemetry.ByOutcome(outcome))
	a.Telemetry.Past(ctx, telemetry.Heartbeat, outcome, took, err != nil)
}

// lockLost measures the loss err of the lock, and returns its outcome. A finished or deleted analysis
// needs no other delivery. For any other, a follow-up is booked for the time after the lock's expiry.
// The lock is another owner's, or still this attempt's if the loss is lease.OutOfTime.
func (a *attempt) lockLost(ctx context.Context, err error) Outcome {
	o, last, lost := Outcome{Case: LockLost, Err: err}, a.hold.Lost(), &lease.LostError{}
	_ = errors.As(err, &lost)
	if !a.hold.Adoptable() {
		a.measured.Lost = strings.ReplaceAll(lost.Reason, " ", "_")
		if lost.Reason == lease.Finished && last.Error != nil && last.Error.Code == analysislock.Cancelled {
			a.measured.Lost = analysislock.Cancelled
		}
		a.Telemetry.Record(ctx, telemetry.Losses, 1, telemetry.ByReason(a.measured.Lost))
	}

	switch lost.Reason {
	case lease.Finished:
		o.Settled, o.Status = a.Queue != nil, last.Status
	case lease.Deleted:
		o.Settled = a.Queue != nil
	default:
		o.Settled = a.followUp(ctx, last.Lock.Token, last.Lock.ExpiresAt)
	}
	return o
}

// adopt ends a run whose analysis another program, such as the analyzer, has finished under this
// run's lock. It frees the lock and drops own, the run's outcome. If the lock was lost
// meanwhile, it returns own.
func (a *attempt) adopt(ctx context.Context, own Outcome) Outcome {
	status := a.hold.Lost().Status
	err := a.traced(ctx, telemetry.Finish, a.hold.Adopt)
	switch {
	case errors.Is(err, lease.ErrLost):
		return own
	case err != nil:
		return Outcome{Case: FinishUnknown, Err: err}
	}

	a.Log.WarnContext(ctx, "the run's own result is dropped", "analysis_id", a.AnalysisID,
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
	a.Telemetry.RecordAge(ctx, telemetry.ReadyDuration, a.measured.ToReady)
}

// complete records READY with the result.
func (a *attempt) complete(ctx context.Context, result any) Outcome {
	return a.finish(ctx, Outcome{Case: Ran, Result: result}, func(ctx context.Context) error {
		return a.hold.Complete(ctx, result)
	})
}

// fail records a permanent failure.
func (a *attempt) fail(ctx context.Context, code, message string) Outcome {
	o := Outcome{Case: Failed, Err: errors.New(message), Code: code}
	return a.finish(ctx, o, func(ctx context.Context) error { return a.hold.Fail(ctx, code, message) })
}

// exhaust records the temporary failure of the last attempt.
func (a *attempt) exhaust(ctx context.Context, code, message string) Outcome {
	summary := fmt.Sprintf("attempt %d was the last: %s", a.acq.Attempt, message)
	o := Outcome{Case: Failed, Err: errors.New(summary), Code: analysislock.AttemptsExhausted}
	return a.finish(ctx, o, func(ctx context.Context) error { return a.hold.Exhaust(ctx, summary, code, message) })
}

// finish finishes the analysis by a commit. It returns o, or the outcome for the commit's error.
func (a *attempt) finish(ctx context.Context, o Outcome, commit func(ctx context.Context) error) Outcome {
	err := a.traced(ctx, telemetry.Finish, commit)
	switch {
	case err == nil && o.Case == Ran:
		a.ready(ctx)
		return o
	case err == nil:
		return o
	case errors.Is(err, lease.ErrLost):
		return a.lockLost(ctx, err)
	case errors.Is(err, lease.ErrMalformed):
		return Outcome{Case: Corrupted, Err: err}
	case errors.Is(err, lease.ErrRefused) && o.Case == Ran: // the error may quote the result
		a.Log.WarnContext(ctx, "Firestore refused the result", "analysis_id", a.AnalysisID)
		const message = "result: the document cannot hold it beside its other fields"
		return a.fail(ctx, orchestrator.CodeResultTooLarge, message)
	case errors.Is(err, lease.ErrRefused): // not even an error fits into the document
		return a.retry(ctx, analysislock.Unrecordable, "the document cannot hold the outcome beside its other fields", 0)
	}
	return Outcome{Case: FinishUnknown, Err: err}
}

// release releases the lock, and reports whether it did; refund takes back the attempt. task names
// the next task, if any.
func (a *attempt) release(ctx context.Context, outcome string, refund bool, task string) bool {
	return a.released(ctx, a.traced(ctx, telemetry.Release, func(ctx context.Context) error {
		return a.hold.Release(ctx, outcome, refund, task)
	}))
}

// released reports whether a release succeeded. A failure is a warning, since the lock expires by
// itself (SEEDS G8).
func (a *attempt) released(ctx context.Context, err error) bool {
	if err != nil {
		a.Log.WarnContext(ctx, "lock not released", "analysis_id", a.AnalysisID, "error", err)
	}
	return err == nil
}

// traced calls do inside a span.
func (a *attempt) traced(ctx context.Context, name string, do func(ctx context.Context) error) error {
	ctx, span := a.Telemetry.Start(ctx, name)
	err := do(ctx)
	span.Close("", err != nil)
	return err
}
