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
	*lease.Memory[analysislock.Analysis]
	refusals int
	others   func(d *analysislock.Analysis)
}

func (s *full) Swap(ctx context.Context, key string, prev lease.Cell[analysislock.Analysis], next analysislock.Analysis) (lease.Cell[analysislock.Analysis], error) {
	if s.refusals--; s.refusals < 0 {
		c, err := s.Memory.Swap(ctx, key, prev, next)
		if s.refusals == -1 {
			err = leasetest.ErrDropped
		}
		return c, err
	}
	if s.refusals == 0 && s.others != nil {
		d := prev.Doc
		s.others(&d)
		s.Put(key, d)
	}
	return lease.Cell[analysislock.Analysis]{}, lease.ErrRefused
}

// An acquisition and a mark of recovery are refused twice before the analysis fails. It drops no
// more than it must.
func TestAnAnalysisWithoutRoomFailsAndKeepsWhatFits(t *testing.T) {
	kept := func(d analysislock.Analysis) string {
		e := analysislock.Error{}
		if d.Error != nil {
			e = *d.Error
		}
		return fmt.Sprintf("%s %q %t %s %d%s: %t %t %t %t", d.Status, e.Code, e.Message != "", d.Lock.FinishedBy, d.Lock.Token, d.Lock.Owner,
			d.History != nil, d.Progress != nil, d.LastError != nil, d.Checkpoint.Value != nil)
	}
	held := func(d *analysislock.Analysis) {
		d.Lock.Owner, d.Lock.Token, d.Lock.ExpiresAt = "them", 9, d.ReadAt.AddDate(9, 0, 0)
	}
	for _, tc := range []struct {
		refusals int
		others   func(d *analysislock.Analysis)
		err      error
		want     string
	}{
		{1, nil, nil, ""},
		{2, nil, analysislock.ErrUnrecordable, `FAILED "unrecordable" true taskguard 4: true true true true`},
		{3, nil, analysislock.ErrUnrecordable, `FAILED "unrecordable" true taskguard 4: false false false true`},
		{4, nil, analysislock.ErrUnrecordable, `FAILED "unrecordable" false  4: false false false false`},
		{5, nil, lease.ErrRefused, `QUEUED "" false  3: true true true true`},
		{2, held, lease.ErrConflict, `QUEUED "" false  9them: true true true true`},
	} {
		for name, do := range map[string]func(ctx context.Context, l *analysislock.Locks, c lease.Cell[analysislock.Analysis]) error{
			"acquire": func(ctx context.Context, l *analysislock.Locks, _ lease.Cell[analysislock.Analysis]) error {
				acq, err := l.AcquireAnalysisLock(ctx, "x", "w/1", 0, analysislock.AcquireOptions{})
				if err == nil && acq.Reason == analysislock.Unrecordable && acq.Status == analysislock.Failed && acq.Hold == nil {
					err = analysislock.ErrUnrecordable
				}
				return err
			},
			"mark": func(ctx context.Context, l *analysislock.Locks, c lease.Cell[analysislock.Analysis]) error {
				_, err := l.MarkDue(ctx, c, func(time.Time) string { return "task" })
				return err
			},
		} {
			t.Run(fmt.Sprint(name, tc.refusals), func(t *testing.T) {
				inBubble(t, queued(), func(w *fixture) {
					d := queued()
					d.History, d.Progress, d.LastError = []analysislock.Attempt{{}}, &analysislock.Progress{}, &analysislock.Error{}
					d.Checkpoint, d.Lock.Token = &analysislock.Checkpoint{Value: "c"}, 3
					w.Put("x", d)
					c, err := w.Load(w.Context(), "x", lease.OnlyLease)
					if err != nil {
						w.Fatal(err)
					}
					if tc.others != nil && name == "acquire" { // a new reading finds it held
						return
					}
					l, err := analysislock.New(&full{&w.Memory, tc.refusals, tc.others}, lease.Policy{}, 0, nil)
					if err == nil {
						err = do(w.Context(), l, c)
					}
					if got := kept(w.doc()); !errors.Is(err, tc.err) || tc.want != "" && got != tc.want {
						w.Errorf("%v, %s; want %v, %s", err, got, tc.err, tc.want)
					}
				})
			})
		}
	}
}
