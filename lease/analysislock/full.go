package analysislock

import (
	"context"
	"errors"
	"fmt"

	"taskguard/internal/text"
	"taskguard/lease"
)

// A document has 1 MiB. This file says what gives way when a commit has no room; see also Retrying,
// which gives up its message.

// shed lists what a commit leaves out of what the run has reported: the checkpoint first, then the
// marks of acts, then both. What is left is the progress.
var shed = [][]string{{checkpointPart}, {actsPart}, {checkpointPart, actsPart}}

// Unrecordable is the code of an analysis that became FAILED because its document has no room
// for an acquisition, or for recovery's mark.
const Unrecordable = "unrecordable"

// ErrUnrecordable reports that an analysis has just become FAILED with the code Unrecordable.
var ErrUnrecordable = errors.New("analysislock: the document has no room for the fields of an attempt")

// UnrecordableError is an ErrUnrecordable.
type UnrecordableError struct {
	ID       string
	OpenActs int // that have started and are not done: somebody must be told
}

func (e *UnrecordableError) Error() string { return fmt.Sprintf("%v: %q", ErrUnrecordable, e.ID) }

// Is makes errors.Is(e, ErrUnrecordable) hold.
func (e *UnrecordableError) Is(target error) bool { return target == ErrUnrecordable }

// What unrecordable drops to make room; each drops more than the one before.
const (
	keepAll = iota
	dropReports
	dropAll
)

// unrecordable makes the analysis, which is unfinished and free, FAILED. It drops first what
// was reported about its attempts, then also the checkpoint and what FAILED adds.
func (d *Analysis) unrecordable(drop int) {
	d.Lock, _ = lease.Cancel(d.Lock, "taskguard") // it is unfinished
	d.fail(Unrecordable, text.Error(ErrUnrecordable))

	if drop >= dropReports {
		d.History, d.Progress, d.LastError = nil, nil, nil
	}
	if drop == dropAll {
		d.Checkpoint, d.Error.Message, d.Lock.FinishedBy = &Checkpoint{}, "", ""
	}
}

// failFull makes an orphan FAILED whose document has no room for a commit, and returns
// an *UnrecordableError. It drops no more fields than it must: first none, at last all it may. Other errors:
// lease.ErrConflict if the analysis is not orphaned any more; lease.ErrRefused if there is no
// room for FAILED either.
func (l *Locks) failFull(ctx context.Context, orphan *Analysis) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	open := 0
	for drop := keepAll; drop <= dropAll; drop++ {
		err = l.ifOrphaned(ctx, nil, orphan,
			func(d *Analysis) { open = d.OpenActs; d.unrecordable(drop) },
			func(d *Analysis) bool { return d.failedWith(Unrecordable) })
		switch {
		case err == nil:
			return &UnrecordableError{orphan.ID, open}
		case !errors.Is(err, lease.ErrRefused):
			return err
		}
	}
	return err
}

// ifOrphaned changes an orphan if it still is one and as it was read. from is the reading to
// begin with; nil: a new one.
func (l *Locks) ifOrphaned(ctx context.Context, from *lease.Cell[Analysis], orphan *Analysis,
	change func(d *Analysis), landed func(d *Analysis) bool,
) error {
	decide := func(c lease.Cell[Analysis]) (Analysis, error) {
		d := c.Doc
		same := c.Exists && d.Status == orphan.Status && d.Lock.Grant() == orphan.Lock.Grant() &&
			d.NextAttemptAt.Equal(orphan.NextAttemptAt) && d.BookedTask == orphan.BookedTask &&
			d.ParkedAt.Equal(orphan.ParkedAt) // a parked one waits for a slot, not for a delivery
		if !same || !lease.Orphaned(d.Lock, c.At) {
			return d, fmt.Errorf("%w: %q is no longer orphaned", lease.ErrConflict, orphan.ID)
		}
		change(&d)
		return d, nil
	}
	_, err := lease.Edit(ctx, l.store, orphan.ID, lease.Write[Analysis]{
		From: from, Decide: decide, Landed: func(c lease.Cell[Analysis]) bool { return landed(&c.Doc) },
	})
	return err
}
