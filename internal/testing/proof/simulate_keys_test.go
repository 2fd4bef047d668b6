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

	"taskguard/lease/analysislock"
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

// kills reports whether the analysis kills each worker that runs it.
func (w *simulation) kills(id string) bool {
	for n := range w.p.killers {
		if id == fmt.Sprintf("a%d", n) {
			return true
		}
	}
	return false
}

// leastRun is the shortest time that a run has after its worker has become empty. A killer that lives for longer may
// reach its deadline instead. Then it is no suspect any more, and kills two workers more.
const leastRun = 30 * time.Second

// kill is a run that kills its worker after a while.
func (w *simulation) kill(ctx context.Context, p *caller) {
	r := w.seed.of("kill", p.analysis, p.token)
	latest := w.p.policy.TTL / 2
	if w.p.takes > 0 {
		latest = leastRun
	}
	w.spend(ctx, p.on, r.between(50*time.Millisecond, latest))
	if ctx.Err() == nil && w.alive(p.on, "kills", p.name) {
		w.locked(func() { w.count("kills") })
		w.going.Go(func() { w.apply(incident{kind: leasetest.Crash, slot: p.on.slot.n}, int(p.token)) })
		<-p.on.dead
	}
}

// killers returns a profile in which some analyses kill their workers. Nothing else fails.
func (s seed) killers() profile {
	r := s.of("killers")
	p := perfect()
	p.policy.TTL = time.Duration(pick(r, 10, 30, 300)) * time.Second
	p.workers, p.places = pick(r, 1, 4), pick(r, 1, 2, 10)
	p.end, p.long = 30*time.Minute, pick(r, 0, 0.5, 1)
	p.storeSkew = r.between(-10*time.Minute, 10*time.Minute)
	p.queueSkew, p.reporting = p.storeSkew, 0.5

	p.killers = 1 + r.IntN(2)
	if s < 12 || s%24 == 0 {
		p.steady(s, r)
		return p
	}
	apart := time.Duration(pick(r, 0, 0, 5, 60)) * time.Second
	for range p.killers + 2 + r.IntN(9) {
		p.arrivals = append(p.arrivals, r.between(0, apart*10+time.Second))
	}
	return p
}

// steady makes the workers always busy: innocents whose runs take 20 to 25 minutes come at intervals that keep more
// than half of all places taken. The killers come among them.
func (p *profile) steady(s seed, r *draws) {
	p.policy.TTL, p.takes, p.long = 5*time.Minute, p.runTimeout, 0
	if s >= 12 {
		s /= 24
	}
	p.workers, p.places = []int{1, 4}[s%2], []int{1, 2, 10}[s/2%3]
	innocents, apart := min(40, 6*p.workers*p.places), p.takes*3/2/time.Duration(p.workers*p.places)
	for range p.killers {
		p.arrivals = append(p.arrivals, r.between(0, apart*time.Duration(innocents)/2))
	}
	for n := range innocents {
		p.arrivals = append(p.arrivals, time.Duration(n)*apart+r.between(0, apart))
	}
	p.end = 24 * time.Hour
}

// expectedOfKillers are the figures that must not be zero: without them the seeds prove nothing.
var expectedOfKillers = []figure{
	"kills", "crashes found", "delay", "settled suspect", "unsettled busy", "suspects that emptied their worker",
	"given up after crashes alone", "ended ready ",
}

// judgeKillers checks that each killer is FAILED as such after four attempts, and that no other analysis is.
func (w *simulation) judgeKillers() {
	if w.p.killers == 0 {
		return
	}
	for id, r := range w.records {
		d := r.doc
		crashed := d.Status == analysislock.Failed && d.Error.Code == analysislock.Crashed
		switch {
		case w.kills(id) && (!crashed || r.attempts != 4):
			w.fail("%s, a killer, is %s after %d attempts, %+v", id, w.show(d), r.attempts, d.Error)
		case !w.kills(id) && d.Status != analysislock.Ready:
			w.fail("%s, which kills nobody, is %s, %+v", id, w.show(d), d.Error)
		}
	}
}
