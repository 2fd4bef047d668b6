package repo

import (
	"errors"
	"log/slog"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

// silent returns a codec of analyses that logs nothing.
func silent(f Fields) analysisCodec {
	lock := lockCodec{log: slog.New(slog.DiscardHandler), name: analysisName}
	return analysisCodec{lockCodec: lock, fields: f.filled()}
}

// deleted stands for firestore.Delete.
const deleted = "(deleted)"

// Each change of an analysis writes these fields, beside updatedAt, and no others.
func TestChanges(t *testing.T) {
	type analysis = analysislock.Analysis
	now := time.Date(2026, 1, 2, 3, 4, 5, 678_999_999, time.UTC)
	const stamp, old = "2026-01-02T03:04:05.678Z", "2026-01-01T00:00:00.000Z"
	failure := func(code string) doc { return doc{"code": code, "message": "m"} }
	running := func(more doc) doc {
		return with(doc{
			"status": "PROCESSING", "attempts": int64(2), "lastError": failure("c"), "updatedAt": old,
			"lockToken": int64(3), "lockOwner": "w/1", "lockHeartbeatAt": old, "lockExpiresAt": old,
		}, more)
	}
	free := func(a *analysis) { a.Lock.Owner, a.Lock.HeartbeatAt, a.Lock.ExpiresAt = "", time.Time{}, time.Time{} }
	freed := func(more doc) doc {
		return with(doc{"lockOwner": deleted, "lockHeartbeatAt": deleted, "lockExpiresAt": deleted}, more)
	}
	finish := func(status string, e *analysislock.Error) func(*analysis) {
		return func(a *analysis) {
			free(a)
			a.Lock.Finished, a.Lock.FinishedBy = true, "w/1"
			if a.Status, a.Result, a.Error = status, "new", e; e == nil {
				a.LastError = nil
			}
		}
	}
	ended := doc{"nextAttemptAt": deleted, "finishedBy": "w/1"}
	ready := with(ended, doc{"status": "READY", "result": "new", "error": deleted, "lastError": deleted})
	forget := func(a *analysis) { a.LastError = nil }
	forgotten := func(more doc) doc { return with(doc{"lastError": deleted}, more) }
	acts := doc{"charge": doc{"state": "started"}, "mail": doc{"state": "done"}}
	attempt := doc{"attempt": int64(2), "token": int64(3), "owner": "w/1", "startedAt": stamp}
	half := 0.5
	for name, tc := range map[string]struct {
		before doc
		change func(*analysis)
		want   doc
	}{
		"nothing": {running(nil), func(*analysis) {}, doc{}},
		"READY, after an error and a result of earlier runs": {
			running(doc{"error": failure("old"), "result": "old"}), finish("READY", nil), freed(ready),
		},
		"FAILED, after a result of an earlier run, and the last error is kept": {
			running(doc{"result": "old"}), finish("FAILED", &analysislock.Error{Code: "x", Message: "m"}),
			freed(with(ended, doc{"status": "FAILED", "result": deleted, "error": failure("x")})),
		},
		"a finish, though other programs removed the owner and the errors": {
			doc{"status": "PROCESSING", "lockToken": int64(3)}, finish("READY", nil),
			with(ready, doc{"lockHeartbeatAt": deleted, "lockExpiresAt": deleted}),
		},
		"a release": {
			running(nil), func(a *analysis) { free(a); a.Status = "QUEUED" }, freed(doc{"status": "QUEUED"}),
		},
		"a release of a lock whose times cannot be read": {
			running(doc{"lockHeartbeatAt": true, "lockExpiresAt": "soon"}), free, freed(nil),
		},
		"a heartbeat": {
			running(nil), func(a *analysis) { a.Lock.HeartbeatAt, a.Lock.ExpiresAt = now, now.Add(time.Minute) },
			doc{"lockHeartbeatAt": stamp, "lockExpiresAt": "2026-01-02T03:05:05.678Z"},
		},
		"an error of an attempt": {
			running(nil), func(a *analysis) { a.LastError = &analysislock.Error{Code: "d", Message: "m"} },
			doc{"lastError": failure("d")},
		},
		"a report, of which the checkpoint is written though it may be the one that is stored": {
			running(doc{"progress": doc{"fraction": 0.5, "at": stamp}, "checkpoint": "c"}), func(a *analysis) {
				a.Progress = &analysislock.Progress{Fraction: &half, Message: "m", At: now}
				a.Checkpoint = &analysislock.Checkpoint{Value: "c"}
			},
			doc{"progress": doc{"fraction": 0.5, "message": "m", "at": stamp}, "checkpoint": "c"},
		},
		"a next attempt, over one that cannot be read": {
			running(doc{"nextAttemptAt": "soon"}), func(a *analysis) { a.NextAttemptAt = now },
			doc{"nextAttemptAt": stamp},
		},
		"a next attempt ends with the acquisition": {
			running(doc{"nextAttemptAt": now.UnixMilli()}), func(a *analysis) { a.NextAttemptAt = time.Time{} },
			doc{"nextAttemptAt": deleted},
		},
		"a checkpoint that is cleared": {
			running(nil), func(a *analysis) { a.Checkpoint = &analysislock.Checkpoint{} }, doc{"checkpoint": deleted},
		},
		"progress and start are deleted, and the history stays": {
			running(doc{"progress": doc{"at": stamp}, "startedAt": stamp, "history": []any{doc{"attempt": 1.0}}}),
			func(a *analysis) { a.Progress, a.StartedAt = nil, time.Time{} },
			doc{"progress": deleted, "startedAt": deleted},
		},
		"the end of an attempt": {
			running(doc{"startedAt": stamp, "history": []any{"not a map", attempt}}), func(a *analysis) {
				last := a.History[0]
				last.EndedAt, last.Outcome, last.Code, last.Message = now, "retry", "c", "m"
				a.History = []analysislock.Attempt{last}
			},
			doc{"history": []any{with(attempt, with(failure("c"), doc{"endedAt": stamp, "outcome": "retry"}))}},
		},
		"a requeue keeps the result": {
			doc{"status": "FAILED", "error": failure("x"), "attempts": int64(4), "lockToken": int64(3)},
			func(a *analysis) { a.Status, a.Error, a.Lock.Finished, a.Lock.Attempts = "QUEUED", nil, false, 0 },
			doc{
				"status": "QUEUED", "error": deleted, "lastError": deleted, "attempts": 0, "nextAttemptAt": deleted,
				"lockHeartbeatAt": deleted, "lockExpiresAt": deleted, "expireAt": deleted,
			},
		},
		"updatedAt stays a Timestamp": {
			running(doc{"updatedAt": now.Add(-time.Hour)}), forget,
			forgotten(doc{"updatedAt": now.Truncate(time.Millisecond)}),
		},
		"a count of acts that is missing, and one that is too large": {
			running(doc{"effects": acts, "unfinishedEffects": 7.0}), forget,
			forgotten(doc{"openEffects": 1, "unfinishedEffects": deleted, "expireAt": deleted}),
		},
		"counts without acts": {
			running(doc{"openEffects": int64(7), "unfinishedEffects": "many"}), forget,
			forgotten(doc{"openEffects": deleted, "unfinishedEffects": deleted}),
		},
		"counts of acts that are right": {
			running(doc{"effects": acts, "openEffects": 1.0}), forget, forgotten(doc{"expireAt": deleted}),
		},
		"a name of a task that is no string": {
			running(doc{"bookedTask": true}), forget, forgotten(doc{"bookedTask": deleted}),
		},
		"an unusable token alone is replaced, which only unlock can do": {
			running(doc{"lockToken": "three"}), func(*analysis) {}, doc{"lockToken": lease.Fresh(now).Token},
		},
		"an unusable token is replaced with any other change": {
			running(doc{"lockToken": "three"}), forget, forgotten(doc{"lockToken": lease.Fresh(now).Token}),
		},
	} {
		for in, kind := range emulatortest.Kinds() {
			t.Run(name+", "+in, func(t *testing.T) {
				codec := silent(Fields(kind.Vocabulary))
				was := reading{id: "x", exists: true, fields: kind.Translated(t, tc.before), at: now, updated: now}
				prev, rev, _ := codec.decode(was)
				next := prev
				tc.change(&next)
				got := doc{}
				for path, v := range codec.changes(prev, &next, &rev, now) {
					if got[path] = v; v == any(firestore.Delete) {
						got[path] = deleted
					}
				}
				want := maps.Clone(tc.want)
				if len(want) > 0 && want["updatedAt"] == nil {
					want["updatedAt"] = stamp
				}
				same(t, kind.Translated(t, want), got)
			})
		}
	}
}

// Else a run would keep up to 64 KiB that it has been given already.
func TestChanges_Work(t *testing.T) {
	codec, now := silent(Fields{}), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	read, rev, err := codec.decode(reading{id: "x", exists: true, fields: doc{"status": "QUEUED"}, at: now})
	must.OK(t, err)
	rev.work, rev.repairs = map[string]*firestorepb.Value{"input": stringValue("i")}, []string{"bookedTask"}
	acquired := read
	acquired.Lock.Owner, acquired.Lock.Token = "w/1", 1
	if fields := codec.changes(read, &acquired, &rev, now); rev.work == nil || fields["bookedTask"] == nil {
		t.Errorf("an acquisition keeps the work %v and writes %v", rev.work, fields)
	}
	renewed := acquired
	renewed.Lock.ExpiresAt = now.Add(time.Minute)
	if fields := codec.changes(acquired, &renewed, &rev, now); rev.work != nil || fields["bookedTask"] != nil {
		t.Errorf("a renewal keeps the work %v and writes %v", rev.work, fields)
	}
}

// An acquisition would fail for ever with a run time of centuries, and a metric with such an age.
func TestDecode_Credible(t *testing.T) {
	now, created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	day, early, never := now.Add(24*time.Hour), earliest.Add(-time.Millisecond), time.Time{}
	for value, want := range map[any]struct{ started, created time.Time }{
		timeValue(created):         {created, created},
		day:                        {day, day},
		day.Add(1):                 {never, created},
		"2500-01-01T00:00:00.000Z": {never, created},
		int64(0):                   {time.UnixMilli(0), created},
		timeValue(early):           {early, created},
		timeValue(earliest):        {earliest, earliest},
		"soon":                     {never, never},
	} {
		fields := doc{"startedAt": value, "createdAt": value}
		d, _, err := silent(Fields{}).decode(reading{id: "x", exists: true, fields: fields, at: now, created: created})
		must.OK(t, err)
		if !d.StartedAt.Equal(want.started) || !d.CreatedAt.Equal(want.created) {
			t.Errorf("%v: started at %v, created at %v", value, d.StartedAt, d.CreatedAt)
		}
	}
}

// decodeLog decodes a document that was written just now, and returns what is logged.
func decodeLog(fields doc) (a analysislock.Analysis, room document.Lock, log string, err error) {
	logger, text := logTo()
	c := lockCodec{log: logger, name: analysisName}
	r := reading{id: "x", exists: true, fields: fields, at: time.Now(), updated: time.Now()}
	a, _, err = analysisCodec{lockCodec: c, fields: Fields{}.filled()}.decode(r)
	log = text.String()
	room, _, _ = roomCodec{c}.decode(r)
	return a, room, log, err
}

// The lock of a document that another program wrote (G5). A warning has the type of what cannot be read, and not
// its value.
func TestLockFields(t *testing.T) {
	now := time.Now()
	later, past := now.Add(time.Hour), now.Add(-time.Hour)
	soon, old := timeValue(later), timeValue(past)
	zoned := later.In(time.FixedZone("", 9*3600)).Format(time.RFC3339Nano)
	const never, expiry = "9999-01-01T00:00:00Z", "lockExpiresAt"
	js := func(expires any, more doc) doc { return with(doc{"lockOwner": "js", expiry: expires}, more) }
	beat := func(at any) doc { return doc{"lockHeartbeatAt": at} }
	for name, tc := range map[string]struct {
		lock doc
		held bool
		warn string
	}{
		"no owner":                  {doc{expiry: soon}, false, ""},
		"empty owner":               {js(soon, doc{"lockOwner": ""}), false, ""},
		"null owner":                {js(soon, doc{"lockOwner": nil}), false, ""},
		"text, future":              {js(soon, nil), true, ""},
		"text, past":                {js(old, nil), false, ""},
		"text of another zone":      {js(zoned, nil), true, ""},
		"Timestamp, future":         {js(later, nil), true, ""},
		"Timestamp, past":           {js(past, nil), false, ""},
		"milliseconds, future":      {js(later.UnixMilli(), nil), true, ""},
		"milliseconds, past":        {js(float64(past.UnixMilli()), nil), false, ""},
		"no expiry":                 {js(nil, nil), false, ""},
		"unreadable, heartbeat old": {js("secret", beat(old)), false, `lockExpiresAt type="a string"`},
		"unreadable, heartbeat now": {js(doc{"s": 1}, beat(soon)), true, `lockExpiresAt type="a map"`},
		"unreadable, updated now":   {js([]any{"secret"}, nil), true, `lockExpiresAt type="an array"`},
		"year 9999, heartbeat old":  {js(never, beat(old)), false, "lockExpiresAt"},
		"year 9999, heartbeat now":  {js(never, beat(timeValue(now))), true, "lockExpiresAt"},
		"in 23 hours":               {js(now.Add(23*time.Hour), beat(old)), true, ""},
		"in 25 hours":               {js(now.Add(25*time.Hour), beat(old)), false, `lockExpiresAt type="a time.Time"`},
		"heartbeat is a number":     {js(soon, beat(int64(-1))), true, `lockHeartbeatAt type="the number -1"`},
		"heartbeat is a text":       {js(soon, beat("secret")), true, "lockHeartbeatAt"},
		"owner is a number":         {js(soon, doc{"lockOwner": 5}), true, "lockOwner"},
		"owner is a number, stale":  {js(old, doc{"lockOwner": true}), false, `lockOwner type="a bool"`},
	} {
		a, _, log, err := decodeLog(tc.lock)
		if err != nil || lease.Held(a.Lock, now) != tc.held {
			t.Errorf("%s: %+v, %v; want held: %v", name, a.Lock, err, tc.held)
		}
		line := ""
		if tc.warn != "" {
			line = "analysis_id=x field=" + tc.warn
		}
		if !strings.Contains(log, line) || strings.Count(log, "level=WARN") != min(1, len(line)) {
			t.Errorf("%s: log %q, want %s", name, log, line)
		}
		if strings.Contains(log, "secret") {
			t.Errorf("%s: log %q has the value", name, log)
		}
		if strings.Contains(tc.warn, "lockHeartbeatAt") && !a.Lock.HeartbeatAt.IsZero() {
			t.Errorf("%s: heartbeat %v, want none", name, a.Lock.HeartbeatAt)
		}
		if strings.Contains(tc.warn, "lockOwner") != (a.Lock.Owner == unreadableOwner) {
			t.Errorf("%s: owner %s", name, a.Lock.Owner)
		}
	}
}

// Firestore's time judges the lock, and not the machine's.
func TestLockFields_Clock(t *testing.T) {
	at := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		updated time.Duration // before the reading
		expires any
		held    bool
	}{
		"unreadable, updated now":      {0, "soon", true},
		"unreadable, updated long ago": {time.Hour, "soon", false},
		"in 23 hours":                  {time.Hour, at.Add(23 * time.Hour), true},
		"in 25 hours":                  {time.Hour, at.Add(25 * time.Hour), false},
	} {
		fields := doc{"lockOwner": "js", "lockExpiresAt": tc.expires}
		r := reading{id: "x", exists: true, fields: fields, at: at, updated: at.Add(-tc.updated)}
		a, _, err := silent(Fields{}).decode(r)
		must.OK(t, err)
		same(t, tc.held, lease.Held(a.Lock, at), name)
	}
}

func TestLockFields_Numbers(t *testing.T) {
	for value, want := range map[any]int{
		"3": 0, int64(-5): 0, 10.0: 10, int64(math.MaxInt64): math.MaxInt32, true: 0, 1.5: 0,
	} {
		a, _, _, _ := decodeLog(doc{"attempts": value})
		same(t, want, a.Lock.Attempts, value)
	}
	if a, _, _, err := decodeLog(doc{"lockToken": 3.0}); err != nil || a.Lock.Token != 3 {
		t.Errorf("a double: %+v, %v", a.Lock, err)
	}
	for _, token := range []any{"3", int64(-1), 1.5, math.NaN(), int64(math.MaxInt64), true, []any{}} {
		a, room, _, err := decodeLog(doc{"lockToken": token})
		wantErr(t, lease.ErrMalformed, errors.Join(err, a.Malformed), token)
		wantErr(t, err, a.Malformed)
		if room.Token < time.Now().Add(-time.Minute).UnixMicro() {
			t.Errorf("token %v: a room has the token %d, want one of the time", token, room.Token)
		}
		_, _, _, err = decodeLog(doc{"status": "READY", "lockToken": token})
		check(t, err)
	}
}

func TestDecode_LongTexts(t *testing.T) {
	long := strings.Repeat("x", maxText) + "y"
	text := doc{"code": long, "message": long, "outcome": long, "owner": long}
	a, _, _, _ := decodeLog(doc{
		"status": long, "lockOwner": long, "finishedBy": long, "error": text, "lastError": text, "progress": text,
		"history": []any{text},
	})
	h := a.History[0]
	for i, s := range []string{
		a.Status, a.Lock.Owner, a.Lock.FinishedBy, a.Error.Code, a.Error.Message, a.LastError.Message,
		a.Progress.Message, h.Owner, h.Outcome, h.Code, h.Message,
	} {
		same(t, true, s == long[:maxText], "text", i)
	}
}

func TestKind(t *testing.T) {
	for want, v := range map[string]any{"null": nil, "the number 1.5": 1.5, "a map": doc{}, "a bool": true} {
		same(t, want, kind(v))
	}
}

func TestSize(t *testing.T) {
	for want, v := range map[int]any{1: "x", 2: []any{nil}, 6: doc{"a": []any{1, 2}, "b": doc{"c": true}}} {
		same(t, want, size(v), v)
	}
}

// A document is deleted at expireAt: never while it is unfinished, unless every commit
// moves that time.
func TestExpireAt(t *testing.T) {
	type analysis = analysislock.Analysis
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	act := func(state string, open int) func(*analysis) {
		return func(a *analysis) { a.Acts, a.OpenActs = analysislock.Acts{"act": {State: state}}, open }
	}
	finish := func(a *analysis) { a.Status = "READY" }
	reopen := func(a *analysis) { a.Status, a.Lock.Finished = "QUEUED", false }
	acquire := func(a *analysis) { a.Lock.Token++ } // another program may have opened it again
	renew := func(a *analysis) { a.Lock.ExpiresAt = now }
	later, gone := any(now.Add(time.Hour)), any(firestore.Delete)
	const open, done = analysislock.ActStarted, analysislock.ActDone
	for name, tc := range map[string]struct {
		change               func(*analysis)
		status               string
		act                  string // its state before the change, which no count shows
		never, keep, keepAll any    // expireAt without Keep, with it, and with KeepAll
	}{
		"finish":                  {finish, "PROCESSING", "", nil, later, later},
		"cancel":                  {func(a *analysis) { a.Status = "FAILED" }, "QUEUED", "", nil, later, later},
		"reopen":                  {reopen, "FAILED", "", gone, gone, later},
		"acquire":                 {acquire, "QUEUED", "", gone, gone, later},
		"renew":                   {renew, "PROCESSING", "", nil, nil, later},
		"begin an act":            {act(open, 1), "PROCESSING", "", gone, gone, gone},
		"renew, act open":         {renew, "PROCESSING", open, gone, gone, gone},
		"acquire, act open":       {acquire, "QUEUED", open, gone, gone, gone},
		"finish, act open":        {finish, "PROCESSING", open, gone, gone, gone},
		"answer after the end":    {act(done, 0), "READY", open, nil, later, later},
		"end an act":              {act(done, 0), "PROCESSING", open, nil, nil, gone},
		"renew, act done":         {renew, "PROCESSING", done, nil, nil, gone},
		"acquire, act done":       {acquire, "QUEUED", done, gone, gone, gone},
		"finish, act done":        {finish, "PROCESSING", done, nil, later, later},
		"reopen, act done":        {reopen, "READY", done, gone, gone, gone},
		"free what they finished": {func(a *analysis) { a.Lock.Owner = "" }, "READY", "", nil, later, later},
		"nothing":                 {func(*analysis) {}, "READY", "", nil, nil, nil},
	} {
		fields := doc{"status": tc.status, "lockOwner": "w"}
		if tc.act != "" {
			fields["effects"] = doc{"act": doc{"state": tc.act}}
		}
		kept, all := silent(Fields{}), silent(Fields{})
		kept.keep, all.keep, all.keepAll = time.Hour, time.Hour, true
		for i, codec := range []analysisCodec{silent(Fields{}), kept, all} {
			was := now.Add(-time.Minute)
			prev, rev, err := codec.decode(reading{id: "x", exists: true, fields: fields, at: was, updated: was})
			must.OK(t, err)
			next := prev
			tc.change(&next)
			want := []any{tc.never, tc.keep, tc.keepAll}[i]
			same(t, want, codec.changes(prev, &next, &rev, now)["expireAt"], name, i)
		}
	}
}
