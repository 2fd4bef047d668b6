package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/lease/iso8601"
)

const nasty = "a\n\x1b[2J\u202e\u200b\u009b"

// readingLine returns the first line that status prints on standard error.
func readingLine(env vars) string {
	return "taskguard status: reading demo-test / (default) / analyses on the emulator " + env["FIRESTORE_EMULATOR_HOST"] + "\n"
}

// objects are the lines of JSON that status prints.
func objects(t *testing.T, env vars, args ...string) []string {
	t.Helper()
	out := taskguard(t, env, append([]string{"status", "--json"}, args...)...).want(t, cli.ExitDone).out
	return strings.Split(strings.TrimSpace(out), "\n")
}

// states are the objects without what passes with the time.
func states(t *testing.T, env vars) (all []string) {
	t.Helper()
	for _, object := range objects(t, env) {
		all = append(all, regexp.MustCompile(`"why":".*?",?`).ReplaceAllString(object, ""))
	}
	return all
}

func TestStatusShowsWhoHoldsALockAndNoToken(t *testing.T) {
	t.Parallel()
	env := store(t)
	a := analyses(t, env)
	acq := locked(t, a, "held")
	create(t, a, "free")
	got := wantKeys(t, objects(t, env, "held")[0], "id", "status", "attempts", "created_at", "updated_at", "started_at", "why", "lock", "history", "input")
	held := wantKeys(t, string(must(json.Marshal(got["lock"]))(t)), "held", "owner", "expires_at")
	if held["held"] != true || held["owner"] != acq.Grant.Owner || got["status"] != "PROCESSING" {
		t.Errorf("%v, want PROCESSING, held by %s", got, acq.Grant.Owner)
	}
	taskguard(t, env, "status").want(t, cli.ExitDone, readingLine(env), "1 QUEUED, 1 PROCESSING, 0 READY, 0 FAILED\n",
		"\nRUNNING\n", "\nheld  1  ", "  running for ", "\nWAITING\n", "\nfree  0  ", "  in the queue\n")
	taskguard(t, env, "status", "held").want(t, cli.ExitDone, "id        held\n", "why       running for ", "lock      held by w/1", "\ncreated   ", "\nupdated   ")
	taskguard(t, env, "status", "missing").want(t, cli.ExitFailed, `no analysis "missing" in collection analyses of project demo-test`)
}

func TestStatusShowsWhyAnAnalysisIsParked(t *testing.T) {
	t.Parallel()
	env := store(t)
	key, now := fmt.Sprintf("%x", sha256.Sum256([]byte("acme"))), time.Now()
	for n := range 3 {
		put(t, env, fmt.Sprint("p", n), map[string]any{
			"status": "QUEUED", "tenant": "acme", "parkedAt": iso8601.Format(now.Add(-2 * time.Hour)),
			"parkedFor": fmt.Sprint(key, " ", iso8601.Format(now.Add(time.Duration(n)*time.Second))),
		})
	}
	slot := map[string]any{"analysis": "a", "lockExpiresAt": iso8601.Format(now.Add(time.Hour))}
	put(t, env, "analysesKeys/"+key, map[string]any{"key": "acme", "limit": 1, "waiting": true, "slots": map[string]any{"w/1": slot}})

	keyed := env.with("CONCURRENCY_KEY", "tenant")
	taskguard(t, keyed, "status", "p2").want(t, cli.ExitDone, "parked behind key acme: 1 of 1 run: a; 2 wait before it\n", "parked since ",
		"why       parked for 2 h 00 min behind key acme: 1 of 1 run, 2 wait before it; it starts when a run of the key ends\n")
	taskguard(t, keyed, "status").want(t, cli.ExitDone, "parked for 2 h 00 min\n")
	var shown struct {
		Key   string         `json:"key"`
		State map[string]any `json:"key_state"`
	}
	if err := json.Unmarshal([]byte(objects(t, keyed, "p0")[0]), &shown); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(map[string]any{"key": "acme", "limit": 1, "running": []any{"a"}, "parked": true, "before": 0})
	if got := fmt.Sprint(shown.State); got != want || shown.Key != "acme" {
		t.Errorf("%s, %s; want acme and %s", shown.Key, got, want)
	}
	taskguard(t, env, "status", "p2").want(t, cli.ExitDone, "id        p2\n", "free") // without the variable
}

// Records that are stored already have this id.
func TestStatusShowsTheResponseToAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	env := store(t)
	id := fmt.Sprintf("refund:%x", sha256.Sum256([]byte(`"acct 7" "k"`)))
	record := map[string]any{"status": "READY", "result": map[string]any{"status": 201, "header": map[string]any{}, "body": "eyJpZCI6MX0="}}
	put(t, env, "idempotency/"+id, record)
	asked := func(env vars, key, scope string) outcome {
		return taskguard(t, env, "status", "--idempotency-key", key, "--scope", scope, "--operation", "refund")
	}
	for _, key := range []string{"k", `"k"`} {
		asked(env, key, "acct 7").want(t, cli.ExitDone, "id        "+id+"\n", "status    READY\n", "response 201\n{\"id\":1}\n")
	}
	asked(env, "k", "acct").want(t, cli.ExitFailed, `no record of the Idempotency-Key "k" in collection idempotency of project demo-test: check --scope`)
	elsewhere := env.with("KINDS", `[{}, {"name": "do", "collection": "keys"}]`)
	asked(elsewhere, "k", "acct 7").want(t, cli.ExitFailed, "in collection keys of")
	put(t, env, "keys/"+id, map[string]any{"status": "FAILED", "error": map[string]any{"code": "response-streamed"}})
	asked(elsewhere, "k", "acct 7").want(t, cli.ExitDone, "response-streamed")
}

func TestTextOfDocumentsReachesTheTerminalEscaped(t *testing.T) {
	t.Parallel()
	env := store(t)
	id, last := "i\u202e\u200b", map[string]any{"code": nasty, "message": nasty}
	put(t, env, id, map[string]any{
		"status": nasty, "lockOwner": nasty, "lockToken": 1, "lockExpiresAt": time.Now().Add(30 * time.Minute), "finishedBy": nasty,
		"error": last, "lastError": last, "input": nasty, "result": map[string]any{nasty: nasty},
		"progress": map[string]any{"message": nasty, "at": time.Now()}, "history": []any{map[string]any{"owner": nasty, "outcome": nasty, "code": nasty, "message": nasty}},
	})
	for _, args := range [][]string{{"status"}, {"status", id}, {"requeue", id}, {"unlock", id}} {
		o := taskguard(t, env, args...)
		text := o.out + o.err
		if strings.ContainsAny(text, "\x1b\u202e\u200b\u009b") || !strings.Contains(text, `\u202e\u200b`) {
			t.Errorf("%q wrote %q", args, text)
		}
	}
	var one map[string]any
	if err := json.Unmarshal([]byte(objects(t, env, id)[0]), &one); err != nil || one["status"] != nasty || one["input"] != nasty {
		t.Errorf("%v, %v, want JSON to hold what the document does", one, err)
	}
}

func TestAMalformedDocumentIsListedAsMalformed(t *testing.T) {
	t.Parallel()
	env := store(t)
	put(t, env, "bad", map[string]any{"status": "QUEUED", "lockToken": "7"})
	put(t, env, "fine", map[string]any{"status": "QUEUED", "finishedBy": "w/0"}) // it was requeued
	// An id that we refuse, but that another program's lock holds.
	put(t, env, "a\x01", map[string]any{"status": "PROCESSING", "updatedAt": time.Now(), "lockOwner": "js/1", "lockExpiresAt": time.Now().Add(30 * time.Minute)})
	taskguard(t, env, "status").want(t, cli.ExitDone, "  taskguard unlock ID\n", "\n  bad  0             malformed: lockToken is a string, not a usable integer\n",
		"\n"+`a\x01  0  `, "  running\n", "\n  fine  0             recovery does not find it\n")
	if got := wantKeys(t, objects(t, env)[0], "id", "status", "attempts", "why", "lock", "malformed"); got["malformed"] != "lockToken is a string, not a usable integer" {
		t.Errorf("malformed: %v", got["malformed"])
	}
	taskguard(t, env, "status", "bad").want(t, cli.ExitFailed, "lockToken is a string")
	if o := taskguard(t, env, "status", "fine").want(t, cli.ExitDone); strings.Contains(o.out, "finished by") || strings.Contains(o.out, "ATTEMPT") {
		t.Errorf("it is not finished:\n%s", o.out)
	}
}

// The second attempt's worker has crashed; the third has the lock.
func TestStatusShowsProgressTheAttemptsAndTheErrors(t *testing.T) {
	t.Parallel()
	env := store(t)
	const at = "2026-01-02T03:04:05.678Z"
	attempt := func(n int, more map[string]any) map[string]any {
		a := map[string]any{"attempt": n, "token": n, "owner": "w/1", "startedAt": at}
		maps.Copy(a, more)
		return a
	}
	last := map[string]any{"code": "analyzer_failed", "message": "no memory\nat all"}
	put(t, env, "x", map[string]any{
		"status": "PROCESSING", "attempts": 3, "lockToken": 3, "lockOwner": "w/3", "lockExpiresAt": time.Now().Add(30 * time.Minute), "startedAt": at,
		"progress":   map[string]any{"fraction": 0.426, "message": "page 3 of 7", "at": iso8601.Format(time.Now().Add(-30 * time.Minute))},
		"checkpoint": map[string]any{"page": 3}, "lastError": last,
		"history": []any{attempt(1, map[string]any{"endedAt": "2026-01-02T03:04:07.178Z", "outcome": "retry", "code": "analyzer_failed", "message": "no memory\nat all"}), attempt(2, nil), attempt(3, nil)},
	})
	put(t, env, "y", map[string]any{"status": "READY", "lastError": last, "finishedBy": "w/9", "result": 3, "progress": map[string]any{"fraction": math.NaN()}, "history": []any{attempt(2, nil), "odd"}})
	put(t, env, "z", map[string]any{"status": "FAILED", "lastError": last, "error": map[string]any{"code": "final", "message": "over"}})

	taskguard(t, env, "status", "x").want(t, cli.ExitDone, "progress    43 %, page 3 of 7, reported 30m", "checkpoint  10 bytes; the next run continues from it",
		"last error  analyzer_failed: no memory\n            at all\n", "\n1        "+at+"  1.5s       retry               w\n         analyzer_failed: no memory\\nat all\n",
		"\n2        "+at+"             no end recorded         w\n3        "+at+"             running             w\n")
	taskguard(t, env, "status", "z").want(t, cli.ExitDone, "error       final: over\nlast error  analyzer_failed")
	ready := taskguard(t, env, "status", "y").want(t, cli.ExitDone, "finished by  w/9\n", "\nresult\n3\n") // another program has not deleted its last error
	for _, part := range []string{"running", "checkpoint", "analyzer_failed"} {
		if strings.Contains(ready.out, part) {
			t.Errorf("%s of a finished analysis:\n%s", part, ready.out)
		}
	}

	one := wantKeys(t, objects(t, env, "x")[0], "id", "status", "attempts", "started_at", "why", "lock", "progress", "last_error", "history", "checkpoint")
	history, _ := one["history"].([]any)
	if p, _ := one["progress"].(map[string]any); p["fraction"] != 0.426 || p["message"] != "page 3 of 7" || len(history) != 3 {
		t.Fatalf("%v", one)
	}
	wantKeys(t, string(must(json.Marshal(history[0]))(t)), "attempt", "owner", "started_at", "ended_at", "outcome", "code", "message")
	lines := objects(t, env)
	wantKeys(t, lines[0], "id", "status", "attempts", "started_at", "why", "lock", "progress", "last_error")
	wantKeys(t, lines[1], "id", "status", "attempts", "why", "lock", "finished_by", "progress")
	wantKeys(t, lines[2], "id", "status", "attempts", "why", "lock", "error", "last_error")
}

// The first crash was beside other runs, and the second alone, after two delays.
func TestStatusShowsWhereAnAttemptCrashedAndWhetherItRanAlone(t *testing.T) {
	t.Parallel()
	env := store(t)
	const at, end = "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:07.178Z"
	crash := func(number int, owner string, more map[string]any) map[string]any {
		a := map[string]any{
			"attempt": number, "token": number, "owner": owner, "startedAt": at, "endedAt": end, "outcome": "crashed",
		}
		maps.Copy(a, more)
		return a
	}
	put(t, env, "killer", map[string]any{
		"status": "QUEUED", "attempts": 2, "lockToken": 2, "updatedAt": end,
		"lastError": map[string]any{"code": "crashed", "message": "its worker died"},
		"history": []any{
			crash(1, "worker-00042-kib/0087244a/9F2C", map[string]any{"delays": 2}),
			crash(2, "worker-00042-kib/1193/9F2D", map[string]any{"alone": true, "changes": []any{
				map[string]any{"change": "unlocked", "by": "ana", "at": end}, map[string]any{"change": "requeued", "by": "me@here", "at": end},
			}}),
		},
	})

	one := taskguard(t, env, "status", "killer").want(t, cli.ExitDone, "last error  crashed: its worker died",
		"ATTEMPT  STARTED                   DURATION   OUTCOME      ALONE  INSTANCE\n",
		"\n1        "+at+"  1.5s       crashed             worker-00042-kib/0087244a\n"+
			"         the next attempt was delayed 2 times: the instance was busy\n"+
			"2        "+at+"  1.5s       crashed      alone  worker-00042-kib/1193\n"+
			"         unlocked by ana at "+end+"\n"+
			"         requeued by me@here at "+end+"\n")
	if n := strings.Count(one.out, "delayed"); n != 1 {
		t.Errorf("%d attempts are delayed:\n%s", n, one.out)
	}
	taskguard(t, env, "status", "--code", "crashed").want(t, cli.ExitDone, "killer  QUEUED", "last: crashed")

	shown := wantKeys(t, objects(t, env, "killer")[0], "id", "status", "attempts", "updated_at", "why", "lock", "last_error", "history")
	history, _ := shown["history"].([]any)
	keys := []string{"attempt", "owner", "started_at", "ended_at", "outcome"}
	wantKeys(t, string(must(json.Marshal(history[0]))(t)), append(keys, "delays")...)
	wantKeys(t, string(must(json.Marshal(history[1]))(t)), append(keys, "alone", "changes")...)
}

func TestStatusShowsTheNextAttempt(t *testing.T) {
	t.Parallel()
	env := store(t)
	next := iso8601.Format(time.Now().Add(570 * time.Second).Truncate(time.Second).Add(123 * time.Millisecond)) // JSON drops a last zero
	put(t, env, "waits", map[string]any{"status": "QUEUED", "attempts": 6, "lockToken": 6, "nextAttemptAt": next})
	put(t, env, "late", map[string]any{"status": "QUEUED", "nextAttemptAt": "2026-01-02T03:04:05.678Z"})
	taskguard(t, env, "status", "waits").want(t, cli.ExitDone, "next attempt  "+next+", 9m")
	taskguard(t, env, "status", "late").want(t, cli.ExitDone, "next attempt  2026-01-02T03:04:05.678Z\n")
	taskguard(t, env, "status").want(t, cli.ExitDone, "next attempt in 9 min ", "recovery does not find it\n")
	if got := wantKeys(t, objects(t, env, "waits")[0], "id", "status", "attempts", "why", "lock", "next_attempt_at"); got["next_attempt_at"] != next {
		t.Errorf("%v, want %s", got, next)
	}
}

func TestAListReportsThatThereIsMoreOnlyWhereThereIs(t *testing.T) {
	t.Parallel()
	env := store(t)
	for i := range 8 {
		put(t, env, fmt.Sprintf("a%03d", i), map[string]any{"status": "QUEUED", "updatedAt": time.Unix(int64(i), 0)})
	}
	for args, rows := range map[string]int{
		"status --unfinished --limit 7": 7, "status --status QUEUED --limit 7": 7, "status --unfinished --limit 8": 8,
		fmt.Sprint("status --status QUEUED --limit ", math.MaxInt): 8,
	} {
		want := readingLine(env)
		if rows == 7 {
			want += "taskguard status: the first 7; --limit shows more\n"
		}
		if o := taskguard(t, env, strings.Fields(args)...).want(t, cli.ExitDone); o.err != want || strings.Count(o.out, "\n") != rows+1 {
			t.Errorf("%s: %d lines and %q, want %d and %q", args, strings.Count(o.out, "\n"), o.err, rows+1, want)
		}
	}
}

// Of two kinds the second has the backlog. Eight ended and five were created in the last intervals.
func TestTheSummaryShowsTheBacklogOfAKind(t *testing.T) {
	t.Parallel()
	env := store(t).with("KINDS", `[{"name": "job", "collection": "jobs"}, {}]`).with("LOCK_TTL", "2h")
	now, ago := time.Now(), time.Now().Add(-150*time.Minute)
	for i := range 8 {
		put(t, env, fmt.Sprint("done", i), map[string]any{"status": []string{"READY", "FAILED"}[i/6], "createdAt": []time.Time{now, ago}[i/5], "startedAt": now, "updatedAt": now})
	}
	for i := range 4 {
		put(t, env, fmt.Sprint("waits", i), map[string]any{"status": "QUEUED", "createdAt": ago, "updatedAt": now.Add(-time.Hour)})
	}
	summary := func(env vars, want ...string) {
		t.Helper()
		o := taskguard(t, env, "status", "--summary", "--kind", "analysis").want(t, cli.ExitDone, want...)
		for _, row := range strings.Split(o.out, "\n") {
			if len(row) > 80 || strings.Count(o.out, "\n") != 4+2+12 {
				t.Errorf("%q is longer than 80, or there are not 12 intervals in\n%s", row, o.out)
			}
		}
	}
	taskguard(t, env, "status", "--summary").want(t, cli.ExitDone, "0 running, 0 waiting, 0 stuck\nnothing waits\n0 ended", "  0         0       0  \n") // the first kind has nothing
	summary(env, "0 running, 4 waiting, 0 stuck\nthe oldest was created 2h30m", " ago\ndrained in about ", " at this rate, FAILED included, if none are created\n8 ended, 2 of them FAILED, and 5 were created since ", "  8         6       2  "+strings.Repeat("#", 30)+"xxxxxxxxxx\n")
	summary(env.with("LOCK_TTL", "30m"), "0 running, 0 waiting, 4 stuck\n")

	keys := []string{"at", "running", "waiting", "stuck", "since", "ended", "created", "drained_at", "intervals"}
	wantKeys(t, objects(t, env, "--summary")[0], append(keys, "kind")...)
	wantKeys(t, objects(t, env, "--summary", "--kind", "analysis")[0], append(keys, "oldest_created_at")...)
	for i := range 3 { // requeued
		put(t, env, fmt.Sprint("done", i), map[string]any{"status": "QUEUED", "createdAt": now, "updatedAt": now})
	}
	summary(env, "0 running, 7 waiting, 0 stuck\n", "drained in about ", " at this rate, FAILED included, if none are created\n5 ended, 2 of them FAILED, and 5 were created since ")
	for i := range 3 { // only failures are left
		put(t, env, fmt.Sprint("done", i+3), map[string]any{"status": "QUEUED", "createdAt": now, "updatedAt": now})
	}
	summary(env, "\nnot drained: all that end are FAILED\n2 ended, 2 of them FAILED, and 6 were created since ")
	put(t, env, "jobs/x", map[string]any{"status": "QUEUED", "createdAt": "Nov 29, 2026", "updatedAt": now})
	taskguard(t, env, "status", "--summary").want(t, cli.ExitDone, "1 waiting, 0 stuck\nthe age of the oldest is unknown\n")
}

// Of each section, status shows what --limit allows. Each analysis is in one section, and in --json one line.
func TestStatusBeginsWithWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	env := store(t)
	taskguard(t, env, "status").want(t, cli.ExitDone, "There is nothing yet in collection analyses.", "\n  taskguard submit --input ")
	if o := taskguard(t, env, "status", "--json").want(t, cli.ExitDone); o.out != "" {
		t.Errorf("%q", o.out)
	}
	begin := time.Now() // equal times would be sorted by id
	at := func(ago time.Duration) string { return iso8601.Format(begin.Add(-ago)) }
	fail := func(id, code, message string, ago time.Duration, more map[string]any) {
		fields := map[string]any{"status": "FAILED", "attempts": 3, "updatedAt": at(ago), "error": map[string]any{"code": code, "message": message}}
		maps.Copy(fields, more)
		put(t, env, id, fields)
	}
	for i := range 4 {
		fail(fmt.Sprint("ocr", i), "attempts_exhausted", "attempt 3 was the last: it is down", time.Hour,
			map[string]any{"lastError": map[string]any{"code": "ocr_down", "message": "it is down\nand more"}})
	}
	fail("py", "analyzer_rejected", "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 7", time.Hour, nil)
	fail("py2", "analyzer_rejected", "Traceback (most recent call last):\n  File \"b.py\"\nKeyError: 8", time.Hour, nil)
	fail("old", "analyzer_rejected", "long ago", 25*time.Hour, nil)
	fail("gone", "cancelled", "cancelled by ana", time.Hour, nil)
	fail("order", "effect_uncertain", "may have been done", time.Hour, map[string]any{
		"effects": map[string]any{"charge": map[string]any{"state": "started", "at": at(2 * time.Hour), "token": 1}}, "openEffects": 1,
	})
	for i := range 2 {
		put(t, env, fmt.Sprint("stuck", i), map[string]any{"status": "QUEUED", "updatedAt": at(time.Hour), "createdAt": at(time.Hour)})
	}
	put(t, env, "bad", map[string]any{"status": "QUEUED", "lockToken": "7", "updatedAt": at(50 * time.Minute)})
	put(t, env, "run", map[string]any{
		"status": "PROCESSING", "attempts": 1, "lockToken": 1, "lockOwner": "w/1/x", "lockExpiresAt": at(-time.Minute), "startedAt": at(10 * time.Minute),
		"lockHeartbeatAt": at(2 * time.Second), "updatedAt": at(2 * time.Second),
		"progress": map[string]any{"fraction": 0.42, "message": "page 3", "at": at(2 * time.Second)},
	})
	put(t, env, "dead", map[string]any{
		"status": "PROCESSING", "lockToken": 1, "lockOwner": "w/2/x", "lockExpiresAt": at(-time.Minute), "lockHeartbeatAt": at(4 * time.Minute), "updatedAt": at(4 * time.Minute),
	})
	put(t, env, "new", map[string]any{"status": "QUEUED", "updatedAt": at(time.Second), "createdAt": at(time.Second)})
	put(t, env, "done", map[string]any{"status": "READY", "attempts": 1, "updatedAt": at(0)})

	o := taskguard(t, env, "status").want(t, cli.ExitDone)
	const want = `4 QUEUED, 2 PROCESSING, 1 READY, 9 FAILED

NEEDS ATTENTION
A side effect may have happened. Find out, then answer:
  taskguard resolve ID NAME (--done JSON | --not-done)
  ID     NAME    SINCE  STATUS
  order  charge  2 h    FAILED
No delivery came, and recovery does not seem to run. Check its job, or enqueue them now:
  taskguard recover
  ID      TRY  UPDATED  NOW
  stuck0  0    1 h      stuck: no delivery came
  stuck1  0    1 h      stuck: no delivery came
No worker can run these. If the lock is malformed, repair it:
  taskguard unlock ID
  ID   TRY  UPDATED  NOW
  bad  0    50 min   malformed: lockToken is a string, not a usable integer
The worker seems to be dead. Another takes over when the lock expires, or now:
  taskguard unlock ID
  ID    TRY  UPDATED  NOW
  dead  0    4 min    its worker seems to be dead

FAILED IN THE LAST 24 HOURS: 6
Each command lists its analyses; --message TEXT selects one message. Once the cause is fixed, requeue instead of status runs them again.
4 × ocr_down
  4 × it is down (such as ocr3)
  taskguard status --status FAILED --code ocr_down --since 24h
2 × analyzer_rejected
  1 × KeyError: 8 (py2)
  1 × KeyError: 7 (py)
  taskguard status --status FAILED --code analyzer_rejected --since 24h

RUNNING
ID   TRY  UPDATED  NOW
run  1    0 s      running for 10 min 00 s, 42 %, page 3

WAITING
ID   TRY  UPDATED  NOW
new  0    0 s      in the queue

LAST UPDATED
ID    STATUS  TRY  UPDATED  NOW
`
	plain := func(text string) string { // a slow machine is some seconds late, and its columns are wider
		return regexp.MustCompile(` +`).ReplaceAllString(regexp.MustCompile(`\d+ s\b`).ReplaceAllString(text, "N s"), " ")
	}
	if !strings.HasPrefix(plain(o.out), plain(want)) {
		t.Errorf("%s\nwant\n%s", o.out, want)
	}
	few := taskguard(t, env, "status", "--limit", "1").want(t, cli.ExitDone, "  stuck0 ", "  and more; --limit shows them\n",
		"4 × ocr_down", "and 1 other code; --limit shows more\n", "LAST UPDATED, the first 1 (--limit shows more)\n")
	if strings.Contains(few.out, "stuck1") || strings.Contains(few.out, "py") {
		t.Errorf("more than one of a section:\n%s", few.out)
	}

	var ids []string
	for _, line := range objects(t, env) {
		var a struct{ ID, Why string }
		if err := json.Unmarshal([]byte(line), &a); err != nil || a.Why == "" {
			t.Errorf("%s: %v", line, err)
		}
		ids = append(ids, a.ID)
	}
	if got := strings.Join(ids, " "); !strings.HasPrefix(got, "order stuck0 stuck1 ") || strings.Count(got, " ") != 15 ||
		len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 16 {
		t.Errorf("%s", got)
	}
}
