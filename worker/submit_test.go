package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// described returns the tasks that q has got, in order: URL, body, deadline and token.
func described(q *worker.CloudQueue) (all []string) {
	for _, task := range q.Tasks() {
		call, token := task.GetHttpRequest(), task.GetHttpRequest().GetOidcToken()
		all = append(all, fmt.Sprintf("%s %s %v %s %s", call.GetUrl(), call.GetBody(),
			task.GetDispatchDeadline().AsDuration(), token.GetServiceAccountEmail(), token.GetAudience()))
	}
	return all
}

func TestWork_Submit(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		q := worker.StartQueue(t)
		queued, without := open(t, b, q.Use).MustRegister(jobs(nil)), open(t, b, nil).MustRegister(jobs(nil))
		docs, input := collection(t, b, "jobs"), map[string]any{"n": 1}
		check := func(
			name string, work *worker.Work, id string, input any, want worker.Submission, wantErr error, tasks int,
		) {
			t.Helper()
			got, err := work.Submit(t.Context(), id, input)
			if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, wantErr) {
				t.Errorf("%s: error %v, want %v (-want +got):\n%s", name, err, wantErr, diff)
			}
			booked, wantBooked := !errors.Is(err, worker.ErrNotBooked), !errors.Is(wantErr, worker.ErrNotBooked)
			if booked != wantBooked || len(q.Tasks()) != tasks {
				t.Errorf("%s: error %v, tasks %v, want %d", name, err, q.Tasks(), tasks)
			}
		}
		created, exists := worker.Submission{Created: true, Status: "QUEUED"}, worker.Submission{Status: "QUEUED"}
		again := worker.Submission{Booked: true, Already: true, Status: "QUEUED"}
		finished := worker.Submission{Status: "READY"}

		q.Fail(codes.PermissionDenied)
		check("created, and not booked", queued, "x", input, created, worker.ErrNotBooked, 0)
		q.Fail(codes.OK)
		check("not booked, another input", queued, "x", 2, exists, worker.ErrOtherInput, 0)
		same := struct {
			N int `json:"n"`
		}{1}
		check("repeated", queued, "x", same, worker.Submission{Booked: true, Status: "QUEUED"}, nil, 1)
		check("repeated again", queued, "x", map[string]any{"n": 1.0}, again, nil, 1)
		check("another input", queued, "x", map[string]any{"n": 2}, exists, worker.ErrOtherInput, 1)
		check("no queue", without, "x", input, exists, nil, 1)
		check("created without a queue", without, "y", nil, created, nil, 1)
		check("another input than none", without, "y", 1, exists, worker.ErrOtherInput, 1)
		set(t, docs.Doc("x"), map[string]any{"state": "DONE"})
		check("finished", queued, "x", input, finished, nil, 1)
		check("finished, another input", queued, "x", nil, finished, worker.ErrOtherInput, 1)
		check("an id that is a path", queued, "a/b", 1, worker.Submission{}, lease.ErrInvalidKey, 1)
		if _, err := docs.Doc("x").Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		created.Booked = true
		check("deleted, and created again in the same second", queued, "x", input, created, nil, 2)

		if err := without.Operator().Book(t.Context(), "x", "task"); !errors.Is(err, worker.ErrNoQueue) {
			t.Errorf("an operator without a queue: %v", err)
		}
		const task = `https://service.example/base/tasks/job {"job_id":"x"} 26m0s a@b.c https://audience.example`
		if got := described(q); !slices.Equal(got, []string{task, task}) {
			t.Fatalf("tasks %q, want twice %q", got, task)
		}
		booked := path.Base(q.Tasks()[1].GetName())
		checkRecord(t, docs.Doc("x"), map[string]any{"payload": map[string]any{"n": int64(1)}, "bookedTask": booked})
		checkRecord(t, docs.Doc("y"), map[string]any{"bookedTask": nil})
		for _, input := range []any{math.NaN(), [][]int{{1}}} {
			_, err := queued.Submit(t.Context(), "z", input)
			_, unstored := queued.NewDocument(input)
			if !isPermanent(err) || !isPermanent(unstored) {
				t.Errorf("an input of %v: errors %v, %v", input, err, unstored)
			}
		}
		checkRecord(t, docs.Doc("z"), map[string]any{"state": nil})
	})
}

func isPermanent(err error) bool { return errors.As(err, new(*orchestrator.PermanentError)) }

// A recovery books the orphans of all kinds that have a handler, each at the route and with the deadline of its kind.
func TestGuard_Recovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g, log := openLogged(t, b, q.Use)
		k := jobs(func(context.Context, worker.Job) (any, error) {
			time.Sleep(time.Second) // recovery measures the age of the oldest meanwhile
			return "done", nil
		})
		k.RunTimeout = 2 * time.Minute
		jobs, third := g.MustRegister(k), g.MustRegister(worker.Kind{Name: "third", Collection: "thirds", Run: succeed})
		h := must.Get(g.Routes(jobs, third))(t)
		q.Serve(h)
		jobs.PubSub() // a second handler, of a kind that is recovered once
		const past = "1999-12-31T00:00:00.000Z"
		orphan := map[string]any{"state": "RUNNING", "createdAt": past, "updatedAt": past}
		set(t, collection(t, b, "jobs").Doc("x"), orphan)
		set(t, collection(t, b, "thirds").Doc("x"), map[string]any{"status": "QUEUED", "updatedAt": past})

		checkPost(t, h, "/internal/tasks/recover", "", 200, `{"found":2,"booked":2,"waiting":0,"more":false}`)
		if !slices.Contains(strings.Fields(log.String()), "oldest_ms=86400000") {
			t.Errorf("the oldest of all kinds is a day old: %s", log)
		}
		time.Sleep(time.Hour)
		checkRecord(t, collection(t, b, "jobs").Doc("x"), map[string]any{"state": "DONE"})
		got, want := described(q), []string{
			`https://service.example/base/internal/tasks/third {"third_id":"x"} 26m0s a@b.c https://audience.example`,
			`https://service.example/base/tasks/job {"job_id":"x"} 3m0s a@b.c https://audience.example`,
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tasks (-want +got):\n%s", diff)
		}
	})
}

// submitOrder creates an order and its work in one transaction.
func submitOrder(t *testing.T, b *emulatortest.Backend, work *worker.Work, doc *firestore.DocumentRef) {
	t.Helper()
	client := must.Get(firestore.NewClient(t.Context(), b.Project, b.Client(t)...))(t)
	fields := must.Get(work.NewDocument(map[string]any{"order": doc.ID}))(t)
	err := client.RunTransaction(t.Context(), func(_ context.Context, tx *firestore.Transaction) error {
		return errors.Join(tx.Create(client.Doc("orders/"+doc.ID), map[string]any{"n": 1}), tx.Create(doc, fields))
	})
	must.OK(t, err)
}

// Work is submitted in the caller's transaction, and booked after it.
func TestWork_Book(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		work, without := open(t, b, q.Use).MustRegister(jobs(succeed)), open(t, b, nil).MustRegister(jobs(succeed))
		var serving atomic.Bool
		routes := work.Handler()
		q.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !serving.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			routes.ServeHTTP(w, r)
		}))
		docs := collection(t, b, "jobs")
		book := func(work *worker.Work, id string, want error, tasks int) {
			t.Helper()
			if err := work.Book(t.Context(), id); !errors.Is(err, want) || len(q.Tasks()) != tasks {
				t.Errorf("book %s: %v, want %v; tasks %q, want %d", id, err, want, q.Tasks(), tasks)
			}
		}

		book(work, "x", lease.ErrNotFound, 0)
		book(work, "a/b", lease.ErrInvalidKey, 0)
		committed := time.Now()
		submitOrder(t, b, work, docs.Doc("x"))
		submitOrder(t, b, work, docs.Doc("y")) // at the same time
		submitted := map[string]any{"state": "PENDING", "createdAt": committed, "updatedAt": committed}
		checkRecord(t, docs.Doc("x"), submitted)
		book(without, "x", worker.ErrNotBooked, 0)
		q.Fail(codes.PermissionDenied)
		book(work, "x", worker.ErrNotBooked, 0)
		q.Fail(codes.OK)

		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := work.Book(t.Context(), "x"); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		time.Sleep(time.Minute)
		book(work, "x", nil, 1)
		book(work, "y", nil, 2)
		serving.Store(true)
		time.Sleep(10 * time.Minute)
		checkRecord(t, docs.Doc("x"), map[string]any{"state": "DONE", "createdAt": committed})
		if at, ok := fields(t, docs.Doc("x"))["updatedAt"].(time.Time); !ok || !at.After(committed) {
			t.Error("updatedAt is not a later Timestamp")
		}
		set(t, docs.Doc("finished"), map[string]any{"state": "DONE"})
		book(work, "finished", nil, 2)
		expires := iso8601.Format(time.Now().Add(time.Minute))
		set(t, docs.Doc("runs"), map[string]any{"state": "RUNNING", "lockOwner": "them", "lockExpiresAt": expires})
		book(work, "runs", nil, 2)
		remove(t, docs.Doc("x")) // and created again: the queue still knows the name of its first task
		must.Get(docs.Doc("x").Create(t.Context(), must.Get(work.NewDocument(1))(t)))(t)
		book(work, "x", nil, 3)
		if first, second := work.Operator().NewTask("x"), work.Operator().NewTask("x"); first == second {
			t.Errorf("two tasks are %s", first)
		}
	})
}

// One trace leads from the submission to each run.
func TestWork_Trace(t *testing.T) {
	const submission, recovery = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := open(t, b, func(o *worker.Options) {
			q.Use(o)
			o.TracerProvider = sdktrace.NewTracerProvider() // its spans have ids, and go nowhere
		})
		var mu sync.Mutex
		traces := map[string][]string{}
		work := g.MustRegister(worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			own := trace.SpanContextFromContext(ctx).TraceID().String()
			traces[job.AnalysisID] = append(traces[job.AnalysisID], own)
			if len(traces[job.AnalysisID]) == 1 {
				return nil, errors.New("flaky")
			}
			return "done", nil
		}})
		h := must.Get(g.Routes(work))(t)
		q.Serve(h)

		id := must.Get(trace.TraceIDFromHex(submission))(t)
		parent := trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled}
		ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(parent))
		if _, err := work.Submit(ctx, "submitted", 1); err != nil {
			t.Fatal(err)
		}
		orphan := map[string]any{"status": "QUEUED", "updatedAt": "1999-12-31T00:00:00.000Z"}
		set(t, collection(t, b, "analyses").Doc("orphan"), orphan)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/recover", http.NoBody)
		r.Header.Set("traceparent", "00-"+recovery+"-b7ad6b7169203331-01")
		h.ServeHTTP(httptest.NewRecorder(), r)
		time.Sleep(time.Hour)

		mu.Lock()
		defer mu.Unlock()
		if want := []string{submission, submission}; !slices.Equal(traces["submitted"], want) {
			t.Errorf("submitted: the runs are in the traces %q, want %q", traces["submitted"], want)
		}
		// One call of recovery books thousands: their runs are not in its trace, but each in one of its own.
		own := traces["orphan"]
		if len(own) != 2 || own[0] != own[1] {
			t.Fatalf("orphan: the runs are in the traces %q, want twice the same", own)
		}
		if own[0] == recovery || own[0] == submission {
			t.Errorf("orphan: the runs are in the trace %s, want one of its own", own[0])
		}
	})
}
