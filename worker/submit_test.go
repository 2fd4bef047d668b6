package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
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
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// described returns the tasks that q has got, in order: URL, body, deadline and token.
func described(q *worker.CloudQueue) (all []string) {
	for _, task := range q.Tasks() {
		call, token := task.GetHttpRequest(), task.GetHttpRequest().GetOidcToken()
		all = append(all, strings.Join([]string{
			call.GetUrl(), string(call.GetBody()), task.GetDispatchDeadline().AsDuration().String(), token.GetServiceAccountEmail(), token.GetAudience(),
		}, " "))
	}
	return all
}

func TestSubmitIsIdempotent(t *testing.T) {
	for name, k := range map[string]worker.Kind{"analysis": {}, "another vocabulary": jobs(nil)} {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
				q := worker.StartQueue(t)
				queued, without := open(t, b, q.Use).MustRegister(k), open(t, b, nil).MustRegister(k)
				docs, word, input, task := collection(t, b, "analyses"), [...]string{"status", "READY"}, "input", "https://service.example/base/internal/tasks/analysis {\"analysis_id\":\"x\"} 26m0s a@b.c https://audience.example"
				if k.Name == "job" {
					docs, word, input, task = collection(t, b, "jobs"), [...]string{"state", "DONE"}, "payload", "https://service.example/base/tasks/job {\"job_id\":\"x\"} 26m0s a@b.c https://audience.example"
				}
				finish := func() { set(t, docs.Doc("x"), map[string]any{word[0]: word[1]}) }
				remove := func() {
					if _, err := docs.Doc("x").Delete(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
				}
				var permanent *orchestrator.PermanentError
				for _, c := range []struct {
					name   string
					work   *worker.Work
					before func()
					id     string
					input  any
					want   worker.Submission
					err    error
					tasks  int
				}{
					{"created, and not booked", queued, func() { q.Fail(codes.PermissionDenied) }, "x", map[string]any{"n": 1}, worker.Submission{Created: true, Status: "QUEUED"}, worker.ErrNotBooked, 0},
					{"not booked, another input", queued, func() { q.Fail(codes.OK) }, "x", 2, worker.Submission{Status: "QUEUED"}, worker.ErrOtherInput, 0},
					{"repeated", queued, func() { q.Fail(codes.OK) }, "x", struct {
						N int `json:"n"`
					}{1}, worker.Submission{Booked: true, Status: "QUEUED"}, nil, 1},
					{"repeated again", queued, nil, "x", map[string]any{"n": 1.0}, worker.Submission{Booked: true, Already: true, Status: "QUEUED"}, nil, 1},
					{"another input", queued, nil, "x", map[string]any{"n": 2}, worker.Submission{Status: "QUEUED"}, worker.ErrOtherInput, 1},
					{"no queue", without, nil, "x", map[string]any{"n": 1}, worker.Submission{Status: "QUEUED"}, nil, 1},
					{"created without a queue", without, nil, "y", nil, worker.Submission{Created: true, Status: "QUEUED"}, nil, 1},
					{"another input than none", without, nil, "y", 1, worker.Submission{Status: "QUEUED"}, worker.ErrOtherInput, 1},
					{"finished", queued, finish, "x", map[string]any{"n": 1}, worker.Submission{Status: "READY"}, nil, 1},
					{"finished, another input", queued, nil, "x", nil, worker.Submission{Status: "READY"}, worker.ErrOtherInput, 1},
					{"an id that is a path", queued, nil, "a/b", 1, worker.Submission{}, lease.ErrInvalidKey, 1},
					{"deleted, and created again in the same second", queued, remove, "x", map[string]any{"n": 1}, worker.Submission{Created: true, Booked: true, Status: "QUEUED"}, nil, 2},
				} {
					if c.before != nil {
						c.before()
					}
					got, err := c.work.Submit(t.Context(), c.id, c.input)
					if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) || errors.Is(err, worker.ErrNotBooked) != errors.Is(c.err, worker.ErrNotBooked) || len(q.Tasks()) != c.tasks {
						t.Errorf("%s: error %v, want %v; tasks %v, want %d; (-want +got)\n%s", c.name, err, c.err, q.Tasks(), c.tasks, diff)
					}
				}
				if err := without.Operator().Book(t.Context(), "x", "task"); !errors.Is(err, worker.ErrNoQueue) {
					t.Errorf("an operator without a queue: %v", err)
				}
				if got := described(q); len(got) != 2 || got[0] != task || got[1] != task {
					t.Fatalf("tasks %q, want %q", got, task)
				}
				booked := path.Base(q.Tasks()[1].GetName())
				checkRecord(t, docs.Doc("x"), map[string]any{input: map[string]any{"n": int64(1)}, "bookedTask": booked})
				checkRecord(t, docs.Doc("y"), map[string]any{"bookedTask": nil})
				for _, input := range []any{math.NaN(), [][]int{{1}}} {
					if _, err := queued.Submit(t.Context(), "z", input); !errors.As(err, &permanent) || !strings.HasPrefix(err.Error(), `worker: submit "z": `) {
						t.Errorf("an input of %v: error %v", input, err)
					}
				}
				checkRecord(t, docs.Doc("z"), map[string]any{word[0]: nil})
			})
		})
	}
}

// The tasks of a kind are submitted, for a follow-up, the next attempt, a continuation, a
// recovery and in the place of a stopped run.
func TestAllTasksOfAKindCallItsRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log emulatortest.Log
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := opened(t, b, func(o *worker.Options) {
			q.Use(o)
			o.Log, o.RetryMin = slog.New(slog.NewTextHandler(&log, nil)), time.Minute
		})
		var h http.Handler
		var tries atomic.Int32 // of x
		k := jobs(func(ctx context.Context, job worker.Job) (any, error) {
			switch {
			case job.AnalysisID == "stopped":
				<-ctx.Done()
				return nil, ctx.Err()
			case job.AnalysisID == "orphan":
				time.Sleep(time.Second) // recovery measures its age meanwhile
				return job.Input, nil
			case job.AnalysisID != "x" || job.Resume != nil:
				return job.Input, nil
			case tries.Add(1) == 1:
				if code, answer := post(t, h, "/tasks/job", `{"job_id":"x"}`); code != http.StatusOK || !strings.Contains(answer, `"reason":"locked"`) {
					t.Errorf("a duplicate is answered %d %s", code, answer)
				}
				return nil, errBroken
			}
			if err := job.Checkpoint(ctx, "half"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		k.RunTimeout = 2 * time.Minute
		jobs, analyses := g.MustRegister(k), g.MustRegister(worker.Kind{Run: succeed})
		third := g.MustRegister(worker.Kind{Name: "third", Collection: "thirds", Run: succeed})
		h, err := g.Routes(jobs, analyses, third)
		if err != nil {
			t.Fatal(err)
		}
		q.Serve(h)
		jobs.PubSub() // a second handler, of a kind that is recovered once
		docs := collection(t, b, "jobs")
		set(t, docs.Doc("orphan"), map[string]any{"state": "RUNNING", "payload": 1, "createdAt": "1999-12-31T00:00:00.000Z", "updatedAt": "1999-12-31T00:00:00.000Z"})
		set(t, collection(t, b, "thirds").Doc("orphan"), map[string]any{"status": "QUEUED", "updatedAt": "1999-12-31T00:00:00.000Z"})
		if code, answer := post(t, h, "/internal/tasks/recover", ""); code != http.StatusOK || strings.TrimSpace(answer) != `{"found":2,"booked":2,"waiting":0,"more":false}` {
			t.Errorf("recovery: %d %s", code, answer)
		}
		if !strings.Contains(log.String(), "oldest_ms=86400000 ") && !strings.Contains(log.String(), "oldest_ms=86400000\n") {
			t.Errorf("the oldest of all kinds is a day old: %s", log.String())
		}
		for _, work := range []*worker.Work{jobs, analyses, third} {
			if s, err := work.Submit(t.Context(), "x", 2); err != nil || !s.Booked {
				t.Fatal(s, err)
			}
		}
		time.Sleep(time.Hour)
		checkRecord(t, docs.Doc("orphan"), map[string]any{"state": "DONE", "output": int64(1)})
		checkRecord(t, docs.Doc("x"), map[string]any{"state": "DONE", "output": int64(2), "attempts": int64(2)})
		if _, err := jobs.Submit(t.Context(), "stopped", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := g.Shutdown(t.Context()); err != nil { // without a deadline, it books too
			t.Error(err)
		}
		checkRecord(t, docs.Doc("stopped"), map[string]any{"state": "PENDING", "lockOwner": nil})
		const token = " a@b.c https://audience.example"
		got, want := described(q), []string{
			"https://service.example/base/internal/tasks/analysis {\"analysis_id\":\"x\"} 26m0s" + token,
			"https://service.example/base/internal/tasks/third {\"third_id\":\"x\"} 26m0s" + token,
			"https://service.example/base/internal/tasks/third {\"third_id\":\"orphan\"} 26m0s" + token,
		}
		for id, n := range map[string]int{"orphan": 1, "x": 4, "stopped": 2} {
			for range n {
				want = append(want, "https://service.example/base/tasks/job {\"job_id\":\""+id+"\"} 3m0s"+token)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tasks (-want +got):\n%s", diff)
		}
	})
}

// submitOrder creates an order and its work in one transaction.
func submitOrder(t *testing.T, b *emulatortest.Backend, work *worker.Work, doc *firestore.DocumentRef) {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), b.Project, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := work.NewDocument(map[string]any{"order": doc.ID})
	if err == nil {
		err = client.RunTransaction(t.Context(), func(_ context.Context, tx *firestore.Transaction) error {
			return errors.Join(tx.Create(client.Doc("orders/"+doc.ID), map[string]any{"n": 1}), tx.Create(doc, fields))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWorkIsSubmittedInTheCallersTransaction(t *testing.T) {
	for name, k := range map[string]worker.Kind{"analysis": {Run: succeed}, "another vocabulary": jobs(succeed)} {
		synctest.Test(t, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			work, without := open(t, b, q.Use).MustRegister(k), open(t, b, nil).MustRegister(k)
			var serving atomic.Bool
			routes := work.Handler()
			q.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !serving.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				routes.ServeHTTP(w, r)
			}))
			docs, status, queued, ready := collection(t, b, "analyses"), "status", "QUEUED", "READY"
			if k.Name == "job" {
				docs, status, queued, ready = collection(t, b, "jobs"), "state", "PENDING", "DONE"
			}
			book := func(work *worker.Work, id string, want error, tasks int) {
				t.Helper()
				if err := work.Book(t.Context(), id); !errors.Is(err, want) || len(q.Tasks()) != tasks {
					t.Errorf("%s: book %s: %v, want %v; tasks %q, want %d", name, id, err, want, q.Tasks(), tasks)
				}
			}

			book(work, "x", lease.ErrNotFound, 0)
			book(work, "a/b", lease.ErrInvalidKey, 0)
			committed := time.Now()
			submitOrder(t, b, work, docs.Doc("x"))
			submitOrder(t, b, work, docs.Doc("y")) // at the same time
			checkRecord(t, docs.Doc("x"), map[string]any{status: queued, "createdAt": committed, "updatedAt": committed})
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
			checkRecord(t, docs.Doc("x"), map[string]any{status: ready, "createdAt": committed})
			if at, ok := fields(t, docs.Doc("x"))["updatedAt"].(time.Time); !ok || !at.After(committed) {
				t.Errorf("%s: updatedAt is not a later Timestamp", name)
			}
			set(t, docs.Doc("finished"), map[string]any{status: ready})
			book(work, "finished", nil, 2)
		})
	}
}

func TestANewDocumentIsRefusedLikeASubmission(t *testing.T) {
	var permanent *orchestrator.PermanentError
	work := open(t, emulatortest.Embedded(t), nil).MustRegister(worker.Kind{})
	if _, err := work.NewDocument([][]int{{1}}); !errors.As(err, &permanent) {
		t.Errorf("an array in an array: %v", err)
	}
}
