package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
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

// backlog submits n analyses of 20 min to a queue that delivers two at once, calls recovery each
// minute until all are READY, and returns the latest start and the warnings.
func (q *CloudQueue) backlog(t *testing.T, b *emulatortest.Backend, n int) (log string) {
	t.Helper()
	w := startOn(t, b, q, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(20 * time.Minute)
		return "done", ctx.Err()
	})
	q.serve(w)
	kind := &guarded{analyses: w.guard.Orphans.(*repo.Analyses), guard: w.guard}
	for i := range n {
		if _, err := kind.submit(t.Context(), fmt.Sprint(i), "input"); err != nil {
			t.Fatal(err)
		}
	}
	for ended := 0; ended < n; {
		time.Sleep(time.Minute)
		w.recover(t).check(t, 200, map[string]any{"more": false})
		ended = 0
		for i := range n {
			if b.Fields(t, fmt.Sprint(i))["finishedBy"] != nil {
				ended++
			}
		}
	}
	return w.log.String()
}

func TestWhatWaitsInABacklogIsBookedOnce(t *testing.T) {
	const n = 20
	for name, tc := range map[string]struct {
		lose     int
		refuses  bool
		want     int // calls of CreateTask
		warnings bool
	}{
		"all wait":             {0, false, n, false},
		"one of ten is lost":   {10, false, n + 2, false},
		"without a permission": {0, true, -1, true},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q := startLimited(t, cloudtasks.Unthrottled, 2)
			q.lose, q.refuses = tc.lose, tc.refuses
			log := q.backlog(t, b, n)
			if got := len(q.created); tc.want >= 0 && got != tc.want || tc.want < 0 && got < 10*n {
				t.Errorf("%d tasks for %d analyses; %d asked", got, n, q.asked)
			}
			if strings.Contains(log, "does not answer") != tc.warnings {
				t.Error(log)
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
