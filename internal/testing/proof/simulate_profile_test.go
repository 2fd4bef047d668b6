package proof

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"taskguard/internal/delivery"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// seed determines a simulation: each random choice depends only on the seed and on
// the identity of the event that it is for.
type seed uint64

// of returns the random choices for one identity.
func (s seed) of(identity ...any) *draws {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, uint64(s), identity) // a hash does not fail
	return &draws{rand.New(rand.NewPCG(h.Sum64(), uint64(s)))}
}

type draws struct{ *rand.Rand }

func (d *draws) chance(p float64) bool { return d.Float64() < p }

// between returns a duration in [least, most), with nanoseconds.
func (d *draws) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)))
}

func pick[T any](d *draws, choices ...T) T { return choices[d.IntN(len(choices))] }

// incident happens to a worker at one of the slot's calls to the store, and a little later.
type incident struct {
	kind  leasetest.Fault // Crash, Pause, Stop or Unavailable
	slot  int
	call  int
	after time.Duration
	last  time.Duration
}

func (s Span) has(at time.Duration) bool { return s.From <= at && at < s.Until }

// profile contains the parameters of one simulation.
type profile struct {
	single bool // one crash is the only fault
	purge  bool // the crashed worker's task is lost too
	limits
	policy    lease.Policy
	workers   int
	arrivals  []time.Duration // of the analyses
	storeSkew time.Duration
	queueSkew time.Duration
	deadline  time.Duration // of the dispatch of an analysis's first task

	rpc       map[leasetest.Fault]float64 // the rates of faults
	booking   float64                     // the rate of each fault of a booking
	dispatch  float64                     // of each fault of a dispatch
	failures  float64                     // of runs that fail
	dying     float64                     // of workers that crash after the release that follows
	long      float64                     // of long runs
	twice     float64                     // of tasks that are dispatched twice, besides dispatch
	reporting float64                     // of analyses whose runs report
	takes     time.Duration               // all runs but of killers take this long, or a fifth less; 0: random
	killers   int                         // so many of the first analyses kill their worker
	incidents []incident
	operators []time.Duration
	end       time.Duration // of all faults
}

// perfect returns a profile without faults.
func perfect() profile {
	return profile{
		policy: lease.Policy{TTL: 300 * time.Second, MaxAttempts: 10}, workers: 2,
		limits: limits{
			runTimeout: 25 * time.Minute, interval: delivery.DefaultCheckpointInterval,
			retryMin: delivery.DefaultMinRetry, retryMax: delivery.DefaultMaxRetry, places: 100,
		},
		deadline: 26 * time.Minute,
	}
}

func (s seed) profile() profile {
	r := s.of("profile")
	p := perfect()
	p.policy.TTL = time.Duration(pick(r, 10, 10, 10, 30, 30, 120, 300)) * time.Second
	p.policy.MaxAttempts = pick(r, 10, 10, 4, 2)
	p.runTimeout = p.policy.TTL * time.Duration(pick(r, 2, 4, 8))
	p.deadline = p.runTimeout + time.Minute
	p.workers = 2 + r.IntN(3)
	p.end = max(8*time.Minute, min(20*p.policy.TTL, 40*time.Minute))
	p.long = pick(r, 0.3, 0.6)
	if r.chance(0.5) {
		p.retryMin, p.retryMax = time.Second, 20*time.Second
	}
	for range 3 + r.IntN(5) {
		p.arrivals = append(p.arrivals, r.between(0, p.end/2))
	}
	p.interval = pick(r, time.Second, 3*time.Second, 10*time.Second)
	p.reporting = pick(r, 0.3, 0.7, 1)
	p.storeSkew = r.between(-10*time.Minute, 10*time.Minute)
	p.queueSkew = p.storeSkew
	if p.single = uint64(s)%5 == 0; p.single {
		p.purge = r.chance(0.5)
		after := r.between(0, 200*time.Millisecond)
		p.incidents = []incident{{kind: leasetest.Crash, slot: r.IntN(p.workers), call: 1 + r.IntN(12), after: after}}
		return p
	}
	if r.chance(0.4) {
		p.queueSkew = r.between(-10*time.Minute, 10*time.Minute)
	}
	if r.chance(0.4) {
		p.deadline = r.between(p.policy.TTL/2, 2*p.policy.TTL)
	}
	p.places = pick(s.of("places"), 1, 2, 10)
	p.stall = pick(r, 0, 0, p.policy.TTL)
	p.maxRun = p.runTimeout * time.Duration(pick(r, 0, 0, 0, 2))
	p.drawFaults(r)
	return p
}

func (p *profile) drawFaults(r *draws) {
	rate := pick(r, 0.01, 0.03, 0.1)
	p.rpc = map[leasetest.Fault]float64{}
	for _, f := range faults(0) {
		if r.chance(0.7) {
			p.rpc[f.name] = rate
		}
	}
	p.booking = pick(r, 0, 0.1, 0.3)
	p.dispatch = pick(r, 0, 0.05, 0.2)
	p.failures = pick(r, 0, 0.1, 0.3)
	p.dying = pick(r, 0, 0.1, 0.3)
	for _, kind := range []leasetest.Fault{leasetest.Crash, leasetest.Pause, leasetest.Stop, leasetest.Unavailable} {
		for range r.IntN(7) {
			p.incidents = append(p.incidents, incident{
				kind: kind, slot: r.IntN(p.workers), call: 1 + r.IntN(100),
				after: r.between(0, 60*time.Millisecond), last: r.between(p.policy.TTL/2, 3*p.policy.TTL),
			})
		}
	}
	for range pick(r, 0, 0, 5, 15) {
		p.operators = append(p.operators, r.between(0, p.end))
	}
	slices.Sort(p.operators)
}
