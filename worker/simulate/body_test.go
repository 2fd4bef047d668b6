package simulate

import (
	"context"
	"errors"
	"time"

	"taskguard/lease"
	"taskguard/orchestrator"
)

// body is one run of the analyzer.
type body struct {
	on               *instance
	id               string
	token            int64
	begin, lost, end time.Duration // -1: not yet
	still            []span        // while its process stood still
}

var (
	errForNow = errors.New("the downstream is out")
	errDead   = errors.New("the process is dead")
)

// analyze is the analyzer: it takes its time, heeds its cancellation, at once or
// as late as it may, and comes to what was drawn.
func (i *instance) analyze(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	b := i.begin(job)
	unwatch := context.AfterFunc(ctx, func() { i.lost(b, context.Cause(ctx)) })
	defer i.end(b)
	defer unwatch()
	if i.w.work != nil {
		return i.w.work(ctx, job)
	}
	return i.work(ctx, job)
}

func (i *instance) work(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	p := i.w.p
	r := i.w.dice.of("body", job.AnalysisID, job.LockToken)
	length := r.between(50*time.Millisecond, 4*time.Second)
	if !i.w.calm() && r.chance(p.long) {
		length = r.between(p.policy.TTL/3, 3*p.policy.TTL)
	}
	reaction := r.between(0, 10*time.Millisecond)
	if r.chance(0.3) {
		reaction = r.between(0, p.policy.KillAfter())
	}
	failing, permanent, panics, deaf := r.chance(p.failures), r.chance(p.failures/10), r.chance(p.failures/10), r.chance(0.2)
	over := time.NewTimer(length)
	defer over.Stop()
	select {
	case <-over.C:
	case <-i.dead:
		return nil, errDead
	case <-ctx.Done():
		time.Sleep(reaction)
		if !deaf { // else it does not mind that it was cancelled
			return nil, ctx.Err()
		}
	}
	switch {
	case !i.alive("works", job.AnalysisID, job.LockToken):
		return nil, errDead
	case permanent:
		return nil, &orchestrator.PermanentError{Code: "no_use", Message: "cannot be done"}
	case panics && !i.w.calm():
		panic("a bug")
	case failing && !i.w.calm():
		i.w.mu.Lock()
		i.w.figures["failures for now"]++
		i.w.mu.Unlock()
		return nil, errForNow
	}
	return result(job.AnalysisID, job.LockToken), nil
}

func (i *instance) begin(job orchestrator.Job) *body {
	w := i.w
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &body{on: i, id: job.AnalysisID, token: job.LockToken, begin: w.now(), lost: -1, end: -1}
	if i.paused > w.now() {
		b.still = append(b.still, span{w.now(), i.paused})
	}
	w.bodies = append(w.bodies, b)
	w.figures["runs"]++
	w.tell("%s %s: body %d begins", i.name, b.id, b.token)
	return b
}

func (i *instance) lost(b *body, cause error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	b.lost = i.w.now()
	if errors.Is(cause, lease.ErrLost) {
		i.w.figures["losses"]++
	}
	i.w.tell("%s %s: body %d is cancelled: %v", i.name, b.id, b.token, cause)
}

func (i *instance) end(b *body) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.tell("%s %s: body %d ends", i.name, b.id, b.token)
	if b.end < 0 {
		b.end = i.w.now()
	}
}

// effective is when b did what others could see: not cancelled, not standing
// still, not one that an operator has unlocked and that could not know yet.
func (w *world) effective(b *body) []span {
	until := b.end
	if b.lost >= 0 {
		until = min(until, b.lost)
	}
	spans := []span{{b.begin, until}}
	for _, s := range b.still {
		spans = without(spans, s)
	}
	for _, s := range w.store.records[b.id].broken {
		if s.token == b.token {
			spans = without(spans, s.span)
		}
	}
	return spans
}

func without(spans []span, s span) (rest []span) {
	for _, t := range spans {
		for _, u := range []span{{t.from, min(t.until, s.from)}, {max(t.from, s.until), t.until}} {
			if u.from < u.until {
				rest = append(rest, u)
			}
		}
	}
	return rest
}

// overlaps finds bodies of one analysis that were in effect at once.
func (w *world) overlaps() {
	for n, a := range w.bodies {
		for _, b := range w.bodies[n+1:] {
			if a.id != b.id {
				continue
			}
			for _, s := range w.effective(a) {
				for _, t := range w.effective(b) {
					if both := (span{max(s.from, t.from), min(s.until, t.until)}); both.from < both.until {
						w.accuse("%s: bodies %d on %s and %d on %s both in effect from %v until %v",
							a.id, a.token, a.on.name, b.token, b.on.name, both.from, both.until)
					}
				}
			}
		}
	}
}

// unheld measures, where one crash is all that goes wrong, for how long an
// unfinished analysis had no living worker after it.
func (w *world) unheld() {
	if !w.p.single || w.crashed == 0 {
		return
	}
	bound := w.p.policy.TTL + time.Minute + dispatchTime
	for id, r := range w.store.records {
		for n, h := range r.held {
			if h.until < 0 {
				w.accuse("%s: hold %d never ended", id, n)
			}
			if h.from < w.crashed {
				continue
			}
			free := r.created
			if n > 0 {
				free = r.held[n-1].until
			} else if r.created < w.crashed {
				w.figures["first acquired after a crash"]++
			}
			gap := h.from - max(free, w.crashed)
			w.figures.most("longest unheld after a single crash", gap)
			if gap > bound {
				w.accuse("%s: unheld for %v after a crash, want at most %v", id, gap, bound)
			}
		}
	}
}

// dispatchTime is how long a dispatch may take, from the booking to the lock.
const dispatchTime = 5 * time.Second
