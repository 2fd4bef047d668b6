package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/repo"
)

// All in the queue have the name of their document.
func TestRecoveryAsksTheQueueForWhatWaitsInIt(t *testing.T) {
	const before = "1999-01-01T00:00:00.000Z"
	all := map[string]map[string]any{
		"waiting": {"status": "QUEUED", "bookedTask": "waiting"}, "underway": {"status": "QUEUED", "bookedTask": "underway"},
		"foreign": {"status": "RECEIVED", "bookedTask": "foreign", "nextAttemptAt": before},
		"crashed": {"status": "PROCESSING", "bookedTask": "crashed"},
		"lost":    {"status": "QUEUED", "bookedTask": "gone"}, "unnamed": {"status": "QUEUED"},
	}
	for name, tc := range map[string]struct {
		mute  error
		has   map[string]taskqueue.Presence
		asked int
	}{
		"it answers": {nil, map[string]taskqueue.Presence{
			"waiting": taskqueue.Waiting, "foreign": taskqueue.Waiting, "crashed": taskqueue.Waiting, "underway": taskqueue.Underway,
		}, 5},
		"it refuses": {errors.New("no permission"), nil, 1},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q := &recordingQueue{mute: tc.mute, has: tc.has}
			w := startOn(t, b, q, succeed)
			for id, fields := range all {
				b.Put(t, id, map[string]any{"updatedAt": before})
				b.Merge(t, id, fields)
			}
			waiting := len(tc.has)
			w.recover(t).check(t, 200, map[string]any{"found": 6.0, "booked": float64(6 - waiting), "waiting": float64(waiting)})
			if n := strings.Count(w.log.String(), "does not answer"); len(q.asked) != tc.asked || (n == 1) != (tc.mute != nil) {
				t.Errorf("asked for %q, want %d; %d warnings", q.asked, tc.asked, n)
			}
			booked := names(q.tasks)
			for id, fields := range all {
				now, state := b.Fields(t, id), tc.has[id]
				task, _ := now["bookedTask"].(string)
				if booked[task] != (state == taskqueue.Absent) || state != taskqueue.Absent && task != fields["bookedTask"] || (now["updatedAt"] != before) != (state != taskqueue.Underway) {
					t.Errorf("%s is marked with %v; booked are %v", id, now, booked)
				}
			}
		})
	}
}

// A worker of an earlier version has run the task that the document names, and has not deleted the
// name. Only the task that the time names is booked again, and runs early.
func TestAnAnalysisThatWaitsBooksTheTaskOfItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := &recordingQueue{}
		w := start(t, b, succeed)
		w.guard.Queue = q
		next := time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000Z")
		b.Put(t, "x", map[string]any{"status": "QUEUED", "bookedTask": "old", "nextAttemptAt": next})
		for range 2 {
			w.asTask(t, "old").check(t, 200, map[string]any{"reason": "waiting", "retry_at": next})
		}
		if len(names(q.tasks)) != 1 || q.tasks[0].Name == "old" {
			t.Fatalf("booked %+v, want another task than old", q.tasks)
		}
		w.asTask(t, q.tasks[0].Name).check(t, 200, map[string]any{"status": "READY"})
	})
}

// The document may name a task of the application, or nothing that is a task.
func TestASubmissionIsBookedUnderTheNameOfItsDocumentAndForItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := &recordingQueue{}
		w := start(t, b, succeed)
		w.guard.Queue = q
		next := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		for _, tc := range []struct {
			booked any
			kept   bool
		}{{"own", true}, {"projects/p/locations/l/queues/q/tasks/own", false}, {7, false}, {nil, false}} {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": "i", "bookedTask": tc.booked, "nextAttemptAt": next})
			_, err := (&guarded{analyses: w.guard.Orphans.(*repo.Analyses), guard: w.guard}).submit(t.Context(), "x", "i")
			task := q.tasks[len(q.tasks)-1]
			if err != nil || (task.Name == "own") != tc.kept || !taskqueue.ValidName(task.Name) || !task.At.Equal(next) {
				t.Errorf("%v: booked %+v, %v", tc.booked, task, err)
			}
		}
		b.Put(t, "y", map[string]any{"status": "QUEUED", "bookedTask": 7})
		w.deliver(t, "y").check(t, 200, map[string]any{"status": "READY"})
		checkFields(t, b, "y", map[string]any{"bookedTask": nil})
	})
}
