package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

var errLater = errors.New("later")

// document returns a document with that status. A locked or waiting one stays so for a minute.
func document(status string) map[string]any {
	at := time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000Z")
	switch status {
	case "locked":
		return map[string]any{"status": "PROCESSING", "attempts": 1, "lockToken": 1, "lockOwner": "them", "lockExpiresAt": at}
	case "waiting":
		return map[string]any{"status": "QUEUED", "attempts": 1, "lockToken": 1, "nextAttemptAt": at}
	case "crashed":
		return map[string]any{"status": "PROCESSING", "lockOwner": "them", "lockExpiresAt": "1999-12-31T00:00:00.000Z"}
	case "malformed":
		return map[string]any{"status": "QUEUED", "lockToken": "1"}
	case "exhausted":
		return map[string]any{"status": "QUEUED", "attempts": 10}
	}
	return map[string]any{"status": status}
}

func TestWork_Run(t *testing.T) {
	for name, tc := range map[string]struct {
		doc    string // see document; empty: none
		run    func() (any, error)
		want   string // the outcome, the status, the attempt, and whether a delivery is booked
		err    error  // errors.Is
		status string // in the document
	}{
		"a result":           {"QUEUED", func() (any, error) { return 1, nil }, "ready READY 1 false", nil, "READY"},
		"READY before":       {"READY", nil, "already_finished READY 0 false", nil, "READY"},
		"FAILED before":      {"FAILED", nil, "already_finished FAILED 0 false", nil, "FAILED"},
		"a permanent error":  {"QUEUED", func() (any, error) { return nil, worker.Permanent("no_page", "m", errLater) }, "failed FAILED 1 false", errLater, "FAILED"},
		"a failure for now":  {"QUEUED", func() (any, error) { return nil, errLater }, "retry  1 true", errLater, "QUEUED"},
		"another run":        {"locked", nil, "locked  0 true", nil, "PROCESSING"},
		"not due":            {"waiting", nil, "waiting  0 true", nil, "QUEUED"},
		"no document":        {"", nil, "not_found  0 false", worker.ErrNotFound, ""},
		"no attempt is left": {"exhausted", nil, "failed FAILED 10 false", nil, "FAILED"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g, log := openLogged(t, b, q.Use)
			x := collection(t, b, "analyses").Doc("x")
			if tc.doc != "" {
				set(t, x, document(tc.doc))
			}
			r, err := g.MustRegister(worker.Kind{Run: func(context.Context, worker.Job) (any, error) { return tc.run() }}).Run(t.Context(), "x")
			if got := fmt.Sprintf("%s %s %d %t", r.Outcome, r.Status, r.Attempt, r.Booked); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			done := strings.HasPrefix(tc.want, "ready") || strings.HasPrefix(tc.want, "already")
			if done != (err == nil) || tc.err != nil && !errors.Is(err, tc.err) {
				t.Errorf("error %v, want %v", err, tc.err)
			}
			if failed := errors.As(err, new(*worker.FailedError)); failed != (r.Outcome == "failed") || failed && r.Code == "" {
				t.Errorf("error %v of %s, code %q", err, r.Outcome, r.Code)
			}
			if held := errors.As(err, new(*worker.RunningError)); held != (r.Outcome == "locked") {
				t.Errorf("error %v of %s", err, r.Outcome)
			}
			if tc.doc != "" {
				checkRecord(t, x, map[string]any{"status": tc.status})
			}
			if lines := strings.Count(log.String(), "msg=delivery"); lines != 1 {
				t.Errorf("%d lines of a delivery, want one:\n%s", lines, log)
			}
		})
	}
}

// Each way to stop a run ends its context, frees the lock and books a delivery for now.
func TestAStoppedWork_Run(t *testing.T) {
	errSignal := errors.New("a signal")
	for name, tc := range map[string]struct {
		stop func(end context.CancelCauseFunc, g *worker.Guard)
		err  error
	}{
		"by its context":   {func(end context.CancelCauseFunc, _ *worker.Guard) { end(errSignal) }, errSignal},
		"by the Shutdown":  {func(_ context.CancelCauseFunc, g *worker.Guard) { _ = g.Shutdown(context.Background()) }, worker.ErrStopping},
		"before it began":  {nil, errSignal},
		"after a Shutdown": {nil, worker.ErrStopping},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g := opened(t, b, q.Use)
			x := collection(t, b, "analyses").Doc("x")
			set(t, x, map[string]any{"status": "QUEUED"})
			ctx, end := context.WithCancelCause(t.Context())
			booked := 0
			work := g.MustRegister(worker.Kind{Run: func(ctx context.Context, _ worker.Job) (any, error) {
				go tc.stop(end, g)
				<-ctx.Done()
				return nil, ctx.Err()
			}})
			switch name {
			case "before it began":
				end(errSignal)
			case "after a Shutdown":
				_ = g.Shutdown(t.Context())
			default:
				booked = 1
			}
			_, err := work.Run(ctx, "x")
			if !errors.Is(err, tc.err) {
				t.Errorf("error %v, want %v", err, tc.err)
			}
			checkRecord(t, x, map[string]any{"status": "QUEUED", "lockOwner": nil})
			if tasks := q.Tasks(); len(tasks) != booked || booked > 0 && tasks[0].GetScheduleTime().AsTime().After(time.Now()) {
				t.Errorf("booked %v, want %d for now", tasks, booked)
			}
			if errors.Is(tc.err, errSignal) {
				_ = g.Shutdown(t.Context())
			}
		})
	}
}

func TestAGuardIsShutDownOnceAndTakesNoKindAfterwards(t *testing.T) {
	b, q := emulatortest.Embedded(t), worker.StartQueue(t)
	g := opened(t, b, q.Use)
	for range 2 {
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, k := range []worker.Kind{{}, {Name: "do", Collection: "records"}} {
		if _, err := g.Register(k); !errors.Is(err, worker.ErrStopping) {
			t.Errorf("kind %q: %v, want ErrStopping", k.Name, err)
		}
	}
}

// The queue delivers to a service whose kind starts runs elsewhere. The first run takes 40 minutes and
// fails for now, the second dies, recovery starts the third.
func TestARunLongerThanADeliveryIsStartedElsewhereAndFinishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, wall := emulatortest.Embedded(t), worker.StartQueue(t), &worker.Wall{}
		elsewhere := func(wall *worker.Wall, run func(context.Context, worker.Job) (any, error)) *worker.Work {
			return open(t, b, func(o *worker.Options) {
				q.Share(o)
				o.FirestoreOptions = wall.Client(t, b)
				o.NoHTTP, o.RunTimeout = true, 3*time.Hour
			}).MustRegister(worker.Kind{Run: run})
		}
		long := func(err error) func(context.Context, worker.Job) (any, error) {
			return func(context.Context, worker.Job) (any, error) {
				time.Sleep(40 * time.Minute)
				return "done", err
			}
		}
		runs := []*worker.Work{
			elsewhere(&worker.Wall{}, long(errLater)),
			elsewhere(wall, func(ctx context.Context, _ worker.Job) (any, error) {
				time.Sleep(10 * time.Minute)
				wall.Up.Store(true) // the process dies: it does not reach Firestore any more
				<-ctx.Done()
				return nil, ctx.Err()
			}),
			elsewhere(&worker.Wall{}, long(nil)),
		}
		started := 0
		service := open(t, b, q.Share)
		h := routes(t, service, worker.Kind{RunTimeout: 3 * time.Hour, Start: func(context.Context, string) error {
			run := runs[started]
			started++
			go func() {
				time.Sleep(time.Minute) // as the start of an execution
				_, _ = run.Run(context.WithoutCancel(t.Context()), "x")
			}()
			return nil
		}})
		q.Serve(h)
		x := collection(t, b, "analyses").Doc("x")
		work := open(t, b, q.Share).MustRegister(worker.Kind{})
		if s, err := work.Submit(t.Context(), "x", nil); err != nil || !s.Booked {
			t.Fatal(s, err)
		}

		for range 200 { // minutes
			time.Sleep(time.Minute)
			if code, _ := post(t, h, "/internal/tasks/recover", ""); code != http.StatusOK {
				t.Fatal(code)
			}
		}
		if started != len(runs) {
			t.Errorf("%d runs were started, want %d", started, len(runs))
		}
		checkRecord(t, x, map[string]any{"status": "READY", "result": "done", "lockToken": int64(3), "attempts": int64(3)})
		for _, task := range q.Tasks() {
			if limit := task.GetDispatchDeadline().AsDuration(); limit > 30*time.Minute {
				t.Errorf("a task with the deadline %v, which Cloud Tasks refuses", limit)
			}
		}
	})
}

func TestADeliveryStartsTheRunOfAKindWithAStart(t *testing.T) {
	for name, tc := range map[string]struct {
		doc     string // see document; empty: none
		code    int
		answer  string
		started int32
		booked  int
		fails   error // of Start
	}{
		"free":            {"QUEUED", 200, `"acquired":false,"reason":"started"`, 1, 0, nil},
		"Start fails":     {"QUEUED", 503, `"acquired":false,"reason":"unavailable"`, 1, 0, errLater},
		"finished":        {"READY", 200, `"reason":"already_finished"`, 0, 0, nil},
		"locked":          {"locked", 200, `"acquired":false,"reason":"locked","retry_at":`, 0, 1, nil},
		"not due":         {"waiting", 200, `"acquired":false,"reason":"waiting","retry_at":`, 0, 1, nil},
		"missing":         {"", 404, `"reason":"not_found"`, 0, 0, nil},
		"malformed":       {"malformed", 500, `"reason":"malformed"`, 0, 0, nil},
		"an expired lock": {"crashed", 200, `"reason":"started"`, 1, 0, nil},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g := open(t, b, func(o *worker.Options) { q.Use(o); o.SelfTest = []byte("1") })
			x := collection(t, b, "analyses").Doc("x")
			if tc.doc != "" {
				set(t, x, document(tc.doc))
			}
			before := fields(t, x)
			var started atomic.Int32
			h := routes(t, g, worker.Kind{Start: func(ctx context.Context, id string) error {
				started.Add(1)
				if _, limited := ctx.Deadline(); !limited || id != "x" {
					t.Errorf("started %q, limited %t", id, limited)
				}
				return tc.fails
			}})
			if code, _ := post(t, h, "/internal/self-test", ""); code != http.StatusNotFound {
				t.Errorf("a self-test without a Run is answered %d", code)
			}
			code, answer := post(t, h, "/internal/tasks/analysis", `{"analysis_id":"x"}`)
			if code != tc.code || !strings.Contains(answer, tc.answer) || started.Load() != tc.started || len(q.Tasks()) != tc.booked {
				t.Errorf("%d %s, started %d, booked %d", code, answer, started.Load(), len(q.Tasks()))
			}
			after := fields(t, x)
			counted := tc.started > 0 && tc.fails == nil
			if (after["starts"] == int64(1)) != counted {
				t.Errorf("starts %v", after["starts"])
			}
			if tc.started > 0 { // the mark of the start
				for _, field := range []string{"starts", "nextAttemptAt", "updatedAt"} {
					delete(after, field)
				}
			}
			if fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("the delivery writes %v over %v", after, before)
			}
		})
	}
}

// A run that is started too early finds that its analysis waits. The name of the task cannot be booked again.
func TestTheBookedNextDeliveryIsRepeatedByTheQueueIfItIsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, started := emulatortest.Embedded(t), worker.StartQueue(t), 0
		h := routes(t, open(t, b, q.Use), worker.Kind{Start: func(context.Context, string) error {
			started++
			return nil
		}})
		set(t, collection(t, b, "analyses").Doc("x"), document("waiting"))
		deliver := func(task string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis",
				strings.NewReader(`{"analysis_id":"x"}`))
			r.Header.Set("X-CloudTasks-TaskName", task)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		if w := deliver("another"); w.Code != http.StatusOK || started != 0 || len(q.Tasks()) != 1 {
			t.Fatalf("%d, started %d, booked %d", w.Code, started, len(q.Tasks()))
		}
		next := path.Base(q.Tasks()[0].GetName())
		if w := deliver(next); w.Code != http.StatusConflict || w.Header().Get("Retry-After") != "60" || started != 0 {
			t.Errorf("early: %d, Retry-After %q, started %d", w.Code, w.Header().Get("Retry-After"), started)
		}
		time.Sleep(time.Minute)
		if w := deliver(next); w.Code != http.StatusOK || started != 1 {
			t.Errorf("in time: %d, started %d", w.Code, started)
		}
	})
}

// Each execution dies before it has the lock.
func TestRunsThatDieAtTheirStartAreNotStartedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, started := emulatortest.Embedded(t), worker.StartQueue(t), 0
		h := routes(t, open(t, b, q.Share), worker.Kind{Start: func(context.Context, string) error {
			started++
			return nil
		}})
		q.Serve(h)
		x := collection(t, b, "analyses").Doc("x")
		set(t, x, map[string]any{"status": "QUEUED", "updatedAt": "1999-12-31T00:00:00.000Z"})
		for range 120 { // minutes
			if code, answer := post(t, h, "/internal/tasks/recover", ""); code != http.StatusOK {
				t.Fatal(code, answer)
			}
			time.Sleep(time.Minute)
		}
		failed, _ := fields(t, x)["error"].(map[string]any)
		if started != 10 || failed["code"] != "not_started" || fields(t, x)["starts"] != nil {
			t.Errorf("%d starts, %v", started, fields(t, x))
		}
	})
}

// An act that takes a second is not cut in half when the context of its Run ends.
func TestAnActOfARunEndsLastWhenItsContextEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		takes, ended time.Duration
		state        string
	}{
		"a second": {time.Second, time.Second, "done"},
		"an hour":  {time.Hour, 6300 * time.Millisecond, "started"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			doc := collection(t, b, "jobs").Doc("1")
			set(t, doc, pending)
			ctx, end := context.WithCancel(t.Context())
			_, _ = opened(t, b, quick).MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", func(acting context.Context) (int, error) {
					began := time.Now()
					time.AfterFunc(300*time.Millisecond, end)
					charge, err := lasting(tc.takes)(acting)
					if ended := time.Since(began).Round(100 * time.Millisecond); ended != tc.ended {
						t.Errorf("the act ended after %v, want %v", ended, tc.ended)
					}
					return charge, err
				})
			})).Run(ctx, "1")
			if got := charged(fields(t, doc)); got["state"] != tc.state {
				t.Errorf("act %v, want %s", got, tc.state)
			}
		})
	}
}

// The same kind can start runs in a service, and run in the job's program.
func TestAKindWithAStartAndARunStartsForDeliveriesAndRunsForRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, started := emulatortest.Embedded(t), worker.StartQueue(t), 0
		kind := worker.Kind{
			Run:   func(context.Context, worker.Job) (any, error) { return "ran", nil },
			Start: func(context.Context, string) error { started++; return nil },
		}
		work, unqueued := open(t, b, q.Use).MustRegister(kind), open(t, b, func(*worker.Options) {}).MustRegister(kind)
		x := collection(t, b, "analyses").Doc("x")
		set(t, x, map[string]any{"status": "QUEUED"})
		if code, answer := post(t, work.Handler(), "/", `{"analysis_id":"x"}`); code != http.StatusOK || started != 1 {
			t.Errorf("%d %s, started %d", code, answer, started)
		}
		ofX := message(`"attributes":{"analysis_id":"x"}`)
		if code, answer := post(t, unqueued.WithoutRun().PubSub(), "/", ofX); code != http.StatusInternalServerError || started != 1 {
			t.Errorf("a message without Run, Start and Queue: %d %s, started %d", code, answer, started)
		}
		// Without a Queue nobody would find a started run that dies.
		if code, answer := post(t, unqueued.Handler(), "/", `{"analysis_id":"x"}`); code != http.StatusInternalServerError || started != 1 {
			t.Errorf("a Start without a Queue: %d %s, started %d", code, answer, started)
		}
		if _, err := work.Run(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		checkRecord(t, x, map[string]any{"status": "READY", "result": "ran"})
	})
}

func TestAProgramWithoutHTTPNeedsNoCheckOfCallersAndAnswersNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := open(t, b, func(o *worker.Options) { o.Auth, o.NoHTTP = nil, true })
		work := g.MustRegister(worker.Kind{Run: succeed})
		if code, _ := post(t, work.Handler(), "/", `{"analysis_id":"x"}`); code != http.StatusUnauthorized {
			t.Errorf("a request is answered %d", code)
		}
		if _, err := g.Routes(work); err == nil || !strings.Contains(err.Error(), "NoHTTP") {
			t.Errorf("routes: %v", err)
		}
		if _, err := g.MustRegister(jobs(nil)).Run(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "has no Run") {
			t.Errorf("a kind without Run: %v", err)
		}

		long := worker.Kind{RunTimeout: 24 * time.Hour, Run: succeed}
		if _, err := open(t, b, q.Share).Register(long); err == nil || !strings.Contains(err.Error(), "RUN_TIMEOUT") {
			t.Errorf("a delivery would have to wait for a run of 24 h: %v", err)
		}
		if _, err := open(t, b, func(o *worker.Options) { q.Share(o); o.NoHTTP = true }).Register(long); err != nil {
			t.Error(err)
		}
		long.RunTimeout++
		if _, err := open(t, b, func(o *worker.Options) { o.NoHTTP = true }).Register(long); err == nil || !strings.Contains(err.Error(), "MAX_RUN_TIME") {
			t.Errorf("a run longer than MaxRunTime: %v", err)
		}
	})
}
