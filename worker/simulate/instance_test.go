package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"taskguard/orchestrator"
	"taskguard/worker"
)

// slot is a place for a worker: one instance after the other.
type slot struct {
	w       *world
	n       int
	born    int
	calls   int
	current *instance
	cut     span
}

// instance is one process.
type instance struct {
	w      *world
	slot   *slot
	name   string
	server *worker.Server
	guard  *worker.Guard
	stop   context.CancelCauseFunc
	dead   chan struct{}

	paused   time.Duration // until
	stopping time.Duration // since; -1: not told to
	acquired map[string]int
}

// replace starts the slot's next instance.
func (w *world) replace(s *slot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := &instance{w: w, slot: s, name: fmt.Sprintf("w%d.%d", s.n, s.born), dead: make(chan struct{}), acquired: map[string]int{}, stopping: -1}
	work, stop := context.WithCancelCause(context.Background())
	i.stop = stop
	i.guard = &worker.Guard{
		Locks: locks{i}, Queue: booker{w.queue, i.name, i}, Backlog: backlog{client{w: w, from: i}},
		Analyzer: orchestrator.AnalyzerFunc(i.analyze), Instance: i.name, RunTimeout: w.p.runTimeout, Log: w.log,
	}
	i.server = worker.NewServer(work, i.guard, nil)
	s.born++
	s.current = i
}

// instance is the one there at this time, or nil.
func (s *slot) instance() *instance {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.current
}

// alive waits while the process stands still and reports whether it lives. Who
// waits goes on at a nanosecond of its own.
func (i *instance) alive(who ...any) bool {
	for {
		if i.isDead() {
			return false
		}
		i.w.mu.Lock()
		left := i.paused - i.w.now()
		i.w.mu.Unlock()
		if left <= 0 {
			return true
		}
		time.Sleep(left + i.w.dice.of("awake", i.name, who, left).between(1, time.Millisecond))
	}
}

func (i *instance) isDead() bool {
	select {
	case <-i.dead:
		return true
	default:
		return false
	}
}

// called counts the slot's calls, some of which bring a mishap.
func (i *instance) called() {
	i.w.mu.Lock()
	i.slot.calls++
	calls := i.slot.calls
	i.w.mu.Unlock()
	for n, m := range i.w.p.mishaps {
		if m.call == calls && m.slot == i.slot.n {
			i.w.going.Go(func() {
				time.Sleep(m.at)
				i.w.befall(m, n)
			})
		}
	}
}

// befall is a mishap to whoever is in the slot.
func (w *world) befall(m mishap, n int) {
	s := w.slots[m.slot]
	i := s.instance()
	if i == nil || (w.calm() && !w.p.single) {
		return
	}
	pause := w.dice.of("mishap", n).between(time.Second, 20*time.Second)
	switch m.kind {
	case "crash":
		i.crash("crashes")
		time.Sleep(pause)
		w.replace(s)
	case "stop":
		w.mu.Lock()
		w.figures["stops"]++
		w.tell("%s is told to stop", i.name)
		i.stopping = w.now()
		w.mu.Unlock()
		i.stop(worker.ErrStopping)
		time.Sleep(pause / 10)
		w.replace(s)
		time.Sleep(10*time.Second - pause/10)
		i.crash("")
	case "pause":
		w.mu.Lock()
		w.figures["pauses"]++
		w.tell("%s stands still for %v", i.name, m.last)
		i.paused = max(i.paused, w.now()+m.last)
		for _, b := range w.bodies {
			if b.on == i && b.end < 0 {
				b.still = append(b.still, span{w.now(), i.paused})
			}
		}
		w.mu.Unlock()
	case "cut":
		i.cutOff(0, m.last)
	}
}

// cutOff lets no new call of the slot get through, from after until last later.
func (i *instance) cutOff(after, last time.Duration) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.figures["cuts"]++
	i.w.tell("%s is cut off in %v for %v", i.name, after, last)
	i.slot.cut = span{i.w.now() + after, i.w.now() + after + last}
}

// crash ends the process: nothing of it reaches anybody from now on.
func (i *instance) crash(name string) {
	w := i.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.slot.current == i {
		i.slot.current = nil
	}
	if i.isDead() {
		return
	}
	if name != "" {
		w.figures[name]++
		w.crashed = w.now()
	}
	w.tell("%s dies", i.name)
	close(i.dead)
	for _, b := range w.bodies {
		if b.on == i && b.end < 0 {
			b.end = w.now()
		}
	}
	for _, r := range w.store.records {
		if n := len(r.held); n > 0 && r.held[n-1].on == i && r.held[n-1].until < 0 {
			r.held[n-1].until = w.now()
		}
	}
}

// answered is what a worker has said to a request.
type answered struct {
	code int
	worker.Answer
}

// post hands a request to the worker; false: it never answered.
func (i *instance) post(path, task, body string) (a answered, ok bool) {
	if !i.alive("asked", task, path, body) {
		return a, false
	}
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("X-CloudTasks-TaskName", task)
	rec := httptest.NewRecorder()
	i.server.ServeHTTP(rec, r)
	if !i.alive("answers", task, path, body) {
		return a, false
	}
	a.code = rec.Code
	if err := json.Unmarshal(rec.Body.Bytes(), &a.Answer); err != nil {
		i.w.mu.Lock()
		defer i.w.mu.Unlock()
		i.w.fail("%s answered %q: %v", i.name, rec.Body, err)
	}
	return a, true
}

// recover is the scheduler's call.
func (i *instance) recover() {
	a, ok := i.post("/internal/tasks/recover", "", "")
	if !ok {
		return
	}
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	if a.Booked != nil {
		i.w.figures["recoveries booked"] += int64(*a.Booked)
	}
	i.w.tell("%s recovers: %d", i.name, a.code)
}

// backlog is the query of recovery, over a network of its own.
type backlog struct{ c client }

func (b backlog) Orphaned(ctx context.Context, _ int, each func(id string, token int64, at time.Time)) error {
	b.c.by = &tag{by: fmt.Sprintf("%s backlog %v", b.c.from.name, b.c.w.now())}
	if _, err := b.c.Load(ctx, "none"); err != nil {
		return err
	}
	b.c.w.store.orphaned(b.c.w.p.policy.TTL, each)
	return nil
}
