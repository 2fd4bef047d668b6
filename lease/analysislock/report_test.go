package analysislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

func checkpoint(v any, delay time.Duration, done func(error)) analysislock.Change {
	c := analysislock.Checkpointed(&analysislock.Checkpoint{Value: v})
	c.Delay, c.Done = delay, done
	return c
}

func progress(fraction float64, message string, delay time.Duration, done func(error)) analysislock.Change {
	c := analysislock.Progressed(analysislock.Progress{Fraction: &fraction, Message: message})
	c.Delay, c.Done = delay, done
	return c
}

// outcomes collects the calls of done, by name.
type outcomes struct {
	mu  sync.Mutex
	all []string
}

func (o *outcomes) done(name string) func(error) {
	return func(err error) {
		switch {
		case errors.Is(err, lease.ErrLost):
			name += " lost"
		case errors.Is(err, lease.ErrRefused):
			name += " refused"
		case err != nil:
			name += " " + err.Error()
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all = append(o.all, name)
	}
}

func (o *outcomes) want(w *fixture, want ...string) {
	w.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.all, want) {
		w.Errorf("reports answered: %q, want %q", o.all, want)
	}
	o.all = nil
}

// faulty replaces the fixture's store by a store that fails by its plan.
func (w *fixture) faulty() *leasetest.Faulty[analysislock.Analysis] {
	w.Helper()
	s := leasetest.NewFaulty[analysislock.Analysis](w, nil)
	w.serve(s, lease.Policy{}, 0, nil)
	return s
}

// run runs body with the hold, and checks Run's error.
func (w *fixture) run(h *analysislock.Hold, want error, body func()) {
	w.Helper()
	if err := h.Run(w.Context(), func(context.Context) error { body(); return nil }, nil); !errors.Is(err, want) {
		w.Errorf("run: %v, want %v", err, want)
	}
}

func TestReportsAreMergedPartByPartAndAnsweredByTheirCommit(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		s.Delay = 10 * time.Second
		written := func(c analysislock.Change, name string) analysislock.Change {
			c.Written = got.done(name + " written")
			return c
		}
		w.run(h, nil, func() {
			h.Send(progress(0.25, "reads", time.Hour, got.done("a")))
			h.Send(written(checkpoint("c0", time.Hour, nil), "c0"), written(checkpoint("c1", time.Hour, got.done("b")), "c1"))
			time.Sleep(time.Second)
			got.want(w)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.SlowReply, leasetest.SlowReply))
			h.Send(progress(0.25, "writes", 0, nil))
			time.Sleep(time.Second)
			h.Send(written(checkpoint("c2", time.Hour, got.done("c")), "c2")) // during the commit
			time.Sleep(time.Second)
			w.wantReported("0.25 writes c1")
			got.want(w)
			time.Sleep(s.Delay)
			got.want(w, "a", "c1 written", "b")
			h.Send(progress(0.5, "almost", 0, nil)) // after it, and before the next
			time.Sleep(time.Second)
			h.Send(progress(0.5, "still writes", 0, nil)) // during the next
			time.Sleep(s.Delay)
			got.want(w, "c2 written", "c")
			w.wantReported("0.5 still writes c2")
		})
		w.check(h.Flush(w.Context())) // nothing waits
		if n := s.Calls(leasetest.Swap); n != 3 {
			w.Errorf("%d commits, want 3", n)
		}
	})
}

// valueOf returns the value of a checkpoint, or nil for none.
func valueOf(c *analysislock.Checkpoint) any {
	if c == nil {
		return nil
	}
	return c.Value
}

// wantReported wants the document to have these parts.
func (w *fixture) wantReported(want string) {
	w.Helper()
	d := w.doc()
	if d.Progress == nil || d.Progress.Fraction == nil {
		w.Fatalf("no progress, %v", valueOf(d.Checkpoint))
	}
	if got := fmt.Sprintf("%v %s %v", *d.Progress.Fraction, d.Progress.Message, valueOf(d.Checkpoint)); got != want {
		w.Errorf("the document has %q, want %q", got, want)
	}
}

// Each report that the document can hold is answered as written, whatever it cannot hold beside it.
func TestARefusedPartFailsNoOther(t *testing.T) {
	for name, tc := range map[string]struct {
		refused int // commits in a row
		mark    bool
		want    []string
	}{
		"nothing":                       {0, true, []string{"progress", "mark", "checkpoint"}},
		"the checkpoint":                {1, false, []string{"progress", "checkpoint refused"}},
		"the checkpoint, beside a mark": {1, true, []string{"progress", "mark", "checkpoint refused"}},
		"the mark, but not that":        {2, true, []string{"progress", "mark refused", "checkpoint"}},
		"the mark too":                  {3, true, []string{"progress", "mark refused", "checkpoint refused"}},
		"all":                           {2, false, []string{"progress refused", "checkpoint refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				s, got := w.faulty(), &outcomes{}
				h := w.acquire("w/1").Hold
				w.run(h, nil, func() {
					s.SetPlan(leasetest.On(leasetest.Swap, slices.Repeat([]leasetest.Fault{leasetest.Refuse}, tc.refused)...))
					h.Send(progress(0.5, "half", time.Hour, got.done("progress")))
					if tc.mark {
						begin(h, "charge", got.done("mark"))
					}
					h.Send(checkpoint("c", 0, got.done("checkpoint")))
					time.Sleep(time.Second)
				})
				got.want(w, tc.want...)
			})
		})
	}
}

// The message of a failure gives way before an act, which would be uncertain without its record.
func TestAMessageDoesNotCostTheReports(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		h.Send(checkpoint("c", time.Hour, got.done("checkpoint")))
		begin(h, "charge", got.done("mark"))
		s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		w.check(h.End(w.Context(), analysislock.Retrying(h.Now(), "x", "a long message", time.Time{}, "", false)))
		got.want(w, "checkpoint", "mark")
	})
}

// Each way in which the hold reaches the store answers the reports that wait, once.
func TestAReportThatWaitsIsAnswered(t *testing.T) {
	refuse := leasetest.On(leasetest.Swap, leasetest.Refuse)
	steal := func(w *fixture) {
		d := w.doc()
		d.Lock.Owner, d.Lock.Token = "them", 9
		w.Put("x", d)
	}
	for name, tc := range map[string]struct {
		plan leasetest.Plan
		do   func(w *fixture, h *analysislock.Hold, report func())
		want string
	}{
		"refused during the run": {refuse, func(w *fixture, h *analysislock.Hold, report func()) {
			w.run(h, nil, func() { report(); time.Sleep(time.Second) })
		}, "r refused"},
		"lost during the run": {nil, func(w *fixture, h *analysislock.Hold, report func()) {
			w.run(h, lease.ErrLost, func() { steal(w); report(); time.Sleep(time.Hour) })
		}, "r lost"},
		"released, lost": {nil, func(w *fixture, h *analysislock.Hold, report func()) {
			report()
			steal(w)
			if err := h.End(w.Context(), analysislock.Releasing(h.Now(), analysislock.OutcomeContinued, "", true)); !errors.Is(err, lease.ErrLost) {
				w.Errorf("release: %v", err)
			}
		}, "r lost"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				s, got := w.faulty(), &outcomes{}
				h := w.acquire("w/1").Hold
				s.SetPlan(tc.plan)
				tc.do(w, h, func() { h.Send(checkpoint("c", 0, got.done("r"))) })
				got.want(w, tc.want)
			})
		})
	}
}

func (w *fixture) check(err error) {
	w.Helper()
	if err != nil {
		w.Error(err)
	}
}

func TestProgressInPercentIsRoundedAndMinusOneIfItWasNotReported(t *testing.T) {
	third := 0.336
	for want, p := range map[int]*analysislock.Progress{34: {Fraction: &third}, -1: {Message: "m"}} {
		if got := p.Percent(); got != want {
			t.Errorf("%+v: %d, want %d", p, got, want)
		}
	}
	if got := (*analysislock.Progress)(nil).Percent(); got != -1 {
		t.Errorf("none: %d, want -1", got)
	}
}
