package proof

import (
	"context"
	"fmt"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
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
