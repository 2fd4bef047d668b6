package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
	"taskguard/worker/taskqueue"
)

// entry returns the one line with this message, or nil.
func (w *logged) entry(t *testing.T, message string) (found map[string]any) {
	t.Helper()
	for line := range bytes.Lines(w.log.Bytes()) {
		var entry map[string]any
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == message {
			if found != nil {
				t.Errorf("%q is logged twice", message)
			}
			found = entry
		}
	}
	return found
}

// unreadable are Locks under which no input can be read.
type unreadable struct{ worker.Locks }

func (unreadable) HoldAnalysisLock(context.Context, string, string, func(context.Context, json.RawMessage) error, ...lease.Renewed) error {
	return errors.New("the input is out of reach")
}

func TestAnInputThatCannotBeReadIsTheAttemptsLastError(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	w := startLogged(t, b, nil, succeed)
	w.guard.Locks = unreadable{w.guard.Locks}
	w.deliver(t, "x").check(t, 503, map[string]any{"acquired": true, "reason": "unavailable"})
	checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "attempts": int64(1)})
	if e, _ := b.Fields(t, "x")["lastError"].(map[string]any); e["code"] != "input_unavailable" || e["message"] != "the input could not be read" {
		t.Errorf("lastError = %v", e)
	}
}

// A failure's code is in the answer's line and in the document's lastError.
func TestAFailedRunSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		attempts int
		analyze  orchestrator.AnalyzerFunc
		line     map[string]any
		recorded string // the code in lastError, or in error
	}{
		"it took too long": {analyze: func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			<-ctx.Done()
			return nil, errors.New("interrupted")
		}, line: map[string]any{"outcome": "retry", "code": "run_timeout"}, recorded: "run_timeout"},
		"it panicked": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) { panic("s3cret") },
			line: map[string]any{"outcome": "retry", "code": "analyzer_panicked"}, recorded: "analyzer_panicked"},
		"the plug-in gave a code": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			return nil, &orchestrator.FailureError{Code: "out_of_memory", Reason: "killed"}
		}, line: map[string]any{"outcome": "retry", "code": "out_of_memory", "reason": "killed"}, recorded: "out_of_memory"},
		"it was the last attempt": {attempts: 2, analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			return nil, &orchestrator.FailureError{Reason: "exit status 1"}
		}, line: map[string]any{"outcome": "failed", "code": "attempts_exhausted", "reason": "exit status 1"}, recorded: "attempts_exhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := emulatortest.Embedded(t)
				b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": tc.attempts})
				w := startLogged(t, b, nil, tc.analyze)
				w.line(t, delivery, "x", tc.line)
				document := b.Fields(t, "x")
				e, _ := document["lastError"].(map[string]any)
				if tc.attempts > 0 {
					e, _ = document["error"].(map[string]any)
				}
				if e["code"] != tc.recorded {
					t.Errorf("recorded %v, want the code %s", e, tc.recorded)
				}
				if message, _ := e["message"].(string); tc.recorded == "run_timeout" && !strings.Contains(message, "deadline") {
					t.Errorf("recorded %q, want the deadline", message)
				}
				panicked := w.entry(t, "the analyzer panicked")
				if stack, _ := panicked["stack"].(string); (panicked != nil) != (name == "it panicked") ||
					panicked != nil && (!strings.Contains(stack, "TestAFailedRunSaysWhy") || len(stack) > 4096 || strings.Contains(w.log.String(), "s3cret")) {
					t.Errorf("of a panic: %v", panicked)
				}
				if w.entry(t, "lock not released") != nil {
					t.Error("a lock that was released is logged as kept")
				}
			})
		})
	}
}

// What a delivery could not do, and its own line does not tell, is a warning.
func TestAFollowUpAReleaseAndAResultThatFailAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		var w *logged
		w = startLogged(t, b, refusing{}, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "full" {
				return strings.Repeat("y", 600_000), nil
			}
			w.dark.Store(true)
			return nil, errors.New("flaky")
		})
		held(t, b, "held", time.Hour)
		b.Put(t, "full", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 600_000)})
		b.Put(t, "dark", map[string]any{"status": "QUEUED"})
		for _, tc := range []struct {
			id, message string
			error       any
		}{
			{"held", "no delivery booked", "no"},
			{"full", "Firestore refused the result", nil},
			{"dark", "lock not released", "*"},
		} {
			w.line(t, delivery, tc.id, nil)
			answer{Body: w.entry(t, tc.message)}.check(t, 0, map[string]any{"level": "WARN", "analysis_id": tc.id, "error": tc.error})
		}
	})
}

// vanished are Records that find no document to finish.
type vanished struct{ worker.Records }

func (vanished) Complete(context.Context, string, string, any) error { return lease.ErrNotFound }

func TestAResultForADocumentThatHasVanishedIsALossByDeletion(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	w := startLogged(t, b, nil, succeed)
	w.guard.Records = vanished{w.guard.Records}
	w.line(t, delivery, "x", map[string]any{"outcome": "lock_lost", "lost": "deleted"})
}

// ours are Locks that know a lock from this process's own memory; read again, it has
// been freed, or cannot be.
type ours struct {
	worker.Locks
	unread error
}

func (ours) AcquireAnalysisLock(context.Context, string, string, time.Duration) (analysislock.Acquisition, error) {
	return analysislock.Acquisition{Own: true, Reason: analysislock.Locked, Grant: lease.Grant{Owner: "us"}, ExpiresAt: time.Unix(1e9, 0)}, nil
}

func (o ours) PeekAnalysisLock(context.Context, string) (analysislock.Acquisition, error) {
	return analysislock.Acquisition{}, o.unread
}

func TestALockOfOursThatIsFreedOrCannotBeReadIsFollowedByNoBooking(t *testing.T) {
	for name, tc := range map[string]struct {
		unread  error
		retryAt any
	}{"freed": {nil, nil}, "cannot be read": {errors.New("no"), "2001-09-09T01:46:40.000Z"}} {
		t.Run(name, func(t *testing.T) {
			q := &full{}
			w := startLogged(t, emulatortest.Embedded(t), q, succeed)
			w.guard.Locks = ours{unread: tc.unread}
			w.deliver(t, "x").check(t, 409, map[string]any{"acquired": false, "reason": "locked", "retry_at": tc.retryAt})
			if len(q.tasks) > 0 {
				t.Errorf("booked %+v", q.tasks)
			}
		})
	}
}

func TestAStopWithADeadlineReadsAsAStop(t *testing.T) {
	if got, want := (&worker.StopError{}).Error(), worker.ErrStopping.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// crowded is a queue that counts how many calls it has at once.
type crowded struct {
	mu        sync.Mutex
	now, most int
}

func (c *crowded) Book(context.Context, taskqueue.Task) (bool, error) {
	c.add(1)
	time.Sleep(time.Second)
	c.add(-1)
	return false, nil
}

func (c *crowded) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func TestARecoveryBooksSixteenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &crowded{}
		g := &worker.Guard{Backlog: overdue(100), Queue: q}
		began := time.Now()
		if r, err := g.Recover(t.Context()); err != nil || r.Booked != 100 {
			t.Errorf("recovered %+v, %v", r, err)
		}
		if took := time.Since(began); q.most != 16 || took != 7*time.Second {
			t.Errorf("%d at once, in %v; want 16, in 7s", q.most, took)
		}
	})
}
