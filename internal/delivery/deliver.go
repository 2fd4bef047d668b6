package delivery

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// attempt is one delivery in progress.
type attempt struct {
	runner   *Runner
	delivery Delivery
	id       string // id of the analysis
	owner    string // owner name of the lock
	acq      analysislock.Acquisition
	hold     *analysislock.Hold // nil unless the lock was acquired
	reports  *reporter          // nil until the analyzer is called
	waited   time.Duration      // until this was the only run
	measures Run
	next     Next
}

// Deliver handles one delivery: it acquires the lock, runs the analyzer under heartbeats, and settles
// how the run ended in one fenced commit. When it returns, nothing that it started is running. The end
// of ctx stops the run: it ends with the process, and for Do with the call, but not when a client hangs up.
func (runner *Runner) Deliver(ctx context.Context, d Delivery) (r Result) {
	// A new owner for each delivery: with one owner for each process, 22 of 200 runs overlapped.
	a := &attempt{runner: runner, delivery: d, id: d.AnalysisID, owner: runner.Instance + "/" + rand.Text()}
	defer a.leave()
	switch {
	case d.Start != nil:
		r = a.start(ctx)
	case d.Analyzer == nil:
		r = a.forward(ctx)
	case ctx.Err() != nil:
		r, a.id = Result{Reason: NotClaimed, Err: ErrStopping}, ValidID(a.id)
	default:
		err := a.acquire(ctx)
		if a.hold == nil { // after an error or a skip
			r = a.skip(ctx, err)
			break
		}
		end := a.run(ctx)
		r = a.settle(ctx, end)
		r = a.adopt(ctx, r) // if settle has found that another program finished the analysis
		if r.Reason == Completed {
			a.measures.ToReady = a.age()
			runner.Telemetry.RecordAge(ctx, telemetry.ReadyDuration, a.measures.ToReady)
		}
		a.warn(ctx, r)
		r.RunErr, a.measures.Failure = end.analyzerErr, reasonOf(end.analyzerErr)
	}

	a.leaveKey(ctx, r)
	r.ID, r.Run, r.Next = a.id, a.measures, a.next
	r.acknowledge(d)
	if r.Ran {
		runner.Telemetry.Record(ctx, telemetry.RunDuration, r.Took.Seconds(), telemetry.ByOutcome(r.Reason.String()))
	}
	return r
}

// forward books a delivery for a message. Each try of the message books the same task.
func (a *attempt) forward(ctx context.Context) Result {
	if err := analysislock.CheckID(a.id); err != nil {
		return Result{Reason: InvalidID, Err: err}
	}
	if !a.book(ctx, a.runner.Names.Task("push", a.id, a.delivery.Task), time.Time{}) {
		return Result{Reason: Unavailable}
	}
	return Result{Reason: Forwarded}
}

// acquire acquires the lock. A stop does not cancel it: the commit could still succeed, and
// the lock would not be released.
func (a *attempt) acquire(stop context.Context) error {
	runner, d := a.runner, a.delivery
	ctx, span := runner.Telemetry.Start(context.WithoutCancel(stop), telemetry.Acquire)
	var options analysislock.AcquireOptions
	if runner.Queue != nil { // otherwise nothing was booked for a later time
		options.Early = a.isNext
	}
	// A follow-up, or any later try of a task, is probably a skip, which needs no work.
	if d.Tries <= 1 && !strings.HasSuffix(d.Task, followSuffix) {
		options.Want = lease.LeaseAndWork
	}

	began := time.Now()
	options.SkipSuspects, options.Alone = d.Place != nil, d.Alone
	acq, err := runner.Locks.AcquireAnalysisLock(ctx, a.id, a.owner, 0, options)
	if acq.Reason == analysislock.Suspect && acq.Slot == nil { // a slot must not be kept for the wait: it is delayed
		acq, err = a.acquireAlone(ctx, stop, options, acq)
	}
	a.acq, a.hold = acq, acq.Hold
	outcome := a.measureAcquisition(ctx, time.Since(began)-a.waited, err)
	span.Close(outcome, err != nil)
	return err
}

// measureAcquisition records an acquisition that took so long, and returns its outcome.
func (a *attempt) measureAcquisition(ctx context.Context, took time.Duration, err error) (outcome string) {
	acq, m := a.acq, &a.measures
	m.AcquireTried, m.Acquire = true, took
	if acq.Grant.Owner == a.owner { // acquired, or recorded as FAILED
		m.Owner, m.Token, m.Attempt, m.Stolen = a.owner, acq.Grant.Token, acq.Attempt, acq.Stolen
	}
	a.runner.watchKeys(ctx, acq)
	if acq.First && !acq.Unparked { // the wait for its key is no late start
		m.ToStart = a.age()
		a.runner.Telemetry.RecordAge(ctx, telemetry.StartDuration, m.ToStart)
	}
	outcome = cmp.Or(acq.Reason, "acquired")
	if err != nil {
		outcome = "error"
	}
	a.runner.Telemetry.Record(ctx, telemetry.AcquireDuration, took.Seconds(), telemetry.ByOutcome(outcome))
	return outcome
}

// skip returns the result of a delivery that has not acquired the lock, because of err or the reason
// of the acquisition. It books the delivery that must follow.
func (a *attempt) skip(ctx context.Context, err error) Result {
	full, isFull := errors.AsType[*analysislock.UnrecordableError](err)
	switch {
	case isFull:
		a.logOpenActs(ctx, full.OpenActs, nil)
		return Result{Reason: Failed, Err: err, Code: analysislock.Unrecordable}
	case errors.Is(err, lease.ErrInvalidKey):
		return Result{Reason: InvalidID, Err: err}
	case errors.Is(err, lease.ErrNotFound):
		return Result{Reason: NotFound, Err: err}
	case errors.Is(err, lease.ErrMalformed), errors.Is(err, lease.ErrRefused):
		return Result{Reason: Malformed, Err: err}
	case errors.Is(err, ErrStopping):
		return Result{Reason: NotClaimed, Err: err}
	case err != nil:
		return Result{Reason: Unavailable, Err: err}
	}

	acq := a.acq
	switch acq.Reason {
	case analysislock.AlreadyFinished:
		return Result{Reason: AlreadyFinished, Status: acq.Status}
	case analysislock.Waiting:
		// The name is computed, not read from bookedTask: a worker of an earlier version may have left a
		// name there that is used up.
		a.next.RetryAt, a.next.RetryIn = acq.ExpiresAt, acq.Remaining
		a.book(ctx, a.nextTask(acq.ExpiresAt), acq.ExpiresAt)
		return Result{Reason: Waiting}
	case analysislock.Locked:
		a.next.RetryAt, a.next.RetryIn, a.next.HeldBy = acq.ExpiresAt, acq.Remaining, acq.Grant.Owner
		a.followUp(ctx, acq.Grant.Token, acq.ExpiresAt)
		return Result{Reason: Locked}
	case analysislock.Suspect:
		return a.delay(ctx)
	case analysislock.KeyBusy:
		a.next.Parked = acq.Parked
		return Result{Reason: KeyBusy}
	}
	a.logOpenActs(ctx, acq.Uncertain, nil)
	err = exhausted[acq.Reason]
	if acq.Reason == analysislock.Crashed {
		err = errors.New(acq.Message)
	}
	return Result{Reason: Failed, Err: err, Code: acq.Reason}
}

// exhausted has the error of an acquisition that has recorded FAILED, by its reason; Crashed has its own message.
var exhausted = map[string]error{
	analysislock.AttemptsExhausted: lease.ErrExhausted,
	analysislock.RunTimeExhausted:  errRunTime,
	analysislock.Unrecordable:      analysislock.ErrUnrecordable,
}

// maxBeside is how many of the analyses beside which a run begins its log line names.
const maxBeside = 10

// run runs the analyzer while the lock is renewed, within the limits of time.
func (a *attempt) run(ctx context.Context) (end runEnd) {
	runner := a.runner
	limit, cause := a.limit()
	stopping := ctx // a stop ends the run before its acts, so it does not end the context of both
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, cause)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	ctx, span := runner.Telemetry.Start(ctx, telemetry.Run)
	runner.Telemetry.Record(ctx, telemetry.RunsActive, 1)
	runner.Telemetry.Record(ctx, telemetry.RunAttempt, float64(a.acq.Attempt))
	if a.measures.Stolen {
		runner.Telemetry.Record(ctx, telemetry.Steals, 1)
	}

	beside := a.delivery.Place.Begin(a.id)
	runner.Log.DebugContext(ctx, "a run begins", "analysis_id", a.id, "lock_token", a.acq.Grant.Token,
		"others", len(beside), "beside", beside[:min(len(beside), maxBeside)])

	started := time.Now()
	renewed, stopSlot := a.startSlot(ctx)
	held := a.hold.Start(renewed, a.renewed)
	defer func() { // also if the analyzer ends its goroutine
		if lost := cmp.Or(a.hold.Stop(), stopSlot()); lost != nil {
			end.err = lost
		}
		runner.Telemetry.Record(ctx, telemetry.RunsActive, -1)
		span.Close("", end.err != nil || !a.measures.Ran) // not Ran: run did not return
	}()

	running, unlink := stoppable(stopping, held, stop)
	defer unlink()
	work, err := analysislock.Work{}, context.Cause(running)
	if err == nil {
		work, err = runner.Locks.Work(running, a.hold)
	}
	if end.err = cmp.Or(err, context.Cause(running)); end.err == nil {
		end.began = true
		end.result, end.analyzerErr = a.analyze(running, held, stop, work)
		end.err = end.analyzerErr
	}
	end.cause = context.Cause(running)
	a.measures.Ran, a.measures.Took = true, time.Since(started)
	return end
}

// leastRun is what a suspect has left after its wait: the queue waits a minute longer than RunTimeout.
const leastRun = 30 * time.Second

// limit returns how long the run may take, and why its context ends after that time. A wait before it
// counts: after the end of the request Cloud Run may take the processor away.
func (a *attempt) limit() (limit time.Duration, cause error) {
	limit = a.runner.RunTimeout
	if a.waited > 0 {
		limit = max(limit-a.waited, min(limit, leastRun))
	}
	if a.acq.RunTime > 0 && a.acq.RunTime <= limit {
		return a.acq.RunTime, errRunTime
	}
	return limit, errDeadline
}

// analyze calls the analyzer with the work and a reporter. Acts go on in held, which stop ends, and ctx with it.
func (a *attempt) analyze(
	ctx, held context.Context, stop context.CancelCauseFunc, work analysislock.Work,
) (any, error) {
	a.reports = &reporter{
		runner: a.runner, id: a.id, hold: a.hold, held: held, measures: &a.measures, resumed: work.Checkpoint,
	}
	a.reports.open(ctx, stop)
	defer a.reports.close()
	result, err := orchestrator.Run(ctx, a.delivery.Analyzer, orchestrator.Job{
		AnalysisID: a.id, LockToken: a.acq.Grant.Token, Attempt: a.acq.Attempt,
		Input: work.Input, Resume: work.Checkpoint, Scope: a.runner.Scope, Reporter: a.reports,
	})
	if work.Checkpoint == nil { // else the run may have continued after them
		a.reports.skipped = a.reports.forgotten(work.Acts)
	}
	return result, a.reports.judge(err)
}

// renewed measures a heartbeat; see lease.Renewed.
func (a *attempt) renewed(ctx context.Context, took time.Duration, err error) {
	outcome := "renewed"
	switch {
	case err == nil:
		a.measures.Heartbeats++
	case errors.Is(err, lease.ErrLost):
		outcome = "lost"
	default:
		outcome = "failed"
	}
	a.runner.Telemetry.Record(ctx, telemetry.HeartbeatDuration, took.Seconds(), telemetry.ByOutcome(outcome))
	a.runner.Telemetry.Past(ctx, telemetry.Heartbeat, outcome, took, err != nil)
}

// settle records how the run ended: it finishes the analysis, or releases the lock and books the next
// delivery.
func (a *attempt) settle(ctx context.Context, end runEnd) Result {
	var lost *lease.LostError
	var uncertain *orchestrator.UncertainError
	var permanent *orchestrator.PermanentError

	switch {
	case end.err == nil:
		completed := Result{Reason: Completed, Value: end.result}
		return a.finish(ctx, completed, analysislock.Completing(a.hold.Now(), end.result))
	case errors.As(end.err, &lost):
		if lost.Reason == lease.OutOfTime { // the lock may still be ours
			_ = a.release(ctx, analysislock.OutcomeLockLost, false, "")
		}
		return a.lockLost(ctx, end.err)
	case errors.As(end.err, &uncertain) && uncertain.Key == a.id: // not the act of an inner call of Do
		f := failure{analysislock.ActUncertain, uncertain.Error()}
		if a.runner.RetryUncertain {
			return a.retry(ctx, f, 0)
		}
		return a.fail(ctx, f)
	case errors.As(end.err, &permanent):
		return a.fail(ctx, permanentFailure(permanent))
	case errors.Is(end.cause, ErrStopping):
		return a.handOver(ctx)
	case !end.began: // Firestore did not give the input. Without a booking the answer is 503, as before the run
		r := a.retry(ctx, failure{CodeInputUnavailable, "the input could not be read"}, 0)
		if r.Reason == Retry && a.next.FollowUp != booked {
			r = Result{Reason: FinishUnknown, Err: end.err}
		}
		return r
	case errors.Is(end.cause, errRunTime):
		a.countTimeout(ctx, analysislock.RunTimeExhausted)
		return a.fail(ctx, failure{analysislock.RunTimeExhausted, text.Error(end.cause)})
	case errors.Is(end.cause, errDeadline):
		if r, ended := a.continueLater(ctx); ended {
			return r
		}
	}
	return a.failTemporarily(ctx, end)
}

// failTemporarily settles a run that can be tried again, unless this attempt was the last.
func (a *attempt) failTemporarily(ctx context.Context, end runEnd) Result {
	f := end.temporary(a.runner)
	if f.code == CodeRunTimeout || f.code == CodeStalled {
		a.countTimeout(ctx, f.code)
	}
	if panicked, ok := errors.AsType[*orchestrator.PanicError](end.err); ok && f.code == CodePanicked {
		stack := text.Head(string(panicked.Stack), MaxText)
		a.runner.Log.ErrorContext(ctx, "the analyzer panicked", "analysis_id", a.id, "stack", stack)
	}

	pause := end.pause()
	if !a.acq.Last || a.refunds(pause) {
		return a.retry(ctx, f, pause)
	}
	summary := fmt.Sprintf("attempt %d was the last: %s", a.acq.Attempt, f.message)
	r := Result{Reason: Failed, Err: errors.New(summary), Code: analysislock.AttemptsExhausted}
	return a.finish(ctx, r, analysislock.Exhausting(a.hold.Now(), summary, f.code, f.message))
}

func (a *attempt) countTimeout(ctx context.Context, reason string) {
	a.runner.Telemetry.Record(ctx, telemetry.Timeouts, 1, telemetry.ByReason(reason))
}

// fail records a permanent failure.
func (a *attempt) fail(ctx context.Context, f failure) Result {
	r := Result{Reason: Failed, Err: errors.New(f.message), Code: f.code}
	return a.finish(ctx, r, analysislock.Failing(a.hold.Now(), f.code, f.message))
}

// finish finishes the analysis by a commit of write. It returns r once that is committed.
func (a *attempt) finish(ctx context.Context, r Result, write analysislock.Ending) Result {
	err := a.end(ctx, telemetry.Finish, write)
	switch {
	case err == nil:
		return r
	case errors.Is(err, lease.ErrLost):
		return a.lockLost(ctx, err)
	case errors.Is(err, lease.ErrMalformed):
		return Result{Reason: Corrupted, Err: err}
	case errors.Is(err, lease.ErrRefused) && r.Reason == Completed: // the error may quote the result
		a.runner.Log.WarnContext(ctx, "Firestore refused the result", "analysis_id", a.id)
		const message = "result: the document cannot hold it beside its other fields"
		return a.fail(ctx, failure{orchestrator.CodeResultTooLarge, message})
	case errors.Is(err, lease.ErrRefused): // the document has no room for an error either
		const message = "the document cannot hold the outcome beside its other fields"
		return a.retry(ctx, failure{analysislock.Unrecordable, message}, 0)
	}
	return Result{Reason: FinishUnknown, Err: err}
}

// end ends the hold by a commit of write, which is the span of that name.
func (a *attempt) end(ctx context.Context, span string, write analysislock.Ending) error {
	ctx, ended := a.runner.Telemetry.Start(ctx, span)
	err := a.hold.End(ctx, write)
	ended.Close("", err != nil)
	return err
}

// age returns the time since the creation of the analysis; zero: it is unknown.
func (a *attempt) age() time.Duration {
	doc := a.hold.Doc()
	return doc.Age(a.hold.Now())
}

// retry releases the lock after a temporary failure, and books the next attempt. The commit of the
// release records when that attempt is due, and the name of its task. So if the process dies before the
// booking, this delivery is repeated, and books the same task; see skip. pause is the wait that the
// analyzer has asked for; zero: the usual backoff.
func (a *attempt) retry(ctx context.Context, f failure, pause time.Duration) Result {
	runner, now := a.runner, a.hold.Now()
	var next time.Time
	var task string
	if runner.Queue != nil {
		usual := backoff(a.acq.Attempt, runner.RetryMin, runner.RetryMax, spread(a.id, a.acq.Grant.Token))
		next = now.Add(cmp.Or(pause, usual)).Truncate(time.Millisecond)
		task = a.nextTask(next)
	}

	write := analysislock.Retrying(now, f.code, f.message, next, task, a.refunds(pause))
	err := a.end(ctx, telemetry.Release, write)
	if errors.Is(err, lease.ErrLost) {
		return a.lockLost(ctx, err)
	}

	a.next.RetryIn = pause
	if a.warnUnlessReleased(ctx, err) && a.book(ctx, task, next) {
		a.next.RetryAt = next
	}
	return Result{Reason: Retry, Err: errors.New(f.message), Code: f.code}
}

// maxUncounted is how many attempts in a row are not counted because they have asked for a wait.
const maxUncounted = 100

// refunds reports whether a failed attempt does not count towards the limit of attempts: it has asked
// for a pause, and fewer than maxUncounted before it did.
func (a *attempt) refunds(pause time.Duration) bool {
	doc := a.hold.Doc()
	return pause != 0 && doc.Uncounted() < maxUncounted
}

// handOver ends a run that was stopped with the process, before the deadline of the stop. Another
// worker gets an immediate delivery. If nothing is booked, the queue retries this one.
func (a *attempt) handOver(ctx context.Context) Result {
	ctx, cancel := untilStop(ctx, bookTimeout)
	defer cancel()
	return a.replace(ctx, Result{Reason: ShuttingDown, Err: ErrStopping}, analysislock.OutcomeShuttingDown, "replace")
}

// untilStop returns a context for what must be done after the end of ctx: until the deadline of the stop, or
// for d without one.
func untilStop(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	stop := &StopError{Deadline: time.Now().Add(d)}
	_ = errors.As(context.Cause(ctx), &stop) // otherwise the default remains
	return context.WithDeadline(context.WithoutCancel(ctx), stop.Deadline)
}

// continueLater ends a run that has passed its deadline, if it has committed a new checkpoint: an
// immediate delivery continues from it. ended is false without a new checkpoint.
func (a *attempt) continueLater(ctx context.Context) (r Result, ended bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*bookTimeout)
	defer cancel()

	err := a.hold.Flush(ctx) // if it fails, an earlier commit may still have had a checkpoint
	switch {
	case errors.Is(err, lease.ErrLost):
		return a.lockLost(ctx, err), true
	case !a.reports.advanced():
		return r, false
	}
	a.countTimeout(ctx, analysislock.OutcomeContinued)
	r = Result{Reason: Continued, Err: errDeadline}
	return a.replace(ctx, r, analysislock.OutcomeContinued, "continue"), true
}

// replace releases the lock without counting the attempt, and books an immediate delivery within the
// deadline of ctx. It returns r, unless the release finds that the lock was lost. The task's name has the
// purpose and the owner, so no other booking has it.
func (a *attempt) replace(ctx context.Context, r Result, outcome, purpose string) Result {
	name := ""
	if a.runner.Queue != nil {
		name = a.runner.Names.Task(purpose, a.id, a.owner)
	}
	err := a.release(ctx, outcome, true, name)
	switch {
	case errors.Is(err, lease.ErrLost):
		return a.lockLost(ctx, err)
	case err == nil && name != "":
		a.next.FollowUp = a.runner.bookNext(ctx, a.id, taskqueue.Task{Name: name})
	}
	return r
}

// release releases the lock. refund takes back the attempt. task names the next task, if any.
func (a *attempt) release(ctx context.Context, outcome string, refund bool, task string) error {
	err := a.end(ctx, telemetry.Release, analysislock.Releasing(a.hold.Now(), outcome, task, refund))
	if !errors.Is(err, lease.ErrLost) {
		a.warnUnlessReleased(ctx, err)
	}
	return err
}

// warnUnlessReleased reports whether a release succeeded. A failure is a warning, since the lock expires
// anyway (SEEDS G8).
func (a *attempt) warnUnlessReleased(ctx context.Context, err error) bool {
	if err != nil {
		a.runner.Log.WarnContext(ctx, "lock not released", "analysis_id", a.id, "error", err)
	}
	return err == nil
}

// leave makes room for the next large result.
func (a *attempt) leave() {
	if a.reports != nil && a.reports.admitted {
		a.runner.Large.Release(1)
	}
}
