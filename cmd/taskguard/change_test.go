package main

import (
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

// wantChanged fails unless the JSON of a change of one analysis has these values.
func wantChanged(t *testing.T, o outcome, id, was, status, delivery string) {
	t.Helper()
	object := wantKeys(t, o.object(t), "id was status lock_was delivery")
	wantValues(t, object, doc{"id": id, "was": was, "status": status, "delivery": delivery})
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	t.Run("it takes the lock, books a delivery, and logs both", func(t *testing.T) {
		locked(t, a, "x")
		o := taskguard(t, q.env, "unlock x --json").done(t,
			"command=unlock", "analysis_id=x", "lock_owner=w/1", "by=", "2m10s") // for which two runs may overlap
		wantChanged(t, o, "x", "PROCESSING", "QUEUED", "booked")
		q.wantTasks(t, 1)
	})
	t.Run("a finished one needs no delivery", func(t *testing.T) {
		put(t, q.env, "done", doc{"status": "READY"})
		taskguard(t, q.env, "unlock done").done(t, "READY", "nothing is changed")
		taskguard(t, q.env, "unlock missing").fails(t, `"missing"`)
		q.wantTasks(t, 1)
	})
	t.Run("without a queue only the document changes", func(t *testing.T) {
		locked(t, a, "y")
		o := taskguard(t, q.without(), "unlock y --json").done(t, "TASK_QUEUE is not set")
		wantValues(t, o.object(t), doc{"delivery": "none"})
		wantValues(t, fieldsOf(t, q.env, "y"), doc{"lockOwner": nil, "status": "QUEUED"})
	})
	t.Run("a change whose delivery cannot be booked fails", func(t *testing.T) {
		locked(t, a, "z")
		taskguard(t, q.missing(), "unlock z").fails(t, "the document changed", "repeat the command")
		taskguard(t, q.missing(), "submit --input {} --id new").
			fails(t, "correct TASK_QUEUE", "the document exists", "repeat the command")
	})
}

func TestUnlock_Room(t *testing.T) {
	t.Parallel()
	env := store(t)
	locks := must.Get(document.New(rooms(t, env), 0))(t)
	acquire := func() document.Lock { return must.Get(locks.Acquire(t.Context(), "a room", "browser"))(t).Lock }
	lock := acquire()
	unlock := func(env vars, parts ...string) outcome {
		return taskguard(t, env, "unlock --json --room", "a room").done(t, parts...)
	}
	o := unlock(env, "command=unlock", "room_hash=", "by=", "lock_holder="+lock.Holder, "level=INFO")
	object := wantKeys(t, o.object(t), "room unlocked lock_was")
	wantValues(t, object, doc{"room": "a room", "unlocked": true})
	was := wantKeys(t, object["lock_was"], "holder token locked_at expires_at")
	wantValues(t, was, doc{"holder": lock.Holder, "token": float64(lock.Token)})
	if strings.Contains(o.err, "a room") {
		t.Errorf("a user's input is in the log: %s", o.err)
	}
	unlock(env, `"unlocked":false`)

	acquire()
	elsewhere := env.with("FIRESTORE_DATABASE", "analyses") // the rooms may have a database of their own
	taskguard(t, elsewhere, "unlock --room", "a room").done(t, "it was not locked")
	taskguard(t, elsewhere.with("DOCLOCK_DATABASE", "(default)"), "unlock --room", "a room").done(t, "unlocked")
	for _, room := range []string{"a/b", strings.Repeat("x", 513)} {
		taskguard(t, env, "unlock --room "+room).refused(t, "--room")
	}
}

// A finished analysis has nothing to cancel; a cancelled one is as wanted.
func TestCancel(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	locked(t, a, "held")
	o := taskguard(t, q.env, "cancel held --json").
		done(t, "command=cancel", "analysis_id=held", "status_was=PROCESSING", "lock_owner=w/1")
	wantChanged(t, o, "held", "PROCESSING", "FAILED", "not_needed")
	d := must.Get(a.Get(t.Context(), "held"))(t)
	if d.Error == nil || d.Error.Code != analysislock.Cancelled {
		t.Fatalf("%+v, want it cancelled", d)
	}
	if who := strings.TrimPrefix(d.Error.Message, "cancelled by "); !strings.Contains(o.err, "by="+who) {
		t.Errorf("cancelled by %s, and logged as\n%s", who, o.err)
	}
	taskguard(t, q.env.with("TASK_QUEUE", "unused"), "cancel held").done(t, "nothing is changed")
	locked(t, a, "running")
	create(t, a, "waiting")
	taskguard(t, q.env, "cancel running waiting").done(t, "next heartbeat", "it was QUEUED")
	put(t, q.env, "done", doc{"status": "READY"})
	taskguard(t, q.env, "cancel done").fails(t, `"done" is finished`)
	q.wantTasks(t, 0)

	// A deleted id may be submitted again. Its tokens must be larger than those of the one before.
	t.Run("it is kept as the workers keep those that they finish", func(t *testing.T) {
		taskguard(t, q.env, "submit --input 1 --id x").done(t)
		taskguard(t, q.env.with("KEEP_FINISHED", "1000h"), "cancel x").done(t)
		fields := fieldsOf(t, q.env, "x")
		kept := time.Until(fields["expireAt"].(time.Time)) - 1000*time.Hour
		if kept.Abs() > time.Hour || fields["lockToken"].(int64) < 1e15 {
			t.Errorf("%v, want it to expire in 1000 h, and a token of the time", fields)
		}
	})
}

func TestDelete(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	put(t, q.env, "done", doc{"status": "READY", "input": "personal", "result": "personal"})
	create(t, a, "waiting")
	locked(t, a, "held")
	o := taskguard(t, q.env, "delete done held --json").
		fails(t, "command=delete", "analysis_id=done", "status_was=READY", `"held" is locked by w/1`).
		lacks(t, "personal")
	wantChanged(t, o, "done", "READY", "DELETED", "not_needed")
	taskguard(t, q.env, "delete done nosuch").fails(t, `"done"`, `"nosuch"`).lacks(t, "changed by")
	taskguard(t, q.env, "delete waiting").done(t, "it was QUEUED")
	taskguard(t, q.env, "cancel held").done(t)
	taskguard(t, q.env, "delete held").done(t)
	taskguard(t, q.env, "status").done(t, "There is nothing")
	q.wantTasks(t, 0)
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	locked(t, analyses(t, q.env), "held")
	for _, id := range []string{"a", "b"} {
		put(t, q.env, id, doc{"status": "FAILED", "error": doc{"code": "c"}, "checkpoint": 4})
	}
	change := func(line, want string, refused ...string) {
		t.Helper()
		changed := ids(taskguard(t, q.env, line+" --json").fails(t, refused...).objects(t))
		if got := strings.Join(changed, " "); got != want {
			t.Errorf("%s changed %q, want %q", line, got, want)
		}
	}
	change("requeue a held missing b", "a b", `"held" is locked by w/1`, `"missing"`)
	q.wantTasks(t, 2)
	taskguard(t, q.env, "requeue a --fresh").done(t, "command=requeue-fresh")
	for id, kept := range map[string]bool{"a": false, "b": true} {
		if fields := fieldsOf(t, q.env, id); (fields["checkpoint"] != nil) != kept {
			t.Errorf("%s: %v, want its checkpoint kept: %t", id, fields, kept)
		}
	}
	q.wantTasks(t, 3)
	put(t, q.env, "b", doc{"status": "READY"})
	change("cancel a b held", "a held", `"b" is finished`)
	q.wantTasks(t, 3)
}
