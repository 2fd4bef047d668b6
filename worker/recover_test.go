package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/worker"
	"taskguard/worker/taskqueue"
)

func (w *instance) recover(t *testing.T) answer {
	t.Helper()
	return w.call(t, http.MethodPost, "/internal/tasks/recover", "")
}

// Their workers died after the delivery was acknowledged, or no delivery was ever booked.
func TestRecoveryBooksOrphanedAnalyses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), startQueue(t)
		w := start(t, b, succeed)
		w.guard.Queue = q.Queue // nothing is delivered yet
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
		b.Put(t, "never-booked", map[string]any{"status": "QUEUED", "updatedAt": now})
		b.Put(t, "finished", map[string]any{"status": "READY", "updatedAt": now})
		held(t, b, "orphan", 0)
		w.recover(t).check(t, 200, map[string]any{"found": 0.0, "booked": 0.0}) // too early
		time.Sleep(lease.DefaultTTL + time.Second)
		held(t, b, "live", lease.DefaultTTL)
		for _, booked := range []float64{2, 0, 0} { // the first call marks what it books
			w.recover(t).check(t, 200, map[string]any{"found": booked, "booked": booked, "reason": nil})
		}
		q.serve(w)
		if err := q.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"never-booked", "orphan"} {
			checkFields(t, b, id, map[string]any{"status": "READY"})
		}
		checkFields(t, b, "live", map[string]any{"status": "PROCESSING"})
		w.recover(t).check(t, 200, map[string]any{"found": 0.0, "booked": 0.0})
	})
}

// A task that did not run the analysis prevents another booking for at most an hour.
func TestRecoveryBooksAgainInTheNextHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), startQueue(t)
		w := start(t, b, succeed)
		w.guard.Queue = q.Queue
		held(t, b, "x", 0)
		time.Sleep(lease.DefaultTTL + time.Second)
		w.recover(t).check(t, 200, map[string]any{"found": 1.0, "booked": 1.0})
		time.Sleep(time.Hour)
		w.recover(t).check(t, 200, map[string]any{"found": 1.0, "booked": 1.0})
	})
}

// A delivery that recovery has booked may crash too. The next is booked without a wait.
func TestRecoveryBooksAgainAfterASecondCrashWithinTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), &recordingQueue{}
		w := start(t, b, succeed)
		w.guard.Queue = q
		for token := range 2 {
			b.Put(t, "x", map[string]any{
				"status": "PROCESSING", "lockToken": token, "lockOwner": "them",
				"lockExpiresAt": "1999-01-01T00:00:00.000Z", "updatedAt": "1999-01-01T00:00:00.000Z",
			})
			w.recover(t).check(t, 200, map[string]any{"found": 1.0, "booked": 1.0})
		}
		if len(q.tasks) != 2 || q.tasks[0].Name == q.tasks[1].Name {
			t.Errorf("booked %+v, want two names", q.tasks)
		}
	})
}

// partlyRefusing is a queue that refuses the first task at once, and accepts the others slowly.
type partlyRefusing struct{ slow }

func (p *partlyRefusing) Book(ctx context.Context, t taskqueue.Task) (bool, error) {
	if t.AnalysisID == "0" {
		return false, errors.New("no")
	}
	return p.slow.Book(ctx, t)
}

func TestABookingThatFailsCancelsNoOtherAndManyAreMadeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		g := &worker.Guard{Orphans: overdue(100), Queue: &partlyRefusing{slow{by: time.Second}}}
		if r, err := g.Recover(t.Context()); err == nil || r.Found != 100 || r.Booked != 99 {
			t.Errorf("recovered %+v, %v; want 99 of 100, and an error", r, err)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("99 bookings of a second took %v, want 4 s", took)
		}
	})
}

func TestAStopWaitsForARecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		g := &worker.Guard{Orphans: overdue(1), Queue: &slow{during: func() { time.Sleep(3 * time.Second) }}, Log: slog.New(slog.DiscardHandler)}
		s := worker.NewServer(work, g, nil)
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
		if left := s.Drain(soon); left != 1 || time.Since(began) != time.Second {
			t.Errorf("%d left after %v, want the recovery after 1 s", left, time.Since(began))
		}
	})
}

func TestARecoveryThatCannotBookReportsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), startQueue(t)
		w := start(t, b, succeed)
		w.recover(t).check(t, 501, map[string]any{"reason": "no_queue", "error": "*"})
		w.guard.Queue = q.Queue
		for i := range 100 {
			held(t, b, fmt.Sprint(i), 0)
		}
		time.Sleep(lease.DefaultTTL + time.Second)
		q.setUnavailable(true)
		began := time.Now()
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable", "found": 100.0, "booked": 0.0})
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it tried for %v; the next call is due after a minute", took)
		}
		q.setUnavailable(false)
		time.Sleep(lease.DefaultTTL) // they were marked
		w.recover(t).check(t, 200, map[string]any{"found": 100.0, "booked": 100.0})
		w.unavailable.Store(true)
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable", "found": 0.0})
		w.unavailable.Store(false)
		w.stop(worker.ErrStopping)
		w.recover(t).check(t, 503, map[string]any{"reason": "unavailable"})
	})
}

func TestRecoveryFindsAnalysesBehindThoseThatCannotBeDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), startQueue(t)
		w := start(t, b, succeed)
		w.guard.Queue = q.Queue
		for i := range 300 {
			b.Put(t, fmt.Sprint(i), map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z", "lockToken": map[int]any{0: "malformed"}[i%3]})
		}
		for _, id := range []string{"a\x01b", "a\uFFFDb"} { // Firestore holds them; no delivery could name them
			b.Put(t, id, map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z"})
		}
		b.Put(t, "good", map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:01.000Z"})
		w.recover(t).check(t, 200, map[string]any{"found": 201.0, "booked": 201.0})
	})
}

// refusing is a queue that refuses all tasks.
type refusing struct{}

func (refusing) Book(context.Context, taskqueue.Task) (bool, error) { return false, errors.New("no") }

// overdue is a backlog of n analyses.
type overdue int

func (n overdue) Orphaned(_ context.Context, limit int) (due []analysislock.Analysis, more bool, err error) {
	for i := range min(int(n), limit) {
		due = append(due, analysislock.Analysis{ID: fmt.Sprint(i)})
	}
	return due, int(n) > limit, nil
}

func (overdue) MarkDue(context.Context, analysislock.Analysis) (time.Time, error) {
	return time.Now(), nil
}

func TestARecoveryIsBounded(t *testing.T) {
	g := &worker.Guard{Orphans: overdue(1_000_000), Queue: &recordingQueue{}}
	if r, err := g.Recover(t.Context()); err != nil || r.Found != 10_000 || r.Booked != 10_000 {
		t.Errorf("recovered %+v, %v; want 10,000", r, err)
	}
	g.Queue = refusing{}
	if r, err := g.Recover(t.Context()); err == nil || r.Booked != 0 {
		t.Errorf("recovered %+v, %v; want an error", r, err)
	}
}
