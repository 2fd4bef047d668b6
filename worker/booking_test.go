package worker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/repo"
)

func TestFollowUp(t *testing.T) {
	forKinds(t, "duplicates that meet a live lock book one", func(t *testing.T, b *emulatortest.Backend) {
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
		if got := q.statuses(); !slices.Equal(got, []int{200}) {
			t.Errorf("deliveries %v, want one", got)
		}
		if took := time.Since(began); took < 102*time.Second || took > 110*time.Second {
			t.Errorf("finished after %v, want 2 s after the lock's end", took)
		}
	})
	// After a renewal, the follow-up of the lock books the next one, until the run has ended.
	forKinds(t, "those of a long run end with it", func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		runs := 0
		body := doing(func() {
			runs++
			time.Sleep(20 * time.Minute)
		})
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
		if len(got) < 5 {
			t.Fatalf("deliveries answered %v, want five or more", got)
		}
		if others := slices.Compact(got[1:]); got[0] != 0 || !slices.Equal(others, []int{200}) {
			t.Errorf("deliveries answered %v, want 200 but for the first's deadline", got)
		}
	})
	// A duplicate is a separate request, and not a part of the run that is stopped.
	forKinds(t, "a stop does not cut one short", func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, succeed)
		w.runner.Queue = &recordingQueue{by: time.Second, during: func() { w.stop(delivery.ErrStopping) }}
		held(t, b, "x", 100*time.Second)
		w.deliver(t, "x").check(t, 200, map[string]any{"acquired": false, "reason": "locked"})
	})
	// An expiry is a time of the store, and so are retry_at and the follow-up.
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		Subtest(t, "the worker's clock does not decide, "+ahead.String(), func(t *testing.T) {
			b := clocked(t, ahead)
			w := start(t, b, succeed)
			expires := held(t, b, "x", ahead+100*time.Second)
			locked := map[string]any{"reason": "locked", "retry_at": expires}
			a := w.deliver(t, "x")
			a.check(t, 409, locked)
			a.check(t, 409, map[string]any{"Retry-After": "100"})
			q := &recordingQueue{}
			w.runner.Queue, w.runner.RunTimeout = q, 7*time.Minute
			w.deliver(t, "x").check(t, 200, locked)
			task := q.only(t)
			if at := iso8601.Format(task.At.Add(-2 * time.Second)); at != expires {
				t.Errorf("booked for 2 s after %s, want after %s", at, expires)
			}
			if task.Deadline != 8*time.Minute || task.AnalysisID != "x" {
				t.Errorf("booked %+v, want x with a minute more than RUN_TIMEOUT", task)
			}
		})
	}
}

func TestStop_BooksAgain(t *testing.T) {
	released := map[string]any{"status": "QUEUED", "attempts": int64(0), "checkpoint": int64(7)}
	kept := map[string]any{"status": "PROCESSING", "attempts": int64(1), "checkpoint": nil}
	for name, c := range map[string]struct {
		queueFails codes.Code
		outage     bool // of Firestore, so that the lock is kept
		code       int
		tasks      int
		want       map[string]any
	}{
		"booked":                    {code: 200, tasks: 1, want: released},
		"the queue does not answer": {queueFails: codes.Unavailable, code: 500, tasks: 1, want: released},
		"Firestore does not answer": {outage: true, code: 500, want: kept},
		"neither answers":           {outage: true, queueFails: codes.Unavailable, code: 500, want: kept},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q := StartQueue(t)
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var stopped time.Time
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				w.unavailable.Store(c.outage)
				q.Fail(c.queueFails)
				stopped = time.Now()
				w.stop(delivery.ErrStopping)
				return until(ctx, func() {
					time.Sleep(5 * time.Second) // as an analyzer that ends only when it is killed
					report(job, int64(7))
				})
			})
			w.runner.Queue = q.Queue
			w.deliver(t, "x").check(t, c.code, map[string]any{"acquired": true, "reason": "shutting_down"})
			if took := time.Since(stopped); took > 8*time.Second {
				t.Errorf("answered after %v, want 8 s at most", took)
			}
			if n := len(q.tasks()); n != c.tasks {
				t.Errorf("%d deliveries asked for, want %d", n, c.tasks)
			}
			if n := b.Calls.Count("Commit"); n != map[bool]int{true: 1, false: 2}[c.outage] {
				t.Errorf("%d commits, want the acquisition and, with Firestore, the release", n)
			}
			checkFields(t, b, "x", c.want)
			checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil})
			checkHistory(t, b, map[bool]string{true: "", false: "shutting_down"}[c.outage])
			if c.code != 200 {
				return
			}

			for name := range q.tasks() {
				checkFields(t, b, "x", map[string]any{"bookedTask": path.Base(name)})
			}
			q.serve(start(t, b, succeed))
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

// The release and the booking have what remains of the stop's time, 7.5 s here.
func TestStop_RemainingTime(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for name, c := range map[string]struct {
		analyzer, release, booking time.Duration
		code                       int
		took                       time.Duration
	}{
		"at once":              {code: 200},
		"a slow CreateTask":    {analyzer: 5 * s, booking: 2400 * ms, code: 200, took: 7400 * ms},
		"a slow Firestore":     {release: 7 * s, code: 200, took: 7 * s},
		"both slow":            {analyzer: s, release: 3 * s, booking: 3 * s, code: 200, took: 7 * s},
		"too slow a queue":     {analyzer: 5 * s, booking: time.Hour, code: 500, took: 7500 * ms},
		"too slow a Firestore": {analyzer: 5 * s, release: time.Hour, code: 500, took: 7500 * ms},
	} {
		Subtest(t, name, func(t *testing.T) {
			var stopped time.Time
			var w *process
			b := emulatortest.Embedded(t)
			w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
				stopped = time.Now()
				w.stop(&delivery.StopError{Deadline: stopped.Add(7500 * ms)})
				return until(ctx, func() { time.Sleep(c.analyzer) })
			})
			w.runner.Queue = &recordingQueue{by: c.booking}
			w.runner.Locks = (&memory{release: c.release}).locks(t, nil)
			w.deliver(t, "x").check(t, c.code, map[string]any{"acquired": true, "reason": "shutting_down"})
			if took := time.Since(stopped); took != c.took {
				t.Errorf("answered after %v, want %v", took, c.took)
			}
		})
	}
}

// The commit of the acquisition succeeds, and its reply arrives a moment after the stop: no lock is left.
func TestStop_DuringAcquisition(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, doing(func() { t.Error("it ran") }))
		var stopped atomic.Bool
		late := func(ctx context.Context, m string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption,
		) error {
			err := invoke(ctx, m, req, reply, conn, opts...)
			if path.Base(m) != "Commit" || stopped.Swap(true) {
				return err
			}
			w.stop(delivery.ErrStopping)
			select {
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			case <-time.After(100 * time.Millisecond):
				return err
			}
		}
		a, err := repo.Open(t.Context(), b.Project, repo.Options{
			Collection: b.Collection, Fields: repo.Fields(b.Vocabulary), Policy: lease.Policy{TTL: lease.DefaultTTL},
		}, b.Client(t, grpc.WithChainUnaryInterceptor(late))...)
		must.OK(t, err)
		w.runner.Locks = a
		w.deliver(t, "x").check(t, 500, map[string]any{"acquired": true, "reason": "shutting_down"})
		checkFields(t, b, "x", map[string]any{
			"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil, "attempts": int64(0), "lockToken": int64(1),
		})
	})
}

// A worker without Firestore cannot trust its lock any more. If no other worker has acquired the
// lock, it releases it when Firestore is back.
func TestLockLost_OutOfTime(t *testing.T) {
	for name, away := range map[string]time.Duration{
		"back before the expiry": 0, "back after the expiry": lease.DefaultTTL,
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
				time.Sleep(away)
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
func TestOwner_Instance(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/instance/id") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = w.Write([]byte("0123456789abcdefABCDEF"))
	}))
	defer host.Close()
	const nobody = "127.0.0.1:1"
	seen := map[string]bool{}
	for _, c := range []struct{ revision, execution, metadata, want string }{
		{want: "local/********"},
		{want: "local/********"},
		{execution: "long-x7", metadata: nobody, want: "long-x7/****************"}, // of a job
		{revision: "r-1", metadata: nobody, want: "r-1/****************"},
		{revision: "r-1", metadata: strings.TrimPrefix(host.URL, "http://"), want: "r-1/0123456789abcdef"},
	} {
		t.Setenv("K_REVISION", c.revision)
		t.Setenv("CLOUD_RUN_EXECUTION", c.execution)
		t.Setenv("GCE_METADATA_HOST", c.metadata)
		g, err := Open(t.Context(), Options{Project: "p", Emulator: nobody})
		must.OK(t, err)
		got := g.MustRegister(Kind{}).runner.Instance
		if prefix := strings.TrimRight(c.want, "*"); !strings.HasPrefix(got, prefix) || len(got) != len(c.want) {
			t.Errorf("the instance %q, want %s", got, c.want)
		}
		if seen[got] {
			t.Errorf("two instances are %s", got)
		}
		seen[got] = true
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
