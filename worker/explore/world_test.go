package explore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// The durations of the lock: what lease.Policy's zero value is.
const (
	ttl       = 300 * time.Second
	heartbeat = ttl / 3
	margin    = ttl / 10
)

var policy = lease.Policy{TTL: ttl, Heartbeat: heartbeat, MaxAttempts: 3}

const analysis = "x"

// host is one worker process.
type host struct {
	index    int
	server   http.Handler
	guard    *worker.Guard
	stop     context.CancelCauseFunc
	world    *world
	arriving *party
	parties  []*party
	crashed  bool
	stopping bool
	chain    digest // of all that its goroutines have been told
}

func (h *host) note(what ...uint64) { h.chain = h.chain.add(what...) }

// party is one that calls the store: a delivery, or the operator.
type party struct {
	id    int
	host  *host
	task  *task
	owner string
	token int64 // of its acquisition, or of the lock it broke, once that has landed

	calls      int
	pending    *call
	between    bool // a call has failed and the next is yet to come
	answeredAt time.Time
	body       *body

	broken bool      // an operator took the lock from it
	trust  time.Time // and until when at most it may not know
	told   bool      // and it has read since

	ended  bool
	code   int
	answer worker.Answer
	seen   bool // the explorer has taken the answer
}

// body is a run of the analyzer.
type body struct {
	ctx      context.Context
	token    int64
	tell     chan error
	returned bool
}

func (b *body) runs() bool { return b != nil && !b.returned }

// live: it believes that the lock is its own.
func (p *party) live() bool { return !p.host.crashed && p.body.runs() && p.body.ctx.Err() == nil }

// world is one execution.
type world struct {
	left    budget
	lax     bool // the store does not compare
	start   time.Time
	doc     analysislock.Analysis
	rev     int64
	updated time.Time
	queue   queue
	late    []*call // swaps given up that may still arrive
	hosts   []*host
	op      *host
	parties []*party
	acting  *party

	maxToken int64
	mu       sync.Mutex // what the hosts' goroutines write
	turns    int
	over     bool
	closing  chan struct{}
	changed  chan struct{}
	running  sync.WaitGroup

	bad    string
	fresh  bool // the present step has not been made before
	stats  stats
	trace  []string
	traced bool
}

func newWorld(b budget) *world {
	w := &world{left: b, start: time.Now(), closing: make(chan struct{}), changed: make(chan struct{}, 1), rev: 1,
		stats: stats{ticks: map[string]int{}, answers: map[int]int{}}}
	w.doc = analysislock.Analysis{ID: analysis, Status: analysislock.Queued}
	w.updated = w.now()
	w.queue.tasks = []*task{{name: "first"}}
	w.op = &host{index: -1}
	return w
}

func (w *world) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *world) newHost() *host {
	h := &host{world: w, index: len(w.hosts)}
	work, stop := context.WithCancelCause(context.Background())
	h.stop = stop
	h.guard = &worker.Guard{
		Locks: tagged{h}, Queue: front{w: w}, Backlog: w,
		Analyzer: orchestrator.AnalyzerFunc(h.analyze), Instance: fmt.Sprint("w", h.index),
		RunTimeout: 24 * time.Hour, Log: slog.New(slog.DiscardHandler),
	}
	h.server = worker.NewServer(work, h.guard, nil)
	w.hosts = append(w.hosts, h)
	return h
}

// dispatch delivers t to h, up to its first reading, which the delivery's start
// commutes with whatever others do before.
func (w *world) dispatch(t *task, h *host) {
	p := &party{id: len(w.parties), host: h, task: t}
	w.parties, h.parties = append(w.parties, p), append(h.parties, p)
	h.note(uint64(p.id), 100, w.key(t), uint64(time.Since(w.start)))
	t.flying++
	h.arriving, w.acting = p, p
	w.running.Go(func() {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/internal/tasks/analysis", strings.NewReader(`{"analysis_id":"`+analysis+`"}`))
		r.Header.Set("X-Cloudtasks-Taskname", t.name)
		rec := httptest.NewRecorder()
		h.server.ServeHTTP(rec, r)
		var a worker.Answer
		err := json.Unmarshal(rec.Body.Bytes(), &a)
		w.mu.Lock()
		p.ended, p.between, p.code, p.answer = true, false, rec.Code, a
		if err != nil {
			w.violated("an answer that is not JSON: %v", err)
		}
		w.mu.Unlock()
		w.wake()
	})
	w.settle()
	if c := p.pending; c != nil && c.kind == load {
		w.grant(c)
	}
}

// unlock is the operator's, up to its first reading.
func (w *world) unlock() {
	p := &party{id: len(w.parties), host: w.op, owner: "operator"}
	w.parties = append(w.parties, p)
	w.acting = p
	w.running.Go(func() {
		_, _ = locks(front{w, p}).Unlock(context.Background(), analysis, nil)
		w.mu.Lock()
		p.ended, p.seen, p.between = true, true, false
		w.mu.Unlock()
		w.wake()
	})
	w.settle()
	w.grant(p.pending)
}

func (h *host) analyze(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	w := h.world
	var p *party
	for _, p = range slices.Backward(h.parties) {
		if p.token == job.LockToken {
			break
		}
	}
	b := &body{ctx: ctx, token: job.LockToken, tell: make(chan error)}
	w.mu.Lock()
	p.body, p.between = b, false
	w.mu.Unlock()
	w.wake()
	var err error
	select {
	case err = <-b.tell:
	case <-w.closing:
		err = errors.New("over")
	}
	return job.LockToken, err
}

// tell ends p's run.
func (w *world) tell(p *party, code uint64, err error) {
	p.body.returned = true
	p.host.note(uint64(p.id), 200, code, uint64(time.Since(w.start)))
	w.acting = p
	p.body.tell <- err
	w.settle()
}

// settle waits until nothing moves by itself: what pauses before its next try
// is waited for, at most a little longer than the longest pause.
func (w *world) settle() {
	w.pass(0)
	for w.pausing() {
		w.yield()
		pause := time.NewTimer(2100 * time.Millisecond)
		select {
		case <-w.changed:
		case <-pause.C:
			for _, p := range w.parties {
				p.between = false
			}
		}
		pause.Stop()
		synctest.Wait()
	}
	for _, p := range w.parties {
		if p.ended && !p.seen {
			p.seen = true
			if !p.host.crashed {
				w.answered(p)
			}
		}
	}
	w.checkHolders()
}

// pass lets d of time pass; timers fire on the way, and nobody is answered.
func (w *world) pass(d time.Duration) {
	w.yield()
	time.Sleep(d)
	synctest.Wait()
}

// yield orders what the explorer has read and written before what the hosts'
// goroutines write next, which a timer alone does not.
func (w *world) yield() {
	w.mu.Lock()
	w.turns++
	w.mu.Unlock()
}

func (w *world) pausing() bool {
	for _, p := range w.parties {
		if p.between && !p.host.crashed {
			return true
		}
	}
	return false
}

// close ends everything.
func (w *world) close() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	close(w.closing)
	for _, h := range w.hosts {
		h.stop(worker.ErrStopping)
	}
	w.running.Wait()
}
