package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

func (w *process) recover(t *testing.T) reply {
	t.Helper()
	return w.call(t, http.MethodPost, "/internal/tasks/recover", "")
}

// checkRecovery makes a call of recovery, which must find n orphans, and book them.
func (w *process) checkRecovery(t *testing.T, n int) {
	t.Helper()
	w.recover(t).check(t, 200, map[string]any{
		"found": float64(n), "booked": float64(n), "more": false, "reason": nil,
	})
}

func TestRecover(t *testing.T) {
	// Their workers died after the delivery was acknowledged, or no delivery was ever booked.
	forKinds(t, "orphans are booked once a TTL", func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		w := startOn(t, b, q.Queue, succeed) // nothing is delivered yet
		now := iso8601.Format(time.Now())
		b.Put(t, "never-booked", map[string]any{"status": "QUEUED", "updatedAt": now})
		b.Put(t, "finished", map[string]any{"status": "READY", "updatedAt": now})
		held(t, b, "orphan", 0)
		w.checkRecovery(t, 0) // too early
		time.Sleep(lease.DefaultTTL + time.Second)
		held(t, b, "live", lease.DefaultTTL)
		w.checkRecovery(t, 2)
		w.checkRecovery(t, 0) // a call marks what it books
		q.serve(w)
		q.idle(t)
		checkFields(t, b, "never-booked", map[string]any{"status": "READY"})
		checkFields(t, b, "orphan", map[string]any{"status": "READY"})
		checkFields(t, b, "live", map[string]any{"status": "PROCESSING"})
		w.checkRecovery(t, 0)
	})
	forKinds(t, "it needs a queue, a Firestore and no stop", func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, succeed)
		w.recover(t).check(t, 501, map[string]any{"reason": "no_queue", "error": "*"})
		w.runner.Queue = &recordingQueue{}
		w.unavailable.Store(true)
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable", "found": 0.0})
		w.unavailable.Store(false)
		w.stop(delivery.ErrStopping)
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable"})
	})
	Subtest(t, "a stop waits for it", func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		q := &recordingQueue{during: func() { time.Sleep(3 * time.Second) }}
		s := serverOf(work, recoverer(overdue(1), q), CheckedByProxy(), nil)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r := httptest.NewRequest(http.MethodPost, "/internal/tasks/recover", http.NoBody)
			s.ServeHTTP(httptest.NewRecorder(), r)
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

// Whatever room a document has, it does not fail a call, and is not booked in vain a second time.
func TestRecover_FullDocuments(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := &recordingQueue{}
		w := startOn(t, b, q, succeed)
		for room := range 28 {
			full(t, b, fmt.Sprint("room", 8*room), 8*room, map[string]any{"lockToken": room % 2}, len("lockToken/")+8)
		}
		history := map[string]any{
			"history": []any{map[string]any{"owner": strings.Repeat("w", 150)}},
			"effects": map[string]any{"charge": map[string]any{"state": "started", "token": 1}},
		}
		full(t, b, "history", 0, history, len("history/owner//")+150+len("effects/charge/state/started/token/")+8)
		b.Put(t, "good", map[string]any{"status": "QUEUED", "updatedAt": longAgo})

		a := w.recover(t)
		a.check(t, 200, map[string]any{"found": float64(len(q.tasks)), "booked": float64(len(q.tasks)), "more": false})
		for _, task := range q.tasks {
			if task.AnalysisID != "good" {
				w.deliver(t, task.AnalysisID).check(t, 200, map[string]any{"status": "FAILED", "error": "*"})
				ended := map[string]any{"status": "FAILED", "lockOwner": nil, "nextAttemptAt": nil}
				checkFields(t, b, task.AnalysisID, ended)
			}
		}
		if !strings.Contains(w.log.String(), delivery.UncertainMessage+`","analysis_id":"history"`) {
			t.Errorf("nobody is told of the act: %s", w.log)
		}
		time.Sleep(lease.DefaultTTL)
		w.log.Reset()
		w.checkRecovery(t, 1) // good
		for _, id := range []string{"room0", "room8", "room16"} {
			checkFields(t, b, id, map[string]any{"status": "QUEUED", "updatedAt": longAgo})
			if !strings.Contains(w.log.String(), `document is full","analysis_id":"`+id+`"`) {
				t.Errorf("no warning names %s: %s", id, w.log)
			}
		}
		checkFields(t, b, "history", map[string]any{
			"status": "FAILED", "finishedBy": "taskguard", "history": nil, "theirs": "*",
		})
	})
}

type orphan = lease.Cell[analysislock.Analysis]

// overdue is a backlog of n analyses.
type overdue int

func (n overdue) Orphaned(_ context.Context, limit int) (due []orphan, more bool, err error) {
	for i := range min(int(n), limit) {
		due = append(due, orphan{Doc: analysislock.Analysis{ID: fmt.Sprint(i)}})
	}
	return due, int(n) > limit, nil
}

func (overdue) MarkDue(_ context.Context, _ orphan, task func(time.Time) string) (string, error) {
	return task(time.Unix(0, 0)), nil
}

// interrupted is a backlog whose reading fails after its beginning.
type interrupted struct{ overdue }

func (i interrupted) Orphaned(ctx context.Context, limit int) ([]orphan, bool, error) {
	due, more, _ := i.overdue.Orphaned(ctx, limit)
	return due, more, lease.ErrUnavailable
}

// unmarked is a backlog of which analysis 0 cannot be marked.
type unmarked struct {
	overdue
	err error
}

func (u unmarked) MarkDue(ctx context.Context, read orphan, task func(time.Time) string) (string, error) {
	if read.Doc.ID == "0" {
		return "", u.err
	}
	return u.overdue.MarkDue(ctx, read, task)
}

// named is a backlog of analyses whose tasks have their names.
type named struct{ overdue }

func (n named) Orphaned(ctx context.Context, limit int) ([]orphan, bool, error) {
	due, more, err := n.overdue.Orphaned(ctx, limit)
	for i := range due {
		due[i].Doc.BookedTask = due[i].Doc.ID
	}
	return due, more, err
}

// recoverer returns a Runner that only recovers.
func recoverer(orphans delivery.OrphanFinder, q delivery.Queue) *delivery.Runner {
	return &delivery.Runner{Orphans: orphans, Queue: q, Log: slog.New(slog.DiscardHandler)}
}

// The answer is 503 only if something was due and nothing was booked, or if Firestore cannot be read at all. A caller
// that has hung up does not end a recovery.
func TestRecover_FailsInPart(t *testing.T) {
	type kinds = []delivery.OrphanFinder
	conflict, accepts := fmt.Errorf("%w", lease.ErrConflict), &recordingQueue{}
	slowly := &recordingQueue{refuses: "0", by: time.Second}
	has1 := &recordingQueue{refuses: "0", has: map[string]taskqueue.Presence{"1": taskqueue.Waiting}}
	for name, c := range map[string]struct {
		kinds kinds
		queue delivery.Queue
		want  string // the status, and how many of those found were booked
	}{
		"the reading fails later":          {kinds{interrupted{3}}, accepts, "200, 3 of 3, more"},
		"the reading fails":                {kinds{interrupted{0}}, accepts, "503, 0 of 0"},
		"one booking fails":                {kinds{overdue(3)}, slowly, "200, 2 of 3, more"},
		"all bookings fail":                {kinds{overdue(3)}, refusing{}, "503, 0 of 3, more"},
		"one booking fails, one waits":     {kinds{named{2}}, has1, "200, 0 of 2, more"},
		"one was acquired since":           {kinds{unmarked{3, conflict}}, accepts, "200, 2 of 2"},
		"all were acquired since":          {kinds{unmarked{1, conflict}}, accepts, "200, 0 of 0"},
		"no mark is written":               {kinds{unmarked{1, lease.ErrUnavailable}}, accepts, "503, 0 of 1, more"},
		"two kinds":                        {kinds{overdue(2), overdue(3)}, accepts, "200, 5 of 5"},
		"two kinds, and the second fails":  {kinds{overdue(2), interrupted{3}}, accepts, "200, 5 of 5, more"},
		"two kinds, and the first fails":   {kinds{interrupted{0}, overdue(3)}, accepts, "200, 3 of 3"},
		"two kinds, and more of the first": {kinds{overdue(10_001), overdue(1)}, accepts, "200, 10001 of 10001, more"},
	} {
		Subtest(t, name, func(t *testing.T) {
			s := serverOf(t.Context(), recoverer(c.kinds[0], c.queue), CheckedByProxy(), nil)
			for _, orphans := range c.kinds[1:] {
				other := recoverer(orphans, c.queue)
				other.Names = delivery.TaskNames{Kind: "job", Path: "/job"}
				s.handle(other, nil)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			hangUp()
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/internal/tasks/recover", http.NoBody)
			a := (&process{Guard: s}).send(t, r)
			got := fmt.Sprintf("%d, %v of %v", a.Code, a.Body["booked"], a.Body["found"])
			if a.Body["more"] == true {
				got += ", more"
			}
			if got != c.want {
				t.Errorf("answered %s, want %s", got, c.want)
			}
		})
	}
}

// A call marks 250 analyses a second, and books 32 at a time, for 50 s. What it has no time for is not found.
func TestRecover_IsBounded(t *testing.T) {
	const s = time.Second
	slow, deaf := &recordingQueue{by: 3 * s}, &recordingQueue{during: func() { time.Sleep(time.Minute) }}
	for name, c := range map[string]struct {
		orphans       overdue
		queue         *recordingQueue
		found, booked int
		more          bool
		err           error
		took          time.Duration
		race          int // so many bookings may end before the time does, or after
	}{
		"its marks": {orphans: 1001, queue: &recordingQueue{}, found: 1001, booked: 1001, took: 4 * s},
		"its analyses": {
			orphans: 1e6, queue: &recordingQueue{}, found: 10_000, booked: 10_000, more: true, took: 39 * s,
		},
		"its bookings at a time": {
			orphans: 1e6, queue: slow, found: 545, booked: 512, more: true, took: 50 * s, err: context.DeadlineExceeded,
		},
		"its time, without an error": {
			orphans: 1000, queue: deaf, found: 34, booked: 34, more: true, took: 120 * s, race: 8,
		},
	} {
		Subtest(t, name, func(t *testing.T) {
			began := time.Now()
			r, err := (&delivery.Runner{Orphans: c.orphans, Queue: c.queue}).Recover(t.Context())
			if took := time.Since(began).Truncate(s); took != c.took || !errors.Is(err, c.err) {
				t.Errorf("%v in %v, want %v in %v", err, took, c.err, c.took)
			}
			around := float64(max(c.race, c.found/200)) // what ends when the time does
			found, booked := math.Abs(float64(r.Found-c.found)), math.Abs(float64(r.Booked-c.booked))
			if max(found, booked) > around || r.More != c.more {
				t.Errorf("%+v, want %d found, %d booked, and more: %v", r, c.found, c.booked, c.more)
			}
		})
	}
}

// Before recovery books again it asks the queue, and each document has the name of its task.
func TestRecover_AsksTheQueue(t *testing.T) {
	all := map[string]map[string]any{
		"waiting":  {"status": "QUEUED", "bookedTask": "waiting"},
		"underway": {"status": "QUEUED", "bookedTask": "underway"},
		"foreign":  {"status": "RECEIVED", "bookedTask": "foreign", "nextAttemptAt": longAgo},
		"crashed":  {"status": "PROCESSING", "bookedTask": "crashed"},
		"lost":     {"status": "QUEUED", "bookedTask": "gone"},
		"unnamed":  {"status": "QUEUED"},
	}
	present := map[string]taskqueue.Presence{
		"waiting": taskqueue.Waiting, "foreign": taskqueue.Waiting, "crashed": taskqueue.Waiting,
		"underway": taskqueue.Underway,
	}
	for name, c := range map[string]struct {
		mute            error
		has             map[string]taskqueue.Presence
		asked, warnings int
	}{
		"it answers": {has: present, asked: 5},
		"it refuses": {mute: errors.New("no permission"), asked: 1, warnings: 1},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q := &recordingQueue{mute: c.mute, has: c.has}
			w := startOn(t, b, q, succeed)
			for id, fields := range all {
				b.Put(t, id, map[string]any{"updatedAt": longAgo})
				b.Merge(t, id, fields)
			}
			waiting := len(c.has)
			booked := map[string]any{"booked": float64(len(all) - waiting)}
			a := w.recover(t)
			a.check(t, 200, booked)
			a.check(t, 200, map[string]any{"found": 6.0, "waiting": float64(waiting)})
			if n := strings.Count(w.log.String(), "does not say whether"); len(q.asked) != c.asked || n != c.warnings {
				t.Errorf("asked for %q, want %d; %d warnings, want %d", q.asked, c.asked, n, c.warnings)
			}

			for id, fields := range all {
				now, state := b.Fields(t, id), c.has[id]
				task, _ := now["bookedTask"].(string)
				if again := q.names()[task]; again != (state == taskqueue.Absent) {
					t.Errorf("%s: its task %q was booked again: %v", id, task, again)
				}
				if state != taskqueue.Absent && task != fields["bookedTask"] {
					t.Errorf("%s names the task %q, want it as before", id, task)
				}
				if marked := now["updatedAt"] != longAgo; marked != (state != taskqueue.Underway) {
					t.Errorf("%s is marked: %v", id, marked)
				}
			}
			time.Sleep(lease.DefaultTTL + time.Second) // no task is delivered
			w.recover(t).check(t, 200, booked)
			if n := len(q.names()); n != 2*(len(all)-waiting) {
				t.Errorf("%d names of %d tasks, want others", n, len(q.tasks))
			}
		})
	}
}

// The document may name a task of the application, or nothing that is a task.
func TestSubmit_BookedTask(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := &recordingQueue{}
		w := startOn(t, b, q, succeed)
		work := &Work{collection: collection{w.runner.Orphans.(*repo.Analyses), w.runner}}
		next := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		for booked, kept := range map[any]bool{
			"own": true, "projects/p/locations/l/queues/q/tasks/own": false, 7: false, nil: false,
		} {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": "i", "bookedTask": booked, "nextAttemptAt": next})
			_, err := work.submit(t.Context(), "x", "i")
			task := q.tasks[len(q.tasks)-1]
			if err != nil || !task.At.Equal(next) {
				t.Errorf("%v: booked %+v, %v; want it for %v", booked, task, err, next)
			}
			if (task.Name == "own") != kept || !taskqueue.ValidName(task.Name) {
				t.Errorf("%v: booked %s", booked, task.Name)
			}
		}
		b.Put(t, "y", map[string]any{"status": "QUEUED", "bookedTask": 7})
		w.deliver(t, "y").check(t, 200, map[string]any{"status": "READY"})
		checkFields(t, b, "y", map[string]any{"bookedTask": nil})
	})
}
