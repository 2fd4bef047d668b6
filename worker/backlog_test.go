package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// orphans are analyses that recovery finds, and the tasks with which it marks them.
type orphans struct {
	docs []analysislock.Analysis

	mu    sync.Mutex
	marks map[string]string
}

func (o *orphans) Orphaned(context.Context, int) (due []lease.Cell[analysislock.Analysis], more bool, err error) {
	for i := range o.docs {
		due = append(due, lease.Cell[analysislock.Analysis]{Doc: o.docs[i]})
	}
	return due, false, nil
}

func (o *orphans) MarkDue(_ context.Context, read lease.Cell[analysislock.Analysis], task func(time.Time) string) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := task(time.Now())
	o.marks[read.Doc.ID] = name
	return name, nil
}

// All in the queue have the name of their document.
func TestRecoveryAsksTheQueueForWhatWaitsInIt(t *testing.T) {
	backlog := func() *orphans {
		return &orphans{marks: map[string]string{}, docs: []analysislock.Analysis{
			{ID: "waiting", Status: analysislock.Queued, BookedTask: "waiting"},
			{ID: "waiting with a foreign status", Status: "RECEIVED", BookedTask: "waiting with a foreign status"},
			{ID: "underway", Status: analysislock.Queued, BookedTask: "underway"},
			{ID: "lost", Status: analysislock.Queued, BookedTask: "gone"},
			{ID: "unnamed", Status: analysislock.Queued},
			{ID: "crashed", Status: analysislock.Processing, BookedTask: "crashed"},
		}}
	}
	for name, tc := range map[string]struct {
		mute         error
		asked, waits []string
		warnings     int
	}{
		"it answers": {nil, []string{"crashed", "gone", "underway", "waiting", "waiting with a foreign status"}, []string{"waiting", "waiting with a foreign status", "underway", "crashed"}, 0},
		"it refuses": {errors.New("no permission"), []string{"waiting"}, nil, 1},
	} {
		Subtest(t, name, func(t *testing.T) {
			o, q, log := backlog(), &recordingQueue{mute: tc.mute}, &emulatortest.Log{}
			if tc.mute == nil {
				q.has = map[string]taskqueue.Presence{"underway": taskqueue.Underway}
				for _, name := range []string{"waiting", "waiting with a foreign status", "crashed"} {
					q.has[name] = taskqueue.Waiting
				}
			}
			g := &delivery.Guard{Orphans: o, Queue: q, Log: slog.New(slog.NewTextHandler(log, nil))}
			r, err := g.Recover(t.Context())
			if want := (delivery.Recovery{Found: 6, Booked: 6 - len(tc.waits), Waiting: len(tc.waits)}); r != want || err != nil {
				t.Errorf("%+v, %v; want %+v", r, err, want)
			}
			if slices.Sort(q.asked); !slices.Equal(q.asked, tc.asked) {
				t.Errorf("asked for %q, want %q", q.asked, tc.asked)
			}
			if n := strings.Count(log.String(), "does not answer"); n != tc.warnings {
				t.Errorf("%d warnings, want %d: %s", n, tc.warnings, log)
			}

			booked := names(q.tasks)
			for i := range o.docs {
				d := &o.docs[i]
				mark, marked := o.marks[d.ID]
				waits := slices.Contains(tc.waits, d.ID)
				if marked == (waits && d.ID == "underway") || (!marked || mark == d.BookedTask) != waits || booked[o.marks[d.ID]] == waits {
					t.Errorf("%s is marked with %q; booked are %v", d.ID, o.marks[d.ID], slices.Collect(maps.Keys(booked)))
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
