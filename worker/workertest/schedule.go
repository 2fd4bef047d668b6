package workertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
	"taskguard/worker"
)

// The faults of a step, in the words of leasetest.Fault.
const (
	crashBefore = string(leasetest.CrashBefore)
	crashAfter  = string(leasetest.CrashAfter)
	replyLost   = string(leasetest.ReplyLost)
	lateDuring  = string(leasetest.Late) + ", during the next run"
	lateAfter   = string(leasetest.Late) + ", after the next run"
	gateway     = string(leasetest.Gateway)
	stopped     = string(leasetest.Stop)
	doubled     = string(leasetest.DeliveredTwice)
)

// The kinds of steps that are no commit.
const (
	delivery = "delivery"
	book     = "book"
	act      = "act"
	answer   = "answer"
	key      = "key" // a commit to the document of a concurrency key
)

// faults returns the faults of a kind of steps.
func faults(kind string) []string {
	switch kind {
	case delivery:
		return []string{doubled, stopped}
	case answer:
		return []string{crashBefore}
	case book, string(proof.Create):
		return []string{crashBefore, crashAfter, replyLost, stopped}
	}
	all := []string{crashBefore, crashAfter, replyLost, lateDuring, lateAfter, stopped}
	if kind == act {
		return append(all, gateway)
	}
	return all
}

// maxFaults limits the faults that a schedule draws.
const maxFaults = 4

// schedule is one run of the work in a bubble.
type schedule struct {
	options Options
	work    func(*schedule) // opens the service, and does the work
	base    *schedule       // the one without a fault; nil: this one, or the pair
	pair    bool            // another work follows, in another document
	plan    []string        // faults, each as "KEY: FAULT"
	draw    string          // unless empty, faults are drawn by it

	t      testing.TB
	rig    *Rig
	acts   *Acts
	fields worker.Fields                    // of the document
	keys   string                           // the collection of the concurrency keys; empty: there is none
	open   func(*worker.Guard) http.Handler // of a new process
	over   chan struct{}                    // closed at the end
	begun  time.Time
	going  sync.WaitGroup // what outlives its caller
	extra  sync.WaitGroup // deliveries that nothing else waits for

	mu        sync.Mutex
	processes []*process
	steps     []*step
	works     int  // that have begun, one or two
	asks      bool // an uncertain act leaves the work unfinished: its client gets the error
	record
	wrong []string
}

// record is what the processes have written to the document of one work.
type record struct {
	document string
	writes   []proof.Write // as they were applied
	token    int64         // of the last acquisition
	end      ending
	// uncertain are the acts that have begun and are not recorded as done.
	uncertain []string
}

// ending is how a work has ended. The zero ending is none.
type ending struct{ status, code, message string }

// String returns the status, and the error if there is one.
func (e ending) String() string {
	return strings.TrimRight(e.status+": "+e.code+": "+e.message, ": ")
}

// step is a step of a process. Its key has the process, the kind, and the number of that kind.
type step struct {
	kind, key, label, fault string
	at                      time.Duration
	failed                  codes.Code // the status of its error
}

// String returns the line of a report.
func (s *step) String() string {
	text := fmt.Sprintf("%11.3fs  %s", s.at.Seconds(), s.key)
	if s.label != "" {
		text += "  " + s.label
	}
	if s.fault != "" {
		text += "  <- " + s.fault
	}
	if s.failed != codes.OK {
		text += "  failed: " + s.failed.String()
	}
	return text + "\n"
}

// with returns a schedule of the same work with these faults, and with the same base as s.
func (s *schedule) with(draw string, plan ...string) *schedule {
	return &schedule{options: s.options, work: s.work, base: cmp.Or(s.base, s), plan: plan, draw: draw}
}

// run runs the schedule in a bubble.
func (s *schedule) run(t *testing.T) {
	defer func() {
		if left := recover(); left != nil { // of synctest: a goroutine of the handler waits forever
			s.mu.Lock()
			defer s.mu.Unlock()
			s.fail("the handler has left a goroutine: %v", left)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		s.t, s.begun, s.over = t, time.Now(), make(chan struct{})
		s.acts = &Acts{t, s, map[string]int{}, map[string]int64{}, map[string]request{}}
		s.rig = newRig(t, nil, s)

		s.work(s)

		close(s.over)
		for _, p := range s.processes {
			if !p.stopping {
				_ = shutdown(p.guard)
			}
			p.kill()
		}
		s.going.Wait()
		s.rig, s.open, s.processes = nil, nil, nil // their memory
	})
}

// faultOf returns the fault of a step; empty: none. The caller holds the mutex.
func (s *schedule) faultOf(next *step) string {
	for _, planned := range s.plan {
		fault, found := strings.CutPrefix(planned, next.key+": ")
		if found && slices.Contains(faults(next.kind), fault) {
			return fault
		}
	}
	if s.draw == "" || len(s.faulty()) == maxFaults {
		return ""
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.draw, next.key) // a hash does not fail
	n, all := h.Sum64(), faults(next.kind)
	if n%8 > 0 {
		return ""
	}
	return all[n/8%uint64(len(all))]
}

// faulty returns the steps with a fault, as in plan.
func (s *schedule) faulty() (all []string) {
	for _, step := range s.steps {
		if step.fault != "" {
			all = append(all, step.key+": "+step.fault)
		}
	}
	return all
}

// RoundTrip implements http.RoundTripper, for the queue. It waits less than a step takes, until a request that booked
// this delivery in its last step is no longer running. Otherwise it would depend on the order of goroutines whether its
// process is still busy.
func (s *schedule) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(100 * time.Microsecond)
	w, err := s.deliver(r)
	if err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// deliver delivers a request to a process, and returns the answer.
func (s *schedule) deliver(r *http.Request) (*httptest.ResponseRecorder, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body) // from memory
	}
	p := s.idle(func(ctx context.Context) *http.Request {
		sent := r.Clone(ctx)
		sent.Body = io.NopCloser(bytes.NewReader(body))
		return sent
	})
	step, err := p.arrive(delivery, r.URL.Path)
	switch {
	case err != nil:
		return nil, err
	case step.fault == doubled:
		p.redeliver(0)
		p.redeliver(time.Minute)
	case step.fault == stopped:
		p.stop()
	}

	answers := make(chan *httptest.ResponseRecorder, 1)
	s.going.Go(func() { p.serve(p.request(r.Context()), answers) })
	select {
	case w := <-answers:
		return w, nil
	case <-p.life.Done():
		time.Sleep(time.Second) // until the connection breaks
		return nil, errors.New("workertest: the process died")
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// idle returns a process for a request: the newest, or if that is busy or dead, another one.
func (s *schedule) idle(request func(context.Context) *http.Request) (p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.processes); n > 0 {
		p = s.processes[n-1]
	}
	if p == nil || p.life.Err() != nil || p.stopping || p.running > 0 {
		p = s.start()
	} else {
		p.running++
	}
	p.request = request
	return p
}

// serve handles a request, and sends the answer unless the process dies. A panic is answered 500.
func (p *process) serve(r *http.Request, answers chan<- *httptest.ResponseRecorder) {
	w := &httptest.ResponseRecorder{Code: http.StatusInternalServerError}
	func() {
		defer func() { _ = recover() }()
		w = serve(p.handler, r.WithContext(context.WithValue(r.Context(), processKey{}, p)))
	}()
	p.mu.Lock()
	p.running--
	p.mu.Unlock()

	send := func(context.Context) error { return nil }
	if p.pass(r.Context(), answer, http.StatusText(w.Code), send) == nil {
		answers <- w
	}
}

// redeliver delivers the request of the process again, after that time.
func (p *process) redeliver(after time.Duration) {
	request := p.request(context.WithoutCancel(p.t.Context()))
	p.extra.Go(func() {
		time.Sleep(after)
		_, _ = p.deliver(request)
	})
}

// next begins the next work, and judges the one before it. It reports false after the last.
func (s *schedule) next() bool {
	if s.works > 0 {
		s.judge()
	}
	if s.works == 1 && !s.pair || s.works == 2 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.works++
	s.record, s.acts.tokens = record{}, map[string]int64{}
	return true
}

// judge checks the promises of the guard, and the acts.
func (s *schedule) judge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asks && s.works > 1 && len(s.writes) == 0 { // the second request has got the answer of the first
		return
	}
	var history proof.History
	first := slices.IndexFunc(s.writes, func(w proof.Write) bool { return w.Token > 0 }) // earlier ones park the work
	if first >= 0 {
		history.Token = s.writes[first].Token - 1 // the first need not be 1
	}
	for i := range s.writes {
		history.Add(s.writes[i])
	}
	s.wrong = append(s.wrong, history.Wrong...)

	want, failed := ending{status: cmp.Or(s.fields.Finished, "READY")}, cmp.Or(s.fields.Failed, "FAILED")
	if s.options.Declines != "" {
		want = ending{status: failed, code: s.options.Declines}
	}
	got := ending{status: s.end.status, code: s.end.code}
	asked := s.base != nil && len(s.uncertain) > 0 && // an operator, or the client
		(got == ending{failed, analysislock.ActUncertain, ""} || s.asks && got == ending{})
	switch {
	case asked:
	case got == ending{} && slices.ContainsFunc(s.writes, isPark):
		s.fail("the work was parked behind its key, and is not finished after an hour of recovery: is its KeyLimit 0?")
	case got == ending{}:
		s.fail("the work is not finished, and no delivery is left")
	case len(s.uncertain) > 0:
		s.fail("the work ends %s, but nothing says whether act %q was done", s.end, strings.Join(s.uncertain, ", "))
	case got != want:
		s.fail("the work ends %s, want %s", s.end, want)
	}
	if s.base != nil {
		s.acts.judge(s.base.acts.counts, !asked)
	}
}

// fail reports a problem. The caller holds the mutex.
func (s *schedule) fail(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}
