package chaos

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// firstHangs is an analyzer whose first run of each analysis goes on for ever.
func firstHangs(r *run) int {
	if r.token == 1 {
		return r.works(time.Hour)
	}
	return http.StatusOK
}

// killed is a worker that is gone in the middle of a run of x.
func (s *stage) killed(t *testing.T, p *process) {
	t.Helper()
	if err := p.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.done
	doc := s.get(t, "x").Data()
	if doc["status"] != "PROCESSING" || doc["lockOwner"] == nil || doc["lockToken"] != int64(1) {
		t.Errorf("document after the kill: %v", doc)
	}
}

// finishedByAnother checks that x was taken over, no sooner than its lock
// allowed, and finished.
func (s *stage) finishedByAnother(t *testing.T) {
	t.Helper()
	doc := s.until(t, "x", "READY", ready).Data()
	j := judged(s.proxy.written("x"))
	if doc["lockToken"] != int64(2) || j.steals != 1 || len(j.bad) > 0 {
		t.Errorf("document %v, history %+v", doc, j)
	}
}

func TestAfterAKillTheFollowUpFinishes(t *testing.T) {
	t.Parallel()
	s := newStage(t, firstHangs)
	s.queue = newQueue(t, nil)
	workers := []*process{s.start(t), s.start(t)}
	s.create(t, "x", nil)
	if err := s.queue.deliver(t.Context(), "x", 0); err != nil {
		t.Fatal(err)
	}
	s.killed(t, workers[s.analyzer.running(t, "x").worker-1])
	s.finishedByAnother(t)
	if n := s.queue.front.count("200 locked"); n == 0 {
		t.Error("no delivery was told that it is locked and booked")
	}
}

func TestAfterAKillTheRecoveryFinishes(t *testing.T) {
	t.Parallel()
	s := newStage(t, firstHangs)
	s.queue = newQueue(t, nil)
	_, p := s.startApart(t)
	s.create(t, "x", nil)
	p.delivered(t, "x") // and never again
	s.analyzer.running(t, "x")
	s.killed(t, p)
	other := s.start(t)
	for end := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		got := other.post(t.Context(), "/internal/tasks/recover", "")
		if !got.is(http.StatusOK, `"found"`) || time.Now().After(end) {
			t.Fatalf("recovery: %s", got)
		}
		if strings.Contains(string(got), `"booked":1`) {
			break
		}
	}
	s.finishedByAnother(t)
}
