package repo

import (
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// ttl returns the default in a bubble, and a short TTL where time is real.
func ttl(b *emulatortest.Backend) time.Duration {
	if b.Google() {
		return 5 * time.Second
	}
	return lease.DefaultTTL
}

// The fields of a lock in a document, with what another program has written.
func TestAnalysisLock(t *testing.T) {
	cases := map[string]func(t *testing.T, b *emulatortest.Backend, a *worker){
		"TheFirstAcquires": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "theirs": []any{int64(1), 2.5, nil}})
			acq := mustAcquire(t, a, "x", "w/1")
			if acq.Grant.Token != 1 || acq.Attempt != 1 {
				t.Errorf("token, attempt = %d, %d; want 1, 1", acq.Grant.Token, acq.Attempt)
			}
			got := b.Fields(t, "x")
			for _, name := range []string{"lockExpiresAt", "lockHeartbeatAt", "updatedAt", "startedAt"} {
				if s, _ := got[name].(string); len(s) != len("2006-01-02T15:04:05.000Z") || s[len(s)-1] != 'Z' {
					t.Errorf("%s = %v, want ISO 8601 with three decimals", name, got[name])
				}
			}
			attempt := map[string]any{"attempt": int64(1), "token": int64(1), "owner": "w/1", "startedAt": got["startedAt"]}
			same(t, []any{attempt}, got["history"])
			for _, name := range []string{"lockExpiresAt", "lockHeartbeatAt"} {
				delete(got, name)
			}
			want := map[string]any{"status": analysislock.Processing, "theirs": []any{int64(1), 2.5, nil}, "attempts": int64(1), "lockOwner": "w/1", "lockToken": int64(1)}
			same(t, want, withoutRuns(got))
		},
		"CompleteRecordsTheResultAndFreesTheLock": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			for _, result := range []any{nil, map[string]any{"n": int64(3), "a.b": []any{1.5, "ü"}, "`": nil}} {
				b.Put(t, "x", map[string]any{"status": analysislock.Queued, "error": "of another program", "result": "old"})
				mustAcquire(t, a, "x", "w/1")
				fatal(t, a.holds["w/1"].Complete(t.Context(), result))
				got := b.Fields(t, "x")
				want := map[string]any{"status": analysislock.Ready, "result": result, "attempts": int64(1), "lockToken": int64(1), "finishedBy": "w/1"}
				same(t, want, withoutRuns(got))
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) { test(t, b, open(t, b)) })
		})
	}
}
