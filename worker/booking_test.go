package worker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// held creates an analysis that another worker holds until d from now.
func held(t *testing.T, b *emulatortest.Backend, id string, d time.Duration) (expires string) {
	t.Helper()
	expires = time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000Z")
	b.Put(t, id, map[string]any{"status": "PROCESSING", "attempts": 1, "lockToken": 1, "lockOwner": "them", "lockExpiresAt": expires, "updatedAt": expires})
	return expires
}

func TestDuplicatesThatMeetALiveLockBookOneFollowUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		w := start(t, b, succeed)
		q.serve(w)
		began := time.Now()
		expires := held(t, b, "x", 100*time.Second)
		for range 20 {
			w.deliver(t, "x").check(t, 200, map[string]any{"acquired": false, "reason": "locked", "retry_at": expires})
		}
		if n := len(q.tasks()); n != 1 {
			t.Errorf("%d follow-ups, want 1", n)
		}
		q.idle(t) // the other worker has crashed
		checkFields(t, b, "x", map[string]any{"status": "READY", "lockToken": int64(2)})
		if got := q.statuses(); len(got) != 1 || got[0] != 200 {
			t.Errorf("deliveries %v, want one", got)
		}
		if took := time.Since(began); took < 102*time.Second || took > 110*time.Second {
			t.Errorf("finished after %v, want 2 s after the lock's end", took)
		}
	})
}

// asTask delivers x with that name of the task.
func (w *process) asTask(t *testing.T, task string) reply {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", strings.NewReader(`{"analysis_id":"x"}`))
	r.Header.Set("X-CloudTasks-TaskName", task)
	return w.send(t, r)
}

// slow is a queue whose bookings take some time.
type slow struct {
	recordingQueue
	by     time.Duration
	during func() // nil: nothing
}

func (s *slow) Book(ctx context.Context, t taskqueue.Task) (bool, error) {
	if s.during != nil {
		s.during()
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(s.by):
		return s.recordingQueue.Book(ctx, t)
	}
}

// A duplicate is a separate request, and not a part of the run that is stopped.
func TestAStopDoesNotCutAFollowUpShort(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, succeed)
		w.runner.Queue = &slow{by: time.Second, during: func() { w.stop(delivery.ErrStopping) }}
		held(t, b, "x", 100*time.Second)
		w.deliver(t, "x").check(t, 200, map[string]any{"acquired": false, "reason": "locked"})
	})
}

func TestAStoppedRunIsBookedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		queueFails       codes.Code
		storeUnavailable bool
		code             int
		tasks            int
		status           string
	}{
		"booked":                    {code: 200, tasks: 1, status: "QUEUED"},
		"the queue does not answer": {queueFails: codes.Unavailable, code: 500, tasks: 1, status: "QUEUED"},
		"Firestore does not answer, so the lock is kept": {storeUnavailable: true, code: 500, status: "PROCESSING"},
		"neither answers": {storeUnavailable: true, queueFails: codes.Unavailable, code: 500, status: "PROCESSING"},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q := StartQueue(t)
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var stopped time.Time
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				w.unavailable.Store(tc.storeUnavailable)
				q.Fail(tc.queueFails)
				stopped = time.Now()
				w.stop(delivery.ErrStopping)
				<-ctx.Done()
				time.Sleep(5 * time.Second) // as an analyzer that ends only when it is killed
				report(job, int64(7))
				return nil, ctx.Err()
			})
			w.runner.Queue = q.Queue
			w.deliver(t, "x").check(t, tc.code, map[string]any{"acquired": true, "reason": "shutting_down"})
			if took := time.Since(stopped); took > 8*time.Second {
				t.Errorf("answered after %v, want 8 s at most", took)
			}
			if n := len(q.tasks()); n != tc.tasks {
				t.Errorf("%d deliveries asked for, want %d", n, tc.tasks)
			}
			commits, history, attempted, checkpoint := 2, "shutting_down", int64(0), any(int64(7))
			if tc.storeUnavailable {
				commits, history, attempted, checkpoint = 1, "", 1, nil
			}
			if n := b.Calls.Count("Commit"); n != commits || attempts(t, b) != history {
				t.Errorf("%d commits, want the acquisition and the release; history %q", n, attempts(t, b))
			}
			checkFields(t, b, "x", map[string]any{"status": tc.status, "attempts": attempted, "checkpoint": checkpoint, "nextAttemptAt": nil})
			if tc.code != 200 {
				return
			}
			for name := range q.tasks() {
				checkFields(t, b, "x", map[string]any{"bookedTask": path.Base(name)})
			}
			next := start(t, b, succeed)
			q.serve(next)
			q.idle(t)
			checkFields(t, b, "x", map[string]any{"status": "READY", "lockToken": int64(2), "attempts": int64(1)})

			// A name stays taken for a day, and the tokens of a document that is created again begin at 1.
			b.Delete(t, "x")
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			w.restart(CheckedByProxy())
			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "shutting_down"})
			q.idle(t)
			checkFields(t, b, "x", map[string]any{"status": "READY"})
		})
	}
}

func TestReleaseAndBookingUseTheRemainingTimeOfAStop(t *testing.T) {
	for name, tc := range map[string]struct {
		analyzer, release, booking time.Duration
		code                       int
		took                       time.Duration
	}{
		"at once":              {code: 200},
		"a slow CreateTask":    {analyzer: 5 * time.Second, booking: 2400 * time.Millisecond, code: 200, took: 7400 * time.Millisecond},
		"a slow Firestore":     {release: 7 * time.Second, code: 200, took: 7 * time.Second},
		"both slow":            {analyzer: time.Second, release: 3 * time.Second, booking: 3 * time.Second, code: 200, took: 7 * time.Second},
		"too slow a queue":     {analyzer: 5 * time.Second, booking: time.Hour, code: 500, took: 7500 * time.Millisecond},
		"too slow a Firestore": {analyzer: 5 * time.Second, release: time.Hour, code: 500, took: 7500 * time.Millisecond},
	} {
		Subtest(t, name, func(t *testing.T) {
			var stopped time.Time
			var w *process
			w = start(t, emulatortest.Embedded(t), func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
				stopped = time.Now()
				w.stop(&delivery.StopError{Deadline: stopped.Add(7500 * time.Millisecond)})
				<-ctx.Done()
				time.Sleep(tc.analyzer)
				return nil, ctx.Err()
			})
			w.runner.Queue, w.runner.Locks = &slow{by: tc.booking}, (&memory{release: tc.release}).locks(t, nil)
			w.deliver(t, "x").check(t, tc.code, map[string]any{"acquired": true, "reason": "shutting_down"})
			if took := time.Since(stopped); took != tc.took {
				t.Errorf("answered after %v, want %v", took, tc.took)
			}
		})
	}
}

// recordingQueue is a queue that accepts and records all tasks.
type recordingQueue struct {
	mu    sync.Mutex
	tasks []taskqueue.Task
	asked []string
	has   map[string]taskqueue.Presence
	mute  error // of Find
}

func (f *recordingQueue) Book(_ context.Context, t taskqueue.Task) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tasks = append(f.tasks, t)
	return false, nil
}

func (f *recordingQueue) Find(_ context.Context, name string, _ time.Time) (taskqueue.Presence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, name)
	return f.has[name], f.mute
}

// If the lock was renewed, its follow-up books the next follow-up, until the run has ended.
func TestFollowUpsOfALongRunEndWithIt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		runs := 0
		body := func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			runs++
			time.Sleep(20 * time.Minute)
			return "done", nil
		}
		one, two := start(t, b, body), start(t, b, body)
		q.serve(one)
		q.serve(two)
		q.submit(t, "x")
		time.Sleep(time.Second)
		for range 3 {
			two.deliver(t, "x").check(t, 200, map[string]any{"reason": "locked"})
		}
		q.idle(t)
		if runs != 1 {
			t.Errorf("%d runs, want 1", runs)
		}
		checkFields(t, b, "x", map[string]any{"status": "READY", "lockToken": int64(1), "attempts": int64(1)})
		got := q.statuses() // 0: the first passed its dispatch deadline, and the run went on
		slices.Sort(got)
		if len(got) < 5 || got[0] != 0 || got[1] != 200 || got[len(got)-1] != 200 {
			t.Errorf("deliveries answered %v, want 200 but for the first's deadline", got)
		}
	})
}

func TestAStopDuringTheAcquisitionLeavesNoLock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, doing(func() { t.Error("it ran") }))
		var stopped atomic.Bool
		a, err := repo.Open(t.Context(), b.Project, repo.Options{Collection: b.Collection, Fields: repo.Fields(b.Vocabulary), Policy: lease.Policy{TTL: lease.DefaultTTL}}, b.Client(t,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, m, req, reply, cc, opts...)
				if path.Base(m) != "Commit" || stopped.Swap(true) {
					return err
				}
				w.stop(delivery.ErrStopping)
				select { // the reply arrives a moment later
				case <-ctx.Done():
					return status.FromContextError(ctx.Err()).Err()
				case <-time.After(100 * time.Millisecond):
					return err
				}
			}))...)
		if err != nil {
			t.Fatal(err)
		}
		w.runner.Locks = a
		w.deliver(t, "x").check(t, 500, map[string]any{"acquired": true, "reason": "shutting_down"})
		if !stopped.Load() {
			t.Error("no commit was made")
		}
		checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil, "attempts": int64(0), "lockToken": int64(1)})
	})
}

// A worker without Firestore cannot trust its lock any more. If no other worker has acquired the
// lock, it releases it when Firestore is back.
func TestALockLostToTimeAloneIsFreed(t *testing.T) {
	for name, away := range map[string]func(ttl time.Duration) time.Duration{
		"back before the expiry": func(time.Duration) time.Duration { return 0 },
		"back after the expiry":  func(ttl time.Duration) time.Duration { return ttl },
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var w *process
			w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
				w.unavailable.Store(true)
				<-ctx.Done()
				var lost *lease.LostError
				if !errors.As(context.Cause(ctx), &lost) || lost.Reason != lease.OutOfTime {
					t.Errorf("cause = %v, want out of time", context.Cause(ctx))
				}
				time.Sleep(away(lease.DefaultTTL))
				w.unavailable.Store(false)
				return "must not be written", nil
			})
			w.deliver(t, "x").check(t, 409, map[string]any{"acquired": true, "reason": "lock_lost"})
			checkFields(t, b, "x", map[string]any{
				"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil, "lockHeartbeatAt": nil,
				"attempts": int64(1), "lockToken": int64(1), "result": nil, "finishedBy": nil,
			})
			start(t, b, succeed).deliver(t, "x").check(t, 200, map[string]any{"status": "READY", "lock_token": 2.0})
		})
	}
}

// No two instances share an owner's name: under one name, two of their runs could overlap.
func TestTheOwnerBeginsWithTheInstance(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/instance/id") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = w.Write([]byte("0123456789abcdefABCDEF"))
	}))
	defer host.Close()
	seen := map[string]bool{}
	for _, c := range []struct{ revision, execution, metadata, want string }{
		{"", "", "", `^local/[A-Z2-7]{8}$`},
		{"", "", "", `^local/[A-Z2-7]{8}$`},
		{"", "long-x7", "127.0.0.1:1", `^long-x7/[A-Z2-7]{16}$`}, // of a job
		{"r-1", "", "127.0.0.1:1", `^r-1/[A-Z2-7]{16}$`},         // no metadata server
		{"r-1", "", strings.TrimPrefix(host.URL, "http://"), `^r-1/0123456789abcdef$`},
	} {
		t.Setenv("K_REVISION", c.revision)
		t.Setenv("CLOUD_RUN_EXECUTION", c.execution)
		t.Setenv("GCE_METADATA_HOST", c.metadata)
		g, err := Open(t.Context(), Options{Project: "p", Emulator: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		work := g.MustRegister(Kind{})
		if got := work.runner.Instance; !regexp.MustCompile(c.want).MatchString(got) || seen[got] {
			t.Errorf("the instance %q, want %s and no other's", got, c.want)
		}
		seen[work.runner.Instance] = true
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

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
			w.deliver(t, "x").check(t, 409, map[string]any{"reason": "locked", "retry_at": expires, "Retry-After": "100"})
			q := &recordingQueue{}
			w.runner.Queue, w.runner.RunTimeout = q, 7*time.Minute
			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "locked", "retry_at": expires})
			if at := q.tasks[0].At.Add(-2 * time.Second).UTC().Format("2006-01-02T15:04:05.000Z"); at != expires || q.tasks[0].Deadline != 8*time.Minute || q.tasks[0].AnalysisID != "x" {
				t.Errorf("booked %+v for 2 s after %s, want after %s", q.tasks[0], at, expires)
			}
		})
	}
}
