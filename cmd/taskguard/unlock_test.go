package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
	"taskguard/repo"
)

var changedKeys = []string{"id", "was", "status", "lock_was", "delivery"}

func TestUnlockTakesTheLockAndBooksADelivery(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	locked(t, a, "x")
	locked(t, a, "y")
	o := taskguard(t, q.env, "unlock", "x", "--json").want(t, cli.ExitDone, "changed by an operator", "command=unlock", "analysis_id=x", "lock_owner=w/1", "by=", "taskguard unlock: x was locked: if its worker is alive, its run and the next one overlap for up to 2m10s\n")
	if got := wantKeys(t, o.out, changedKeys...); got["was"] != "PROCESSING" || got["status"] != "QUEUED" || got["delivery"] != "booked" {
		t.Errorf("%s, want PROCESSING, QUEUED, booked", o.out)
	}
	q.wantTasks(t, 1)
	put(t, q.env, "done", map[string]any{"status": "READY"})
	taskguard(t, q.env, "unlock", "done").want(t, cli.ExitDone, "done is READY; it is finished and needs no delivery", "status_was=READY", "nothing is changed")
	taskguard(t, q.env, "unlock", "missing").want(t, cli.ExitFailed, `no analysis "missing"`)
	q.wantTasks(t, 1)
	put(t, q.env, "waiting", map[string]any{"status": "QUEUED", "attempts": 1, "lockToken": 1, "nextAttemptAt": "2026-01-02T03:04:05.678Z"})
	taskguard(t, q.env, "unlock", "waiting").want(t, cli.ExitDone, "changed by an operator") // its next attempt is gone

	without := q.env.without("TASK_QUEUE", "TASK_TARGET_URL", "CLOUD_TASKS_EMULATOR_HOST")
	o = taskguard(t, without, "unlock", "y").want(t, cli.ExitDone)
	if o.out != "y is QUEUED; not enqueued: TASK_QUEUE is not set, or this is a record of Do\n" || strings.Count(o.err, "\n") != 2 {
		t.Errorf("stdout %q, stderr %q", o.out, o.err)
	}
	taskguard(t, without, "unlock", "y", "--json").want(t, cli.ExitDone, `"delivery":"none"`, "TASK_QUEUE is not set", "nothing was enqueued")
	if d, err := a.Get(t.Context(), "y"); err != nil || d.Lock.Owner != "" || d.Status != analysislock.Queued {
		t.Errorf("%+v, %v, want it free and QUEUED", d, err)
	}
}

// A finished analysis has nothing to cancel; a cancelled one is as wanted.
func TestCancelEndsAnAnalysisAndBooksNoDelivery(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	locked(t, a, "held")
	put(t, q.env, "done", map[string]any{"status": "READY"})
	o := taskguard(t, q.env, "cancel", "held", "--json").
		want(t, cli.ExitDone, "changed by an operator", "command=cancel", "analysis_id=held", "status_was=PROCESSING", "lock_owner=w/1", "by=")
	if got := wantKeys(t, o.out, changedKeys...); got["was"] != "PROCESSING" || got["status"] != "FAILED" || got["delivery"] != "not_needed" {
		t.Errorf("%s, want PROCESSING, FAILED, not_needed", o.out)
	}
	d, err := a.Get(t.Context(), "held")
	if err != nil || d.Error == nil || d.Error.Code != analysislock.Cancelled || !strings.Contains(o.err, "by="+strings.TrimPrefix(d.Error.Message, "cancelled by ")) {
		t.Errorf("%+v, %v, want it cancelled by the operator of the log:\n%s", d, err, o.err)
	}
	taskguard(t, q.env.with("TASK_QUEUE", "unused"), "cancel", "held").want(t, cli.ExitDone, "held is FAILED; it was cancelled before: nothing is changed\n")
	locked(t, a, "running")
	create(t, a, "waiting")
	taskguard(t, q.env, "cancel", "running", "waiting").
		want(t, cli.ExitDone, "running is FAILED; its run ends at its next heartbeat\n", "waiting is FAILED; it was QUEUED\n")
	taskguard(t, q.env, "cancel", "done").want(t, cli.ExitFailed, `taskguard cancel: "done" is finished: there is nothing to cancel`)
	q.wantTasks(t, 0)
}

func TestDeleteErasesAnAnalysisUnlessItIsLocked(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	put(t, q.env, "done", map[string]any{"status": "READY", "input": "personal", "result": "personal"})
	create(t, a, "waiting")
	locked(t, a, "held")
	o := taskguard(t, q.env, "delete", "done", "held", "--json").
		want(t, cli.ExitFailed, "changed by an operator", "command=delete", "analysis_id=done", "status_was=READY", "by=",
			`taskguard delete: "held" is locked by w/1 until `)
	if got := wantKeys(t, o.out, changedKeys...); got["id"] != "done" || got["was"] != "READY" || got["status"] != "DELETED" || got["delivery"] != "not_needed" || strings.Contains(o.out+o.err, "personal") {
		t.Errorf("%s%s, want done alone, without its contents", o.out, o.err)
	}
	missing := taskguard(t, q.env, "delete", "done", "nosuch", "--json").want(t, cli.ExitFailed, `delete: no analysis "done" in`, `delete: no analysis "nosuch" in`)
	if missing.out != "" || strings.Contains(missing.err, "changed by") {
		t.Errorf("%s%s, want nothing changed and logged", missing.out, missing.err)
	}
	taskguard(t, q.env, "delete", "waiting").want(t, cli.ExitDone, "waiting is DELETED; it was QUEUED\n")
	taskguard(t, q.env, "cancel", "held").want(t, cli.ExitDone)
	taskguard(t, q.env, "delete", "held").want(t, cli.ExitDone, "held is DELETED; it was FAILED\n")
	taskguard(t, q.env, "delete").want(t, cli.ExitUsage)
	if left, err := a.Find(t.Context(), repo.Filter{All: true}, "", 10); err != nil || len(left) != 0 {
		t.Errorf("%+v, %v, want no documents", left, err)
	}
	q.wantTasks(t, 0)
}

// A deleted id may be submitted again. Its tokens must be larger than those of the one before.
func TestACancelledAnalysisIsKeptAsTheWorkersKeepThoseThatTheyFinish(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	env := q.env.with("KEEP_FINISHED", "1000h")
	taskguard(t, env, "submit", "--input", "1", "--id", "x").want(t, cli.ExitDone)
	taskguard(t, env, "cancel", "x").want(t, cli.ExitDone)
	snap := must(fieldsOf(t, env, "x").Get(t.Context()))(t)
	fields := snap.Data()
	expires, _ := fields["expireAt"].(time.Time)
	if kept := expires.Sub(snap.UpdateTime); kept < 999*time.Hour || kept > 1001*time.Hour || fields["lockToken"].(int64) < 1e15 {
		t.Errorf("%v, want it to expire in 1000 h, and a token of the time", fields)
	}
	taskguard(t, env.with("KEEP_FINISHED", "767h"), "cancel", "x").want(t, cli.ExitUsage, "KEEP_FINISHED: 767h0m0s is under 768h")
}

func TestAChangeOfSeveralAnalysesPassesOverThoseThatAreRefused(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	locked(t, analyses(t, q.env), "held")
	for _, id := range []string{"a", "b"} {
		put(t, q.env, id, map[string]any{"status": "FAILED", "error": map[string]any{"code": "c"}, "checkpoint": 4})
	}
	changed := func(o outcome) (ids []string) {
		for line := range strings.Lines(o.out) {
			got := wantKeys(t, line, changedKeys...)
			ids = append(ids, got["id"].(string)+" "+got["status"].(string))
		}
		return ids
	}
	o := taskguard(t, q.env, "requeue", "a", "held", "missing", "b", "--json").
		want(t, cli.ExitFailed, "taskguard requeue: \"held\" is locked by w/1 until ", ", and longer if its worker renews the lock; cancel it or, if its worker is dead, only unlock it\n", "taskguard requeue: no analysis \"missing\" ")
	if got := changed(o); !slices.Equal(got, []string{"a QUEUED", "b QUEUED"}) {
		t.Errorf("changed %q, want a and b", got)
	}
	q.wantTasks(t, 2)
	fresh := taskguard(t, q.env, "requeue", "a", "--fresh").want(t, cli.ExitDone, "command=requeue-fresh")
	for id, kept := range map[string]bool{"a": false, "b": true} {
		if fields := must(fieldsOf(t, q.env, id).Get(t.Context()))(t).Data(); (fields["checkpoint"] != nil) != kept {
			t.Errorf("%s: %v, want its checkpoint kept: %t\n%s", id, fields, kept, fresh.err)
		}
	}
	q.wantTasks(t, 3)
	put(t, q.env, "b", map[string]any{"status": "READY"})
	o = taskguard(t, q.env, "cancel", "a", "b", "held", "--json").want(t, cli.ExitFailed, "taskguard cancel: \"b\" is finished")
	if got := changed(o); !slices.Equal(got, []string{"a FAILED", "held FAILED"}) {
		t.Errorf("changed %q, want a and held", got)
	}
	q.wantTasks(t, 3)
}

func TestAChangeThatCannotBookItsDeliveryExits1(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	locked(t, analyses(t, q.env), "x")
	env := q.env.with("TASK_QUEUE", queueName+"-missing")
	taskguard(t, env, "unlock", "x").want(t, cli.ExitFailed, "the document changed, but", "repeat the command")
	taskguard(t, env, "submit", "--input", "{}", "--id", "new").
		want(t, cli.ExitFailed, "new: the queue does not exist: correct TASK_QUEUE (the document exists, but may not be enqueued: ", "repeat the command")
}

func TestUnlockOfARoomTakesItsLock(t *testing.T) {
	env := store(t)
	locks := must(document.New(rooms(t, env), 0))(t)
	acquire := func() document.Lock { return must(locks.Acquire(t.Context(), "a room", "browser"))(t).Lock }
	lock := acquire()
	o := taskguard(t, env, "unlock", "--room", "a room", "--json").
		want(t, cli.ExitDone, "command=unlock", "unlocked=true", "room_hash=", "by=", "lock_holder="+lock.Holder, "level=INFO")
	got := wantKeys(t, o.out, "room", "unlocked", "lock_was")
	held := wantKeys(t, string(must(json.Marshal(got["lock_was"]))(t)), "holder", "token", "locked_at", "expires_at")
	if got["room"] != "a room" || got["unlocked"] != true || held["holder"] != lock.Holder || held["token"] != float64(lock.Token) || strings.Contains(o.err, "a room") {
		t.Errorf("%s, want the lock of %+v, and no name in the log: %s", o.out, lock, o.err)
	}
	taskguard(t, env, "unlock", "--room", "a room").want(t, cli.ExitDone, "room a room is free: it was not locked", "unlocked=false")

	// The rooms may have a database of their own.
	acquire()
	elsewhere := env.with("FIRESTORE_DATABASE", "analyses")
	taskguard(t, elsewhere, "unlock", "--room", "a room").want(t, cli.ExitDone, "room a room is free")
	taskguard(t, elsewhere.with("DOCLOCK_DATABASE", "(default)"), "unlock", "--room", "a room").want(t, cli.ExitDone, "room a room is unlocked")
	for _, room := range []string{"a/b", "..", "__x__", strings.Repeat("x", 513)} {
		taskguard(t, env, "unlock", "--room", room).want(t, cli.ExitUsage, "taskguard unlock: --room: the room id ")
	}
}
