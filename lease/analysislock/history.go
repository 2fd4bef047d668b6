package analysislock

import (
	"encoding/json"
	"slices"
	"time"

	"taskguard/internal/text"
	"taskguard/lease"
)

// The outcomes of an attempt, in a history.
const (
	OutcomeReady        = "ready"
	OutcomeFailed       = "failed"
	OutcomeRetry        = "retry"
	OutcomeContinued    = "continued"
	OutcomeShuttingDown = "shutting_down"
	OutcomeLockLost     = "lock_lost"
	OutcomeCancelled    = "cancelled"
	OutcomeCrashed      = "crashed" // recorded by the acquisition that finds the attempt without an end
)

// The changes of an operator, in a history.
const (
	ChangeUnlocked  = "unlocked"
	ChangeRequeued  = "requeued"
	ChangeCancelled = "cancelled"
	ChangeResolved  = "resolved"
)

// The limits of a history. A decision reads it, so it must stay small.
const (
	maxAttempts       = 10
	maxHistoryBytes   = 5 << 10
	maxHistoryMessage = 256 // bytes
	maxBy             = 128 // bytes
	maxChanges        = 3   // of an attempt

	// endBytes is what end and changed add, and the tokens, which the JSON leaves out.
	endBytes = maxHistoryMessage + maxChanges*(maxBy+64) + 320
)

// begin adds the attempt that the lock records to the history.
func (d *Analysis) begin(now time.Time, alone bool) {
	d.History = append(d.History[:len(d.History):len(d.History)], Attempt{
		Number: d.Lock.Attempts, Token: d.Lock.Token, Owner: d.Lock.Owner, StartedAt: now.Truncate(time.Millisecond),
		Alone: alone,
	})
	size := endBytes
	for i := len(d.History) - 1; i >= 0; i-- {
		text, _ := json.Marshal(d.History[i])
		size += len(text)
		if len(d.History)-i > maxAttempts || size > maxHistoryBytes {
			d.History = d.History[i+1:]
			return
		}
	}
}

// Began returns when the attempt that runs began, or else the first one.
func (d *Analysis) Began() time.Time {
	n := len(d.History)
	if n > 0 && d.History[n-1].Token == d.Lock.Token && lease.Held(d.Lock, d.ReadAt) {
		return d.History[n-1].StartedAt
	}
	return d.StartedAt
}

// Silent reports whether the holder of the lock has sent no heartbeat for longer than that, so that it seems to be
// dead. Without a time of its heartbeat, it does not.
func (d *Analysis) Silent(than time.Duration) bool {
	beat := d.Lock.HeartbeatAt
	return lease.Held(d.Lock, d.ReadAt) && !beat.IsZero() && d.ReadAt.Sub(beat) > than
}

// Uncounted returns how many attempts in a row before the present one were refunded by Retrying.
func (d *Analysis) Uncounted() int {
	if n := len(d.History); n > 1 && d.History[n-1].Token == d.Lock.Token {
		return d.History[n-2].Uncounted
	}
	return 0
}

// Kept returns what a history keeps of the message of an error: at most 256 bytes, without its middle.
func Kept(message string) string { return text.Middle(message, maxHistoryMessage) }

// end records how the attempt of the lock's token ended, and returns its entry. It returns nil if the
// history has none, or has another end of it.
func (d *Analysis) end(now time.Time, outcome, code, message string) *Attempt {
	n := len(d.History)
	if n == 0 || d.History[n-1].Token != d.Lock.Token || d.History[n-1].Outcome != "" {
		return nil
	}
	d.History = slices.Clone(d.History) // other analyses share it
	attempt := &d.History[n-1]
	attempt.EndedAt, attempt.Outcome, attempt.Code = now.Truncate(time.Millisecond), outcome, BoundCode(code)
	attempt.Message = Kept(message)
	return attempt
}

// changed records what an operator, who, has done since the last attempt began. It is a part of that attempt's
// entry: a separate entry would be an attempt to workers of earlier versions, and to all that counts
// attempts. The last three are kept. Without an attempt, or without a name, nothing is recorded.
func (d *Analysis) changed(now time.Time, change, who string) {
	n := len(d.History)
	if n == 0 || who == "" {
		return
	}
	d.History = slices.Clone(d.History) // other analyses share it
	last := &d.History[n-1]
	last.Changes = slices.Clone(last.Changes[max(0, len(last.Changes)+1-maxChanges):])
	c := OperatorChange{Change: change, By: text.Middle(who, maxBy), At: now.Truncate(time.Millisecond)}
	last.Changes = append(last.Changes, c)
}
