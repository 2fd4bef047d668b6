package chaos

import (
	"net/http"
	"testing"
	"time"
)

// Duplicates come every 500 ms, to both workers, from the run's beginning until
// a TTL after its end.
func TestARunLongerThanTheTTLIsAloneAndLeavesNoLock(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	s := newStage(t, func(r *run) int {
		select {
		case <-let:
		case <-r.gone:
		}
		return http.StatusOK
	})
	const env = "LOCK_TTL=10s" // with a heartbeat each second: the machine may stand still for 8
	workers := []*process{s.start(t, env), s.start(t, env)}
	s.create(t, "x", nil)
	answer := workers[0].delivered(t, "x")
	s.analyzer.running(t, "x")
	duplicates := func(n, code int, reason string) {
		for i := range n {
			time.Sleep(500 * time.Millisecond)
			if got := workers[i%2].deliver(t.Context(), "x"); !got.is(code, reason) {
				t.Errorf("duplicate %d: %s", i, got)
			}
		}
	}
	duplicates(24, http.StatusConflict, `"locked"`) // 12 s
	close(let)
	if got := await(t, "the answer", answer); !got.is(http.StatusOK, `"lock_token":1`) {
		t.Errorf("answer: %s", got)
	}
	before := s.get(t, "x")
	for _, field := range []string{"lockOwner", "lockExpiresAt", "lockHeartbeatAt"} {
		if v, ok := before.Data()[field]; ok {
			t.Errorf("%s = %v after the finish", field, v)
		}
	}
	duplicates(21, http.StatusOK, `"already_finished"`)
	s.unchanged(t, "after the finish", before)
	if runs := s.analyzer.of("x"); len(runs) != 1 {
		t.Errorf("%d runs, want 1", len(runs))
	}
	if n := s.proxy.tally("x"); n[acquire] != 1 || n[heartbeat] < 4 || n[finish] != 1 {
		t.Errorf("written %v", n)
	}
}

// A heartbeat is on its way while its run ends: it reaches Firestore after the
// lock was freed, or its answer is still to come. Neither leaves a lock.
func TestAHeartbeatInFlightAtTheEndLeavesNoLock(t *testing.T) {
	t.Parallel()
	freed := map[string]chan struct{}{}
	sent := map[string]chan struct{}{}
	names := []string{"late, finish", "late, release", "unanswered, finish", "unanswered, release"}
	for _, name := range names {
		freed[name], sent[name] = make(chan struct{}), make(chan struct{})
	}
	s := newStage(t, func(r *run) int {
		select {
		case <-sent[r.analysis]:
		case <-r.gone:
		}
		if r.analysis == names[0] || r.analysis == names[2] {
			return http.StatusOK
		}
		return http.StatusServiceUnavailable
	})
	s.proxy.script(func(now *call) fault {
		if now.kind != heartbeat || now.nth != 1 {
			return fault{}
		}
		close(sent[now.doc])
		if now.doc == names[0] || now.doc == names[1] {
			return fault{name: now.doc, before: freed[now.doc]}
		}
		return fault{name: now.doc, reply: freed[now.doc]}
	})
	p := s.start(t, "LOCK_TTL=20s")
	for _, name := range names {
		s.create(t, name, nil)
	}
	for i, name := range names {
		if got, want := p.deliver(t.Context(), name), []int{200, 500}[i%2]; !got.is(want, "") {
			t.Errorf("%s: %s", name, got)
		}
		before := s.get(t, name)
		if before.Data()["lockOwner"] != nil || before.Data()["lockExpiresAt"] != nil {
			t.Errorf("%s: document %v", name, before.Data())
		}
		close(freed[name])
		s.proxy.settled(t, name)
		s.unchanged(t, name, before)
		if s.proxy.count(name) != 1 {
			t.Errorf("%s: injected %d times", name, s.proxy.count(name))
		}
	}
}

// unreadable are expiries that nobody can read.
var unreadable = map[string]any{
	"word": "soon", "empty": "", "bool": true, "map": map[string]any{"seconds": 1}, "negative": -1, "list": []any{1},
}

func TestAnUnreadableExpiryNeitherPermitsARunNorSticks(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(*run) int { return http.StatusOK })
	patient, brisk := s.start(t, "LOCK_TTL=5m"), s.start(t, "LOCK_TTL=2s", "LOCK_HEARTBEAT=500ms")
	for name, expiry := range unreadable {
		s.create(t, name, map[string]any{"status": "PROCESSING", "lockOwner": "other/instance/1", "lockToken": 4, "lockExpiresAt": expiry})
		before := s.get(t, name)
		if got := patient.deliver(t.Context(), name); !got.is(http.StatusConflict, `"locked"`) {
			t.Errorf("%s: within the TTL: %s", name, got)
		}
		s.unchanged(t, name, before)
	}
	for name := range unreadable {
		for i := 0; ; i++ {
			got := brisk.deliver(t.Context(), name)
			if got.is(http.StatusOK, `"lock_token"`) {
				break
			}
			if i == 600 || !got.is(http.StatusConflict, `"lock`) { // lock_lost: the machine stood still for longer than the TTL
				t.Errorf("%s: after the TTL: %s", name, got)
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func TestALockIsTakenOverAtItsExpiryAndNoSooner(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(*run) int { return http.StatusOK })
	workers := []*process{s.start(t), s.start(t)}
	expires := time.Now().Add(5 * time.Second).Truncate(time.Millisecond)
	s.create(t, "x", map[string]any{"status": "PROCESSING", "lockOwner": "other/instance/1", "lockToken": 1, "lockExpiresAt": iso(expires)})
	refused := 0
	for got := reply(""); !got.is(http.StatusOK, `"lock_token":2`); time.Sleep(20 * time.Millisecond) {
		got = workers[refused%2].deliver(t.Context(), "x")
		if got.is(http.StatusConflict, `"locked"`) {
			refused++
		} else if !got.is(http.StatusOK, `"lock_token":2`) {
			t.Fatalf("after %d refusals: %s", refused, got)
		}
	}
	if taken := s.proxy.written("x")[0]; taken.kind != acquire || taken.read.Before(expires) {
		t.Errorf("written %+v, and the lock was held until %v", taken, expires)
	}
	if refused == 0 {
		t.Error("it was never refused: nothing is proved")
	}
}
