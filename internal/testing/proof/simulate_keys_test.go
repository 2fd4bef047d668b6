package proof

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/orchestrator"
)

// keyed returns a profile in which analyses have keys, and all else can fail as in other seeds.
func (s seed) keyed() profile {
	p, r := s.profile(), s.of("keys")
	p.keySlots, p.hold = pick(r, 1, 1, 2, 3), r.chance(0.3)
	count := pick(r, 1, 1, 2)
	p.keyOf = func(id string) string {
		n, _ := strconv.Atoi(id[1:])
		return fmt.Sprintf("tenant %d", n%count)
	}
	for range 4 + r.IntN(6) {
		p.arrivals = append(p.arrivals, r.between(0, p.end/3))
	}
	return p
}

// judgeKeys checks that at no time more runs of one key were in effect than it has slots; see judgeRuns.
func (w *simulation) judgeKeys() {
	if w.keySlots == 0 {
		return
	}
	var times []time.Duration
	for _, p := range w.runs {
		times = append(times, p.run.begun)
		for _, pause := range p.run.pauses {
			times = append(times, pause.Until)
		}
	}
	for _, at := range times {
		running := map[string][]string{}
		for _, p := range w.runs {
			whole, excuses := p.inEffect()
			excused := slices.ContainsFunc(excuses, func(s Span) bool { return s.has(at) })
			if whole.has(at) && !excused {
				key := w.keyOf(p.analysis)
				running[key] = append(running[key], p.name)
			}
		}
		for key, runs := range running {
			if len(runs) > w.keySlots {
				w.fail("%d runs of %s were in effect at %v: %q", len(runs), key, at, runs)
			}
			if len(runs) == w.keySlots {
				w.count("all slots of a key in use")
			}
		}
	}
}

// expectedOfKeys are the figures that must not be zero: without them the seeds prove nothing.
var expectedOfKeys = []figure{
	leasetest.Crash, leasetest.Pause, leasetest.Stop,
	"park", "parked behind a slot", "settled key_busy", "unsettled key_busy", "all slots of a key in use",
	"conflicts of keys", "requeue", "cancel", "ended retry analyzer_failed",
}

// Ten analyses of one key arrive while the first runs. Every fifth fails for now, once, and keeps its slot or not.
func TestSimulation_KeyOrder(t *testing.T) {
	for name, c := range map[string]struct {
		slots int
		hold  bool
		want  string // empty: any
	}{
		"one, holding": {1, true, "a0 a1 a2 a3 a4 a4 a5 a6 a7 a8 a9 a9"},
		"one, passing": {1, false, "a0 a1 a2 a3 a4 a5 a4 a6 a7 a8 a9 a9"},
		"two":          {2, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := perfect()
			p.workers, p.end, p.keySlots, p.hold = 3, time.Hour, c.slots, c.hold
			p.keyOf = func(string) string { return "tenant" }
			for n := range 10 {
				p.arrivals = append(p.arrivals, time.Duration(n)*3*time.Second)
			}
			var w *simulation
			failed := map[string]bool{}
			w = newSimulation(1, p, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				id := job.AnalysisID
				w.spend(ctx, callerOf(ctx).on, 40*time.Second)
				if n, _ := strconv.Atoi(id[1:]); n%5 == 4 && !failed[id] {
					failed[id] = true
					return nil, errForNow
				}
				return result(id, job.LockToken), nil
			})
			w.simulate(t).reportTo(t)

			slices.SortFunc(w.runs, func(a, b *caller) int { return cmp.Compare(a.run.begun, b.run.begun) })
			var got []string
			for _, p := range w.runs {
				got = append(got, p.analysis)
			}
			if ran := strings.Join(got, " "); c.want != "" && ran != c.want {
				t.Errorf("ran %q, want %q", got, c.want)
			}
			took := w.runs[len(w.runs)-1].run.ended
			if limit := 12*40*time.Second/time.Duration(c.slots) + 90*time.Second; took > limit {
				t.Errorf("took %v, want at most %v", took, limit)
			}
			if w.figures["all slots of a key in use"] < 5 {
				t.Errorf("the slots were not in use: %v", w.figures)
			}
		})
	}
}
