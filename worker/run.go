package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/text"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// RunResult is the result of [Work.Run].
type RunResult struct {
	// Outcome is the word of the log line: ready, failed or already_finished; locked, waiting, suspect or
	// key_busy, if this call has not run the work; retry, continued, shutting_down or lock_lost, if its run did
	// not finish the document; not_found, bad_request, malformed or unavailable.
	Outcome string `json:"outcome"`
	// Status is READY or FAILED if the document is finished, whatever the words in Fields are. After
	// already_finished it can also be a word of Fields.Final.
	Status  string `json:"status,omitempty"`
	Code    string `json:"code,omitempty"`       // of a permanent or temporary failure, as in the document
	Message string `json:"message,omitempty"`    // of that failure, for people
	Token   int64  `json:"lock_token,omitempty"` // the fencing token; zero: the lock was not acquired
	Attempt int    `json:"attempt,omitempty"`    // the number of this attempt
	// RetryAt is when the next attempt is due, or when another program's lock expires. Zero: now, or unknown.
	RetryAt time.Time `json:"retry_at,omitzero"`
	Booked  bool      `json:"booked"` // the Queue has the next delivery
}

// Run runs the document id in this program, as a delivery does, without HTTP. It acquires the lock, calls the kind's
// Run, and finishes the document, or releases the lock and enqueues the next delivery if there is a Queue. Use it in a
// Cloud Run job, or wherever a run takes longer than a delivery: with Options.NoHTTP, or with a Start in the kind,
// RunTimeout may be as long as MaxRunTime.
//
// Run returns when everything that it started has ended. It writes one log line, like a delivery, and MaxRuns does not
// limit it. With a MaxRuns of 1 its attempt counts as alone: after two crashes in a row the document is FAILED.
//
// End ctx on SIGTERM, by signal.NotifyContext: otherwise the signal kills the run. When ctx ends, or in Shutdown, the
// run's context ends, its lock is released and a delivery is enqueued for now. That takes up to 8 s; an act inside Once
// is cancelled after 6 s.
//
// The error is nil if the document is READY, or was finished before. It is a *FailedError if this call made it FAILED.
// After any other error the document is not finished: a *RunningError if another program runs it; ErrLost; ErrStopping,
// or the cause of ctx; ErrNotFound; ErrInvalidKey; ErrUnavailable; or the temporary error of the kind's Run.
func (w *Work) Run(ctx context.Context, id string) (RunResult, error) {
	g := w.service
	defer g.lifecycle.Track()() // not counted towards MaxRuns
	switch {
	case g.work.Err() != nil:
		return RunResult{}, ErrStopping
	case ctx.Err() != nil:
		return RunResult{}, context.Cause(ctx)
	case w.Kind.Run == nil:
		return RunResult{}, fmt.Errorf("worker: run: kind %q has no Run", w.Name)
	}

	run := delivery.Delivery{AnalysisID: id, Analyzer: w.analyzer()}
	if place, free := g.places.Enter(); free { // else MaxRuns run, or a suspect
		defer place.Leave()
		run.Place, run.Alone = place, place.Only()
	}
	d := w.deliver(ctx, g.work, run, true)
	r := RunResult{
		Outcome: d.Reason.String(), Status: d.Status, Code: d.Code, Token: d.Token, Attempt: d.Attempt,
		RetryAt: d.RetryAt, Booked: d.Booked(),
	}
	if d.Code != "" {
		r.Message = text.Head(text.Error(d.Err), delivery.MaxText)
	}
	switch d.Reason {
	case delivery.Completed:
		r.Status = analysislock.Ready
		return r, nil
	case delivery.AlreadyFinished:
		return r, nil
	case delivery.Failed:
		r.Status = analysislock.Failed
		return r, &FailedError{Code: r.Code, Message: r.Message, Err: d.RunErr}
	}
	return r, fmt.Errorf("worker: run %q: %w", id, unfinishedRun(ctx, d))
}

// unfinishedRun returns why the delivery d of a Run has not finished its document.
func unfinishedRun(ctx context.Context, d delivery.Result) error {
	switch {
	case d.Reason == delivery.Locked:
		return newRunningError(d.RetryAt, d.RetryIn)
	case d.Reason == delivery.KeyBusy:
		return errors.New("as many documents of its key run as may; it is delivered when one of them ends")
	case d.Reason == delivery.Suspect && d.RetryAt.IsZero():
		return errors.New("its last runs killed their workers, and this process is busy; " +
			"nothing is enqueued: run it again")
	case d.Reason == delivery.Waiting || d.Reason == delivery.Suspect:
		return fmt.Errorf("its next attempt is due at %s", iso8601.Format(d.RetryAt))
	case errors.Is(d.Err, ErrStopping) && ctx.Err() != nil:
		return context.Cause(ctx)
	case d.Reason == delivery.Retry && d.Code != delivery.CodeRunTimeout && d.RunErr != nil:
		return d.RunErr
	}
	return cmp.Or(d.Err, errors.New(d.Reason.String()))
}
