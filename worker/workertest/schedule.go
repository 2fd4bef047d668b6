package workertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/proof"
	"taskguard/worker"
)

// The faults of a step.
const (
	crashBefore = "crash before"
	crashAfter  = "crash after"
	replyLost   = "reply lost"
	stolen      = "lock stolen during a pause"
	stopped     = "SIGTERM"
	doubled     = "delivered twice"
)

// The kinds of steps that are no commit and no booking.
const (
	delivery = "delivery"
	act      = "act"
	answer   = "answer"
)

// faultsOf returns the faults of a step.
func faultsOf(kind string) []string {
	switch kind {
	case delivery:
		return []string{doubled, stopped}
	case answer:
		return []string{crashBefore}
	case "book", string(proof.Create):
		return []string{crashBefore, crashAfter, replyLost, stopped}
	}
	return []string{crashBefore, crashAfter, replyLost, stolen, stopped}
}

// maxFaults limits the faults of a schedule that is drawn.
const maxFaults = 4

// schedule is one run of the work in a bubble.
type schedule struct {
	*subject

	// plan has the faults by step. Unless draw is zero, each step may have one that is not planned.
	plan map[string]string
	draw uint64

	t      testing.TB
	rig    Rig
	acts   *Acts
	fields worker.Fields                    // of the work, complete
	open   func(*worker.Guard) http.Handler // of a new process
	buried chan struct{}                    // closed at the end, when dead processes may end
	begun  time.Time
	going  sync.WaitGroup // all that outlives its caller
	extra  sync.WaitGroup // deliveries beside those of the client
	end    string         // of the work; empty: it is not finished
	result any

	mu        sync.Mutex
	ticks     int
	processes []*process
	steps     []step
	faults    []string  // as they were: "STEP: FAULT"
	document  string    // of the work
	writes    []applied // to it
	uncertain bool      // it has an open act
	wrong     []string
}

// step is a step of a process. Its key is that of the process, the kind and the number.
type step struct{ key, kind, line string }

// applied is a commit, and its time in Firestore.
type applied struct {
	proof.Write
	at time.Time
}

// run runs the schedule in a bubble, and judges it.
func (s *schedule) run(t *testing.T) *schedule {
	synctest.Test(t, func(t *testing.T) {
		s.t, s.begun, s.buried = t, time.Now(), make(chan struct{})
		s.acts = &Acts{of: s, counts: map[string]int{}, newest: map[string]int64{}, keys: map[string]bool{}}
		s.rig.start(t, s)

		s.work(s)
		s.judge()

		close(s.buried)
		for _, p := range s.processes {
			if !p.stopping {
				p.shutdown()
			}
		}
		s.going.Wait()
		s.extra.Wait()
	})
	return s
}

// step adds a step, and returns its fault and the number of its line. The caller holds the mutex.
func (s *schedule) step(key, kind, label string) (fault string, line int) {
	fault = s.plan[key]
	if s.draw != 0 && len(s.faults) < maxFaults {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, s.draw, key) // a hash does not fail
		number, all := h.Sum64(), faultsOf(kind)
		if number%8 == 0 {
			fault = all[number/8%uint64(len(all))]
		}
	}

	text := fmt.Sprintf("%12.6fs  %s", time.Since(s.begun).Seconds(), key)
	if label != "" {
		text += "  " + label
	}
	if fault != "" {
		text += "  <- " + fault
		s.faults = append(s.faults, key+": "+fault)
	}
	s.steps = append(s.steps, step{key, kind, text})
	return fault, len(s.steps) - 1
}

// note adds the error of a step to its line.
func (s *schedule) note(line int, err error) {
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		text := err.Error()
		if code := status.Code(err); code != codes.Unknown {
			text = code.String()
		}
		s.steps[line].line += "  " + text
	}
}

// RoundTrip delivers a request to a process that is not busy, or else to a new one.
func (s *schedule) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p := s.idle(func(ctx context.Context) *http.Request {
		again := r.Clone(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		return again
	})
	fault, _, err := p.arrive(delivery, "")
	if err != nil {
		return nil, err
	}
	switch fault {
	case doubled:
		p.again(0)
		p.again(time.Minute)
	case stopped:
		p.stop()
	}

	answers := make(chan *http.Response, 1)
	s.going.Go(func() {
		resp := p.serve(p.request(r.Context()))
		s.mu.Lock()
		p.running--
		s.mu.Unlock()
		if p.pass(r.Context(), answer, resp.Status, func(context.Context) error { return nil }) == nil {
			answers <- resp
		}
	})
	select {
	case resp := <-answers:
		return resp, nil
	case <-p.dead:
		time.Sleep(time.Second) // until the connection breaks
		return nil, errors.New("workertest: the process died")
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// idle returns a process for a request: the newest, if it is not busy, or else a new one.
func (s *schedule) idle(request func(context.Context) *http.Request) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p *process
	if n := len(s.processes); n > 0 {
		p = s.processes[n-1]
	}
	if p == nil || p.crashed || p.stopping || p.running > 0 || time.Until(p.paused) > 0 {
		p = s.start()
	}
	p.running++
	p.request = request
	return p
}

// again delivers the request of the process again, after that time.
func (p *process) again(after time.Duration) {
	request := p.request(context.WithoutCancel(p.t.Context()))
	p.extra.Go(func() {
		time.Sleep(after)
		resp, err := p.RoundTrip(request)
		if err == nil {
			_ = resp.Body.Close()
		}
	})
}

// judge checks the promises of the guard, and the acts.
func (s *schedule) judge() {
	var checked error
	if s.end != "" && !s.uncertain && s.options.Check != nil {
		checked = s.options.Check(s.result, s.acts)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.writes, func(a, b applied) int { return a.at.Compare(b.at) })
	var history proof.History
	for i, w := range s.writes {
		if i == 0 {
			history.Token = w.Token - 1 // the first is not 1
		}
		history.Add(w.Write)
	}
	s.wrong = append(s.wrong, history.Wrong...)

	base := s.base
	if base != nil {
		s.acts.judgeRepeated(base.acts)
	}
	switch {
	case s.end == "":
		s.fail("the work is lost: nothing is booked, and it is not finished")
	case base == nil || s.uncertain: // an operator answers
	case s.end != base.end:
		s.fail("the work ends %s, and %s without a fault", s.end, base.end)
	default:
		s.acts.judgeMissing(base.acts)
	}
	if checked != nil {
		s.fail("Check: %v", checked)
	}
}

// fail reports a broken promise. The caller holds the mutex.
func (s *schedule) fail(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// String returns the schedule as WORKERTEST has it.
func (s *schedule) String() string { return strings.Join(s.faults, "; ") }
