package worker

import (
	"testing"
	"time"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
)

// clocked returns a Firestore whose clock is ahead of this process's clock.
func clocked(t *testing.T, ahead time.Duration) *emulatortest.Backend {
	t.Helper()
	s := firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(ahead) }})
	t.Cleanup(s.Close)
	return &emulatortest.Backend{Project: emulatortest.Project(), Server: s, Calls: &emulatortest.Calls{}}
}

// An expiry is a time of the store, and so are retry_at and the follow-up.
func TestAWorkersClockDecidesNothingAboutAnothersLock(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		Subtest(t, ahead.String(), func(t *testing.T) {
			b := clocked(t, ahead)
			w := start(t, b, succeed)
			expires := held(t, b, "x", ahead+100*time.Second)
			a := w.deliver(t, "x")
			a.check(t, 409, map[string]any{"reason": "locked", "retry_at": expires})
			if a.RetryAfter != "100" {
				t.Errorf("Retry-After = %s, want 100", a.RetryAfter)
			}
			q := &recordingQueue{}
			w.guard.Queue, w.guard.RunTimeout = q, 7*time.Minute
			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "locked", "retry_at": expires})
			if at := q.tasks[0].At.Add(-2 * time.Second).UTC().Format("2006-01-02T15:04:05.000Z"); at != expires || q.tasks[0].Deadline != 8*time.Minute || q.tasks[0].AnalysisID != "x" {
				t.Errorf("booked %+v for 2 s after %s, want after %s", q.tasks[0], at, expires)
			}
		})
	}
}
