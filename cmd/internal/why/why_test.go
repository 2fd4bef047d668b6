package why_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/why"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// now is the store's time of all readings; TTL 300 s, so the silence is 130 s.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

func held(heartbeat time.Duration) lease.Lease {
	return lease.Lease{Owner: "w/1/x", Token: 3, HeartbeatAt: ago(heartbeat), ExpiresAt: ago(heartbeat).Add(300 * time.Second)}
}

func crash(n int) analysislock.Attempt {
	return analysislock.Attempt{Number: n, Token: int64(n), StartedAt: ago(time.Hour), EndedAt: ago(30 * time.Minute), Outcome: "crashed"}
}

func TestOf(t *testing.T) {
	one, many := int64(1), int64(repo.MaxBefore)
	failure := func(code, message string) *analysislock.Error {
		return &analysislock.Error{Code: code, Message: message}
	}
	started := analysislock.Acts{"charge": {State: "started", At: ago(time.Minute)}}
	type A = analysislock.Analysis

	for name, tc := range map[string]struct {
		a    A
		o    why.Options
		want why.Answer
	}{
		"no worker has taken it": {
			A{Status: "QUEUED", CreatedAt: ago(252 * time.Second), UpdatedAt: ago(12 * time.Second)}, why.Options{},
			why.Answer{"queued", "in the queue for 4 min 12 s; no worker has taken it yet", ""},
		},
		"it was requeued": {
			A{
				Status: "QUEUED", UpdatedAt: ago(3 * time.Second), History: []analysislock.Attempt{{
					Outcome: "failed", EndedAt: ago(time.Hour),
					Changes: []analysislock.OperatorChange{{Change: "unlocked"}, {Change: "requeued", By: "ana\x1b", At: ago(3 * time.Second)}},
				}},
			}, why.Options{},
			why.Answer{"queued", `requeued by ana\x1b 3 s ago; it waits for a free worker`, ""},
		},
		"it was unlocked during its run, which that has ended": {
			A{
				Status: "QUEUED", UpdatedAt: ago(3 * time.Second), StartedAt: ago(time.Hour), History: []analysislock.Attempt{{
					Outcome: "lock_lost", EndedAt: ago(3 * time.Second),
					Changes: []analysislock.OperatorChange{{Change: "unlocked", By: "ana", At: ago(3 * time.Second)}},
				}},
			}, why.Options{},
			why.Answer{"queued", `unlocked by ana 3 s ago; it waits for a free worker`, ""},
		},
		"it continues": {
			A{Status: "QUEUED", UpdatedAt: ago(3 * time.Second), History: []analysislock.Attempt{{Outcome: "continued", EndedAt: ago(3 * time.Second)}}},
			why.Options{}, why.Answer{"queued", "its run was cut off 3 s ago, and continues with the next delivery", ""},
		},
		"its worker shut down": {
			A{Status: "QUEUED", UpdatedAt: ago(3 * time.Second), History: []analysislock.Attempt{{Outcome: "shutting_down", EndedAt: ago(3 * time.Second)}}},
			why.Options{}, why.Answer{"queued", "its worker shut down 3 s ago; the next delivery runs it again", ""},
		},
		"its run was started elsewhere": {
			A{Status: "QUEUED", UpdatedAt: ago(3 * time.Second), NextAttemptAt: ago(3 * time.Second), Starts: 1}, why.Options{},
			why.Answer{"queued", "its run was started 3 s ago, and has not taken the lock yet", ""},
		},
		"recovery has just enqueued it": {
			A{Status: "QUEUED", UpdatedAt: ago(40 * time.Second), NextAttemptAt: ago(40 * time.Second), BookedTask: "x"}, why.Options{},
			why.Answer{"queued", "recovery enqueued it, or found its task in the queue, 40 s ago; it waits for a free worker. " +
				"If that lasts, doctor shows whether the queue is paused", ""},
		},
		"a list has no history": {
			A{Status: "QUEUED", UpdatedAt: ago(40 * time.Second), StartedAt: ago(time.Hour), Attempts: 1}, why.Options{},
			why.Answer{"queued", "in the queue for 40 s; it waits for a free worker", ""},
		},
		"the next attempt is due": {
			A{Status: "QUEUED", UpdatedAt: ago(40 * time.Second), NextAttemptAt: ago(10 * time.Second), LastError: failure("ocr_down", "")}, why.Options{},
			why.Answer{"queued", "the last attempt ended with ocr_down; the next attempt was due 10 s ago; it waits for a free worker", ""},
		},
		"the next attempt is not due": {
			A{Status: "QUEUED", UpdatedAt: ago(40 * time.Second), NextAttemptAt: now.Add(72 * time.Second), LastError: failure("ocr_down", "")}, why.Options{},
			why.Answer{"waiting", "the last attempt ended with ocr_down; the next attempt begins in 1 min 12 s, at 2026-01-02T03:05:17.000Z", ""},
		},
		"running": {
			A{
				Status: "PROCESSING", StartedAt: ago(time.Hour), Lock: held(130 * time.Second),
				History: []analysislock.Attempt{{Token: 2, StartedAt: ago(time.Hour)}, {Token: 3, StartedAt: ago(190 * time.Second)}},
			}, why.Options{}, why.Answer{"running", "running for 3 min 10 s; the last heartbeat was 2 min 10 s ago", ""},
		},
		"running under a lock of another program": {
			A{Status: "PROCESSING", Malformed: fmt.Errorf("id: %w", lease.ErrInvalidKey), Lock: lease.Lease{Owner: "js", ExpiresAt: now.Add(time.Minute)}}, why.Options{},
			why.Answer{"running", "running; the lock expires in 1 min 00 s", ""},
		},
		"no heartbeat in time": {
			A{Status: "PROCESSING", Lock: held(131 * time.Second)}, why.Options{},
			why.Answer{"silent", "its worker seems to be dead: the last heartbeat was 2 min 11 s ago; the lock expires in 2 min 49 s, " +
				"then the next delivery or recovery runs it again; unlock does so now", "unlock"},
		},
		"the policy decides on silence": {
			A{Status: "PROCESSING", Lock: held(131 * time.Second)}, why.Options{Lock: lease.Policy{TTL: 10 * time.Minute}},
			why.Answer{"running", "running; the last heartbeat was 2 min 11 s ago", ""},
		},
		"the lock has expired": {
			A{Status: "PROCESSING", UpdatedAt: ago(320 * time.Second), Lock: held(320 * time.Second)}, why.Options{},
			why.Answer{"expired", "its worker died: its lock expired 20 s ago; the next delivery, or recovery within about a minute, runs it again", ""},
		},
		"the lock has expired under another status": {
			A{Status: "ARCHIVING", UpdatedAt: ago(time.Hour), Lock: held(time.Hour)}, why.Options{},
			why.Answer{"expired", "its worker died: its lock expired 55 min 00 s ago; the next delivery, or recovery within about a minute, runs it again", ""},
		},
		"the lock has expired, and recovery has not come": {
			A{Status: "PROCESSING", UpdatedAt: ago(420 * time.Second), Lock: held(420 * time.Second)}, why.Options{},
			why.Answer{"stuck", "no delivery has come for 7 min 00 s: its lock expired 2 min 00 s ago: recovery does not seem to run. " +
				"Check its job; the command recover enqueues it now", "recover"},
		},
		"no delivery for a TTL": {
			A{Status: "QUEUED", UpdatedAt: ago(300 * time.Second)}, why.Options{},
			why.Answer{"orphaned", "no delivery has come for 5 min 00 s; recovery enqueues it within about two minutes", ""},
		},
		"no delivery for a TTL and two minutes": {
			A{Status: "QUEUED", UpdatedAt: ago(420 * time.Second)}, why.Options{},
			why.Answer{"stuck", "no delivery has come for 7 min 00 s: recovery does not seem to run. Check its job; the command recover enqueues it now", "recover"},
		},
		"no delivery after recovery": {
			A{Status: "QUEUED", UpdatedAt: ago(time.Hour), NextAttemptAt: ago(time.Hour)}, why.Options{},
			why.Answer{"stuck", "recovery enqueued it 1 h 00 min ago, no delivery came, and recovery has not come back: recovery does not seem to run. " +
				"Check its job; the command recover enqueues it now", "recover"},
		},
		"PROCESSING without a lock": {
			A{Status: "PROCESSING", UpdatedAt: ago(12 * time.Second)}, why.Options{},
			why.Answer{"queued", "no worker has its lock, although its status is PROCESSING: in the queue for 12 s; no worker has taken it yet", ""},
		},
		"parked": {
			A{Status: "QUEUED", UpdatedAt: ago(time.Hour), ParkedAt: ago(time.Hour), Key: "acme"},
			why.Options{Key: repo.KeyState{Key: "ac\x1bme", Limit: 2, Running: []string{"a"}, Reserved: []string{"b"}, Parked: true, Before: &one}},
			why.Answer{"parked", `parked for 1 h 00 min behind key ac\x1bme: 1 of 2 run, 1 waits before it; it starts when a run of the key ends`, ""},
		},
		"parked behind many, and a slot is free": {
			A{Status: "QUEUED", ParkedAt: ago(time.Hour)}, why.Options{Key: repo.KeyState{Key: "acme", Limit: 2, Running: []string{"a"}, Parked: true, Before: &many}},
			why.Answer{"parked", "parked for 1 h 00 min behind key acme: 1 of 2 run, 1000 or more wait before it; a slot is free, and recovery enqueues the first within about a minute", ""},
		},
		"parked behind a paused key": {
			A{Status: "QUEUED", ParkedAt: ago(time.Hour)}, why.Options{Key: repo.KeyState{Key: "acme", Paused: true, Parked: true}},
			why.Answer{"parked", "parked for 1 h 00 min behind key acme: paused: the limit is 0; 0 run; it starts when the limit is raised", ""},
		},
		"parked in a list": {
			A{Status: "QUEUED", ParkedAt: ago(time.Hour)}, why.Options{},
			why.Answer{"parked", "parked for 1 h 00 min: the slots of its key are taken; it starts when one is free", ""},
		},
		"a suspect": {
			A{Status: "QUEUED", UpdatedAt: ago(12 * time.Second), NextAttemptAt: now.Add(20 * time.Second), History: []analysislock.Attempt{crash(1), {
				Number: 2, Outcome: "crashed", Delays: 3,
			}}}, why.Options{},
			why.Answer{"waiting", "its last 2 attempts crashed, so it runs alone (delayed 3 times, as the worker was busy): the next attempt begins in 20 s, at 2026-01-02T03:04:25.000Z", ""},
		},
		"a suspect runs": {
			A{Status: "PROCESSING", Lock: held(time.Second), History: []analysislock.Attempt{crash(1), {Number: 2, Token: 3, StartedAt: ago(time.Minute)}}}, why.Options{},
			why.Answer{"running", "running for 1 min 00 s; the last heartbeat was 1 s ago", ""},
		},
		"an act is uncertain, and the next attempt is told": {
			A{Status: "QUEUED", CreatedAt: ago(12 * time.Second), UpdatedAt: ago(time.Second), OpenActs: 1, Acts: started}, why.Options{},
			why.Answer{"queued", `in the queue for 12 s; no worker has taken it yet; its next attempt is told that "charge" may have happened`, ""},
		},
		"an act is uncertain": {
			A{Status: "FAILED", UpdatedAt: ago(time.Minute), Error: failure("effect_uncertain", "x"), OpenActs: 2, Acts: analysislock.Acts{"charge": {State: "started"}, "mail\n": {State: "started"}}}, why.Options{},
			why.Answer{"uncertain", `failed 1 min 00 s ago with effect_uncertain; nobody has confirmed whether "charge" and "mail\n" happened: find out, then answer with resolve`, "resolve"},
		},
		"an act of a READY one is uncertain": {
			A{Status: "READY", UpdatedAt: ago(time.Minute), OpenActs: 1}, why.Options{},
			why.Answer{"uncertain", "finished 1 min 00 s ago; nobody has confirmed whether a side effect happened: find out, then answer with resolve", "resolve"},
		},
		"an act of a call": {
			A{Status: "QUEUED", UpdatedAt: ago(time.Hour), OpenActs: 1, Acts: started}, why.Options{Called: true},
			why.Answer{"called", `no delivery runs it: it waits for 1 h 00 min for its caller to call again; its next attempt is told that "charge" may have happened`, ""},
		},
		"READY": {A{Status: "READY", UpdatedAt: ago(time.Minute)}, why.Options{}, why.Answer{"ready", "finished 1 min 00 s ago; requeue runs it again", ""}},
		"another final word": {
			A{Status: "ARCHIVED", Lock: lease.Lease{Finished: true}}, why.Options{},
			why.Answer{"ready", "finished: its status ARCHIVED is final; requeue runs it again", ""},
		},
		"FAILED": {
			A{Status: "FAILED", UpdatedAt: ago(time.Minute), Error: failure("final", "x"), LastError: failure("earlier", "y")}, why.Options{},
			why.Answer{"failed", "failed 1 min 00 s ago with final; requeue runs it again", "requeue"},
		},
		"FAILED after the last attempt": {
			A{Status: "FAILED", UpdatedAt: ago(time.Minute), Error: failure("attempts_exhausted", "x"), LastError: failure("ocr_down", "y")}, why.Options{},
			why.Answer{"failed", "failed 1 min 00 s ago: no attempt is left, and the last ended with ocr_down; requeue runs it again", "requeue"},
		},
		"FAILED without an error": {A{Status: "FAILED"}, why.Options{}, why.Answer{"failed", "failed with no code; requeue runs it again", "requeue"}},
		"cancelled": {
			A{Status: "FAILED", UpdatedAt: ago(time.Minute), Error: failure("cancelled", "cancelled by ana\x1b")}, why.Options{},
			why.Answer{"failed", `cancelled 1 min 00 s ago by ana\x1b; requeue runs it again`, "requeue"},
		},
		"malformed": {
			A{Status: "QUEUED", Malformed: fmt.Errorf("lockToken is a string, not a usable integer: %w", lease.ErrMalformed)}, why.Options{},
			why.Answer{"malformed", "no worker can run it, because its lock cannot be read: lockToken is a string, not a usable integer; unlock repairs it", "unlock"},
		},
		"an id that cannot be used": {
			A{Status: "QUEUED", Malformed: errors.New("the id is too long")}, why.Options{},
			why.Answer{"malformed", "no delivery can name it: the id is too long; create it again under another id", ""},
		},
		"no status":      {A{UpdatedAt: now}, why.Options{}, unfound("it has no status")},
		"another status": {A{Status: "NEW\n", UpdatedAt: now}, why.Options{}, unfound(`its status NEW\n is not QUEUED`)},
		"no update":      {A{Status: "QUEUED"}, why.Options{}, unfound("it has no updatedAt that can be read")},
	} {
		t.Run(name, func(t *testing.T) {
			tc.a.ID, tc.a.ReadAt = "x", now
			if got := why.Of(&tc.a, tc.o); got != tc.want {
				t.Errorf("%q\nwant %q", got, tc.want)
			}
		})
	}
}

func unfound(reason string) why.Answer {
	return why.Answer{State: "unfound", Text: "it waits for a delivery, and if that is lost, recovery does not replace it, because " + reason +
		"; requeue enqueues it", Command: "requeue"}
}

// Whatever the fields of a document are, the answer is one line with a state, and names no command that is refused.
func TestOfAnswersForAllCombinations(t *testing.T) {
	states := map[why.State]int{}
	for n := range 1 << 11 {
		bit := func(i int) bool { return n>>i&1 == 1 }
		a := analysislock.Analysis{ID: "x", ReadAt: now, Status: []string{"QUEUED", "PROCESSING", "FAILED", ""}[n&3]}
		a.Lock.Finished = a.Finished()
		if bit(2) {
			a.Lock.Owner, a.Lock.ExpiresAt = "w", ago(time.Minute)
		}
		if bit(3) && a.Lock.Owner != "" {
			a.Lock.ExpiresAt = now.Add(time.Minute)
		}
		for i, set := range []func(){
			func() { a.UpdatedAt = ago(time.Hour) }, func() { a.NextAttemptAt = ago(time.Hour) }, func() { a.ParkedAt = ago(time.Hour) },
			func() { a.OpenActs = 1 }, func() { a.History = []analysislock.Attempt{crash(1), crash(2)} },
			func() { a.UpdatedAt = ago(time.Second) }, func() { a.NextAttemptAt = now.Add(time.Minute) },
		} {
			if bit(4 + i) {
				set()
			}
		}

		got := why.Of(&a, why.Options{})
		states[got.State]++
		held := lease.Held(a.Lock, now)
		switch {
		case got.State == "" || got.Text == "" || strings.ContainsAny(got.Text, "\n%"):
			t.Errorf("%+v: %q", a, got)
		case held != (got.State == why.Running || got.State == why.Silent):
			t.Errorf("%+v: %q, and held is %v", a, got, held)
		case a.Finished() != (got.State == why.Failed || got.State == why.Uncertain):
			t.Errorf("%+v: %q", a, got)
		}
	}
	for _, state := range []why.State{why.Uncertain, why.Stuck, why.Unfound, why.Failed, why.Expired, why.Running, why.Waiting, why.Queued, why.Parked} {
		if states[state] == 0 {
			t.Errorf("no combination is %s", state)
		}
	}
}
