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

func ago(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }

func held(heartbeat int) lease.Lease {
	return lease.Lease{Owner: "w/1/x", Token: 3, HeartbeatAt: ago(heartbeat), ExpiresAt: ago(heartbeat - 300)}
}

func ended(outcome string) []analysislock.Attempt {
	return []analysislock.Attempt{{Outcome: outcome, EndedAt: ago(3)}}
}

func failure(code, message string) *analysislock.Error {
	return &analysislock.Error{Code: code, Message: message}
}

// commands are those that help in a state.
var commands = map[why.State]string{
	why.Malformed: "unlock", why.Uncertain: "resolve", why.Stuck: "recover",
	why.Unfound: "requeue", why.Silent: "unlock", why.Failed: "requeue",
}

type A = analysislock.Analysis

func want(t *testing.T, a A, o why.Options, state why.State, part string) {
	t.Helper()
	a.ID, a.ReadAt = "x", now
	got := why.Of(&a, o)
	if got.State != state || !strings.Contains(got.Text, part) {
		t.Errorf("%q, want %s with %q", got, state, part)
	}
	if got.Command != commands[state] {
		t.Errorf("%q, want the command %q", got, commands[state])
	}
}

// Each analysis has a part of the text by which one knows why it is in its state.
func TestOf(t *testing.T) {
	const queued, processing = analysislock.Queued, analysislock.Processing
	type attempts = []analysislock.Attempt
	changes := []analysislock.OperatorChange{{Change: "unlocked"}, {Change: "requeued", By: "ana\x1b", At: ago(3)}}
	crashed := analysislock.Attempt{Outcome: "crashed", EndedAt: ago(60)}
	delayed := analysislock.Attempt{Outcome: "crashed", EndedAt: ago(60), Delays: 3}
	down, final := failure("ocr_down", "y"), failure("final", "x")
	started := analysislock.Acts{"charge": {State: "started", At: ago(60)}}
	two := analysislock.Acts{"charge": {State: "started"}, "mail\n": {State: "started"}}
	uncertain, exhausted := failure("effect_uncertain", "x"), failure("attempts_exhausted", "x")
	another := lease.Lease{Owner: "js", ExpiresAt: ago(-60)} // of another program

	for state, analyses := range map[why.State]map[string]A{
		why.Queued: {
			"in the queue for 4 min 12 s; no worker": {Status: queued, CreatedAt: ago(252), UpdatedAt: ago(12)},
			"in the queue for 40 s; it waits":        {Status: queued, UpdatedAt: ago(40), StartedAt: ago(3600)},
			"PROCESSING: in the queue for 12 s":      {Status: processing, UpdatedAt: ago(12)},
			`requeued by ana\x1b 3 s ago; `: {
				Status: queued, UpdatedAt: ago(3), History: attempts{{EndedAt: ago(60), Changes: changes}},
			},
			"unlocked by ": { // during its run, which that has ended
				Status: queued, UpdatedAt: ago(3), History: attempts{{Outcome: "lock_lost", Changes: changes[:1]}},
			},
			"cut off 3 s ago":      {Status: queued, UpdatedAt: ago(9), History: ended("continued")},
			"shut down 3 s ago":    {Status: queued, UpdatedAt: ago(9), History: ended("shutting_down")},
			"was started 3 s ago":  {Status: queued, UpdatedAt: ago(3), NextAttemptAt: ago(3), Starts: 1},
			"recovery enqueued it": {Status: queued, UpdatedAt: ago(40), NextAttemptAt: ago(40)},
			"with ocr_down; the next attempt was due 10 s ago": {
				Status: queued, UpdatedAt: ago(40), NextAttemptAt: ago(10), LastError: down,
			},
			`is told that "charge" may have`: {Status: queued, UpdatedAt: ago(1), OpenActs: 1, Acts: started},
		},
		why.Waiting: {
			"with ocr_down; the next attempt begins in 1 min 12 s, at 2026-01-02T03:05:17.000Z": {
				Status: queued, UpdatedAt: ago(40), NextAttemptAt: ago(-72), LastError: down,
			},
			"its last 2 attempts crashed, so it runs alone (delayed 3 times": {
				Status: queued, UpdatedAt: ago(12), NextAttemptAt: ago(-20), History: attempts{crashed, delayed},
			},
		},
		why.Running: {
			"running for 3 min 10 s; the last heartbeat was 2 min 10 s ago": {
				Status: processing, StartedAt: ago(3600), Lock: held(130),
				History: attempts{{Token: 2, StartedAt: ago(3600)}, {Token: 3, StartedAt: ago(190)}},
			},
			"running for 1 min 00 s; the last heartbeat was 1 s ago": { // a suspect
				Status: processing, Lock: held(1), History: attempts{crashed, crashed, {Token: 3, StartedAt: ago(60)}},
			},
			"the lock expires in 1 min 00 s": {
				Status: processing, Malformed: fmt.Errorf("id: %w", lease.ErrInvalidKey), Lock: another,
			},
		},
		why.Silent: {"2 min 11 s ago; the lock expires in 2 min 49 s": {Status: processing, Lock: held(131)}},
		why.Expired: {
			"expired 20 s ago": {Status: processing, UpdatedAt: ago(320), Lock: held(320)},
			"expired 55 min":   {Status: "ARCHIVING", UpdatedAt: ago(3600), Lock: held(3600)},
		},
		why.Orphaned: {"for 5 min 00 s": {Status: queued, UpdatedAt: ago(300)}},
		why.Stuck: {
			"for 7 min 00 s":                      {Status: queued, UpdatedAt: ago(420)},
			"lock expired 2 min 00 s ago":         {Status: processing, UpdatedAt: ago(420), Lock: held(420)},
			"recovery enqueued it 1 h 00 min ago": {Status: queued, UpdatedAt: ago(3600), NextAttemptAt: ago(3600)},
		},
		why.Parked: {"slots of its key": {Status: queued, ParkedAt: ago(3600)}}, // in a list
		why.Uncertain: {
			`effect_uncertain; nobody has confirmed whether "charge" and "mail\n"`: {
				Status: "FAILED", UpdatedAt: ago(60), Error: uncertain, OpenActs: 2, Acts: two,
			},
			"a side effect happened": {Status: "READY", UpdatedAt: ago(60), OpenActs: 1},
		},
		why.Ready: {
			"finished 1 min 00 s ago; requeue": {Status: "READY", UpdatedAt: ago(60)},
			"ARCHIVED is final":                {Status: "ARCHIVED", Lock: lease.Lease{Finished: true}},
		},
		why.Failed: {
			"failed 1 min 00 s ago with final": {Status: "FAILED", UpdatedAt: ago(60), Error: final, LastError: down},
			"the last ended with ocr_down":     {Status: "FAILED", Error: exhausted, LastError: down},
			"failed with no code":              {Status: "FAILED"},
			`cancelled 1 min 00 s ago by ana\x1b;`: {
				Status: "FAILED", UpdatedAt: ago(60), Error: failure("cancelled", "cancelled by ana\x1b"),
			},
		},
		why.Malformed: {
			"lockToken": {Status: queued, Malformed: fmt.Errorf("lockToken: %w", lease.ErrMalformed)},
		},
		why.Unfound: {
			"no status":           {UpdatedAt: now},
			`NEW\n is not QUEUED`: {Status: "NEW\n", UpdatedAt: now},
			"no updatedAt":        {Status: queued},
		},
	} {
		for part, a := range analyses {
			t.Run(string(state)+": "+part, func(t *testing.T) { want(t, a, why.Options{}, state, part) })
		}
	}
	for text, a := range map[string]A{
		"in the queue for 4 min 12 s; no worker has taken it yet": {
			Status: queued, CreatedAt: ago(252), UpdatedAt: ago(12),
		},
		"its worker died: its lock expired 20 s ago; the next delivery, " +
			"or recovery within about a minute, runs it again": {
			Status: processing, UpdatedAt: ago(320), Lock: held(320),
		},
	} {
		t.Run("no more is said than "+text, func(t *testing.T) {
			a.ReadAt = now
			if got := why.Of(&a, why.Options{}).Text; got != text {
				t.Errorf("%q", got)
			}
		})
	}
	t.Run("an id that cannot be used has no command", func(t *testing.T) {
		got := why.Of(&A{Status: queued, Malformed: errors.New("the id is too long")}, why.Options{})
		if got.State != why.Malformed || got.Command != "" {
			t.Errorf("%q", got)
		}
	})
	t.Run("the policy decides on silence", func(t *testing.T) {
		slow := why.Options{Lock: lease.Policy{TTL: 10 * time.Minute}}
		want(t, A{Status: processing, Lock: held(131)}, slow, why.Running, "")
	})
	t.Run("a call waits for its caller", func(t *testing.T) {
		a := A{Status: queued, UpdatedAt: ago(3600), OpenActs: 1, Acts: started}
		want(t, a, why.Options{Called: true}, why.Called, "1 h 00 min for its caller to call again; its next")
	})
	one, many := int64(1), int64(repo.MaxBefore)
	for part, key := range map[string]repo.KeyState{
		`for 1 h 00 min behind key ac\x1bme: 1 of 2 run, 1 waits before it; it starts when a run`: {
			Key: "ac\x1bme", Limit: 2, Running: []string{"a"}, Reserved: []string{"b"}, Parked: true, Before: &one,
		},
		"1000 or more wait before it; a slot is free": {
			Key: "acme", Limit: 2, Running: []string{"a"}, Parked: true, Before: &many,
		},
		"paused: the limit is 0; 0 run; it starts when the limit is raised": {Key: "acme", Paused: true, Parked: true},
	} {
		t.Run(part, func(t *testing.T) {
			want(t, A{Status: queued, ParkedAt: ago(3600)}, why.Options{Key: key}, why.Parked, part)
		})
	}
}

// Whatever the fields of a document are, the answer is one line with a state, and names no command that is refused.
func TestOf_Combinations(t *testing.T) {
	states := map[why.State]int{}
	for n := range 1 << 11 {
		a := A{ID: "x", ReadAt: now, Status: []string{"QUEUED", "PROCESSING", "FAILED", ""}[n&3]}
		a.Lock.Finished = a.Finished()
		for i, set := range []func(){
			func() { a.Lock.Owner, a.Lock.ExpiresAt = "w", ago(60) },
			func() { a.Lock.ExpiresAt = ago(-60) },
			func() { a.UpdatedAt = ago(3600) }, func() { a.NextAttemptAt = ago(3600) },
			func() { a.ParkedAt = ago(3600) }, func() { a.OpenActs = 1 },
			func() { a.History = []analysislock.Attempt{{Outcome: "crashed"}, {Outcome: "crashed"}} },
			func() { a.UpdatedAt = ago(1) }, func() { a.NextAttemptAt = ago(-60) },
		} {
			if n>>(2+i)&1 == 1 {
				set()
			}
		}
		got := why.Of(&a, why.Options{})
		states[got.State]++
		if got.Text == "" || strings.ContainsAny(got.Text, "\n%") {
			t.Errorf("%+v: %q", a, got)
		}
		if held := lease.Held(a.Lock, now); held != (got.State == why.Running || got.State == why.Silent) {
			t.Errorf("%+v: %q, and held is %v", a, got, held)
		}
		if a.Finished() != (got.State == why.Failed || got.State == why.Uncertain) {
			t.Errorf("%+v: %q", a, got)
		}
	}
	for _, state := range []why.State{
		why.Uncertain, why.Stuck, why.Unfound, why.Failed, why.Expired, why.Running, why.Waiting, why.Queued,
		why.Parked,
	} {
		if states[state] == 0 {
			t.Errorf("no combination is %s", state)
		}
	}
}
