package chaos

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fs "cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"

	"taskguard/worker/proof"
)

// commitFaults are what can happen to a commit.
var commitFaults = []fault{
	{name: "reply lost, Unavailable", code: codes.Unavailable}, // which Google's library sends again by itself
	{name: "reply lost, DeadlineExceeded", code: codes.DeadlineExceeded},
	{name: "dropped, Unavailable", apply: never, code: codes.Unavailable},
	{name: "dropped, DeadlineExceeded", apply: never, code: codes.DeadlineExceeded},
	{name: "applied after the resolving read", apply: later, code: codes.DeadlineExceeded},
	{name: "sent twice", apply: twice},
}

// commitCase is one fault on the n-th commit of a kind to an analysis of its
// own.
type commitCase struct {
	id    string
	kind  proof.Kind
	n     int
	fault fault
	runs  int64 // that it takes: an acquisition or a release is made again in the next
}

// analyze fails for now until the last run, and lets heartbeats come where they
// are what fails.
func (c commitCase) analyze(p *proxy, r *run) int {
	if c.kind == proof.Heartbeat {
		for p.count(c.id) == 0 || p.tally(c.id)[proof.Heartbeat] < c.n {
			if !r.works(50 * time.Millisecond) {
				break
			}
		}
	}
	if r.token < c.runs {
		return http.StatusInternalServerError
	}
	return http.StatusOK
}

// judge faults the n-th commit of the kind. There is but one finish, so the
// second is reached by dropping the first.
func (c commitCase) judge(now *call) fault {
	switch {
	case now.kind == c.kind && now.nth == c.n:
		return c.fault
	case now.kind == c.kind && now.nth < c.n && c.kind == proof.Finish:
		return fault{name: c.id + " before", apply: never, code: codes.DeadlineExceeded}
	}
	return fault{}
}

func TestAFaultOnOneCommitIsNotSeenOutside(t *testing.T) {
	t.Parallel()
	cases := map[string]commitCase{}
	for _, k := range []proof.Kind{proof.Acquire, proof.Heartbeat, proof.Finish, proof.Release} {
		for n := 1; n <= 3; n++ {
			for _, f := range commitFaults {
				c := commitCase{id: fmt.Sprintf("%s %d, %s", k, n, f.name), kind: k, n: n, fault: f, runs: 1}
				switch k {
				case proof.Acquire:
					c.runs = int64(n)
				case proof.Release:
					c.runs = int64(n) + 1
				}
				c.fault.name = c.id
				cases[c.id] = c
			}
		}
	}
	s := newStage(t, nil)
	s.analyzer.analyze = func(r *run) int { return cases[r.analysis].analyze(s.proxy, r) }
	s.proxy.script(func(now *call) fault { return cases[now.doc].judge(now) })
	p := s.start(t, "LOCK_TTL=20s") // no lock is lost for want of processors
	var done sync.WaitGroup
	for _, c := range cases {
		s.create(t, c.id)
		done.Go(func() { c.check(t, s, p) })
	}
	done.Wait()
}

// check delivers the analysis until it is READY. It is called concurrently.
func (c commitCase) check(t *testing.T, s *stage, p *process) {
	for i := int64(1); i <= c.runs; i++ {
		code, reason := http.StatusInternalServerError, `"retry"`
		if i == c.runs {
			code, reason = http.StatusOK, fmt.Sprintf(`"lock_token":%d`, i)
		}
		if got := p.deliver(t.Context(), c.id); !got.is(code, reason) {
			t.Errorf("%s: delivery %d: %s", c.id, i, got)
		}
	}
	if n := s.proxy.count(c.id); n != 1 {
		t.Errorf("%s: injected %d times, want once", c.id, n)
	}
	doc := s.get(t, c.id).Data()
	if !finished(doc, judged(s.proxy.history(c.id))) || doc["lockOwner"] != nil || doc["lockToken"] != c.runs || doc["attempts"] != c.runs || doc["lastError"] != nil {
		t.Errorf("%s: document %v", c.id, doc)
	}
	n := s.proxy.tally(c.id)
	if runs := len(s.analyzer.of(c.id)); int64(runs) != c.runs || int64(n[proof.Release]) != c.runs-1 || n[proof.Other] > 0 {
		t.Errorf("%s: %d runs, written %v", c.id, runs, n)
	}
}

func TestAfterAKillAFollowUpOrARecoveryFinishes(t *testing.T) {
	t.Parallel()
	for _, followUp := range []bool{true, false} {
		t.Run(fmt.Sprint("follow-up ", followUp), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, func(r *run) int {
				if r.token == 1 {
					r.works(time.Hour)
				}
				return http.StatusOK
			})
			s.queue = newQueue(t, nil)
			victim := s.start(t)
			s.create(t, "x")
			victim.delivered(t, "x") // and never again
			s.analyzer.running(t, "x")
			other := s.start(t)
			s.queue.put(0, other.address)
			if followUp {
				if got := other.deliver(t.Context(), "x"); !got.is(http.StatusOK, `"locked"`) {
					t.Errorf("the duplicate: %s", got)
				}
			}
			victim.end()
			if doc := s.get(t, "x").Data(); doc["status"] != "PROCESSING" || doc["lockToken"] != int64(1) {
				t.Errorf("document after the kill: %v", doc)
			}
			until(t, "booked by recovery", func() bool {
				return followUp || strings.Contains(string(post(t.Context(), other.address, "/internal/tasks/recover", "")), `"booked":1`)
			})
			until(t, "READY", func() bool { return s.get(t, "x").Data()["status"] == "READY" })
			if h := judged(s.proxy.history("x")); h.Token != 2 || h.Steals != 1 || len(h.Wrong) > 0 {
				t.Errorf("history %+v", h)
			}
		})
	}
}

// interference is what another program does to an analysis while it runs.
var interference = map[string]map[string]any{
	"owner rewritten": {"lockOwner": "other/instance/1", "lockExpiresAt": time.Date(2100, 1, 2, 3, 4, 5, 678901000, time.UTC)},
	"token raised":    {"lockToken": 7},
	"taken over":      {"lockOwner": "other/instance/1", "lockToken": 2, "lockExpiresAt": "2100-01-02T03:04:05.678901Z"},
	"unlocked":        {"lockOwner": fs.Delete, "lockExpiresAt": fs.Delete, "lockHeartbeatAt": fs.Delete, "status": "QUEUED"},
	"finished":        {"status": "READY", "result": "theirs"},
	"failed":          {"status": "FAILED", "error": map[string]any{"code": "theirs", "message": "theirs"}},
	"deleted":         nil,
}

// interfered is an analysis under whose run another program has written.
type interfered struct {
	answer <-chan reply
	before *fs.DocumentSnapshot // as the other left it
}

// interferences begins a run of an analysis for each interference, and then
// interferes.
func (s *stage) interferences(t *testing.T, p *process) map[string]interfered {
	t.Helper()
	all := map[string]interfered{}
	for id, fields := range interference {
		s.create(t, id)
		answer := p.delivered(t, id)
		s.analyzer.running(t, id)
		var err error
		if fields == nil {
			_, err = s.doc(id).Delete(t.Context())
		} else {
			_, err = s.doc(id).Set(t.Context(), fields, fs.MergeAll)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[id] = interfered{answer, s.get(t, id)}
	}
	return all
}

// The heartbeats of the first case discover the interference: its runs would go
// on for an hour. In the others no heartbeat comes before the run ends, and the
// write at its end must see that the lock is another's.
func TestARunThatLosesItsLockToAnotherIsCancelledAndWritesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int // of the analyzer
		code   int // of the worker
	}{
		"heartbeat":       {0, http.StatusConflict},
		"result":          {http.StatusOK, http.StatusConflict},
		"rejection":       {http.StatusBadRequest, http.StatusConflict},
		"failure for now": {http.StatusServiceUnavailable, http.StatusInternalServerError},
		"SIGTERM":         {stopped, http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			end := make(chan struct{})
			s := newStage(t, func(r *run) int {
				select {
				case <-end:
				case <-r.gone:
				}
				return c.status
			})
			env := []string{"LOCK_TTL=100s", "LOCK_HEARTBEAT=45s"}
			if name == "heartbeat" {
				env = nil
			}
			p := s.start(t, env...)
			all := s.interferences(t, p)
			switch {
			case name == "SIGTERM":
				if err := p.signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			case name != "heartbeat":
				close(end)
			}
			for id, x := range all {
				select {
				case got := <-x.answer:
					if !got.is(c.code, "") {
						t.Errorf("%s: %s", id, got)
					}
				case <-time.After(patience):
					t.Fatalf("%s: no answer", id)
				}
				if runs := s.analyzer.of(id); len(runs) != 1 || name == "heartbeat" && runs[0].answered {
					t.Errorf("%s: runs %+v", id, runs)
				}
				after := s.get(t, id) // Firestore counts microseconds
				if after.Exists() != x.before.Exists() || !after.UpdateTime.Equal(x.before.UpdateTime) || !reflect.DeepEqual(after.Data(), x.before.Data()) {
					t.Errorf("%s: before %v, after %v", id, x.before.Data(), after.Data())
				}
			}
		})
	}
}
