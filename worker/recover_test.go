package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

func (w *process) recover(t *testing.T) reply {
	t.Helper()
	return w.call(t, http.MethodPost, "/internal/tasks/recover", "")
}

// Their workers died after the delivery was acknowledged, or no delivery was ever booked.
func TestRecoveryBooksOrphanedAnalyses(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		w := start(t, b, succeed)
		w.runner.Queue = q.Queue // nothing is delivered yet
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
		b.Put(t, "never-booked", map[string]any{"status": "QUEUED", "updatedAt": now})
		b.Put(t, "finished", map[string]any{"status": "READY", "updatedAt": now})
		held(t, b, "orphan", 0)
		w.recover(t).check(t, 200, map[string]any{"found": 0.0, "booked": 0.0}) // too early
		time.Sleep(lease.DefaultTTL + time.Second)
		held(t, b, "live", lease.DefaultTTL)
		for _, n := range []float64{2, 0, 0} { // a call marks what it books
			w.recover(t).check(t, 200, map[string]any{"found": n, "booked": n, "more": false, "reason": nil})
		}
		q.serve(w)
		q.idle(t)
		for _, id := range []string{"never-booked", "orphan"} {
			checkFields(t, b, id, map[string]any{"status": "READY"})
		}
		checkFields(t, b, "live", map[string]any{"status": "PROCESSING"})
		w.recover(t).check(t, 200, map[string]any{"found": 0.0, "booked": 0.0})
	})
}

func names(tasks []taskqueue.Task) map[string]bool {
	all := map[string]bool{}
	for _, t := range tasks {
		all[t.Name] = true
	}
	return all
}

// atMost is recovery with a small limit.
type atMost struct {
	delivery.OrphanFinder
	limit int
}

func (a atMost) Orphaned(ctx context.Context, _ int) ([]lease.Cell[analysislock.Analysis], bool, error) {
	return a.OrphanFinder.Orphaned(ctx, a.limit)
}

// partlyRefusing is a queue that refuses the first task at once, and accepts the others slowly.
type partlyRefusing struct{ slow }

func (p *partlyRefusing) Book(ctx context.Context, t taskqueue.Task) (bool, error) {
	if t.AnalysisID == "0" {
		return false, errRefusing
	}
	return p.slow.Book(ctx, t)
}

func TestAStopWaitsForARecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		g := &delivery.Runner{Orphans: overdue(1), Queue: &slow{during: func() { time.Sleep(3 * time.Second) }}, Log: slog.New(slog.DiscardHandler)}
		s := serverOf(work, g, CheckedByProxy(), nil)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/internal/tasks/recover", http.NoBody))
		}()
		defer func() { <-ended }()
		synctest.Wait()
		stop()
		began := time.Now()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if left := s.lifecycle.Drain(soon); left != 1 || time.Since(began) != time.Second {
			t.Errorf("%d left after %v, want the recovery after 1 s", left, time.Since(began))
		}
	})
}

func TestARecoveryNeedsAQueueAFirestoreAndNoStop(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, succeed)
		w.recover(t).check(t, 501, map[string]any{"reason": "no_queue", "error": "*"})
		w.runner.Queue = &recordingQueue{}
		w.unavailable.Store(true)
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable", "found": 0.0})
		w.unavailable.Store(false)
		w.stop(delivery.ErrStopping)
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable"})
	})
}

// full creates the analysis id with more fields, of so many bytes, and room for that many: by
// Firestore's rules of size, in the collection analyses.
func full(t *testing.T, b *emulatortest.Backend, id string, room int, more map[string]any, bytes int) {
	t.Helper()
	used := 32 + len("analyses//"+id) + 16 + len("status/QUEUED/") + len("updatedAt/1999-01-01T00:00:00.000Z/") + len("theirs//") + bytes
	fields := map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z", "theirs": strings.Repeat("x", 1<<20-used-room)}
	maps.Copy(fields, more)
	b.Put(t, id, fields)
}

// Whatever room a document has, it does not fail a call, and is not booked in vain a second time.
func TestAFullDocumentFailsOrIsSkippedWithAWarning(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := &recordingQueue{}
		w := startOn(t, b, q, succeed)
		for room := range 28 {
			full(t, b, fmt.Sprint("room", 8*room), 8*room, map[string]any{"lockToken": room % 2}, len("lockToken/")+8)
		}
		full(t, b, "history", 0, map[string]any{"history": []any{map[string]any{"owner": strings.Repeat("w", 150)}}}, len("history/owner//")+150)
		b.Put(t, "good", map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z"})

		w.recover(t).check(t, 200, map[string]any{"found": float64(len(q.tasks)), "booked": float64(len(q.tasks)), "more": false})
		for _, task := range q.tasks {
			if task.AnalysisID != "good" {
				a := w.deliver(t, task.AnalysisID)
				a.check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": "*"})
				checkFields(t, b, task.AnalysisID, map[string]any{"status": "FAILED", "lockOwner": nil, "nextAttemptAt": nil})
			}
		}
		time.Sleep(lease.DefaultTTL)
		w.log.Reset()
		w.recover(t).check(t, 200, map[string]any{"found": 1.0, "booked": 1.0, "more": false}) // good
		for _, id := range []string{"room0", "room8", "room16"} {
			checkFields(t, b, id, map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z"})
			if !strings.Contains(w.log.String(), `"msg":"analysis not recovered: its document is full","analysis_id":"`+id+`"`) {
				t.Errorf("no warning names %s: %s", id, w.log)
			}
		}
		checkFields(t, b, "history", map[string]any{"status": "FAILED", "finishedBy": "taskguard", "history": nil, "theirs": "*"})
	})
}

// refusing is a queue that refuses all tasks.
type refusing struct{}

var errRefusing = errors.New("no")

func (refusing) Book(context.Context, taskqueue.Task) (bool, error) { return false, errRefusing }
func (refusing) Find(context.Context, string, time.Time) (taskqueue.Presence, error) {
	return taskqueue.Absent, errRefusing
}

// overdue is a backlog of n analyses.
type overdue int

func (n overdue) Orphaned(_ context.Context, limit int) (due []lease.Cell[analysislock.Analysis], more bool, err error) {
	for i := range min(int(n), limit) {
		due = append(due, lease.Cell[analysislock.Analysis]{Doc: analysislock.Analysis{ID: fmt.Sprint(i)}})
	}
	return due, int(n) > limit, nil
}

func (overdue) MarkDue(ctx context.Context, _ lease.Cell[analysislock.Analysis], task func(time.Time) string) (string, error) {
	return task(time.Unix(0, 0)), ctx.Err()
}

// interrupted is a backlog whose reading fails after its beginning.
type interrupted struct{ overdue }

func (i interrupted) Orphaned(ctx context.Context, limit int) ([]lease.Cell[analysislock.Analysis], bool, error) {
	due, more, _ := i.overdue.Orphaned(ctx, limit)
	return due, more, lease.ErrUnavailable
}

// unmarked is a backlog of which analysis 0 cannot be marked.
type unmarked struct {
	overdue
	err error
}

func (u unmarked) MarkDue(ctx context.Context, read lease.Cell[analysislock.Analysis], task func(time.Time) string) (string, error) {
	if read.Doc.ID == "0" {
		return "", u.err
	}
	return u.overdue.MarkDue(ctx, read, task)
}

// The answer is 503 only if something was due and nothing was booked, or if Firestore cannot
// be read at all. A caller that has hung up does not end a recovery.
func TestTheAnswerOfARecoveryThatFailsInPart(t *testing.T) {
	conflict := fmt.Errorf("%w", lease.ErrConflict)
	for name, tc := range map[string]struct {
		orphans       delivery.OrphanFinder
		queue         delivery.Queue
		want          int
		found, booked float64
		more          bool
		other         delivery.OrphanFinder // of another kind
	}{
		"the reading fails later":          {interrupted{3}, &recordingQueue{}, 200, 3, 3, true, nil},
		"the reading fails":                {interrupted{0}, &recordingQueue{}, 503, 0, 0, false, nil},
		"one booking fails":                {overdue(3), &partlyRefusing{}, 200, 3, 2, true, nil},
		"all bookings fail":                {overdue(3), refusing{}, 503, 3, 0, true, nil},
		"one was acquired since":           {unmarked{3, conflict}, &recordingQueue{}, 200, 2, 2, false, nil},
		"all were acquired since":          {unmarked{1, conflict}, &recordingQueue{}, 200, 0, 0, false, nil},
		"no mark is written":               {unmarked{1, lease.ErrUnavailable}, &recordingQueue{}, 503, 1, 0, true, nil},
		"two kinds":                        {overdue(2), &recordingQueue{}, 200, 5, 5, false, overdue(3)},
		"two kinds, and the second fails":  {overdue(2), &recordingQueue{}, 200, 5, 5, true, interrupted{3}},
		"two kinds, and the first fails":   {interrupted{0}, &recordingQueue{}, 200, 3, 3, false, overdue(3)},
		"two kinds, and more of the first": {overdue(10_001), &recordingQueue{}, 200, 10_001, 10_001, true, overdue(1)},
	} {
		Subtest(t, name, func(t *testing.T) {
			s := serverOf(t.Context(), &delivery.Runner{Orphans: tc.orphans, Queue: tc.queue, Log: slog.New(slog.DiscardHandler)}, CheckedByProxy(), nil)
			if tc.other != nil {
				s.handle(&delivery.Runner{Names: delivery.TaskNames{Kind: "job", Path: "/job"}, Orphans: tc.other, Queue: tc.queue, Log: slog.New(slog.DiscardHandler)}, nil)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			hangUp()
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/internal/tasks/recover", http.NoBody)
			(&process{Guard: s}).send(t, r).check(t, tc.want, map[string]any{"found": tc.found, "booked": tc.booked, "more": tc.more})
		})
	}
}

// A call marks 250 analyses a second, and books 32 at a time, for 50 s. What it has no time for is
// not found.
func TestARecoveryIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		orphans       overdue
		queue         delivery.Queue
		found, booked int
		more          bool
		fails         error
		took          time.Duration
	}{
		"its marks":                       {1001, &recordingQueue{}, 1001, 1001, false, nil, 4 * time.Second},
		"its analyses":                    {1_000_000, &recordingQueue{}, 10_000, 10_000, true, nil, 39 * time.Second},
		"its bookings at a time":          {1_000_000, &slow{by: 3 * time.Second}, 545, 512, true, context.DeadlineExceeded, 50 * time.Second},
		"its time":                        {10_000, &slow{by: 200 * time.Millisecond}, 8000, 7968, true, context.DeadlineExceeded, 50 * time.Second},
		"no booking":                      {100, refusing{}, 100, 0, true, errRefusing, 0},
		"a booking that fails, no others": {100, &partlyRefusing{slow{by: time.Second}}, 100, 99, true, errRefusing, 4 * time.Second},
	} {
		Subtest(t, name, func(t *testing.T) {
			began := time.Now()
			r, err := (&delivery.Runner{Orphans: tc.orphans, Queue: tc.queue}).Recover(t.Context())
			took := time.Since(began).Truncate(time.Second)
			around := tc.found / 200 // what ends when the time does
			if max(r.Found-tc.found, tc.found-r.Found) > around || max(r.Booked-tc.booked, tc.booked-r.Booked) > around || r.More != tc.more || !errors.Is(err, tc.fails) || took != tc.took {
				t.Errorf("%+v, %v in %v; want %+v", r, err, took, tc)
			}
		})
	}
}

// patient is a backlog whose marks outlast the call.
type patient struct{ overdue }

func (patient) MarkDue(_ context.Context, _ lease.Cell[analysislock.Analysis], task func(time.Time) string) (string, error) {
	return task(time.Unix(0, 0)), nil
}

// deaf is a queue that books each task after a minute, also when the call has ended.
type deaf struct{ recordingQueue }

func (d *deaf) Book(ctx context.Context, t taskqueue.Task) (bool, error) {
	time.Sleep(time.Minute)
	return d.recordingQueue.Book(context.WithoutCancel(ctx), t)
}

func TestARecoveryThatRunsOutOfTimeLeavesMoreAlsoWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := (&delivery.Runner{Orphans: patient{1000}, Queue: &deaf{}}).Recover(t.Context())
		if err != nil || !r.More || r.Found != r.Booked || r.Found >= 1000 {
			t.Errorf("%+v, %v; want more", r, err)
		}
	})
}

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
			if n := strings.Count(w.log.String(), "does not say whether"); len(q.asked) != tc.asked || (n == 1) != (tc.mute != nil) {
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
			time.Sleep(lease.DefaultTTL + time.Second) // no task is delivered
			w.recover(t).check(t, 200, map[string]any{"booked": float64(6 - waiting)})
			if n := len(names(q.tasks)); n != 2*(6-waiting) {
				t.Errorf("%d names of %d tasks", n, len(q.tasks))
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
		w.runner.Queue = q
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
		w.runner.Queue = q
		next := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		for _, tc := range []struct {
			booked any
			kept   bool
		}{{"own", true}, {"projects/p/locations/l/queues/q/tasks/own", false}, {7, false}, {nil, false}} {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": "i", "bookedTask": tc.booked, "nextAttemptAt": next})
			_, err := (&Work{collection: collection{w.runner.Orphans.(*repo.Analyses), w.runner}}).submit(t.Context(), "x", "i")
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
