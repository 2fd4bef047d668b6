package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
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
		return map[string]any{"status": "PROCESSING", "lockToken": 1, "lockOwner": "them", "lockExpiresAt": at}
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
	for name, c := range map[string]struct {
		doc  string // see document; empty: none
		run  run
		want string // the outcome, the status, the attempt, and whether a delivery is booked; then the error
		then any    // the status in the document
	}{
		"a result":           {"QUEUED", succeed, "ready READY 1 false: ", "READY"},
		"READY before":       {"READY", nil, "already_finished READY 0 false: ", "READY"},
		"FAILED before":      {"FAILED", nil, "already_finished FAILED 0 false: ", "FAILED"},
		"a failure for now":  {"QUEUED", returns[any](nil, errOwn), "retry  1 true: own", "QUEUED"},
		"another run":        {"locked", nil, "locked  0 true: running", "PROCESSING"},
		"not due":            {"waiting", nil, "waiting  0 true: error", "QUEUED"},
		"no document":        {"", nil, "not_found  0 false: not found", nil},
		"no attempt is left": {"exhausted", nil, "failed FAILED 10 false: failed attempts_exhausted", "FAILED"},
		"a permanent error": {
			"QUEUED", returns[any](nil, worker.Permanent("no_page", "m", errOwn)),
			"failed FAILED 1 false: failed no_page: m own", "FAILED",
		},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g, log := openLogged(t, b, q.Use)
			x := collection(t, b, "analyses").Doc("x")
			if c.doc != "" {
				set(t, x, document(c.doc))
			}
			run := func(ctx context.Context, job worker.Job) (any, error) { return c.run(ctx, job) }
			r, err := g.MustRegister(worker.Kind{Run: run}).Run(t.Context(), "x")
			words := said(worker.Outcome[string]{}, err)
			got := fmt.Sprintf("%s %s %d %t: %s", r.Outcome, r.Status, r.Attempt, r.Booked, words)
			if !strings.HasPrefix(got, c.want) || strings.HasSuffix(c.want, ": ") != (err == nil) {
				t.Errorf("%s, want %s", got, c.want)
			}
			if failed := r.Outcome == "failed"; failed && !strings.Contains(words, "failed "+r.Code+": "+r.Message) {
				t.Errorf("code %q, message %q of %s", r.Code, r.Message, words)
			}
			checkRecord(t, x, map[string]any{"status": c.then})
			if lines := strings.Count(log.String(), "msg=delivery"); lines != 1 {
				t.Errorf("%d lines of a delivery, want one:\n%s", lines, log)
			}
		})
	}
}

// Each way to stop a run ends its context, frees the lock and books a delivery for now.
func TestWork_RunStopped(t *testing.T) {
	for name, c := range map[string]struct {
		shutdown bool // else its context ends
		before   bool // before it began
		err      error
	}{
		"by its context":   {err: errOwn},
		"by the Shutdown":  {shutdown: true, err: worker.ErrStopping},
		"before it began":  {before: true, err: errOwn},
		"after a Shutdown": {before: true, shutdown: true, err: worker.ErrStopping},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g := opened(t, b, q.Use)
			x := collection(t, b, "analyses").Doc("x")
			set(t, x, map[string]any{"status": "QUEUED"})
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			shut := func() { shutDown(t, g, 10*time.Second) }
			stop := shut
			if !c.shutdown {
				defer shut()
				stop = func() { end(errOwn) }
			}
			work, booked := g.MustRegister(worker.Kind{Run: func(ctx context.Context, _ worker.Job) (any, error) {
				go stop()
				<-ctx.Done()
				return nil, ctx.Err()
			}}), 1
			if c.before {
				stop()
				booked = 0
			}
			if _, err := work.Run(ctx, "x"); !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			synctest.Wait()
			checkRecord(t, x, map[string]any{"status": "QUEUED", "lockOwner": nil})
			now := 0
			for _, task := range q.Tasks() {
				if !task.GetScheduleTime().AsTime().After(time.Now()) {
					now++
				}
			}
			if now != booked || len(q.Tasks()) != booked {
				t.Errorf("booked %v, want %d for now", q.Tasks(), booked)
			}
		})
	}
}

func TestShutdown_Register(t *testing.T) {
	b, q := emulatortest.Embedded(t), worker.StartQueue(t)
	g := opened(t, b, q.Use)
	work := g.MustRegister(jobs(succeed))
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
	if err := work.Book(t.Context(), "x"); !errors.Is(err, worker.ErrStopping) {
		t.Errorf("Book: %v, want ErrStopping", err)
	}
}

// The queue delivers to a service whose kind starts runs elsewhere. The first run takes 40 minutes and
// fails for now, the second dies, recovery starts the third.
func TestStart_Elsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, dying := emulatortest.Embedded(t), worker.StartQueue(t), &worker.Wall{}
		elsewhere := func(wall *worker.Wall, run run) *worker.Work {
			return open(t, b, func(o *worker.Options) {
				if o.FirestoreOptions = wall.Client(t, b); wall != dying { // which books no follow-up
					q.Share(o)
				}
				o.NoHTTP, o.RunTimeout = true, 3*time.Hour
			}).MustRegister(worker.Kind{Run: run})
		}
		long := func(err error) run {
			return func(context.Context, worker.Job) (any, error) {
				time.Sleep(40 * time.Minute)
				return "done", err
			}
		}
		runs := []*worker.Work{
			elsewhere(&worker.Wall{}, long(errLater)),
			elsewhere(dying, func(ctx context.Context, _ worker.Job) (any, error) {
				time.Sleep(10 * time.Minute)
				dying.Up.Store(true) // the process dies: it does not reach Firestore any more
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
		want := map[string]any{"status": "READY", "result": "done", "lockToken": int64(3), "attempts": int64(3)}
		checkRecord(t, collection(t, b, "analyses").Doc("x"), want)
		for _, task := range q.Tasks() {
			if limit := task.GetDispatchDeadline().AsDuration(); limit > 30*time.Minute {
				t.Errorf("a task with the deadline %v, which Cloud Tasks refuses", limit)
			}
		}
	})
}

func TestStart(t *testing.T) {
	for name, c := range map[string]struct {
		doc   string // see document
		fails error  // of Start
		want  string
	}{
		"free":        {"QUEUED", nil, "200 started, 1 started, 0 booked"},
		"Start fails": {"QUEUED", errLater, "503 unavailable, 1 started, 0 booked"},
		"finished":    {"READY", nil, "200 already_finished, 0 started, 0 booked"},
		"locked":      {"locked", nil, "200 locked, 0 started, 1 booked"},
		"not due":     {"waiting", nil, "200 waiting, 0 started, 1 booked"},
		"malformed":   {"malformed", nil, "500 malformed, 0 started, 0 booked"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, q, started := emulatortest.Embedded(t), worker.StartQueue(t), 0
			g := open(t, b, func(o *worker.Options) { q.Use(o); o.SelfTest = []byte("1") })
			x := collection(t, b, "analyses").Doc("x")
			set(t, x, document(c.doc))
			before := fields(t, x)
			h := routes(t, g, worker.Kind{Start: func(ctx context.Context, id string) error {
				started++
				if _, limited := ctx.Deadline(); !limited || id != "x" {
					t.Errorf("started %q, limited %t", id, limited)
				}
				return c.fails
			}})
			if code, _ := post(t, h, "/internal/self-test", ""); code != http.StatusNotFound {
				t.Errorf("a self-test without a Run is answered %d", code)
			}
			code, text := post(t, h, "/internal/tasks/analysis", `{"analysis_id":"x"}`)
			var answer struct{ Reason string }
			if err := json.Unmarshal([]byte(text), &answer); err != nil {
				t.Error(err)
			}
			got := fmt.Sprintf("%d %s, %d started, %d booked", code, answer.Reason, started, len(q.Tasks()))
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			after := fields(t, x)
			if counted := after["starts"] == int64(1); counted != (answer.Reason == "started") {
				t.Errorf("starts %v", after["starts"])
			}
			if started > 0 { // the mark of the start
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

// Each execution has died before it had the lock.
func TestStart_TooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		h := routes(t, open(t, b, q.Use), worker.Kind{Start: func(context.Context, string) error {
			t.Error("it is started")
			return nil
		}})
		x := collection(t, b, "analyses").Doc("x")
		set(t, x, map[string]any{"status": "QUEUED", "starts": 10})
		if code, answer := post(t, h, "/internal/tasks/analysis", `{"analysis_id":"x"}`); code != http.StatusOK {
			t.Errorf("%d %s", code, answer)
		}
		checkRecord(t, x, map[string]any{"status": "FAILED", "starts": nil})
		if failed := fmt.Sprint(fields(t, x)["error"]); !strings.Contains(failed, "not_started") {
			t.Errorf("the error is %s", failed)
		}
	})
}

// A run that is started too early finds that its analysis waits. The name of the task cannot be booked again.
func TestStart_Early(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, started := emulatortest.Embedded(t), worker.StartQueue(t), 0
		h := routes(t, open(t, b, q.Use), worker.Kind{Start: func(context.Context, string) error {
			started++
			return nil
		}})
		set(t, collection(t, b, "analyses").Doc("x"), document("waiting"))
		deliver := func(task, want string) {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis",
				strings.NewReader(`{"analysis_id":"x"}`))
			r.Header.Set("X-CloudTasks-TaskName", task)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			after := w.Header().Get("Retry-After")
			got := fmt.Sprintf("%d %s, %d started, %d booked", w.Code, after, started, len(q.Tasks()))
			if got != want {
				t.Errorf("%s: %s, want %s", task, got, want)
			}
		}
		deliver("another", "200 , 0 started, 1 booked")
		next := path.Base(q.Tasks()[0].GetName())
		deliver(next, "409 60, 0 started, 1 booked")
		time.Sleep(time.Minute)
		deliver(next, "200 , 1 started, 1 booked")
	})
}

// With a MaxRuns of 1 nothing else runs beside it. Each leaves its place to the next.
func TestWork_RunAlone(t *testing.T) {
	for maxRuns, alone := range map[int]any{1: true, 2: nil} {
		worker.Subtest(t, fmt.Sprint("of ", maxRuns), func(t *testing.T) {
			b := emulatortest.Embedded(t)
			x := collection(t, b, "analyses").Doc("x")
			set(t, x, map[string]any{"status": "QUEUED"})
			work := open(t, b, func(o *worker.Options) { o.MaxRuns = maxRuns }).MustRegister(worker.Kind{
				Run: returns[any](nil, errOwn),
			})
			for range 3 {
				if _, err := work.Run(t.Context(), "x"); !errors.Is(err, errOwn) {
					t.Error(err)
				}
			}
			history, _ := fields(t, x)["history"].([]any)
			for _, attempt := range history {
				if got := attempt.(map[string]any)["alone"]; got != alone { //nolint:forcetypeassert // the guard's
					t.Errorf("alone %v, want %v", got, alone)
				}
			}
			if len(history) != 3 {
				t.Errorf("history %v, want three attempts", history)
			}
			checkPost(t, work.Handler(), "/", `{"analysis_id":"x"}`, http.StatusInternalServerError, "retry")
		})
	}
}

// An act that takes a second is not cut in half when the context of its Run ends.
func TestWork_RunAct(t *testing.T) {
	for takes, want := range map[time.Duration]string{
		time.Second: "done after 1s",
		time.Hour:   "started after 6.3s",
	} {
		worker.Subtest(t, fmt.Sprint("of ", takes), func(t *testing.T) {
			b := emulatortest.Embedded(t)
			doc := collection(t, b, "jobs").Doc("1")
			set(t, doc, pending)
			ctx, end := context.WithCancel(t.Context())
			var took time.Duration
			_, _ = opened(t, b, quick).MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", func(acting context.Context) (int, error) {
					began := time.Now()
					defer func() { took = time.Since(began).Round(100 * time.Millisecond) }()
					time.AfterFunc(300*time.Millisecond, end)
					return lasting(takes)(acting)
				})
			})).Run(ctx, "1")
			if got := fmt.Sprint(charged(fields(t, doc))["state"], " after ", took); got != want {
				t.Errorf("the act is %s, want %s", got, want)
			}
		})
	}
}

// The same kind can start runs in a service, and run in the job's program.
func TestStart_AndRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, started := emulatortest.Embedded(t), worker.StartQueue(t), 0
		kind := worker.Kind{
			Run:   returns[any]("ran", nil),
			Start: func(context.Context, string) error { started++; return nil },
		}
		work, unqueued := open(t, b, q.Use).MustRegister(kind), open(t, b, nil).MustRegister(kind)
		x := collection(t, b, "analyses").Doc("x")
		set(t, x, map[string]any{"status": "QUEUED"})
		check := func(h http.Handler, body string, want int) {
			t.Helper()
			if code, answer := post(t, h, "/", body); code != want || started != 1 {
				t.Errorf("%d %s, started %d; want %d, one", code, answer, started, want)
			}
		}
		task := `{"analysis_id":"x"}`
		check(work.Handler(), task, 200)
		check(work.WithoutRun().PubSub(), message(`"attributes":`+task), 200)
		check(unqueued.Handler(), task, 500) // nobody would find a started run that dies
		check(unqueued.WithoutRun().PubSub(), message(`"attributes":`+task), 500)
		if _, err := work.Run(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		checkRecord(t, x, map[string]any{"status": "READY", "result": "ran"})
	})
}

func TestNoHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := open(t, b, func(o *worker.Options) { o.Auth, o.NoHTTP = nil, true })
		work := g.MustRegister(worker.Kind{Run: succeed})
		if code, _ := post(t, work.Handler(), "/", `{"analysis_id":"x"}`); code != http.StatusUnauthorized {
			t.Errorf("a request is answered %d", code)
		}
		_, errRoutes := g.Routes(work)
		_, errRun := g.MustRegister(jobs(nil)).Run(t.Context(), "x")

		day := worker.Kind{RunTimeout: 24 * time.Hour, Run: succeed}
		_, errLong := open(t, b, q.Share).Register(day) // a delivery would have to wait for it
		withoutHTTP := func(o *worker.Options) { q.Share(o); o.NoHTTP = true }
		if _, err := open(t, b, withoutHTTP).Register(day); err != nil {
			t.Error(err)
		}
		day.RunTimeout++
		_, errLonger := open(t, b, withoutHTTP).Register(day)
		for want, err := range map[string]error{
			"NoHTTP": errRoutes, "has no Run": errRun, "RUN_TIMEOUT": errLong, "MAX_RUN_TIME": errLonger,
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %s", err, want)
			}
		}
	})
}
