package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"taskguard/internal/text"
)

// calls are the calls of one run of an endpoint. The first one has the job alone. If its answer asks for an act, the
// run records that the act begins, and calls the endpoint again with the state of the act. So the endpoint gets
// its replies in requests.
type calls struct {
	acts                      // lineCtx is the context of each call: after a stop it ends when no act is under way
	told map[string]*actReply // the states that the next call tells, by the names of acts
	went map[string]bool      // the acts that were told go: none is told so twice
	made int                  // how many calls
}

// nextKey returns the Idempotency-Key of the next call. Each call of a run has its own, because whatever replays
// answers by their keys would answer the second call like the first. net/http trims headers, which would make two ids
// one, so the id is escaped.
func (c *calls) nextKey() string {
	key := url.PathEscape(c.job.AnalysisID)
	if c.made++; c.made > 1 {
		key += "#" + strconv.Itoa(c.made)
	}
	return key
}

// newCalls returns the calls of a run. lasting is ctx, or outlasts it as Outlast says. The caller calls end.
func newCalls(ctx, lasting context.Context, job Job) (c *calls, end func()) {
	lineCtx, cancel := context.WithCancel(lasting)
	c = &calls{acts: newActs(ctx, lineCtx, job), told: map[string]*actReply{}, went: map[string]bool{}}
	c.idle = func() {
		if ctx.Err() != nil && c.acting.Load() == 0 {
			cancel()
		}
	}
	unlink := context.AfterFunc(ctx, c.idle)
	return c, func() { unlink(); cancel() }
}

// tell begins an act that the endpoint asks for, so that the next call tells its state.
func (c *calls) tell(name string) error {
	if err := CheckAct(name); err != nil {
		return &PermanentError{Code: CodeActNameInvalid, Message: text.Error(err), Err: err}
	}
	for open := range c.begun { // it may be done: the next attempt finds it uncertain
		reason := fmt.Sprintf("the endpoint asked for the act %q before the act %q had ended", name, open)
		return &FailureError{Reason: reason}
	}
	switch {
	case c.told[name] != nil:
		message := fmt.Sprintf("the act %q cannot begin: the endpoint was called with its state", name)
		return &PermanentError{Code: CodeActReused, Message: message}
	case c.went[name]: // each call starts from the beginning: it would be refused again and again
		return &FailureError{Reason: fmt.Sprintf("the act %q was not done: it can begin in the next attempt", name)}
	}

	reply, err := c.begin(name)
	switch ended := contextError(c.runCtx); {
	case err != nil && ended != nil:
		return ended
	case errors.As(err, new(*PermanentError)), errors.Is(err, ErrNoGuard):
		return err
	case err != nil:
		return &FailureError{Reason: fmt.Sprintf("the act %q cannot begin: %s", name, text.Error(err)), Err: err}
	}
	c.told[name], c.went[name] = reply, reply.State == "go"
	return nil
}

// answer implements lineHandler.
func (c *calls) answer(l line, r Report, problem string) (handled bool) {
	if problem == "" && r.Checkpoint != nil {
		c.job.Resume = nil
		if r.Checkpoint.Value != nil {
			c.job.Resume, _ = encodeLine(r.Checkpoint.Value) // it was decoded from JSON
		}
	}
	if l.Act == nil {
		return false
	}

	c.report(l, r, problem)
	if l.asks() {
		return true
	}
	reply, err := c.end(l)
	switch {
	case err != nil && !errors.Is(err, ErrUnknown):
		c.unrecorded()
	case l.Done == nil:
		delete(c.told, *l.Act)
	case reply != nil:
		c.told[*l.Act] = reply
	default:
		c.told[*l.Act] = &actReply{State: "done", Result: l.Done}
	}
	return true
}

// undoBegun removes the markers of acts whose go did not arrive.
func (c *calls) undoBegun() {
	for name := range c.begun {
		c.undo(name)
	}
}
