package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/orchestrator"
)

// execution is one sequence of steps of the search.
type execution struct {
	*model
	left      budget
	rec       *record // of the one analysis
	late      []*call // swaps whose callers gave up, and that may still arrive
	client    *client // of all
	instances []*instance
	operator  *instance
	draining  bool
	requeuing bool // the operator has not booked the delivery of its requeue yet
	callers   []*caller

	turns   int
	over    bool
	closing chan struct{}
	changed chan struct{}
	going   sync.WaitGroup
}

// explored is the state of a caller in the search.
type explored struct {
	pending   *call
	retrying  bool // a call has failed and the next has not been made
	repliedAt time.Time
	askedAt   time.Time // of its last call to the store
	sent      mark      // the newest of its marks that it has sent
	readBreak bool      // it has read the record since its lock was broken
	ended     bool
	reply     delivery.Result
}

// live reports whether the caller has a run that is not cancelled.
func (p *caller) live() bool { return !p.on.crashed && p.running() && p.run.ctx.Err() == nil }

func newExecution(b budget, runTimeout time.Duration) *execution {
	m := newModel(lease.Policy{TTL: 300 * time.Second, Heartbeat: 100 * time.Second, MaxAttempts: 3})
	m.limits = perfect().limits
	m.places = 2
	m.runTimeout = cmp.Or(runTimeout, 24*time.Hour)
	m.skew, m.queueSkew, m.begun = -time.Hour, -time.Hour, time.Now()
	x := &execution{model: m, left: b, operator: &instance{}}
	x.closing, x.changed = make(chan struct{}), make(chan struct{}, 1)
	x.client = &client{model: m, send: x.ask}
	x.rec = x.create("x")
	x.rec.doc.BookedTask = "first"
	x.book(taskqueue.Task{Name: "first", AnalysisID: "x"}, nil)
	return x
}

func (x *execution) wake() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

func (x *execution) join(p *caller, r *record) *caller {
	p.n, p.analysis, p.since = len(x.callers), r.doc.ID, len(r.states)
	x.callers, p.on.callers = append(x.callers, p), append(p.on.callers, p)
	return p
}

// dispatch delivers t to a worker, a new one if i is nil, up to its first read:
// before that, the order of its steps and those of others makes no difference.
func (x *execution) dispatch(t *task, i *instance) {
	if i == nil {
		i = x.start()
	}
	p := x.join(&caller{name: fmt.Sprintf("delivery %d at %s", len(x.callers), i.name), on: i, task: t}, x.rec)
	t.inFlight++
	t.tried = x.now()
	x.launch(p, func() { p.reply = i.deliver(p) })
}

func (x *execution) start() *instance {
	i := x.client.start(fmt.Sprint("w", len(x.instances)), x.analyze)
	x.instances = append(x.instances, i)
	return i
}

// operate starts an operator's command, up to its first read. After a requeue the
// operator books a delivery.
func (x *execution) operate(k Kind, fresh bool) {
	p := x.join(&caller{name: "the operator", on: x.operator, operates: k, fresh: fresh, answered: true}, x.rec)
	if x.requeuing = k == Requeue; x.requeuing {
		p.books = fmt.Sprint("requeued ", p.n)
	}
	x.launch(p, func() {
		_ = p.operate(x.client.ledger()) // whatever the outcome
		if k == Requeue {
			x.locked(func() {
				x.book(taskqueue.Task{Name: p.books, AnalysisID: p.analysis}, nil)
				x.requeuing = false
			})
		}
	})
}

func (x *execution) launch(p *caller, do func()) {
	x.going.Go(func() {
		do()
		x.mu.Lock()
		p.ended, p.retrying = true, false
		x.mu.Unlock()
		x.wake()
	})
	x.settle()
	if c := p.pending; c != nil && c.kind == load {
		x.grant(c)
	}
}

func (x *execution) analyze(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	p := callerOf(ctx)
	r := &run{ctx: ctx, begun: x.since(), ended: -1, result: make(chan error), reports: make(chan bool)}
	x.locked(func() {
		r.work = x.hand(p, job)
		p.run, p.retrying = r, false
	})
	x.wake()
	for {
		select {
		case err := <-r.result:
			return result(job.AnalysisID, job.LockToken), err
		case awaited := <-r.reports:
			x.locked(func() { p.run.units++ })
			if awaited {
				x.awaitMark(ctx, p, job)
			} else {
				x.reportMark(p, job)
			}
		case <-x.closing:
			return nil, errors.New("over")
		}
	}
}

// report makes the run of p do a unit of its work and report a checkpoint.
func (x *execution) report(p *caller, awaited bool) {
	p.run.reports <- awaited
	x.settle()
	if quiet := p.pending == nil && p.live(); quiet && time.Until(x.nextCommit(p)) <= 0 {
		x.fail("%s commits no checkpoint", p)
	}
}

// endRun ends the run of p.
func (x *execution) endRun(p *caller, err error) {
	p.run.ended, p.run.stopped = x.since(), p.on.stopping
	p.run.result <- err
	x.settle()
}

// settle waits until every goroutine waits for the search. It also waits for callers
// that pause before they retry, a little longer than the longest pause at most.
func (x *execution) settle() {
	x.pass(0)
	for x.pausing() {
		x.yield()
		pause := time.NewTimer(2100 * time.Millisecond)
		select {
		case <-x.changed:
		case <-pause.C:
			for _, p := range x.callers {
				p.retrying = false
			}
		}
		pause.Stop()
		synctest.Wait()
	}
	for _, p := range x.callers {
		if p.ended && !p.answered {
			p.answered = true
			if !p.on.crashed {
				p.task.inFlight--
				x.judgeAnswer(p, p.reply, x.requeuing)
			}
		}
	}
	x.judgeHolders()
}

// pass lets d of time pass. Timers fire during it, and no call gets a reply.
func (x *execution) pass(d time.Duration) {
	x.yield()
	time.Sleep(d)
	synctest.Wait()
}

// yield orders the search's reads and writes before the next writes of the workers'
// goroutines, for the race detector. A timer alone does not.
func (x *execution) yield() {
	x.mu.Lock()
	x.turns++
	x.mu.Unlock()
}

func (x *execution) pausing() bool {
	for _, p := range x.callers {
		if p.retrying && !p.on.crashed {
			return true
		}
	}
	return false
}

// judgeHolders checks that a run which is not cancelled holds the lock, and that there
// is one such run at most. A run whose lock an operator broke may continue until its
// worker has read the record or its trust has ended.
func (x *execution) judgeHolders() {
	holders := 0
	for _, p := range x.callers {
		if p.run == nil || !p.live() {
			continue
		}
		switch {
		case p.broken != nil && p.readBreak:
			x.fail("%s continues although it has read that its lock was broken", p)
		case p.broken != nil && x.since() > p.broken.Until:
			x.fail("%s, whose lock was broken, continues after the end of its trust", p)
		case p.broken != nil:
			continue
		case x.rec.holder != p:
			x.fail("%s runs without the lock: %s", p, x.show(x.rec.doc))
		case !x.now().Before(x.rec.doc.Lock.ExpiresAt):
			x.fail("%s runs with an expired lock", p)
		}
		holders++
	}
	if holders > 1 {
		x.fail("%d runs hold the lock", holders)
	}
}

// nextCommit returns when the next commit of p's run is due: with a checkpoint to write,
// one interval after the last, else one heartbeat.
func (x *execution) nextCommit(p *caller) time.Time {
	at := p.repliedAt.Add(x.policy.Heartbeat)
	if early := p.askedAt.Add(x.interval); p.run.reported.n > p.sent.n && early.Before(at) {
		return early
	}
	return at
}

// judgeBeats checks that the callers in due have sent a heartbeat. It is called at the
// time at which one is due, when no earlier call waits for its reply.
func (x *execution) judgeBeats(due []*caller) {
	for _, p := range due {
		if p.pending == nil && p.live() {
			x.fail("%s sends no heartbeat", p)
		}
	}
}

// close ends everything.
func (x *execution) close() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	close(x.closing)
	for _, i := range x.instances {
		i.stop(delivery.ErrStopping)
	}
	x.going.Wait()
}

// drain continues the execution to its end without faults: runs succeed, and each
// task is dispatched, and again one minute after it was refused.
func (x *execution) drain() {
	x.note("-- no more faults --")
	x.count("executions brought to their end")
	x.draining, x.left = true, budget{deliveries: 400, ticks: 400}
	for range 400 {
		x.late = nil
		all := x.steps()
		if len(x.wrong) > 0 || len(all) == 0 {
			break
		}
		x.note("%s", all[0].name)
		all[0].do()
	}
	if len(x.wrong) == 0 && !x.rec.doc.Lock.Finished {
		x.fail("lost: %s, with %d tasks in the queue", x.show(x.rec.doc), x.pending("", nil))
	}
}

// due returns when t may be dispatched.
func (x *execution) due(t *task) time.Time {
	if refused := x.draining && !t.tried.IsZero(); refused && t.tried.Add(time.Minute).After(t.At) {
		return t.tried.Add(time.Minute)
	}
	return t.At
}
