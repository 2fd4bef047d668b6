package worker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/testing/protocmp"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// hostile is a document that no worker has written.
type hostile map[string]any

// The outcomes of a delivery of a hostile document.
const (
	runs      = "it runs to the end"
	locked    = "another holds it"
	malformed = "its token is malformed"
	finished  = "it is finished already"
	exhausted = "no attempt is left"
)

var answers = map[string]struct {
	code   int
	answer map[string]any
}{
	runs:      {200, map[string]any{"acquired": true, "status": "READY", "lock_token": "*"}},
	locked:    {409, map[string]any{"acquired": false, "reason": "locked", "retry_at": "*"}},
	malformed: {500, map[string]any{"acquired": false, "reason": "malformed", "error": "*"}},
	finished:  {200, map[string]any{"acquired": false, "reason": "already_finished", "status": "*"}},
	exhausted: {200, map[string]any{"acquired": true, "status": "FAILED", "error": "*"}},
}

// nest is a map 20 levels deep, the most that a document holds.
func nest() any {
	v := any(map[string]any{})
	for range 19 {
		v = map[string]any{"a": v}
	}
	return v
}

// odd are values of types that the lock's fields do not have.
func odd() map[string]any {
	return map[string]any{
		"NaN": math.NaN(), "Infinity": math.Inf(1), "true": true, "a word": "soon", "bytes": []byte{1}, "a map": map[string]any{"n": 1},
		"20 levels": nest(), "an array": []any{int64(1), "x", nil}, "a geo point": &latlng.LatLng{Latitude: 1},
	}
}

// hostiles are documents by outcome and name.
func hostiles(now time.Time) map[string]map[string]hostile {
	iso := func(d time.Duration) string { return iso8601.Format(now.Add(d)) }
	held := func(expires, heartbeat any) hostile {
		return hostile{"lockOwner": "js", "lockExpiresAt": expires, "lockHeartbeatAt": heartbeat}
	}
	all := map[string]map[string]hostile{
		runs: {
			"no fields": {}, "all null": {"status": nil, "input": nil, "attempts": nil, "lockOwner": nil, "lockExpiresAt": nil, "lockToken": nil, "lastError": nil},
			"odd names":       {"lockOwner.x": "them", "`lockToken`": "five", "lockExpiresAt\t": true, "ключ": 1, "LOCKOWNER": "them"},
			"token -0.0":      {"lockToken": math.Copysign(0, -1)},
			"token 3.0":       {"lockToken": 3.0},
			"token 2^63-2":    {"lockToken": int64(math.MaxInt64 - 1)},
			"owner empty":     {"lockOwner": "", "lockExpiresAt": iso(time.Hour)},
			"no expiry":       held(nil, iso(0)),
			"expiry past":     held(iso(-time.Hour), iso(0)),
			"expiry 0":        held(0, iso(0)),
			"expiry year 0":   held("0000-01-01T00:00:00.000Z", iso(0)),
			"expiry negative": held(-1, iso(-time.Hour)),
			"attempts 2.0":    {"attempts": 2.0}, "attempts negative": {"attempts": -1},
			"in 20 levels": {"input": nest(), "result": nest(), "error": nest(), "lastError": nest(), "finishedBy": nest(), "updatedAt": nest(), "theirs": nest()},
		},
		locked: {
			"expiry in 23 h": held(iso(23*time.Hour), iso(-time.Hour)), "a Timestamp": held(now.Add(time.Hour), nil), "milliseconds": held(now.Add(time.Hour).UnixMilli(), nil),
			"all in 20 levels": {"lockOwner": nest(), "lockExpiresAt": nest(), "lockHeartbeatAt": nest(), "attempts": nest(), "status": nest()},
		},
		malformed: {"token 2^63-1": {"lockToken": int64(math.MaxInt64)}, "token -1": {"lockToken": -1}, "token 1.5": {"lockToken": 1.5}},
		finished:  {},
		exhausted: {
			"3": {"attempts": 3}, "2^63-1": {"attempts": int64(math.MaxInt64)}, "3.0": {"attempts": 3.0},
			"3, and a lastError of another type": {"attempts": 3, "lastError": []any{"c"}},
		},
	}
	for name, v := range odd() {
		all[malformed]["token "+name] = hostile{"status": "QUEUED", "lockToken": v}
		all[finished]["READY, token "+name] = hostile{"status": "READY", "lockToken": v}
		all[locked]["expiry "+name+", heartbeat now"] = held(v, iso(0))
		all[runs]["expiry "+name+", heartbeat long ago"] = held(v, iso(-time.Hour))
		all[runs]["attempts "+name] = hostile{"attempts": v}
		all[runs]["status "+name] = hostile{"status": v}
		all[runs]["times "+name] = hostile{"createdAt": v, "updatedAt": v}
		all[runs]["errors "+name] = hostile{"error": v, "lastError": v, "result": v}
		if name != "a word" {
			all[locked]["owner "+name] = hostile{"lockOwner": v, "lockExpiresAt": iso(time.Hour)}
			all[runs]["owner "+name+", expired"] = hostile{"lockOwner": v, "lockExpiresAt": iso(-time.Hour)}
		}
	}
	for _, far := range []any{iso(25 * time.Hour), now.Add(25 * time.Hour), "9999-12-31T23:59:59.999Z", int64(math.MaxInt64), 1e300} {
		all[locked][fmt.Sprintf("expiry %v, not credible, heartbeat now", far)] = held(far, iso(0))
		all[runs][fmt.Sprintf("expiry %v, not credible, heartbeat long ago", far)] = held(far, iso(-time.Hour))
	}
	return all
}

// A document can hold anything in any field: each delivery has one answer of the
// contract, and leaves behind what the contract says.
func TestAHostileDocumentHasItsAnswer(t *testing.T) {
	equal := cmp.Options{protocmp.Transform(), cmpopts.EquateNaNs()}
	for outcome, documents := range hostiles(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) { // when a bubble begins
		for name, doc := range documents {
			t.Run(outcome+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					b.Put(t, "x", doc)
					before, ran := b.Fields(t, "x"), 0
					w := start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
						ran++
						return "done", nil
					})
					w.deliver(t, "x").check(t, answers[outcome].code, answers[outcome].answer)
					after := b.Fields(t, "x")
					if (ran == 1) != (outcome == runs) {
						t.Errorf("it ran %d times", ran)
					}
					switch outcome {
					case runs:
						checkReady(t, after)
					case exhausted:
						answer{Body: after}.check(t, 0, map[string]any{"status": "FAILED", "finishedBy": "*", "lastError": nil})
					default:
						if diff := cmp.Diff(before, after, equal); diff != "" || b.Calls.Count("Commit") != 0 {
							t.Errorf("the document was changed (-before +after):\n%s", diff)
						}
					}
					for _, theirs := range []string{"theirs", "input", "createdAt"} {
						if diff := cmp.Diff(before[theirs], after[theirs], equal); diff != "" {
							t.Errorf("%s was changed (-before +after):\n%s", theirs, diff)
						}
					}
				})
			})
		}
	}
}

func checkReady(t *testing.T, doc map[string]any) {
	t.Helper()
	answer{Body: doc}.check(t, 0, map[string]any{
		"status": "READY", "result": "done", "finishedBy": "*", "error": nil, "lastError": nil,
		"lockOwner": nil, "lockExpiresAt": nil, "lockHeartbeatAt": nil,
	})
	for _, name := range []string{"attempts", "lockToken"} {
		if n, ok := doc[name].(int64); !ok || n < 1 {
			t.Errorf("%s = %v, want a positive integer", name, doc[name])
		}
	}
}

// An expiry that cannot be read, or is too far ahead, blocks its analysis for one TTL
// at most.
func TestAnExpiryThatIsNotReadableEndsAfterOneTTL(t *testing.T) {
	for _, doc := range []hostile{
		{"lockOwner": "js", "lockExpiresAt": "soon"}, {"lockOwner": "js", "lockExpiresAt": "9999-12-31T23:59:59.999Z", "lockHeartbeatAt": "9999-12-31T23:59:59.999Z"},
		{"lockOwner": nest(), "lockExpiresAt": nest(), "lockHeartbeatAt": nest(), "attempts": nest(), "status": nest()},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", maps.Clone(doc))
			w := start(t, b, succeed)
			w.deliver(t, "x").check(t, 409, map[string]any{"reason": "locked"})
			time.Sleep(ttl(b) + time.Second)
			w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
			checkReady(t, b.Fields(t, "x"))
		})
	}
}

// PROCESSING is written over no status, QUEUED and PROCESSING alone; another status is
// kept also where the run fails.
func TestAnothersStatusIsKeptUntilTheFinish(t *testing.T) {
	for status, during := range map[any]any{nil: "PROCESSING", "": "PROCESSING", "QUEUED": "PROCESSING", "queued": "queued", "ANALYZING": "ANALYZING", 1: int64(1)} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": status})
			w := start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				if got := b.Fields(t, "x")["status"]; got != during {
					t.Errorf("%v: during the run the status is %v, want %v", status, got, during)
				}
				return nil, errors.New("flaky")
			})
			w.deliver(t, "x").check(t, 500, map[string]any{"reason": "retry"})
			after := during
			if during == "PROCESSING" {
				after = "QUEUED"
			}
			checkFields(t, b, "x", map[string]any{"status": after, "lockOwner": nil})
		})
	}
}

// Types that JSON lacks have a documented form.
func TestTheInputIsHandedOverAsJSON(t *testing.T) {
	for want, input := range map[string]any{
		`null`: nil, `["NaN","Infinity","-Infinity",9223372036854775807]`: []any{math.NaN(), math.Inf(1), math.Inf(-1), int64(math.MaxInt64)},
		`["AP8=","2001-09-09T01:46:40Z",{"latitude":-90,"longitude":180}]`: []any{[]byte{0, 255}, time.Unix(1e9, 0), &latlng.LatLng{Latitude: -90, Longitude: 180}},
		"{\" \":1,\"<&>\":5,\"`\":3,\"a.b\":2,\"ключ\":4}":                 map[string]any{" ": 1, "a.b": 2, "`": 3, "ключ": 4, "<&>": 5},
		`{"lockOwner":"them","lockToken":"five","status":"READY"}`:         map[string]any{"lockOwner": "them", "lockToken": "five", "status": "READY"},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"input": input})
			w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if string(job.Input) != want {
					t.Errorf("input = %s, want %s", job.Input, want)
				}
				return "done", nil
			})
			w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		})
	}
}
