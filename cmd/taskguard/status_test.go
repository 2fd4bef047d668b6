package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease/iso8601"
)

// wantOrder fails unless text has these parts in this order.
func wantOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Fatalf("%q is not in its place in\n%s", part, text)
		}
		rest = after
	}
}

// ids are those of objects, in their order.
func ids(objects []doc) (all []string) {
	for _, object := range objects {
		all = append(all, object["id"].(string))
	}
	return all
}

func TestStatus_One(t *testing.T) {
	t.Parallel()
	env := store(t)
	const at, end = "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:07.178Z"
	next := iso8601.Format(time.Now().Add(570 * time.Second).Truncate(time.Second).Add(123 * time.Millisecond))
	attempt := func(n int, outcome string, more doc) doc {
		a := doc{"attempt": n, "token": n, "owner": "w-42/0087/9F2C", "startedAt": at}
		if outcome != "" {
			maps.Copy(a, doc{"endedAt": end, "outcome": outcome})
		}
		maps.Copy(a, more)
		return a
	}
	last := doc{"code": "analyzer_failed", "message": "no memory\nat all"}
	changes := []any{doc{"change": "unlocked", "by": "ana", "at": at}, doc{"change": "requeued", "by": "me", "at": end}}
	for id, tc := range map[string]struct {
		fields doc
		keys   string // of its JSON, beside id, status, attempts, why and lock
		shows  []string
		lacks  []string
	}{
		"running": { // the second attempt's worker has crashed; the third has the lock
			fields: doc{
				"status": "PROCESSING", "attempts": 3, "lockToken": 3, "lockOwner": "w/3",
				"lockExpiresAt": ago(-time.Hour), "startedAt": at, "checkpoint": doc{"page": 3}, "lastError": last,
				"progress": doc{"fraction": 0.426, "message": "page 3 of 7", "at": ago(30 * time.Minute)},
				"history":  []any{attempt(1, "retry", last), attempt(2, "", nil), attempt(3, "", nil)},
			},
			keys: "started_at progress last_error history checkpoint",
			shows: []string{
				"43 %", "page 3 of 7", "30m", "10 bytes", "ATTEMPT", "1.5s", "retry", `no memory\nat all`,
				"no end recorded", "running",
			},
		},
		"ready": { // by another program, which has not deleted the last error
			fields: doc{
				"status": "READY", "lastError": last, "finishedBy": "w/9", "result": 3, "history": []any{"odd"},
				"progress": doc{"fraction": math.NaN()},
			},
			keys:  "finished_by progress result",
			shows: []string{"w/9", "result\n3\n"},
			lacks: []string{"running", "checkpoint", "analyzer_failed"},
		},
		"killer": { // the first crash was beside other runs, and the second alone, after two delays
			fields: doc{
				"status": "QUEUED", "updatedAt": end, "lastError": doc{"code": "crashed"}, "history": []any{
					attempt(1, "crashed", doc{"delays": 2}),
					attempt(2, "crashed", doc{"alone": true, "changes": changes}),
				},
			},
			keys:  "updated_at last_error history",
			shows: []string{"w-42/0087\n", "delayed 2 times", "  alone  ", "unlocked by ana", "requeued by me at"},
		},
		"waits": {
			fields: doc{"status": "QUEUED", "nextAttemptAt": next},
			keys:   "next_attempt_at",
			shows:  []string{next, "9m"},
		},
		"late": {
			fields: doc{"status": "QUEUED", "nextAttemptAt": at},
			keys:   "next_attempt_at",
			shows:  []string{at + "\n"},
		},
		"requeued": {
			fields: doc{"status": "QUEUED", "finishedBy": "w/0"},
			keys:   "finished_by",
			lacks:  []string{"finished by", "ATTEMPT"},
		},
	} {
		t.Run(id, func(t *testing.T) {
			put(t, env, id, tc.fields)
			taskguard(t, env, "status "+id).done(t, tc.shows...).lacks(t, tc.lacks...)
			object := taskguard(t, env, "status --json "+id).done(t).object(t)
			wantKeys(t, object, "id status attempts why lock "+tc.keys)
			if id == "killer" {
				attempts := object["history"].([]any)
				const keys = "attempt owner started_at ended_at outcome "
				wantKeys(t, attempts[0], keys+"delays")
				wantKeys(t, attempts[1], keys+"alone changes")
			}
		})
	}
	t.Run("a list has no histories", func(t *testing.T) {
		taskguard(t, env, "status --json").done(t).lacks(t, "history", "checkpoint")
	})
	t.Run("a lock is shown with its owner, and no token", func(t *testing.T) {
		locked(t, analyses(t, env), "held")
		object := taskguard(t, env, "status --json held").done(t).object(t)
		wantKeys(t, object, "id status attempts created_at updated_at started_at why lock history input")
		lock := wantKeys(t, object["lock"], "held owner expires_at")
		wantValues(t, lock, doc{"held": true, "owner": "w/1"})
	})
}

func TestStatus_Parked(t *testing.T) {
	t.Parallel()
	env := store(t)
	key := fmt.Sprintf("%x", sha256.Sum256([]byte("acme")))
	for id, since := range map[string]string{"first": ago(time.Hour), "second": ago(time.Minute)} {
		put(t, env, id, doc{
			"status": "QUEUED", "tenant": "acme", "parkedAt": ago(2 * time.Hour), "parkedFor": key + " " + since,
		})
	}
	slots := doc{"w/1": doc{"analysis": "a", "lockExpiresAt": ago(-time.Hour)}}
	put(t, env, "analysesKeys/"+key, doc{"key": "acme", "limit": 1, "waiting": true, "slots": slots})

	keyed := env.with("CONCURRENCY_KEY", "tenant")
	object := taskguard(t, keyed, "status second --json").done(t).object(t)
	want := doc{"key": "acme", "limit": 1.0, "running": []any{"a"}, "parked": true, "before": 1.0}
	if got := object["key_state"]; !reflect.DeepEqual(got, want) || object["key"] != "acme" {
		t.Errorf("%v, want %v", got, want)
	}
	taskguard(t, keyed, "status second").done(t, "acme", "parked since")
	taskguard(t, keyed, "status").done(t, "parked for 2 h 00 min\n")
	taskguard(t, env, "status second").done(t, "free") // without the variable
}

// Records that are stored already have this id.
func TestStatus_IdempotencyKey(t *testing.T) {
	t.Parallel()
	env := store(t)
	id := fmt.Sprintf("refund:%x", sha256.Sum256([]byte(`"acct 7" "k"`)))
	response := doc{"status": 201, "header": doc{}, "body": "eyJpZCI6MX0="}
	put(t, env, "idempotency/"+id, doc{"status": "READY", "result": response})
	asked := func(env vars, key, scope string) outcome {
		return taskguard(t, env, "status --operation refund --idempotency-key "+key+" --scope", scope)
	}
	for _, key := range []string{"k", `"k"`} {
		asked(env, key, "acct 7").done(t, id, "response 201\n{\"id\":1}\n")
	}
	asked(env, "k", "acct").fails(t, "--scope")
	elsewhere := env.with("KINDS", `[{}, {"name": "do", "collection": "keys"}]`)
	asked(elsewhere, "k", "acct 7").fails(t, "collection keys")
	put(t, env, "keys/"+id, doc{"status": "FAILED", "error": doc{"code": "response-streamed"}})
	asked(elsewhere, "k", "acct 7").done(t, "response-streamed")
}

func TestStatus_Untrusted(t *testing.T) {
	t.Parallel()
	env := store(t)
	const nasty = "a\n\x1b[2J\u202e\u200b\u009b"
	t.Run("text of documents reaches the terminal escaped", func(t *testing.T) {
		id, last := "i\u202e\u200b", doc{"code": nasty, "message": nasty}
		put(t, env, id, doc{
			"status": nasty, "lockOwner": nasty, "lockToken": 1, "lockExpiresAt": ago(-time.Hour), "finishedBy": nasty,
			"error": last, "lastError": last, "input": nasty, "result": doc{nasty: nasty},
			"progress": doc{"message": nasty, "at": time.Now()},
			"history":  []any{doc{"owner": nasty, "outcome": nasty, "code": nasty, "message": nasty}},
		})
		for _, line := range []string{"status", "status " + id, "requeue " + id, "unlock " + id} {
			o := taskguard(t, env, line)
			text := o.out + o.err
			if strings.ContainsAny(text, "\x1b\u202e\u200b\u009b") || !strings.Contains(text, `\u202e\u200b`) {
				t.Errorf("%q wrote %q", line, text)
			}
		}
		wantValues(t, taskguard(t, env, "status --json "+id).object(t), doc{"status": nasty, "input": nasty})
	})
	t.Run("a malformed lock is named", func(t *testing.T) {
		put(t, env, "bad", doc{"status": "QUEUED", "lockToken": "7", "updatedAt": longAgo})
		object := taskguard(t, env, "status --json --older-than 1h").done(t).object(t)
		wantValues(t, object, doc{"id": "bad", "malformed": "lockToken is a string, not a usable integer"})
		taskguard(t, env, "status bad").fails(t, "lockToken")
	})
}

func TestStatus_Limit(t *testing.T) {
	t.Parallel()
	env := store(t)
	for i := range 8 {
		put(t, env, fmt.Sprint("a", i), doc{"status": "QUEUED", "updatedAt": time.Unix(int64(i), 0)})
	}
	for flags, rows := range map[string]int{
		"--unfinished --limit 7": 7, "--unfinished --limit 8": 8, "--status QUEUED --limit 7": 7,
		fmt.Sprint("--status QUEUED --limit ", math.MaxInt): 8,
	} {
		o := taskguard(t, env, "status "+flags).done(t)
		cut := strings.Contains(o.err, "--limit shows more")
		if n := strings.Count(o.out, "\n") - 1; n != rows || cut != (rows < 8) {
			t.Errorf("%s: %d rows, want %d; %s", flags, n, rows, o.err)
		}
	}
}

// Of two kinds the second has the backlog. Eight ended and five were created in the last intervals.
func TestStatus_Summary(t *testing.T) {
	t.Parallel()
	env := store(t).with("KINDS", `[{"name": "job", "collection": "jobs"}, {}]`).with("LOCK_TTL", "2h")
	now, before := time.Now(), time.Now().Add(-150*time.Minute)
	for i := range 8 {
		put(t, env, fmt.Sprint("done", i), doc{
			"status": []string{"READY", "FAILED"}[i/6], "createdAt": []time.Time{now, before}[i/5],
			"startedAt": now, "updatedAt": now,
		})
	}
	for i := range 4 {
		put(t, env, fmt.Sprint("waits", i), doc{"status": "QUEUED", "createdAt": before, "updatedAt": ago(time.Hour)})
	}
	const keys = "at running waiting stuck since ended created drained_at intervals "
	const line = "status --summary --kind analysis"
	object := taskguard(t, env, line+" --json").done(t).object(t)
	object = wantKeys(t, object, keys+"oldest_created_at")
	wantValues(t, object, doc{"waiting": 4.0, "stuck": 0.0, "ended": 8.0, "created": 5.0})
	text := taskguard(t, env, line).done(t, "2h30m", "drained in", "2 of them FAILED",
		" 8         6       2  "+strings.Repeat("#", 30)+"xxxxxxxxxx\n").out
	if rows := strings.Count(text, "\n"); rows != 4+2+12 || longest(text) > 80 {
		t.Errorf("want 12 intervals in at most 80 columns:\n%s", text)
	}
	taskguard(t, env.with("LOCK_TTL", "30m"), line).done(t, "0 waiting, 4 stuck")
	for i := range 6 { // requeued, so that only failures are left
		put(t, env, fmt.Sprint("done", i), doc{"status": "QUEUED", "createdAt": now, "updatedAt": now})
	}
	taskguard(t, env, line).done(t, "all that end are FAILED")

	first := taskguard(t, env, "status --summary --json").done(t).object(t)
	wantValues(t, wantKeys(t, first, keys+"kind"), doc{"waiting": 0.0, "kind": "job"})
	taskguard(t, env, "status --summary").done(t, "nothing waits")
	put(t, env, "jobs/x", doc{"status": "QUEUED", "createdAt": "Nov 29, 2026", "updatedAt": now})
	taskguard(t, env, "status --summary").done(t, "1 waiting", "unknown")
}

// putDigest writes analyses in each section of a digest.
func putDigest(t *testing.T, env vars) {
	t.Helper()
	begin := time.Now() // equal times would be sorted by id
	at := func(ago time.Duration) string { return iso8601.Format(begin.Add(-ago)) }
	fail := func(id, code, message string, ago time.Duration, more doc) {
		fields := doc{"status": "FAILED", "updatedAt": at(ago), "error": doc{"code": code, "message": message}}
		maps.Copy(fields, more)
		put(t, env, id, fields)
	}
	down := doc{"lastError": doc{"code": "ocr_down", "message": "it is down\nand more"}}
	for i := range 4 {
		fail(fmt.Sprint("ocr", i), "attempts_exhausted", "attempt 3 was the last", time.Duration(9-i)*time.Minute, down)
	}
	const traceback = "Traceback (most recent call last):\n  File \"a.py\"\n"
	fail("py", "analyzer_rejected", traceback+"KeyError: 7", 2*time.Hour, nil)
	fail("py2", "analyzer_rejected", traceback+"KeyError: 8", time.Hour, nil)
	fail("old", "analyzer_rejected", "long ago", 25*time.Hour, nil)
	fail("gone", "cancelled", "cancelled by ana", time.Hour, nil)
	fail("order", "effect_uncertain", "may have been done", time.Hour, doc{
		"effects": doc{"charge": doc{"state": "started", "at": at(2 * time.Hour), "token": 1}}, "openEffects": 1,
	})
	for i := range 2 {
		stuck := at(time.Hour - time.Duration(i)*time.Minute)
		put(t, env, fmt.Sprint("stuck", i), doc{"status": "QUEUED", "updatedAt": stuck, "createdAt": stuck})
	}
	put(t, env, "bad", doc{"status": "QUEUED", "lockToken": "7", "updatedAt": at(50 * time.Minute)})
	lock := doc{
		"status": "PROCESSING", "attempts": 1, "lockToken": 1, "lockOwner": "w/1", "lockExpiresAt": at(-time.Minute),
	}
	run, dead := maps.Clone(lock), maps.Clone(lock)
	maps.Copy(run, doc{
		"startedAt": at(10 * time.Minute), "lockHeartbeatAt": at(2 * time.Second), "updatedAt": at(2 * time.Second),
		"progress": doc{"fraction": 0.42, "message": "page 3", "at": at(2 * time.Second)},
	})
	maps.Copy(dead, doc{"lockHeartbeatAt": at(4 * time.Minute), "updatedAt": at(4 * time.Minute)})
	put(t, env, "run", run)
	put(t, env, "dead", dead)
	put(t, env, "new", doc{"status": "QUEUED", "updatedAt": at(time.Second), "createdAt": at(time.Second)})
	put(t, env, "done", doc{"status": "READY", "attempts": 1, "updatedAt": at(0)})
}

func TestStatus_Digest(t *testing.T) {
	t.Parallel()
	env := store(t)
	taskguard(t, env, "status").done(t, "taskguard submit") // there is nothing yet
	if all := taskguard(t, env, "status --json").done(t).objects(t); len(all) > 0 {
		t.Errorf("%v", all)
	}
	putDigest(t, env)

	t.Run("it begins with what needs attention", func(t *testing.T) {
		o := taskguard(t, env, "status").done(t, "demo-test / (default) / analyses on the emulator ")
		wantOrder(t, o.out, "4 QUEUED, 2 PROCESSING, 1 READY, 9 FAILED\n",
			"\nNEEDS ATTENTION\n", "taskguard resolve ", "order  charge  2 h    FAILED\n",
			"taskguard recover\n", "stuck0  0    1 h ", "stuck1  0    59 min ",
			"taskguard unlock ID\n", "bad  0    50 min ", "taskguard unlock ID\n", "dead  1    4 min ",
			"\nFAILED IN THE LAST 24 HOURS: 6\n",
			"\n4 × ocr_down\n  4 × it is down (such as ocr3)\n  taskguard status --status FAILED --code ocr_down ",
			"\n2 × analyzer_rejected\n  1 × KeyError: 8 (py2)\n  1 × KeyError: 7 (py)\n",
			"\nRUNNING\n", "\nrun  1 ", "running for 10 min ", ", 42 %, page 3\n",
			"\nWAITING\n", "\nnew  0 ", "\nLAST UPDATED\n", "\ndone ")
	})
	t.Run("--limit bounds each section", func(t *testing.T) {
		taskguard(t, env, "status --limit 1").
			done(t, "stuck0", "and more; --limit", "and 1 other code; --limit", "the first 1 (--limit").
			lacks(t, "stuck1", "py")
	})
	t.Run("each analysis is one line of JSON", func(t *testing.T) {
		all := taskguard(t, env, "status --json").done(t).objects(t)
		got := ids(all)
		if !slices.Equal(got[:3], []string{"order", "stuck0", "stuck1"}) || len(got) != 16 {
			t.Errorf("%q", got)
		}
		if len(slices.Compact(slices.Sorted(slices.Values(got)))) != len(got) {
			t.Errorf("%q has one twice", got)
		}
	})
}
