package analysislock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"taskguard/lease"
)

// Progress is the newest Fraction of the work and Message that a run has reported.
type Progress struct {
	Fraction *float64  `json:"fraction,omitempty"` // from 0 to 1
	Message  string    `json:"message,omitempty"`
	At       time.Time `json:"at,omitzero"` // by the store's clock
}

// Checkpoint is a state from which a later attempt continues: a Value as
// orchestrator.Storable returns it. Nil is none.
type Checkpoint struct{ Value any }

// Report is a report of a run. A nil field changes nothing.
type Report struct {
	Fraction   *float64    // of the work that is done, from 0 to 1
	Message    *string     // what the run does now
	Checkpoint *Checkpoint // one whose Value is nil clears the stored one
}

// Work is the Input of an attempt and the Checkpoint from which it continues, as JSON.
type Work struct {
	Input      json.RawMessage
	Checkpoint json.RawMessage // the newest that was committed; nil: none
	Effects    Effects         // the marked acts; nil: none
}

// Report adds r to the analysis with the lock's next refresh, or with what ends the
// Hold. The refresh is brought forward to the time that is every after the last commit:
// to now, if every is zero. A newer report replaces an older one, part by part. If done is
// not nil, it is called once, when the commit that contains r, or the reports that replaced
// it, has succeeded or failed. It gets the argument that lease.Hold.Carry passes to its done, and
// must not block. Report is safe for concurrent use.
func (h *Hold) Report(r Report, every time.Duration, done func(error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Fraction != nil {
		h.progress.Fraction = r.Fraction
	}
	if r.Message != nil {
		h.progress.Message = *r.Message
	}
	if r.Checkpoint != nil {
		h.checkpoint = r.Checkpoint
	}
	h.progress.At = h.lease.Now().Truncate(time.Millisecond)
	w := waiter{parts: ofProgress, done: done}
	if r.Checkpoint != nil {
		w.parts |= ofCheckpoint
	}
	h.carry(every, w)
}

// parts are what a commit carries of that.
type parts int

const (
	ofProgress parts = 1 << iota
	ofMarks
	ofCheckpoint
)

// waiter waits for the commit of a mark, or of a report.
type waiter struct {
	parts parts
	act   string      // of a mark
	done  func(error) // nil: nobody waits
}

// carry adds what was reported and marked to the lock's next refresh; see Report. The caller
// holds h.mu.
func (h *Hold) carry(every time.Duration, w waiter) {
	if w.done != nil {
		h.waiting = append(h.waiting, w)
	}
	progress, checkpoint, effects := h.progress, h.checkpoint, h.effects
	marks, n := h.marks, h.settled+len(h.waiting)

	var tried parts // of the last of these changes that was tried, which is the one in the commit
	with := func(p parts) func(*Analysis) {
		return func(d *Analysis) {
			tried = p
			if p&ofProgress != 0 && !progress.At.IsZero() {
				d.Progress = &progress
			}
			if p&ofMarks != 0 {
				d.mark(effects)
			}
			if p&ofCheckpoint != 0 {
				d.Checkpoint = checkpoint
			}
		}
	}

	all := ofProgress
	if marks > 0 {
		all |= ofMarks
	}
	if checkpoint != nil {
		all |= ofCheckpoint
	}
	var less []func(*Analysis)
	for _, p := range []parts{ofProgress | ofMarks, ofProgress | ofCheckpoint, ofProgress, 0} {
		if p&all == p && p != all {
			less = append(less, with(p))
		}
	}
	written := func(err error) { h.written(checkpoint, effects, marks, n, tried, err) }
	h.lease.Carry(every, written, with(all), less...)
}

// written is called after a commit that was to contain checkpoint, the effects as they were after the
// given number of marks, and the first n reports of the Hold. If err is lease.ErrRefused, the document
// had no room for all of these, and tried are the parts for which it had room. If it had none for the
// effects, the acts of this commit return to their committed records.
func (h *Hold) written(checkpoint *Checkpoint, effects Effects, marks, n int, tried parts, err error) {
	h.mu.Lock()
	refused := errors.Is(err, lease.ErrRefused)
	outcome := func(p parts) error {
		if refused && tried&p == p {
			return nil
		}
		return err
	}
	n = max(0, n-h.settled)
	done := h.waiting[:n:n]
	switch {
	case outcome(ofMarks) == nil:
		h.stored = effects
	case refused && marks == h.marks:
		h.effects = h.stored
	case refused: // other acts were marked since
		for _, w := range done {
			if w.parts == ofMarks {
				h.effects = h.effects.restored(w.act, h.stored)
			}
		}
	}
	h.waiting, h.settled = h.waiting[n:], h.settled+n
	if h.checkpoint == checkpoint {
		h.checkpoint = nil
	}
	again := checkpoint == h.committed
	if outcome(ofCheckpoint) == nil && checkpoint != nil {
		h.committed = checkpoint
	}
	h.mu.Unlock()

	for _, w := range done {
		w.done(outcome(w.parts))
	}
	if h.Written != nil && !again {
		h.Written(checkpoint, outcome(ofCheckpoint))
	}
}

// Flush writes a report that is not written yet, by a refresh of the lock.
func (h *Hold) Flush(ctx context.Context) error {
	if !h.lease.Carries() {
		return nil
	}
	return h.Refresh(ctx, 0)
}

// Lost returns the analysis as it was read when the lock was found to be lost, without input
// and result.
func (h *Hold) Lost() Analysis { return h.lease.Doc() }

// Advanced reports whether this Hold has committed a checkpoint that differs from the one
// that its run was given.
func (h *Hold) Advanced() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.committed == nil || h.committed.Value == nil {
		return false
	}
	now, err := json.Marshal(h.committed.Value) // sorts the keys of maps, as they are in given
	given, _ := json.Marshal(h.given)
	return err == nil && !bytes.Equal(now, given)
}
