package proof

import (
	"context"
	"fmt"
	"time"

	"taskguard/internal/delivery"
	"taskguard/lease/leasetest"
	"taskguard/orchestrator"
)

// slot holds one worker instance after another.
type slot struct {
	n       int
	born    int
	calls   int
	current *instance // nil after a crash
	cut     Span
}

// replace starts the slot's next instance.
func (w *simulation) replace(s *slot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, connection := w.connect()
	i := c.start(fmt.Sprintf("w%d.%d", s.n, s.born), w.analyze)
	connection.from, i.slot = i, s
	s.born++
	s.current = i
}

// join starts a request to i. The caller holds the mutex.
func (w *simulation) join(i *instance, t *task) *caller {
	p := &caller{n: len(i.callers), name: fmt.Sprintf("%s/%d", i.name, len(i.callers)), on: i, task: t}
	if t != nil {
		p.name, p.analysis, p.since = p.name+"/"+t.AnalysisID, t.AnalysisID, len(w.records[t.AnalysisID].states)
	}
	i.callers = append(i.callers, p)
	return p
}

// alive waits while the process is paused and reports whether it is alive. Each waiter
// continues at a different nanosecond. An operator (nil) is always alive.
func (w *simulation) alive(i *instance, who ...any) bool {
	for i != nil {
		w.mu.Lock()
		crashed, left := i.crashed, i.paused-w.since()
		w.mu.Unlock()
		if crashed || left <= 0 {
			return !crashed
		}
		time.Sleep(left + w.seed.of("awake", i.name, who, left).between(1, time.Millisecond))
	}
	return true
}

// countCall counts the slot's calls and applies the incidents of this one. The caller
// holds the mutex.
func (w *simulation) countCall(s *slot) {
	s.calls++
	for n, m := range w.p.incidents {
		if m.call == s.calls && m.slot == s.n {
			w.going.Go(func() {
				time.Sleep(m.after)
				w.apply(m, n)
			})
		}
	}
}

// apply applies an incident to the instance in its slot.
func (w *simulation) apply(m incident, n int) {
	s := w.slots[m.slot]
	var i *instance
	w.locked(func() { i = s.current })
	late := w.quiet() && !w.p.single && w.p.killers == 0
	if i == nil || late {
		return
	}

	pause := w.seed.of("incident", n).between(time.Second, 20*time.Second)
	switch m.kind {
	case leasetest.Crash:
		w.crash(i, leasetest.Crash)
		time.Sleep(pause)
		w.replace(s)
	case leasetest.Stop:
		w.locked(func() {
			w.count(leasetest.Stop)
			w.note("%s gets SIGTERM", i.name)
			i.stopping = true
		})
		i.stop(delivery.ErrStopping)
		time.Sleep(pause / 10)
		w.replace(s)
		time.Sleep(10*time.Second - pause/10)
		w.crash(i, leasetest.None)
	case leasetest.Pause:
		w.locked(func() {
			w.count(leasetest.Pause)
			w.note("%s is paused for %v", i.name, m.last)
			i.paused = max(i.paused, w.since()+m.last)
			for _, p := range i.callers {
				if p.running() {
					p.run.pauses = append(p.run.pauses, Span{w.since(), i.paused})
				}
			}
		})
	case leasetest.Unavailable:
		w.locked(func() {
			w.note("slot %d is cut off for %v", s.n, m.last)
			s.cut = Span{w.since(), w.since() + m.last}
		})
	}
}

// crash ends the process: from now on it sends nothing.
func (w *simulation) crash(i *instance, figure leasetest.Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.slot.current == i {
		i.slot.current = nil
	}
	if i.crashed {
		return
	}
	if figure != leasetest.None {
		w.count(figure)
		w.crashedAt = w.since()
	}
	w.note("%s dies", i.name)
	i.crashed = true
	i.died = w.since()
	close(i.dead)
	for _, p := range i.callers {
		if p.running() {
			p.run.ended = w.since()
		}
		if !p.answered && w.unbooked(p) {
			w.count(leasetest.CrashBefore.At(book))
		}
	}
}

// send sends a request to a worker. It reports false if the worker dies before it
// answers.
func (w *simulation) send(i *instance, p *caller, send func()) bool {
	if !w.alive(i, "asked", p.name) {
		return false
	}
	send()
	return w.alive(i, "answers", p.name)
}

// recover calls recovery, as Cloud Scheduler does.
func (w *simulation) recover(i *instance) {
	var p *caller
	w.locked(func() {
		p = w.join(i, nil)
		p.operates = Mark
	})
	var recovered delivery.Recovery
	var err error
	if !w.send(i, p, func() { recovered, err = i.runner.Recover(p.context(i.work)) }) {
		return
	}
	w.locked(func() {
		w.figures["recoveries booked"] += int64(recovered.Booked)
		w.note("%s: recovery: %+v, %v", p, recovered, err)
	})
}

// analyze is the analyzer of all workers.
func (w *simulation) analyze(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	p := callerOf(ctx)
	r := &run{ctx: ctx, begun: w.since(), ended: -1, cancelled: -1}
	w.locked(func() {
		if p.on.paused > w.since() {
			r.pauses = append(r.pauses, Span{w.since(), p.on.paused})
		}
		r.work = w.hand(p, job)
		p.run = r
		w.runs = append(w.runs, p)
		w.note("%s: run %d begins with %d units", p, job.LockToken, r.units)
	})

	unwatch := context.AfterFunc(ctx, func() {
		w.locked(func() {
			r.cancelled = w.since()
			w.note("%s: run %d is cancelled: %v", p, job.LockToken, context.Cause(ctx))
		})
	})
	defer w.locked(func() {
		if r.ended < 0 {
			r.ended, r.stopped = w.since(), p.on.stopping
			w.note("%s: run %d ends", p, job.LockToken)
		}
	})
	defer unwatch()

	if w.kills(p.analysis) {
		w.kill(ctx, p)
		return nil, errForNow // nobody gets it: the process is dead
	}
	if w.analyzer != nil {
		return w.analyzer(ctx, job)
	}
	return w.drawnRun(ctx, p, job)
}

// drawnRun takes a random time, obeys its cancellation at once or as late as it may,
// and succeeds or fails. It may report checkpoints of the units of its work.
func (w *simulation) drawnRun(ctx context.Context, p *caller, job orchestrator.Job) (orchestrator.Result, error) {
	i, r := p.on, w.seed.of("body", job.AnalysisID, job.LockToken)
	length := r.between(50*time.Millisecond, 4*time.Second)
	if !w.quiet() && r.chance(w.p.long) {
		length = r.between(w.p.policy.TTL/3, 3*w.p.policy.TTL)
	}
	if w.p.takes > 0 {
		length = r.between(w.p.takes*4/5, w.p.takes)
	}
	reaction := r.between(0, 10*time.Millisecond)
	if r.chance(0.3) {
		reaction = r.between(0, w.p.policy.KillAfter())
	}

	failing, permanent, ignores := r.chance(w.p.failures), r.chance(w.p.failures/10), r.chance(0.2)

	whole := w.seed.of("whole", job.AnalysisID)
	reports := whole.chance(w.p.reporting)
	unit := r.between(length/20, length/2)
	total := 2 + whole.IntN(12)
	divided := reports && w.runTimeout <= 10*time.Minute
	if divided && whole.chance(0.2) { // longer than a run may take
		unit = w.runTimeout/5 + r.between(0, time.Second)
		length = time.Duration(max(0, total-p.run.units))*unit + r.between(1, time.Millisecond)
	}

	if err := w.charge(ctx, p, job); err != nil {
		time.Sleep(time.Nanosecond) // as after the last mark
		return nil, err
	}

	until := w.since() + length
	for n := 0; ; n++ {
		w.spend(ctx, i, min(unit, until-w.since()))
		if ctx.Err() != nil {
			time.Sleep(reaction)
		}
		if !w.alive(i, "works", job.AnalysisID, job.LockToken, n) {
			return nil, errForNow
		}

		ended := ctx.Err() != nil
		if last := ended && reports; last && r.chance(0.7) {
			w.reportMark(p, job)        // the last
			time.Sleep(time.Nanosecond) // else the order of its renewal and of the release would be random
		}

		switch {
		case ended && !ignores:
			return nil, ctx.Err()
		case !ended && w.since() < until:
		case failing && !w.quiet():
			return nil, errForNow
		case permanent:
			return nil, &orchestrator.PermanentError{Code: "no_use", Message: "cannot be done"}
		default:
			return result(job.AnalysisID, job.LockToken), nil
		}

		w.locked(func() { p.run.units++ })
		switch draw := r.Float64(); {
		case !reports:
		case draw < 0.3:
			w.awaitMark(ctx, p, job)
		case draw < 0.8:
			w.reportMark(p, job)
		case draw < 0.9:
			job.Report(draw, "working")
		}
	}
}

// spend waits for d, or until ctx ends or the process dies.
func (w *simulation) spend(ctx context.Context, i *instance, d time.Duration) {
	if d <= 0 || ctx.Err() != nil { // the choice between two that are possible would be random
		return
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-i.dead:
	case <-ctx.Done():
	}
}
