package analysislock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// full is a store that refuses so many writes, and loses the reply to the next. Before the last
// refusal other programs write.
type full struct {
	*lease.Memory[analysis]
	refusals int
	others   func(d *analysis)
}

func (s *full) Swap(ctx context.Context, key string, prev lease.Cell[analysis], next analysis,
) (lease.Cell[analysis], error) {
	s.refusals--
	switch {
	case s.refusals < -1:
		return s.Memory.Swap(ctx, key, prev, next)
	case s.refusals == -1:
		_, err := s.Memory.Swap(ctx, key, prev, next)
		return lease.Cell[analysis]{}, errors.Join(leasetest.ErrDropped, err)
	case s.refusals == 0:
		d := prev.Doc
		s.others(&d)
		s.Put(key, d)
	}
	return lease.Cell[analysis]{}, lease.ErrRefused
}

// kept says what an analysis has kept: history, progress, last error, checkpoint.
func kept(d *analysis) string {
	var e failure
	if d.Error != nil {
		e = *d.Error
	}
	return fmt.Sprintf("%s %q %t %s %d%s: %t %t %t %t",
		d.Status, e.Code, e.Message != "", d.Lock.FinishedBy, d.Lock.Token, d.Lock.Owner,
		d.History != nil, d.Progress != nil, d.LastError != nil, d.Checkpoint.Value != nil)
}

// An acquisition and a mark of recovery are refused twice before the analysis fails. It drops no
// more than it must.
func TestFull(t *testing.T) {
	acquire := func(ctx context.Context, l *analysislock.Locks, _ lease.Cell[analysis]) error {
		acq, err := l.AcquireAnalysisLock(ctx, "x", "w/1", 0, options{})
		if acq.Reason == analysislock.Unrecordable && acq.Status == analysislock.Failed {
			err = analysislock.ErrUnrecordable
		}
		return err
	}
	mark := func(ctx context.Context, l *analysislock.Locks, c lease.Cell[analysis]) error {
		_, err := l.MarkDue(ctx, c, func(time.Time) string { return "task" })
		return err
	}
	taken := func(d *analysis) { d.Lock.Owner, d.Lock.Token = "them", 9 } // and not held any more
	type do = func(ctx context.Context, l *analysislock.Locks, c lease.Cell[analysis]) error
	both, marks := []do{acquire, mark}, []do{mark}
	const failed = `FAILED "unrecordable" `
	unrecordable := analysislock.ErrUnrecordable
	for _, c := range []struct {
		refusals int
		others   func(d *analysis)
		err      error
		want     string
		by       []do
	}{
		{1, unchanged, nil, "", both},
		{2, unchanged, unrecordable, failed + `true taskguard 4: true true true true`, both},
		{3, unchanged, unrecordable, failed + `true taskguard 4: false false false true`, marks},
		{4, unchanged, unrecordable, failed + `false  4: false false false false`, marks},
		{5, unchanged, lease.ErrRefused, `QUEUED "" false  3: true true true true`, both},
		{2, taken, lease.ErrConflict, `QUEUED "" false  9them: true true true true`, marks},
	} {
		for i, do := range c.by {
			inBubble(t, fmt.Sprintf("%d refusals, %d, %v", c.refusals, i, c.err), func(w *fixture) {
				w.rewrite(func(d *analysis) {
					d.History, d.Progress = []analysislock.Attempt{{}}, &analysislock.Progress{}
					d.Checkpoint, d.LastError, d.Lock.Token = &analysislock.Checkpoint{Value: "c"}, &failure{}, 3
					d.OpenActs = 2
				})
				read := w.cell()
				w.serve(&full{&w.Memory, c.refusals, c.others}, 0, 0)
				err := do(w.Context(), w.locks, read)
				wantErr(w, err, c.err)
				if full, is := errors.AsType[*analysislock.UnrecordableError](err); is && full.OpenActs != 2 {
					w.Errorf("%d open acts, want 2", full.OpenActs)
				}
				if d := w.doc(); c.want != "" {
					same(w, c.want, kept(&d))
				}
			})
		}
	}
}
