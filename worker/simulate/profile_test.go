package simulate

import (
	"slices"
	"time"

	"taskguard/lease"
)

// A fault is what goes wrong with a call to the store.
type fault string

const (
	none          fault = ""
	dropBefore    fault = "request dropped"
	dropAfter     fault = "reply dropped"
	late          fault = "applied too late"
	aborted       fault = "aborted"
	abortedAfter  fault = "aborted though applied"
	unavailable   fault = "unavailable"
	exceeded      fault = "deadline exceeded"
	slowRequest   fault = "slow request"
	slowReply     fault = "slow reply"
	storeDark     fault = "store dark"
	workerDark    fault = "worker cut off"
	foreignWrite  fault = "foreign write"
	bookingDark   fault = "booking unavailable"
	bookingLost   fault = "booking reply lost"
	nameTaken     fault = "name taken"
	duplicate     fault = "dispatched twice"
	lateDispatch  fault = "dispatched late"
	answerLost    fault = "answer lost"
	outOfDispatch fault = "dispatch deadline passed"
	purged        fault = "task lost"
	neverQueued   fault = "never enqueued"
)

var rpcFaults = []fault{dropBefore, dropAfter, late, aborted, abortedAfter, unavailable, exceeded, slowRequest, slowReply}

// A mishap befalls a worker, at a time or with one of its calls to the store.
type mishap struct {
	kind string // crash, pause, stop, cut
	slot int
	at   time.Duration
	call int // if not 0: at that call of the slot, and then after at
	last time.Duration
}

type span struct{ from, until time.Duration }

func (s span) has(at time.Duration) bool { return s.from <= at && at < s.until }

// profile is what one seed is like.
type profile struct {
	single     bool // one crash is all that goes wrong
	purge      bool // and with it the crashed worker's task is lost
	policy     lease.Policy
	runTimeout time.Duration
	workers    int
	arrivals   []time.Duration // of the analyses
	storeSkew  time.Duration
	queueSkew  time.Duration
	firstPause time.Duration // of the queue, doubled up to
	longPause  time.Duration
	deadline   time.Duration // of the dispatch of an analysis's first task

	rpc       map[fault]float64
	booking   float64 // each of its faults
	dispatch  float64 // each of the queue's
	failures  float64 // of bodies
	long      float64 // of bodies
	mishaps   []mishap
	dark      []span
	foreign   []time.Duration
	operators []time.Duration
	end       time.Duration // of all faults
}

// perfect is a profile in which nothing goes wrong.
func perfect() profile {
	return profile{
		policy: lease.Policy{TTL: 300 * time.Second, MaxAttempts: 10}, runTimeout: 25 * time.Minute, workers: 2,
		arrivals: []time.Duration{time.Second}, firstPause: 30 * time.Second, longPause: 600 * time.Second,
		deadline: 26 * time.Minute, end: time.Second,
	}
}

func (d dice) profile() profile {
	r := d.of("profile")
	p := perfect()
	ttl := pick(r, 10, 10, 10, 30, 30, 120, 300)
	p.policy = lease.Policy{TTL: time.Duration(ttl) * time.Second, MaxAttempts: pick(r, 10, 10, 4, 2)}
	p.runTimeout = p.policy.TTL * time.Duration(pick(r, 2, 4, 8))
	p.deadline = p.runTimeout + time.Minute
	p.workers = 2 + r.IntN(3)
	p.end = max(8*time.Minute, min(20*p.policy.TTL, 40*time.Minute))
	p.long = pick(r, 0.3, 0.6)
	if r.chance(0.5) {
		p.firstPause, p.longPause = time.Second, 20*time.Second
	}
	p.arrivals = nil
	for range 3 + r.IntN(5) {
		p.arrivals = append(p.arrivals, r.between(0, p.end/2))
	}
	p.storeSkew = r.between(-10*time.Minute, 10*time.Minute)
	if p.single = uint64(d)%5 == 0; p.single {
		p.purge = r.chance(0.5)
		p.queueSkew = p.storeSkew
		p.mishaps = []mishap{{kind: "crash", slot: r.IntN(p.workers), call: 1 + r.IntN(12), at: r.between(0, 200*time.Millisecond)}}
		return p
	}
	p.queueSkew = p.storeSkew
	if r.chance(0.4) {
		p.queueSkew = r.between(-10*time.Minute, 10*time.Minute)
	}
	if r.chance(0.4) {
		p.deadline = r.between(p.policy.TTL/2, 2*p.policy.TTL)
	}
	p.rates(r)
	p.disturb(r)
	return p
}

// rates draws how often what goes wrong.
func (p *profile) rates(r *draw) {
	heat := pick(r, 0.01, 0.03, 0.08)
	p.rpc = map[fault]float64{}
	for _, f := range rpcFaults {
		if r.chance(0.7) {
			p.rpc[f] = heat
		}
	}
	p.booking = pick(r, 0, 0.1, 0.3)
	p.dispatch = pick(r, 0, 0.05, 0.2)
	p.failures = pick(r, 0, 0.1, 0.3)
}

// disturb draws what befalls the workers, the store and the records.
func (p *profile) disturb(r *draw) {
	ttl := p.policy.TTL
	for _, kind := range []string{"crash", "pause", "stop", "cut"} {
		for range r.IntN(7) {
			m := mishap{kind: kind, slot: r.IntN(p.workers), at: r.between(0, p.end*9/10), last: r.between(ttl/2, 3*ttl)}
			if r.chance(0.5) {
				m.call, m.at = 1+r.IntN(100), r.between(0, 60*time.Millisecond)
			}
			p.mishaps = append(p.mishaps, m)
		}
	}
	for range r.IntN(2) {
		from := r.between(0, p.end*8/10)
		p.dark = append(p.dark, span{from, from + r.between(time.Second, 2*ttl)})
	}
	for range pick(r, 0, 0, 20, 200) {
		p.foreign = append(p.foreign, r.between(0, p.end))
	}
	for range pick(r, 0, 0, 5, 15) {
		p.operators = append(p.operators, r.between(0, p.end))
	}
	slices.Sort(p.foreign)
	slices.Sort(p.operators)
}
