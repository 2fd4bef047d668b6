package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

// Seen is the state of an analysis that an operator saw before deciding to change it.
// If its Status or its acquisition, the Grant, has changed since, the change is refused with
// lease.ErrConflict. A nil *Seen permits the change in any state.
type Seen struct {
	Status string
	Grant  lease.Grant
}

// Unlock takes the lock from its holder, also if its token cannot be read, and changes PROCESSING back
// to QUEUED. It does not undo an acquisition that happens at the same time. task names the task that is
// booked for an unfinished analysis afterwards; empty: none is. The history names who did it, also after Requeue,
// Cancel and Resolve; see Attempt.By. Unlock returns the analysis as it was before.
func (l *Locks) Unlock(ctx context.Context, id, who string, seen *Seen, task string) (Analysis, error) {
	unlock := func(d *Analysis, now time.Time) error {
		if d.Malformed == nil && d.Lock.Owner != "" && !lease.Held(d.Lock, now) {
			d.crash(now)
		}
		d.end(now, OutcomeLockLost, "", "")
		if !d.Lock.Finished || d.Lock.Owner != "" { // else nothing is changed
			d.changed(now, ChangeUnlocked, who)
		}
		d.Lock = lease.Unlock(d.Lock)
		d.unbook()
		if !d.Lock.Finished {
			d.BookedTask = task
		}
		d.queue()
		return nil
	}
	return l.edit(ctx, id, lease.EvenMalformed, seen, unlock, func(before, after Analysis) bool {
		return after.Lock.Grant() != before.Lock.Grant()
	})
}

// Requeue opens an analysis again, finished or not, from attempt one. While the lock
// is held it returns a *lease.HeldError. A READY analysis keeps its result until the
// next run finishes. The next run continues from the checkpoint and the marked acts, unless fresh
// drops them; fresh returns ErrUncertain if an act is uncertain. task names the task that is booked
// afterwards; empty: none is. Requeue returns the analysis as it was before.
func (l *Locks) Requeue(ctx context.Context, id, who string, seen *Seen, fresh bool, task string) (Analysis, error) {
	opened := func(d Analysis) bool {
		return d.Status == Queued && d.Error == nil && d.Lock.Owner == "" && d.Lock.Attempts == 0
	}
	open := func(d *Analysis, now time.Time) error {
		lock, err := lease.Reopen(d.Lock, now)
		if err != nil {
			return err
		}
		if fresh && len(d.Acts.Open()) > 0 {
			return fmt.Errorf("%w: %q", ErrUncertain, id)
		}
		if fresh || d.Closed() { // another program may have finished it
			d.Checkpoint = &Checkpoint{}
		}
		if fresh {
			d.mark(Acts{})
		}
		d.open(lock, task)
		d.changed(now, ChangeRequeued, who)
		return nil
	}

	return l.edit(ctx, id, lease.OnlyLease, seen, open, func(before, after Analysis) bool {
		acquired := after.Lock.Token > before.Lock.Token && // a worker has acquired it since
			(before.Lock.Finished || after.Lock.Attempts < before.Lock.Attempts)
		return acquired || opened(after) && !opened(before)
	})
}

// open makes the analysis QUEUED with no attempt made, under lock.
func (d *Analysis) open(lock lease.Lease, task string) {
	d.Lock, d.Status, d.Error, d.LastError = lock, Queued, nil, nil
	d.unbook()
	d.StartedAt, d.Progress, d.BookedTask = time.Time{}, nil, task
}

// RaiseToken sets the token of an analysis, also of a finished one, to minimum if it is lower.
// While the lock is held it returns a *lease.HeldError. It returns the analysis as it was before.
func (l *Locks) RaiseToken(ctx context.Context, id string, minimum int64) (Analysis, error) {
	return l.edit(ctx, id, lease.OnlyLease, nil, func(d *Analysis, now time.Time) (err error) {
		d.Lock, err = lease.RaiseToken(d.Lock, now, minimum)
		return err
	}, func(_, after Analysis) bool { return after.Lock.Token >= minimum })
}

// MarkDue records that the next attempt at an orphaned analysis may begin now, and the name of
// the task that is booked for it. task makes the name of that time; MarkDue returns the name. So
// recovery does not find the analysis again within one TTL. MarkDue begins with read, a reading
// of at least the status, updatedAt, the lock, NextAttemptAt and BookedTask, which saves another.
// It returns lease.ErrConflict if the analysis has been acquired, parked, finished, deleted or
// marked since. If the document has no room for the mark, the analysis becomes FAILED, and MarkDue
// returns ErrUnrecordable; lease.ErrRefused if it has no room for that either.
func (l *Locks) MarkDue(ctx context.Context, read lease.Cell[Analysis],
	task func(next time.Time) string,
) (booked string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	orphan, next := read.Doc, read.Now().Truncate(time.Millisecond)
	booked = task(next)
	// FAILED is final, so a second refusal must confirm the first.
	for _, from := range []*lease.Cell[Analysis]{&read, nil} {
		err = l.ifOrphaned(ctx, from, &orphan,
			func(d *Analysis) { d.NextAttemptAt, d.BookedTask = next, booked },
			func(d *Analysis) bool { return d.NextAttemptAt.Equal(next) })
		if !errors.Is(err, lease.ErrRefused) {
			return booked, err
		}
	}
	return booked, l.failFull(ctx, &orphan)
}

// Cancelled is the code of a cancelled analysis.
const Cancelled = "cancelled"

// Operator is the FinishedBy of a cancelled analysis.
const Operator = "operator"

// Cancel makes an unfinished analysis FAILED with the code Cancelled, even if its lock is
// held: a run in progress loses the lock. The error's message contains who. Cancel changes
// nothing if the analysis is cancelled already, and returns lease.ErrFinished if it is
// finished otherwise. It returns the analysis as it was before.
func (l *Locks) Cancel(ctx context.Context, id, who string, seen *Seen) (Analysis, error) {
	cancel := func(d *Analysis, now time.Time) error {
		if d.failedWith(Cancelled) {
			return nil
		}
		lock, err := lease.Cancel(d.Lock, Operator)
		if err != nil {
			return err
		}
		message := "cancelled by " + who
		d.end(now, OutcomeCancelled, Cancelled, message)
		d.changed(now, ChangeCancelled, who)
		d.Lock = lock
		d.fail(Cancelled, message)
		return nil
	}
	return l.edit(ctx, id, lease.OnlyLease, seen, cancel, func(before, after Analysis) bool {
		requeued := after.Lock.FinishedBy == Operator && before.Lock.FinishedBy != Operator
		return after.failedWith(Cancelled) || requeued
	})
}

// edit changes an analysis if it is in the state that was seen, and returns it as it was last read before
// the change. landed compares the first reading with a later one, and reports whether this change is
// made. If it were made again after its reply was lost, it could undo later changes by others.
func (l *Locks) edit(ctx context.Context, id string, want lease.Want, seen *Seen,
	change func(d *Analysis, now time.Time) error, landed func(before, after Analysis) bool,
) (latest Analysis, err error) {
	// With seen, only this change counts as made. Without it, so does the same one by another program.
	return l.editOwn(ctx, id, want, seen != nil, func(d *Analysis, now time.Time) error {
		if seen != nil && *seen != (Seen{d.Status, d.Lock.Grant()}) {
			return fmt.Errorf("%w: %q has changed since it was read", lease.ErrConflict, id)
		}
		return change(d, now)
	}, landed)
}

// editOwn changes an analysis in any state. If own is set, another program's equal change counts as ours only
// after a try that may have written.
func (l *Locks) editOwn(ctx context.Context, id string, want lease.Want, own bool,
	change func(d *Analysis, now time.Time) error, landed func(before, after Analysis) bool,
) (latest Analysis, err error) {
	if err := CheckID(id); err != nil {
		return Analysis{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	var first *Analysis
	sent := false // a try may have written
	decide := func(c lease.Cell[Analysis]) (Analysis, error) {
		latest = c.Doc
		if first == nil || own && !sent {
			first = &c.Doc
		}
		if !c.Exists {
			return c.Doc, fmt.Errorf("%w: %q", lease.ErrNotFound, id)
		}
		next := c.Doc
		err := change(&next, c.At)
		return next, err
	}

	_, err = lease.Edit(ctx, l.store, id, lease.Write[Analysis]{
		Want: want, Decide: decide, Unmarked: own,
		Landed: func(c lease.Cell[Analysis]) bool {
			sent = true
			return c.Exists && landed(*first, c.Doc)
		},
	})
	return latest, err
}

// ErrNotUncertain reports that an analysis has no such act, or that the act is not uncertain.
var ErrNotUncertain = errors.New("analysislock: the act is not uncertain")

// ErrAllActs reports that Unreadable was answered with Done: it has no result that each act could have.
var ErrAllActs = errors.New(`analysislock: "*" stands for all acts`)

// ErrUncertain reports that an act of the analysis is uncertain, so that its marks are kept.
var ErrUncertain = errors.New("analysislock: an act is uncertain")

// Answer is what an operator has found out about an uncertain act.
type Answer struct {
	Done   bool            // else it was certainly not done
	Result json.RawMessage // of an act that was done
}

// Resolve records the answer about an uncertain act, and opens the analysis again, as Requeue
// does. A READY or a cancelled one stays so. It returns the analysis as it was before. Errors:
// a *lease.HeldError while the lock is held; ErrNotUncertain; ErrAllActs; an error if Result is
// too large.
func (l *Locks) Resolve(ctx context.Context, id, who string, seen *Seen, name string, answer Answer,
	task string,
) (Analysis, error) {
	var resolved Act // the act as it was first read
	resolve := func(d *Analysis, now time.Time) error {
		lock, err := lease.Reopen(d.Lock, now)
		if err != nil {
			return err
		}
		act, exists := d.Acts[name]
		if !exists || act.State == ActDone {
			return fmt.Errorf("%w: %q of %q", ErrNotUncertain, name, id)
		}
		if name == Unreadable && answer.Done {
			return ErrAllActs
		}
		if resolved.State == "" {
			resolved = act
		}

		var resolution *Act
		if answer.Done {
			resolution = &Act{
				State: ActDone, Token: act.Token, At: now.Truncate(time.Millisecond), Result: answer.Result,
			}
		}
		changed, err := d.Acts.with(name, resolution)
		if err != nil {
			return err
		}
		d.mark(changed)
		d.changed(now, ChangeResolved, who)
		if !d.Closed() && !d.failedWith(Cancelled) {
			d.open(lock, task)
		}
		return nil
	}

	return l.edit(ctx, id, lease.EvenMalformed, seen, resolve, func(_, after Analysis) bool {
		act, exists := after.Acts[name]
		if answer.Done {
			return act.State == ActDone && act.Token == resolved.Token
		}
		return !exists || act.Token != resolved.Token
	})
}
