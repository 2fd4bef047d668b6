package proof

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"taskguard/internal/delivery"
	"taskguard/lease"
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

func pick[T any](d *draws, of ...T) T { return of[d.IntN(len(of))] }

// fault is the fault of one call.
type fault string

const (
	none         fault = ""
	dropBefore   fault = "request dropped"
	dropAfter    fault = "reply dropped"
	tooLate      fault = "applied too late"
	aborted      fault = "aborted"
	abortedAfter fault = "aborted though applied"
	unavailable  fault = "unavailable"
	exceeded     fault = "deadline exceeded"
	slowRequest  fault = "slow request"
	slowReply    fault = "slow reply"
	storeDown    fault = "store unreachable"
	workerCut    fault = "worker cut off"
)

var rpcFaults = []fault{dropBefore, dropAfter, tooLate, aborted, abortedAfter, unavailable, exceeded, slowRequest, slowReply}

// expectedFigures are the figures that must not be zero: without them the seeds
// prove nothing.
var expectedFigures = []string{
	"seeds", "deliveries", "runs", "acquire", "heartbeat", "release", "finish", "give up", "unlock", "requeue", "cancel",
	"steals", "late wake-ups", "superseded writes refused", "stopped runs refunded", "recoveries booked",
	"answered 200 READY", "answered 200 FAILED", "answered 200 locked", "answered 409 locked", "answered 200 shutting_down",
	"answered 409 lock_lost", "answered 200 lock_lost", "answered 200 retry", "answered 500 retry", "answered 200 waiting", "answered 409 waiting", "mark", "marks of those that wait in the queue", "marks refused", "asks unanswered",
	"crashes", "crashes between commit and booking", "booked again after a crash", "booked attempts delivered early", "pauses", "stops", "cuts", "foreign writes",
	"bookings unavailable", "booking replies lost", "names taken", "dispatched twice", "dispatched late", "dispatches throttled", "answers lost",
	"dispatch deadlines passed", "tasks lost with a crash", "tasks never enqueued", "first acquired after a crash",
	"checkpoints reported", "checkpoints committed", "checkpoints awaited", "checkpoints refused", "checkpoints handed out",
	"units done", "units repeated", "continued runs refunded", "answered 200 continued", "answered 500 continued",
	"ended ready ", "ended failed no_use", "ended retry analyzer_failed", "ended retry run_timeout", "ended retry stalled",
	"ended lock_lost ", "ended cancelled cancelled", "ended shutting_down ", "given up after MAX_RUN_TIME",
	"largest clock skew", "longest unheld after a single crash", "longest until all is finished after the faults",
	string(dropBefore), string(dropAfter), string(tooLate), string(aborted), string(abortedAfter), string(unavailable),
	string(exceeded), string(slowRequest), string(slowReply), string(storeDown), string(workerCut),
}

// incident happens to a worker, at a time or at one of its calls to the store.
type incident struct {
	kind string // crash, pause, stop, cut
	slot int
	at   time.Duration
	call int // if not 0: from that call of the slot
	last time.Duration
}

func (s Span) has(at time.Duration) bool { return s.From <= at && at < s.Until }

// profile contains the parameters of one simulation.
type profile struct {
	single bool // one crash is the only fault
	purge  bool // the crashed worker's task is lost too
	limits
	policy     lease.Policy
	workers    int
	arrivals   []time.Duration // of the analyses
	storeSkew  time.Duration
	queueSkew  time.Duration
	minBackoff time.Duration // of the queue
	maxBackoff time.Duration
	deadline   time.Duration // of the dispatch of an analysis's first task

	unthrottled bool // the queue dispatches at any rate

	rpc       map[fault]float64
	booking   float64 // the rate of each fault of a booking
	dispatch  float64 // of each fault of a dispatch
	failures  float64 // of runs that fail
	dying     float64 // of workers that crash after the release that follows
	long      float64 // of long runs
	twice     float64 // of tasks that are dispatched twice, besides dispatch
	reporting float64 // of analyses whose runs report
	incidents []incident
	down      []Span // when the store is unreachable
	foreign   []time.Duration
	operators []time.Duration
	end       time.Duration // of all faults
}

// perfect returns a profile without faults.
func perfect() profile {
	return profile{
		policy: lease.Policy{TTL: 300 * time.Second, MaxAttempts: 10}, workers: 2,
		limits: limits{
			runTimeout: 25 * time.Minute, interval: delivery.DefaultCheckpointInterval,
			retryMin: delivery.DefaultMinRetry, retryMax: delivery.DefaultMaxRetry,
		},
		arrivals: []time.Duration{time.Second}, minBackoff: 30 * time.Second, maxBackoff: 600 * time.Second,
		deadline: 26 * time.Minute, end: time.Second,
	}
}

func (s seed) profile() profile {
	r := s.of("profile")
	p := perfect()
	p.unthrottled = s.of("throttle").chance(0.25)
	ttl := pick(r, 10, 10, 10, 30, 30, 120, 300)
	p.policy = lease.Policy{TTL: time.Duration(ttl) * time.Second, MaxAttempts: pick(r, 10, 10, 4, 2)}
	p.runTimeout = p.policy.TTL * time.Duration(pick(r, 2, 4, 8))
	p.deadline = p.runTimeout + time.Minute
	p.workers = 2 + r.IntN(3)
	p.end = max(8*time.Minute, min(20*p.policy.TTL, 40*time.Minute))
	p.long = pick(r, 0.3, 0.6)
	if r.chance(0.5) {
		p.minBackoff, p.maxBackoff = time.Second, 20*time.Second
		p.retryMin, p.retryMax = time.Second, 20*time.Second
	}
	p.arrivals = nil
	for range 3 + r.IntN(5) {
		p.arrivals = append(p.arrivals, r.between(0, p.end/2))
	}
	p.interval = pick(r, time.Second, 3*time.Second, 10*time.Second)
	p.reporting = pick(r, 0.3, 0.7, 1)
	p.storeSkew = r.between(-10*time.Minute, 10*time.Minute)
	p.queueSkew = p.storeSkew
	if p.single = uint64(s)%5 == 0; p.single {
		p.purge = r.chance(0.5)
		p.incidents = []incident{{kind: "crash", slot: r.IntN(p.workers), call: 1 + r.IntN(12), at: r.between(0, 200*time.Millisecond)}}
		return p
	}
	if r.chance(0.4) {
		p.queueSkew = r.between(-10*time.Minute, 10*time.Minute)
	}
	if r.chance(0.4) {
		p.deadline = r.between(p.policy.TTL/2, 2*p.policy.TTL)
	}
	p.drawRates(r)
	p.drawIncidents(r)
	p.stall = pick(r, 0, 0, p.policy.TTL)
	p.maxRun = p.runTimeout * time.Duration(pick(r, 0, 0, 0, 2))
	return p
}

func (p *profile) drawRates(r *draws) {
	rate := pick(r, 0.01, 0.03, 0.08)
	p.rpc = map[fault]float64{}
	for _, f := range rpcFaults {
		if r.chance(0.7) {
			p.rpc[f] = rate
		}
	}
	p.booking = pick(r, 0, 0.1, 0.3)
	p.dispatch = pick(r, 0, 0.05, 0.2)
	p.failures = pick(r, 0, 0.1, 0.3)
	p.dying = pick(r, 0, 0.1, 0.3)
}

func (p *profile) drawIncidents(r *draws) {
	ttl := p.policy.TTL
	for _, kind := range []string{"crash", "pause", "stop", "cut"} {
		for range r.IntN(7) {
			i := incident{kind: kind, slot: r.IntN(p.workers), at: r.between(0, p.end*9/10), last: r.between(ttl/2, 3*ttl)}
			if r.chance(0.5) {
				i.call, i.at = 1+r.IntN(100), r.between(0, 60*time.Millisecond)
			}
			p.incidents = append(p.incidents, i)
		}
	}
	for range r.IntN(2) {
		from := r.between(0, p.end*8/10)
		p.down = append(p.down, Span{from, from + r.between(time.Second, 2*ttl)})
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
