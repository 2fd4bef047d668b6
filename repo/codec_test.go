package repo

import (
	"log/slog"
	"maps"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// deleted stands for firestore.Delete.
const deleted = "(deleted)"

// Each change of an analysis writes these fields, and no others.
func TestOnlyWhatChangesIsWritten(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 678_999_999, time.UTC)
	const stamp = "2026-01-02T03:04:05.678Z"
	running := map[string]any{
		"status": "PROCESSING", "attempts": int64(2), "lockToken": int64(3), "lockOwner": "w/1", "updatedAt": "2026-01-01T00:00:00.000Z",
		"lockHeartbeatAt": "2026-01-01T00:00:00.000Z", "lockExpiresAt": "2026-01-01T00:05:00.000Z", "lastError": map[string]any{"code": "c", "message": "m"},
	}
	with := func(more map[string]any) map[string]any {
		all := maps.Clone(running)
		maps.Copy(all, more)
		return all
	}
	freed := func(a *analysislock.Analysis) {
		a.Lock.Owner, a.Lock.HeartbeatAt, a.Lock.ExpiresAt = "", time.Time{}, time.Time{}
	}
	finish := func(status string, e *analysislock.Error) func(*analysislock.Analysis) {
		return func(a *analysislock.Analysis) {
			freed(a)
			a.Lock.Finished, a.Lock.FinishedBy = true, "w/1"
			a.Status, a.Result, a.Error, a.LastError = status, "new", e, nil
		}
	}
	lockFreed := map[string]any{"lockOwner": deleted, "lockHeartbeatAt": deleted, "lockExpiresAt": deleted, "updatedAt": stamp}
	also := func(more map[string]any) map[string]any {
		all := maps.Clone(lockFreed)
		maps.Copy(all, more)
		return all
	}
	forget := func(a *analysislock.Analysis) { a.LastError = nil }
	acts := map[string]any{"charge": map[string]any{"state": "started"}, "mail": map[string]any{"state": "done"}}
	for name, tc := range map[string]struct {
		before map[string]any
		change func(*analysislock.Analysis)
		want   map[string]any
	}{
		"nothing": {running, func(*analysislock.Analysis) {}, map[string]any{}},
		"READY, after an error and a result of earlier runs": {
			with(map[string]any{"error": map[string]any{"code": "old"}, "result": "old"}), finish("READY", nil),
			also(map[string]any{"status": "READY", "result": "new", "error": deleted, "lastError": deleted, "nextAttemptAt": deleted, "finishedBy": "w/1"}),
		},
		"FAILED, after a result of an earlier run": {
			with(map[string]any{"result": "old"}), finish("FAILED", &analysislock.Error{Code: "x", Message: "y"}),
			also(map[string]any{"status": "FAILED", "result": deleted, "error": map[string]any{"code": "x", "message": "y"}, "lastError": deleted, "nextAttemptAt": deleted, "finishedBy": "w/1"}),
		},
		"a finish, though other programs removed the errors": {
			map[string]any{"status": "PROCESSING", "lockToken": int64(3)}, finish("READY", nil),
			also(map[string]any{"status": "READY", "result": "new", "error": deleted, "lastError": deleted, "nextAttemptAt": deleted, "finishedBy": "w/1", "lockOwner": nil}),
		},
		"a release": {running, func(a *analysislock.Analysis) { freed(a); a.Status = "QUEUED" }, also(map[string]any{"status": "QUEUED"})},
		"a release of a lock whose times cannot be read": {
			with(map[string]any{"lockHeartbeatAt": true, "lockExpiresAt": "soon"}), freed, lockFreed,
		},
		"a heartbeat": {running, func(a *analysislock.Analysis) { a.Lock.HeartbeatAt, a.Lock.ExpiresAt = now, now.Add(time.Minute) }, map[string]any{
			"lockHeartbeatAt": stamp, "lockExpiresAt": "2026-01-02T03:05:05.678Z", "updatedAt": stamp,
		}},
		"an error of an attempt": {running, func(a *analysislock.Analysis) { a.LastError = &analysislock.Error{Code: "d", Message: "m"} }, map[string]any{
			"lastError": map[string]any{"code": "d", "message": "m"}, "updatedAt": stamp,
		}},
		"a report, of which the checkpoint is written though it may be the one that is stored": {
			with(map[string]any{"progress": map[string]any{"fraction": 0.5, "at": stamp}, "checkpoint": "c"}), func(a *analysislock.Analysis) {
				half := 0.5
				a.Progress = &analysislock.Progress{Fraction: &half, Message: "m", At: now}
				a.Checkpoint = &analysislock.Checkpoint{Value: "c"}
			},
			map[string]any{"progress": map[string]any{"fraction": 0.5, "message": "m", "at": stamp}, "checkpoint": "c", "updatedAt": stamp},
		},
		"a next attempt, over one that cannot be read": {
			with(map[string]any{"nextAttemptAt": "soon"}), func(a *analysislock.Analysis) { a.NextAttemptAt = now },
			map[string]any{"nextAttemptAt": stamp, "updatedAt": stamp},
		},
		"a next attempt ends with the acquisition": {
			with(map[string]any{"nextAttemptAt": now.UnixMilli()}), func(a *analysislock.Analysis) { a.NextAttemptAt = time.Time{} },
			map[string]any{"nextAttemptAt": deleted, "updatedAt": stamp},
		},
		"progress alone": {running, func(a *analysislock.Analysis) { a.Progress = &analysislock.Progress{At: now} }, map[string]any{
			"progress": map[string]any{"at": stamp}, "updatedAt": stamp,
		}},
		"a checkpoint that is cleared": {running, func(a *analysislock.Analysis) { a.Checkpoint = &analysislock.Checkpoint{} }, map[string]any{
			"checkpoint": deleted, "updatedAt": stamp,
		}},
		"progress and start are deleted": {
			with(map[string]any{"progress": map[string]any{"fraction": int64(1), "at": stamp}, "startedAt": stamp, "history": []any{map[string]any{"attempt": 1.0, "owner": "w/1"}}}),
			func(a *analysislock.Analysis) { a.Progress, a.StartedAt = nil, time.Time{} },
			map[string]any{"progress": deleted, "startedAt": deleted, "updatedAt": stamp},
		},
		"the end of an attempt": {
			with(map[string]any{"startedAt": stamp, "history": []any{"not a map", map[string]any{"attempt": int64(2), "token": int64(3), "owner": "w/1", "startedAt": stamp}}}),
			func(a *analysislock.Analysis) {
				last := a.History[0]
				last.EndedAt, last.Outcome, last.Code, last.Message = now, "retry", "c", "m"
				a.History = []analysislock.Attempt{last}
			},
			map[string]any{"updatedAt": stamp, "history": []any{map[string]any{
				"attempt": int64(2), "token": int64(3), "owner": "w/1", "startedAt": stamp, "endedAt": stamp, "outcome": "retry", "code": "c", "message": "m",
			}}},
		},
		"a requeue keeps the result": {
			map[string]any{"status": "FAILED", "error": map[string]any{"code": "x", "message": "y"}, "finishedBy": "w/1", "attempts": int64(4), "lockToken": int64(3)},
			func(a *analysislock.Analysis) {
				a.Status, a.Error, a.Lock.Finished, a.Lock.Attempts = "QUEUED", nil, false, 0
			},
			map[string]any{"status": "QUEUED", "error": deleted, "lastError": deleted, "attempts": 0, "lockHeartbeatAt": deleted, "lockExpiresAt": deleted, "nextAttemptAt": deleted, "expireAt": deleted, "updatedAt": stamp},
		},
		"updatedAt stays a Timestamp": {
			with(map[string]any{"updatedAt": now.Add(-time.Hour)}), func(a *analysislock.Analysis) { a.Status = "QUEUED" },
			map[string]any{"status": "QUEUED", "updatedAt": now.Truncate(time.Millisecond)},
		},
		"a count of acts that is missing, and one that is too large": {
			with(map[string]any{"effects": acts, "unfinishedEffects": 7.0}), forget,
			map[string]any{"lastError": deleted, "updatedAt": stamp, "openEffects": 1, "unfinishedEffects": deleted, "expireAt": deleted},
		},
		"counts without acts": {
			with(map[string]any{"openEffects": int64(7), "unfinishedEffects": "many"}), forget,
			map[string]any{"lastError": deleted, "updatedAt": stamp, "openEffects": deleted, "unfinishedEffects": deleted},
		},
		"counts of acts that are right": {
			with(map[string]any{"effects": acts, "openEffects": 1.0}), forget, map[string]any{"lastError": deleted, "updatedAt": stamp, "expireAt": deleted},
		},
		"a name of a task that is no string": {
			with(map[string]any{"bookedTask": true}), forget, map[string]any{"lastError": deleted, "updatedAt": stamp, "bookedTask": deleted},
		},
		"an unusable token alone is replaced, which only unlock can do": {with(map[string]any{"lockToken": "three"}), func(*analysislock.Analysis) {}, map[string]any{
			"lockToken": lease.Fresh(now).Token, "updatedAt": stamp,
		}},
		"an unusable token is replaced with any other change": {
			with(map[string]any{"lockToken": "three"}), func(a *analysislock.Analysis) { a.Status = "QUEUED" },
			map[string]any{"status": "QUEUED", "lockToken": lease.Fresh(now).Token, "updatedAt": stamp},
		},
	} {
		for in, kind := range emulatortest.Kinds() {
			t.Run(name+", "+in, func(t *testing.T) {
				codec := analysisCodec{
					lockCodec: lockCodec{log: slog.New(slog.DiscardHandler), name: analysisName},
					fields:    Fields(kind.Vocabulary).filled(),
				}
				prev, rev, _ := codec.decode(reading{id: "x", exists: true, fields: kind.Translated(t, tc.before), at: now, updated: now})
				next := prev
				tc.change(&next)
				got := map[string]any{}
				for path, v := range codec.changes(prev, &next, &rev, now) {
					if got[path] = v; v == any(firestore.Delete) {
						got[path] = deleted
					}
				}
				maps.DeleteFunc(tc.want, func(_ string, v any) bool { return v == nil })
				same(t, kind.Translated(t, tc.want), got)
			})
		}
	}
}

// Else a run would keep up to 64 KiB that it has been given already.
func TestOnlyTheCommitOfAnAcquisitionKeepsTheWorkAndRepairs(t *testing.T) {
	codec, now := analysisCodec{fields: Fields{}.filled()}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	read, rev, err := codec.decode(reading{id: "x", exists: true, fields: map[string]any{"status": analysislock.Queued}, at: now, updated: now})
	fatal(t, err)
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
func TestTimesThatAreNotCredibleAreUnreadable(t *testing.T) {
	now, created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		value             any
		started, creation time.Time
	}{
		{timeValue(now.Add(-time.Hour)), now.Add(-time.Hour), now.Add(-time.Hour)},
		{now.Add(24 * time.Hour), now.Add(24 * time.Hour), now.Add(24 * time.Hour)},
		{now.Add(24*time.Hour + 1), time.Time{}, created},
		{"2500-01-01T00:00:00.000Z", time.Time{}, created},
		{int64(0), time.UnixMilli(0), created},
		{timeValue(earliest.Add(-time.Millisecond)), earliest.Add(-time.Millisecond), created},
		{timeValue(earliest), earliest, earliest},
		{"soon", time.Time{}, time.Time{}},
	} {
		fields := map[string]any{"startedAt": tc.value, "createdAt": tc.value}
		d, _, err := analysisCodec{fields: Fields{}.filled()}.decode(reading{id: "x", exists: true, fields: fields, at: now, created: created})
		if err != nil || !d.StartedAt.Equal(tc.started) || !d.CreatedAt.Equal(tc.creation) {
			t.Errorf("%v: started at %v, created at %v, %v", tc.value, d.StartedAt, d.CreatedAt, err)
		}
	}
}

func TestSizeCountsValues(t *testing.T) {
	for want, v := range map[int]any{1: "x", 2: []any{nil}, 6: map[string]any{"a": []any{1, 2}, "b": map[string]any{"c": true}}} {
		if got := size(v); got != want {
			t.Errorf("size(%v) = %d, want %d", v, got, want)
		}
	}
}
