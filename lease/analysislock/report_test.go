package analysislock_test

import (
	"context"
	"encoding/json"
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

func checkpoint(v any) analysislock.Report {
	return analysislock.Report{Checkpoint: &analysislock.Checkpoint{Value: v}}
}

func progress(fraction float64, message string) analysislock.Report {
	return analysislock.Report{Fraction: &fraction, Message: &message}
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

// faulty replaces the fixture's store by one that fails by its plan.
func (w *fixture) faulty() *leasetest.Faulty[analysislock.Analysis] {
	w.Helper()
	s := leasetest.NewFaulty[analysislock.Analysis](w, nil)
	w.serve(s, lease.Policy{}, 0, nil)
	return s
}

// run runs body with the hold, and checks Run's error.
func (w *fixture) run(h *analysislock.Hold, want error, body func()) {
	w.Helper()
	if err := h.Run(w.Context(), func(context.Context, analysislock.Work) error { body(); return nil }); !errors.Is(err, want) {
		w.Errorf("run: %v, want %v", err, want)
	}
}

func TestReportsAreMergedPartByPartAndAnsweredByTheirCommit(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		s.Delay = 10 * time.Second
		var written []any
		h.Written = func(c *analysislock.Checkpoint, _ error) { written = append(written, valueOf(c)) }
		w.run(h, nil, func() {
			h.Report(progress(0.25, "reads"), time.Hour, got.done("a"))
			h.Report(checkpoint("c1"), time.Hour, got.done("b"))
			got.want(w)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.SlowReply, leasetest.SlowReply))
			message := "writes"
			h.Report(analysislock.Report{Message: &message}, 0, nil)
			time.Sleep(time.Second)
			h.Report(checkpoint("c2"), time.Hour, got.done("c")) // during the commit
			time.Sleep(time.Second)
			w.wantReported("0.25 writes c1", 2*time.Second)
			got.want(w)
			time.Sleep(s.Delay)
			got.want(w, "a", "b")
			h.Report(progress(0.5, "almost"), 0, nil) // after it, and before the next
			time.Sleep(time.Second)
			h.Report(progress(0.5, "still writes"), 0, nil) // with the next, whose checkpoint is not yet known to be written
			time.Sleep(s.Delay)
			got.want(w, "c")
			w.wantReported("0.5 still writes c2", s.Delay)
			w.check(h.Flush(w.Context())) // nothing waits
			if n := s.Calls(leasetest.Swap); n != 3 || !slices.Equal(written, []any{"c1", "c2"}) {
				w.Errorf("%d commits, want 3; written %v", n, written)
			}
		})
	})
}

// valueOf returns the value of a checkpoint, or nil for none.
func valueOf(c *analysislock.Checkpoint) any {
	if c == nil {
		return nil
	}
	return c.Value
}

// wantReported wants the document to have these parts, reported so long ago.
func (w *fixture) wantReported(want string, ago time.Duration) {
	w.Helper()
	d := w.doc()
	if d.Progress == nil || d.Progress.Fraction == nil {
		w.Fatalf("no progress, %v", valueOf(d.Checkpoint))
	}
	got := fmt.Sprintf("%v %s %v", *d.Progress.Fraction, d.Progress.Message, valueOf(d.Checkpoint))
	if at := w.now().Sub(d.Progress.At); got != want || at != ago {
		w.Errorf("the document has %q, reported %v ago; want %q, %v", got, at, want, ago)
	}
}

// Each report that the document can hold is answered as written, whatever it cannot hold beside it.
func TestARefusedPartFailsNoOther(t *testing.T) {
	for name, tc := range map[string]struct {
		refused int // commits in a row
		mark    bool
		want    []string
	}{
		"nothing":                       {0, true, []string{"progress", "mark", "checkpoint", "both"}},
		"the checkpoint":                {1, false, []string{"progress", "checkpoint refused", "both refused"}},
		"the checkpoint, beside a mark": {1, true, []string{"progress", "mark", "checkpoint refused", "both refused"}},
		"the mark, but not that":        {2, true, []string{"progress", "mark refused", "checkpoint", "both"}},
		"the mark too":                  {3, true, []string{"progress", "mark refused", "checkpoint refused", "both refused"}},
		"all":                           {2, false, []string{"progress refused", "checkpoint refused", "both refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				s, got := w.faulty(), &outcomes{}
				h := w.acquire("w/1").Hold
				w.run(h, nil, func() {
					s.SetPlan(leasetest.On(leasetest.Swap, slices.Repeat([]leasetest.Fault{leasetest.Refuse}, tc.refused)...))
					h.Report(progress(0.5, "half"), time.Hour, got.done("progress"))
					if tc.mark {
						_, _, err := h.Begin("charge", false, got.done("mark"))
						w.check(err)
					}
					h.Report(checkpoint("c"), time.Hour, got.done("checkpoint"))
					both := progress(0.5, "half")
					both.Checkpoint = &analysislock.Checkpoint{Value: "c"}
					h.Report(both, 0, got.done("both"))
					time.Sleep(time.Second)
				})
				got.want(w, tc.want...)
			})
		})
	}
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
			w.check(h.Release(w.Context(), analysislock.OutcomeContinued, true, ""))
		}, "r lost"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				s, got := w.faulty(), &outcomes{}
				h := w.acquire("w/1").Hold
				w.run(h, nil, func() {}) // to be given no checkpoint
				s.SetPlan(tc.plan)
				h.Written = func(c *analysislock.Checkpoint, err error) {
					if c == nil || c.Value != "c" || (err == nil) != (tc.want == "r") {
						w.Errorf("written: %+v, %v", c, err)
					}
					got.done("written")(nil)
				}
				tc.do(w, h, func() { h.Report(checkpoint("c"), 0, got.done("r")) })
				got.want(w, tc.want, "written")
				if advanced := h.Advanced(); advanced != (tc.want == "r") {
					w.Errorf("advanced = %v", advanced)
				}
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

func TestARunAdvancesByACheckpointThatDiffersFromTheOneItWasGiven(t *testing.T) {
	const large = int64(1<<62 + 1) // no float64 distinguishes it from the next
	given := map[string]any{"id": large, "s": "<&>", "f": 1.5}
	for name, tc := range map[string]struct {
		reports []analysislock.Report
		want    bool
	}{
		"nothing":              {nil, false},
		"progress alone":       {[]analysislock.Report{progress(1, "<")}, false},
		"the same":             {[]analysislock.Report{checkpoint(map[string]any{"f": 1.5, "id": large, "s": "<&>"})}, false},
		"another":              {[]analysislock.Report{checkpoint("next")}, true},
		"another integer":      {[]analysislock.Report{checkpoint(map[string]any{"f": 1.5, "id": large + 1, "s": "<&>"})}, true},
		"cleared":              {[]analysislock.Report{checkpoint(nil)}, false},
		"another, then itself": {[]analysislock.Report{checkpoint("next"), checkpoint(given)}, false},
		"another, then progress": {
			[]analysislock.Report{checkpoint("next"), progress(1, "m")}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := queued()
			x.Checkpoint = &analysislock.Checkpoint{Value: given}
			inBubble(t, x, func(w *fixture) {
				w.serve(w, lease.Policy{}, 0, func(context.Context, analysislock.Analysis) (analysislock.Work, error) {
					return analysislock.Work{Checkpoint: json.RawMessage(`{"f":1.5,"id":4611686018427387905,"s":"<&>"}`)}, nil // as package repo
				})
				h := w.acquire("w/1").Hold
				w.run(h, nil, func() {
					for _, r := range tc.reports {
						was := h.Advanced()
						if h.Report(r, time.Minute, nil); h.Advanced() != was {
							w.Error("advanced by what is not committed")
						}
						w.check(h.Flush(w.Context()))
					}
				})
				if got := h.Advanced(); got != tc.want {
					w.Errorf("advanced = %v, want %v", got, tc.want)
				}
			})
		})
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
