package worker_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// hostile is a document that no worker has written, and what a delivery of it
// must come to.
type hostile struct {
	name string
	doc  map[string]any // an isoIn, stampIn, millisIn or inTTLs is a time relative to the test's
	fail error          // of the run; nil: it succeeds

	code    int
	answer  map[string]any // as answer.check compares it
	after   map[string]any // fields of the document, likewise
	kept    []string       // fields that nobody changes
	during  any            // the status while it runs; nil: not compared
	input   string         // the JSON that the analyzer gets; "": not compared
	expires bool           // locked, and READY one TTL later: in virtual time only
	virtual bool           // not on Google's emulator, where another case stands for it
}

// Times in a document, from now on.
type (
	isoIn    time.Duration // a string
	stampIn  time.Duration // a Timestamp
	millisIn time.Duration // an integer

	// inTTLs is a string, so many TTLs from now on.
	inTTLs int
)

func resolve(v any, now time.Time, ttl time.Duration) any {
	switch v := v.(type) {
	case inTTLs:
		return iso8601.Format(now.Add(time.Duration(v) * ttl))
	case isoIn:
		return iso8601.Format(now.Add(time.Duration(v)))
	case stampIn:
		return now.Add(time.Duration(v))
	case millisIn:
		return now.Add(time.Duration(v)).UnixMilli()
	}
	return v
}

func resolved(m map[string]any, now time.Time, ttl time.Duration) map[string]any {
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = resolve(v, now, ttl)
	}
	return out
}

// runs is a document that is run to its end.
func runs(name string, doc map[string]any) hostile {
	return hostile{
		name: name, doc: doc, code: 200,
		answer: map[string]any{"acquired": true, "status": "READY", "lock_token": "*"},
		after:  map[string]any{"attempts": int64(1), "lockToken": int64(1)},
	}
}

// lockedBy is a document that somebody else has locked until retryAt.
func lockedBy(name string, doc map[string]any, retryAt any) hostile {
	return hostile{name: name, doc: doc, code: 409, answer: map[string]any{"acquired": false, "reason": "locked", "retry_at": retryAt}}
}

// malformed is a document of which nobody can tell who holds it.
func malformed(name string, token any) hostile {
	return hostile{
		name: "lockToken is " + name, doc: map[string]any{"status": "QUEUED", "lockToken": token}, code: 500,
		answer: map[string]any{"acquired": false, "reason": "malformed", "error": "*"},
	}
}

func finished(name, status string, token any) hostile {
	return hostile{
		name: status + ", and lockToken is " + name, doc: map[string]any{"status": status, "lockToken": token}, code: 200,
		answer: map[string]any{"acquired": false, "reason": "already_finished", "status": status},
	}
}

func exhausted(name string, attempts any) hostile {
	return hostile{
		name: "attempts is " + name, doc: map[string]any{"attempts": attempts, "lockToken": 7}, code: 200,
		answer: map[string]any{"acquired": true, "status": "FAILED", "error": "*"},
		after:  map[string]any{"status": "FAILED", "lockToken": int64(8), "finishedBy": "*"}, kept: []string{"attempts"},
	}
}

// with changes what is expected.
func (h hostile) with(change func(*hostile)) hostile {
	h.after = maps.Clone(h.after)
	change(&h)
	return h
}

// equal compares what Firestore's values can be, NaN with itself too.
var equal = cmp.Options{protocmp.Transform(), cmpopts.EquateNaNs()}

// deliver delivers the document on b once, or until its lock has expired.
func (h hostile) deliver(t *testing.T, b *emulatortest.Backend) {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	b.Put(t, "x", resolved(h.doc, now, ttl(b)))
	before := b.Fields(t, "x")
	ran := 0
	w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		ran++
		h.checkRun(t, b.Fields(t, "x"), job)
		return "done", h.fail
	})
	a := w.deliver(t, "x")
	a.check(t, h.code, resolved(h.answer, now, ttl(b)))
	h.checkAfter(t, b, before, a, ran, now)
	if h.expires && !b.Google() {
		time.Sleep(ttl(b) + time.Second)
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		checkReady(t, b.Fields(t, "x"))
	}
}

// checkRun checks the document while it runs.
func (h hostile) checkRun(t *testing.T, doc map[string]any, job orchestrator.Job) {
	t.Helper()
	if h.during != nil && doc["status"] != h.during {
		t.Errorf("status in the run = %s, want %s", shortened(doc["status"]), shortened(h.during))
	}
	if h.input != "" && string(job.Input) != h.input {
		t.Errorf("input = %s, want %s", shortened(string(job.Input)), shortened(h.input))
	}
	owner, _ := doc["lockOwner"].(string)
	heartbeat, beats := doc["lockHeartbeatAt"].(string)
	expires, ends := doc["lockExpiresAt"].(string)
	if !strings.HasPrefix(owner, "test/1/") || !beats || !ends || heartbeat >= expires || doc["lockToken"] != job.LockToken || doc["attempts"] != int64(job.Attempt) {
		t.Errorf("lock in the run = %v", doc)
	}
}

func (h hostile) checkAfter(t *testing.T, b *emulatortest.Backend, before map[string]any, a answer, ran int, now time.Time) {
	t.Helper()
	doc := b.Fields(t, "x")
	answer{Body: doc}.check(t, 0, resolved(h.after, now, ttl(b)))
	for _, name := range h.kept {
		if diff := cmp.Diff(before[name], doc[name], equal); diff != "" {
			t.Errorf("%s was changed (-before +after):\n%s", name, diff)
		}
	}
	acquired := a.Body["acquired"] == true
	switch {
	case !acquired: // it is not touched
		if diff := cmp.Diff(before, doc, equal); diff != "" || b.Calls.Count("Commit") != 0 {
			t.Errorf("%d commits; the document was changed (-before +after):\n%s", b.Calls.Count("Commit"), diff)
		}
	case a.Body["status"] == "READY":
		checkReady(t, doc)
	}
	wantRuns := 0
	if acquired && h.answer["status"] != "FAILED" {
		wantRuns = 1
	}
	if ran != wantRuns {
		t.Errorf("it ran %d times, want %d", ran, wantRuns)
	}
}

func checkReady(t *testing.T, doc map[string]any) {
	t.Helper()
	answer{Body: doc}.check(t, 0, map[string]any{
		"status": "READY", "result": "done", "finishedBy": "*", "error": nil,
		"lockOwner": nil, "lockExpiresAt": nil, "lockHeartbeatAt": nil,
	})
	if doc["lastError"] != nil {
		t.Errorf("lastError = %s, want none", shortened(doc["lastError"]))
	}
	if _, ok := doc["finishedBy"].(string); !ok {
		t.Errorf("finishedBy = %v, want a string", doc["finishedBy"])
	}
	for _, name := range []string{"attempts", "lockToken"} {
		if n, ok := doc[name].(int64); !ok || n < 1 {
			t.Errorf("%s = %v, want a positive integer", name, doc[name])
		}
	}
}

// A document can hold anything in any field: each delivery has one answer of the
// contract, and leaves behind what the contract says.
func TestAHostileDocumentHasItsAnswer(t *testing.T) {
	seen := map[string]bool{}
	for _, h := range hostiles() {
		if seen[h.name] {
			t.Errorf("two cases are named %q", h.name)
		}
		seen[h.name] = true
		t.Run(h.name, func(t *testing.T) {
			if h.virtual {
				synctest.Test(t, func(t *testing.T) { h.deliver(t, emulatortest.Embedded(t)) })
				return
			}
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) { h.deliver(t, b) })
		})
	}
	if len(seen) < 42 {
		t.Errorf("%d hostile documents, want 42 at least", len(seen))
	}
}

// nest is a map 20 levels deep, the most that a document holds.
func nest() any {
	v := any(map[string]any{})
	for range 19 {
		v = map[string]any{"a": v}
	}
	return v
}

// thousand is an array of 1,000 elements of several types.
func thousand() []any {
	s := make([]any, 1000)
	for i := range s {
		s[i] = []any{int64(i), "x", nil, true, map[string]any{"n": 1.5}}[i%5]
	}
	return s
}
