package analysislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskguard/lease"
)

// Crashed is the code of an attempt that has no end: its worker died, or could not record the end.
const Crashed = "crashed"

// The numbers of crashes in a row, and of the delays after which a suspect must run.
const (
	suspectAfter = 2 // the next attempts run alone
	maxAlone     = 2 // alone: it is what kills its worker
	maxDelays    = 10
)

// Instance returns the worker's instance: Owner without the part that is the delivery's.
func (a *Attempt) Instance() string {
	if i := strings.LastIndexByte(a.Owner, '/'); i >= 0 {
		return a.Owner[:i]
	}
	return a.Owner
}

// crash records that the last attempt crashed, if it has no end. The lock must be free or expired, and
// still be that attempt's.
func (d *Analysis) crash(now time.Time) {
	n := len(d.History)
	if n == 0 || d.History[n-1].Outcome != "" {
		return
	}
	d.History = slices.Clone(d.History) // other analyses share it
	last := &d.History[n-1]
	last.Outcome, last.EndedAt = OutcomeCrashed, now.Truncate(time.Millisecond)
	if last.Token == d.Lock.Token && !d.Lock.HeartbeatAt.IsZero() {
		last.EndedAt = d.Lock.HeartbeatAt // the last sign of life
	}
	d.LastError = newError(Crashed, last.crashedMessage())
}

// crashes counts the crashes in a row at the end of the history, and how many of the last ones were alone.
// An attempt that was stopped or unlocked says nothing: it counts neither way. In the history of an
// earlier version a crash has no outcome.
func (d *Analysis) crashes() (inARow, alone int) {
	for i := len(d.History) - 1; i >= 0; i-- {
		switch a := &d.History[i]; a.Outcome {
		case OutcomeShuttingDown, OutcomeLockLost:
		case OutcomeCrashed, "":
			if a.Alone && alone == inARow {
				alone++
			}
			inARow++
		default:
			return inARow, alone
		}
	}
	return inARow, alone
}

// suspect reports whether the analysis may be what killed its workers.
func (d *Analysis) suspect() bool { return d.Suspicion() > 0 }

// Suspicion returns how many attempts in a row have crashed, if the next one therefore runs alone; else 0. While the
// lock is held, it takes the attempt that runs for a crash.
func (d *Analysis) Suspicion() int {
	if inARow, _ := d.crashes(); inARow >= suspectAfter {
		return inARow
	}
	return 0
}

// kills reports whether it certainly is. After a requeue two more attempts must crash: those before it began
// before StartedAt, which the first attempt after it sets.
func (d *Analysis) kills() bool {
	_, alone := d.crashes()
	if alone < maxAlone || d.Lock.Attempts < maxAlone {
		return false
	}
	since := 0
	for i := range d.History {
		if a := &d.History[i]; a.Outcome == OutcomeCrashed && !a.StartedAt.Before(d.StartedAt) {
			since++
		}
	}
	return since >= maxAlone
}

// failCrashed makes the analysis FAILED. Failures are grouped by the first line of their message.
func (d *Analysis) failCrashed() {
	inARow, alone := d.crashes()
	d.fail(Crashed, fmt.Sprintf(
		"crashed %d times in a row, the last %d times while its worker ran no other analysis\n%s",
		inARow, alone, d.History[len(d.History)-1].crashedMessage()))
}

func (a *Attempt) crashedMessage() string {
	return fmt.Sprintf("the worker %s ended during attempt %d and recorded no outcome", a.Instance(), a.Number)
}

// Delays returns how often the next attempt was delayed.
func (d *Analysis) Delays() int {
	if n := len(d.History); n > 0 {
		return d.History[n-1].Delays
	}
	return 0
}

// Delay records that a suspect could not run alone. It frees the lock, which has expired, and counts no
// attempt. The next attempt may begin wait later, and task makes the name of its task of that time.
// Without a queue task is nil. Delay returns that time, or lease.ErrConflict if the analysis has changed
// since the acquisition that returned skipped, and other errors as MarkDue does.
func (l *Locks) Delay(ctx context.Context, skipped Acquisition, wait time.Duration,
	task func(next time.Time) string,
) (next time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	suspect := skipped.suspect
	count := suspect.Delays() + 1

	delay := func(d *Analysis) {
		next = d.ReadAt.Add(wait).Truncate(time.Millisecond)
		d.crash(d.ReadAt)
		d.History = slices.Clone(d.History) // other analyses share it
		d.History[len(d.History)-1].Delays = count
		d.Lock = lease.Unlock(d.Lock)
		d.unbook()
		if task != nil {
			d.NextAttemptAt, d.BookedTask = next, task(next)
		}
		d.queue()
	}
	err = l.ifOrphaned(ctx, nil, suspect, delay, func(d *Analysis) bool {
		return d.Delays() == count && (task == nil || d.NextAttemptAt.Equal(next))
	})
	if errors.Is(err, lease.ErrRefused) {
		err = l.failFull(ctx, suspect)
	}
	return next, err
}
