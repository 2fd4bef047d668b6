package proof

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// kills reports whether the analysis kills each worker that runs it.
func (w *simulation) kills(id string) bool {
	for n := range w.p.killers {
		if id == fmt.Sprintf("a%d", n) {
			return true
		}
	}
	return false
}

// kill is a run that kills its worker after a while.
func (w *simulation) kill(ctx context.Context, p *caller) (orchestrator.Result, error) {
	r := w.seed.of("kill", p.analysis, p.token)
	w.spend(ctx, p.on, r.between(50*time.Millisecond, w.p.policy.TTL/2))
	if ctx.Err() == nil && w.alive(p.on, "kills", p.name) {
		w.locked(func() { w.count("kills") })
		w.going.Go(func() { w.apply(incident{kind: "crash", slot: p.on.slot.n}, int(p.token)) })
		<-p.on.dead
	}
	return nil, errForNow // nobody gets it: the process is dead
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
	apart := time.Duration(pick(r, 0, 0, 5, 60)) * time.Second
	for range p.killers + 2 + r.IntN(9) {
		p.arrivals = append(p.arrivals, r.between(0, apart*10+time.Second))
	}
	return p
}

// expectedOfKillers are the figures that must not be zero: without them the seeds prove nothing.
var expectedOfKillers = []string{
	"kills", "crashes found", "delay", "settled suspect", "unsettled busy", "given up after crashes alone", "ended ready ",
}

// SIMULATE_KILLERS=n replays a seed, with its trace.
func TestSeedsOfKillersFailNobodyElse(t *testing.T) {
	if os.Getenv("SIMULATE_KILLERS") != "" {
		n := seed(number(t, "SIMULATE_KILLERS", 0))
		w := newSimulation(n, n.killers(), nil)
		w.traced = true
		w.simulate(t).reportTo(t)
		fmt.Printf("%+v\n%s%s", w.p, w.transcript(), w.figures)
		return
	}

	var mu sync.Mutex
	all := figures{}
	t.Run("seed", func(seeds *testing.T) {
		for n := range max(60, number(t, "SIMULATE_SEEDS", 0)/10) {
			seeds.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				if seeds.Failed() {
					t.Skip("a seed has failed: SIMULATE_KILLERS=N repeats it")
				}
				w := newSimulation(seed(n), seed(n).killers(), nil).simulate(t)
				w.reportTo(t)
				mu.Lock()
				defer mu.Unlock()
				all.add(w.figures)
			})
		}
	})
	if os.Getenv("SIMULATE_SEEDS") != "" {
		fmt.Printf("figures with killers:\n%s", all)
	}
	if names := all.missing(expectedOfKillers); names != nil {
		t.Errorf("never happened, so the seeds prove nothing: %q", names)
	}
}

// judgeKillers checks that each killer is FAILED as such, after four attempts at most, and that no other
// analysis is. An attempt that began beside others, after ten delays, does not count, nor one alone before it.
func (w *simulation) judgeKillers() {
	if w.p.killers == 0 {
		return
	}
	for id, r := range w.records {
		d := r.doc
		crashed := d.Status == analysislock.Failed && d.Error.Code == analysislock.Crashed
		switch {
		case w.kills(id) && (!crashed || r.attempts > 4+2*r.beside):
			w.fail("%s, a killer, is %s after %d attempts, %+v", id, w.show(d), r.attempts, d.Error)
		case !w.kills(id) && d.Status != analysislock.Ready:
			w.fail("%s, which kills nobody, is %s, %+v", id, w.show(d), d.Error)
		}
	}
}

// The suspect a0 has killed its worker twice, and is innocent. The only instance always runs others, which are
// not over while a suspect waits for its places.
func TestASuspectOnAnInstanceThatIsAlwaysBusyBeginsAfterTenDelays(t *testing.T) {
	for name, c := range map[string]struct {
		others int // one each 12.5 s, from 70 s on
		takes  time.Duration
		beside int
	}{
		"a stream":                   {200, 25 * time.Second, 0},
		"one longer than the delays": {1, 25 * time.Minute, 1},
	} {
		p := perfect()
		p.policy.TTL, p.workers, p.places, p.end = 30*time.Second, 1, 3, time.Hour
		p.arrivals = []time.Duration{0}
		for n := range c.others {
			p.arrivals = append(p.arrivals, 70*time.Second+time.Duration(n)*12500*time.Millisecond)
		}
		var w *simulation
		w = newSimulation(1, p, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "a0" && job.LockToken <= 2 {
				return w.kill(ctx, callerOf(ctx))
			}
			w.spend(ctx, callerOf(ctx).on, c.takes)
			return result(job.AnalysisID, job.LockToken), nil
		})
		w.simulate(t).reportTo(t)

		r := w.records["a0"]
		waits := func(token int64) time.Duration {
			return r.states[slices.IndexFunc(r.states, func(s state) bool { return s.lock.Token == token })].at
		}
		waited, delays := waits(3)-waits(2), w.figures["delay"]
		if r.doc.Status != analysislock.Ready || r.beside != c.beside || waited > 15*time.Minute || delays < 1 || delays > 10 {
			t.Errorf("%s: %s, beside others %d times, want %d; waited %v with %d delays",
				name, w.show(r.doc), r.beside, c.beside, waited, delays)
		}
	}
}
