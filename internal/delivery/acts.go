package delivery

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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
