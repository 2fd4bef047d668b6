package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"taskguard/lease"
)

// The states of a marked act.
const (
	EffectStarted = "started" // it may have been done
	EffectDone    = "done"
)

// The limits of the marked acts of one analysis.
const (
	maxEffects     = 16
	maxEffectBytes = 64 << 10 // of all of them, as JSON
)

// EffectUncertain is the code of an analysis that became FAILED because one of its acts may
// have been done.
const EffectUncertain = "effect_uncertain"

// Effect is the record of a marked act: a side effect elsewhere. An attempt writes the record
// before it does the act.
type Effect struct {
	State  string    `json:"state"`            // EffectStarted or EffectDone
	Token  int64     `json:"token"`            // of the attempt that has written the record
	At     time.Time `json:"at,omitzero"`      // of the record, by the store's clock
	Result any       `json:"result,omitempty"` // of an act that is done
}

// Effects are the marked acts of an analysis by name. A change makes another map.
type Effects map[string]Effect

// Open returns the names of the acts that have started and are not done, in order.
func (e Effects) Open() (names []string) {
	for name, effect := range e {
		if effect.State != EffectDone {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// with returns e with the record of one act; nil removes it.
func (e Effects) with(name string, effect *Effect) (Effects, error) {
	changed := Effects{}
	maps.Copy(changed, e)
	if effect == nil {
		delete(changed, name)
		return changed, nil
	}

	changed[name] = *effect
	text, err := json.Marshal(changed)
	switch {
	case err != nil:
		return nil, fmt.Errorf("analysislock: the result of act %q: %w", name, err)
	case len(changed) > maxEffects:
		return nil, fmt.Errorf("analysislock: act %q would be the %dth; an analysis has at most %d",
			name, len(changed), maxEffects)
	case len(text) > maxEffectBytes:
		return nil, fmt.Errorf("analysislock: the acts and their results would have %d bytes as JSON; at most %d are stored",
			len(text), maxEffectBytes)
	}
	return changed, nil
}

// mark sets the marked acts of the analysis.
func (d *Analysis) mark(e Effects) { d.Effects, d.OpenEffects = e, len(e.Open()) }

// Effect returns the record of an act, also one that Mark has not committed yet.
func (h *Hold) Effect(name string) (e Effect, exists bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, exists = h.effects[name]
	return e, exists
}

// OpenEffects returns the names of the acts that have started and are not done: all, or those that
// attempts with a lower token than before have begun.
func (h *Hold) OpenEffects(before int64) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(h.effects.Open(), func(name string) bool {
		return before != 0 && h.effects[name].Token >= before
	})
}

// Mark writes the record of an act with the lock's next refresh, which it brings forward to now,
// or with what ends the Hold; nil removes the record. One without a token gets this attempt's and
// the present time. Mark calls done as Report does: with nil once the record is committed.
// An error means that nothing changes, because a limit is reached.
func (h *Hold) Mark(name string, effect *Effect, done func(error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if effect != nil && effect.Token == 0 {
		effect.Token, effect.At = h.lease.Grant().Token, h.lease.Now().Truncate(time.Millisecond)
	}

	changed, err := h.effects.with(name, effect)
	if err != nil {
		return err
	}
	h.effects, h.marks = changed, h.marks+1
	h.carry(0, waiter{withMarks, done})
	return nil
}

// ErrNotUncertain reports that an analysis has no such act, or that the act is not uncertain.
var ErrNotUncertain = errors.New("analysislock: the act is not uncertain")

// ErrUncertain reports that an act of the analysis is uncertain, so that its marks are kept.
var ErrUncertain = errors.New("analysislock: an act is uncertain")

// Answer is what an operator has found out about an uncertain act.
type Answer struct {
	Done   bool // else it was certainly not done
	Result any  // of an act that was done, as orchestrator.Storable returns it
}

// Resolve records the answer about an uncertain act, and opens the analysis again, as Requeue
// does. A READY or a cancelled one stays so. It returns the analysis as it was before. Errors:
// a *lease.HeldError while the lock is held; ErrNotUncertain; an error if Result is too large.
func (l *Locks) Resolve(ctx context.Context, id string, seen *Seen, name string, answer Answer,
	task string,
) (Analysis, error) {
	var resolved Effect // the act as it was first read
	resolve := func(d *Analysis, now time.Time) error {
		lock, err := lease.Reopen(d.Lock, now)
		if err != nil {
			return err
		}
		act, exists := d.Effects[name]
		if !exists || act.State == EffectDone {
			return fmt.Errorf("%w: %q of %q", ErrNotUncertain, name, id)
		}
		if resolved.State == "" {
			resolved = act
		}

		var effect *Effect
		if answer.Done {
			effect = &Effect{State: EffectDone, Token: act.Token, At: now.Truncate(time.Millisecond), Result: answer.Result}
		}
		changed, err := d.Effects.with(name, effect)
		if err != nil {
			return err
		}
		d.mark(changed)
		if !d.Closed() && !d.failedWith(Cancelled) {
			d.open(lock, task)
		}
		return nil
	}

	return l.edit(ctx, id, seen, resolve, func(_, after Analysis) bool {
		act := after.Effects[name]
		if answer.Done {
			return act.State == EffectDone && act.Token == resolved.Token
		}
		return act.Token != resolved.Token
	})
}
