package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// acts keeps the names of the acts that a run has asked for, and why the first was refused for good. It
// is safe for concurrent use.
type acts struct {
	names   sync.Map // of the acts that the run has asked for
	refusal atomic.Pointer[orchestrator.PermanentError]
}

// refuse returns err, the error of an act that no retry can help.
func (a *acts) refuse(err *orchestrator.PermanentError) error {
	a.refusal.CompareAndSwap(nil, err)
	return err
}

// judge returns the error of a run that has returned err. A run that was refused an act must not become
// READY, nor be retried, because its analyzer ignores the error.
func (a *acts) judge(err error) error {
	refusal := a.refusal.Load()
	if refusal == nil || errors.Is(err, refusal) {
		return err
	}
	return errors.Join(refusal, err)
}

// forgotten returns the names of the acts that earlier attempts have done, and that the run has not
// asked for.
func (a *acts) forgotten(earlier analysislock.Acts) (names []string) {
	for name, act := range earlier {
		if _, requested := a.names.Load(name); !requested && act.State == analysislock.ActDone {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// RefusedAct returns the error of an act that cannot begin because of err: analysislock.ErrReused or
// ErrFull, or lease.ErrRefused.
func RefusedAct(name string, err error) *orchestrator.PermanentError {
	code, reason := orchestrator.CodeActsFull, "a document has room for 16 acts, for 64 KiB of their results, "+
		"and for the rest of 1 MiB; each open act needs 4 KiB: give each item its own document"
	if errors.Is(err, analysislock.ErrReused) {
		code, reason = orchestrator.CodeActReused, "this run has used its name before: "+
			"give each act its own name, for example with the id of its item"
	}
	message := fmt.Sprintf("the act %q cannot begin: %s", name, reason)
	return &orchestrator.PermanentError{Code: code, Message: message, Err: err}
}

// EndError returns the error err of an act's end for its caller.
func EndError(err error) error {
	if errors.Is(err, analysislock.ErrFull) || errors.Is(err, lease.ErrRefused) {
		return fmt.Errorf("%w: %w", orchestrator.ErrNoRoom, err)
	}
	return err
}

// warn logs the acts that an operator should look at: the open ones that no later attempt clears up, and
// the done ones that this run has not asked for before READY. A release may have renamed one of these, so
// that this run has done it again under its new name.
func (a *attempt) warn(ctx context.Context, r Result) {
	acts := a.hold.Doc().Acts
	open := acts.Open()
	switch {
	case r.Reason == Completed || r.Reason == Failed:
		a.logOpenActs(ctx, len(open), open)
	case r.Reason == Retry && a.runner.RetryUncertain: // an earlier call's, which this one could not clear up
		open = slices.DeleteFunc(open, func(name string) bool { return acts[name].Token == a.acq.Grant.Token })
		a.logOpenActs(ctx, len(open), open)
	case r.Reason == LockLost && r.Status != "": // it was cancelled, for example
		a.logOpenActs(ctx, len(open), nil)
	}
	if r.Reason == Completed && a.reports != nil && len(a.reports.skipped) > 0 {
		a.runner.Log.WarnContext(ctx, "acts of an earlier attempt were not asked for",
			"analysis_id", a.id, "lock_token", a.acq.Grant.Token, "effects", a.reports.skipped)
	}
}

// UncertainMessage is the message of the ERROR line about open acts, which an alert counts.
const UncertainMessage = "an act is uncertain"

// logOpenActs is Runner.logOpenActs for this attempt. The names of the acts may be unknown.
func (a *attempt) logOpenActs(ctx context.Context, count int, names []string) {
	var more []any
	if names != nil {
		var tokens []int64 // of the attempts that began them, which resolve takes
		for _, name := range names {
			tokens = append(tokens, a.hold.Doc().Acts[name].Token)
		}
		more = []any{"effects", names, "effect_tokens", tokens}
	}
	a.runner.logOpenActs(ctx, a.id, a.acq.Grant.Token, count, more...)
}

// logOpenActs logs an ERROR, which an alert counts, when finished work has side effects that nobody
// has confirmed: count of them.
func (runner *Runner) logOpenActs(ctx context.Context, id string, token int64, count int, more ...any) {
	if count == 0 {
		return
	}
	if runner.Names.Kind != "" {
		more = append(more, "kind", runner.Names.Kind)
	}
	runner.Telemetry.Record(ctx, telemetry.UncertainActs, float64(count))
	runner.Log.With(more...).ErrorContext(ctx, UncertainMessage, "analysis_id", id, "lock_token", token)
}
