package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"

	"taskguard/emulator/firestore"
	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/worker"
)

func TestMain(m *testing.M) {
	if setting := os.Getenv(crashVariable); setting != "" {
		if err := serveCrash(setting); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(emulatortest.Main(m))
}

// opened opens a Guard on b, which the test shuts down.
func opened(t *testing.T, b *emulatortest.Backend, adapt func(*worker.Options)) *worker.Guard {
	t.Helper()
	o := worker.Options{
		Project: b.Project, Auth: worker.CheckedByProxy(), Log: slog.New(slog.DiscardHandler),
		FirestoreOptions: b.Client(t),
	}
	if adapt != nil {
		adapt(&o)
	}
	return must.Get(worker.Open(t.Context(), o))(t)
}

// open opens a Guard on b until the end of the test.
func open(t *testing.T, b *emulatortest.Backend, adapt func(*worker.Options)) *worker.Guard {
	t.Helper()
	g := opened(t, b, adapt)
	t.Cleanup(func() {
		if err := g.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return g
}

// withGuard runs a test in virtual time, with a Guard on an embedded Firestore.
func withGuard(t *testing.T, run func(t *testing.T, b *emulatortest.Backend, g *worker.Guard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		run(t, b, open(t, b, nil))
	})
}

// openLogged opens a Guard on b, and returns its log of plain lines.
func openLogged(
	t *testing.T, b *emulatortest.Backend, adapt func(*worker.Options),
) (*worker.Guard, *emulatortest.Log) {
	t.Helper()
	log := &emulatortest.Log{}
	return open(t, b, func(o *worker.Options) {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		if adapt != nil {
			adapt(o)
		}
	}), log
}

// clockAhead is how far the clock of ahead is ahead of the machine's.
const clockAhead = 100 * time.Hour

// ahead returns a Firestore with another clock than the machine's.
func ahead(t *testing.T) *emulatortest.Backend {
	t.Helper()
	b := emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(clockAhead) }})
	t.Cleanup(b.Server.Close)
	return b
}

// jobs is a kind with its own words for the status.
func jobs(run func(ctx context.Context, job worker.Job) (any, error)) worker.Kind {
	return worker.Kind{
		Name: "job", Collection: "jobs", Path: "/tasks/job",
		Fields: worker.Fields{
			Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
			Input: "payload", Result: "output",
		},
		Run: run,
	}
}

// routes returns the routes of all kinds of g.
func routes(t testing.TB, g *worker.Guard, kinds ...worker.Kind) http.Handler {
	t.Helper()
	var works []*worker.Work
	for i := range kinds {
		works = append(works, g.MustRegister(kinds[i]))
	}
	return must.Get(g.Routes(works...))(t)
}

// checkPanic calls f, which must panic with want in its value.
func checkPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
			t.Errorf("panic %s, want %s", got, want)
		}
	}()
	f()
}

func post(t *testing.T, h http.Handler, path, body string) (code int, answer string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
	return rec.Code, rec.Body.String()
}

// checkPost posts a body to h, and compares the code of the answer and a part of it.
func checkPost(t *testing.T, h http.Handler, path, body string, code int, want string) {
	t.Helper()
	if got, answer := post(t, h, path, body); got != code || !strings.Contains(answer, want) {
		t.Errorf("%s %.100s: %d %s, want %d %s", path, body, got, answer, code, want)
	}
}

func get(t *testing.T, h http.Handler, path string) (code int) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return rec.Code
}

// The service is ready from Firestore's answer to the stop.
func TestGuard_Health(t *testing.T) {
	for name, handler := range map[string]func(g *worker.Guard) http.Handler{
		"Health": (*worker.Guard).Health,
		"Routes": func(g *worker.Guard) http.Handler { return routes(t, g, jobs(succeed)) },
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, w := emulatortest.Embedded(t), &worker.Wall{}
			w.Up.Store(true)
			ctx, end := context.WithCancel(t.Context())
			g := must.Get(worker.Open(ctx, worker.Options{
				Project: b.Project, Auth: refuse{}, FirestoreOptions: w.Client(t, b),
				Log: slog.New(slog.DiscardHandler),
			}))(t)
			end() // as by a signal: only Shutdown ends the Guard
			h := handler(g)
			check := func(path string, want int) {
				t.Helper()
				time.Sleep(time.Minute)
				if code := get(t, h, path); code != want {
					t.Errorf("%s: %d, want %d", path, code, want)
				}
			}
			check("/none", http.StatusNotFound)
			check("/health/ready", http.StatusServiceUnavailable)
			check("/health/live", http.StatusOK)
			w.Up.Store(false)
			check("/health/ready", http.StatusOK)
			if err := g.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			check("/health/ready", http.StatusServiceUnavailable)
		})
	}
}

func TestGuard_Shutdown(t *testing.T) {
	worker.Subtest(t, "it reports the run that it leaves", func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := opened(t, b, q.Use)
		set(t, collection(t, b, "analyses").Doc("x"), map[string]any{"status": "QUEUED"})
		stops := make(chan error, 1)
		h := g.MustRegister(worker.Kind{Run: func(ctx context.Context, _ worker.Job) (any, error) {
			<-ctx.Done()
			stops <- context.Cause(ctx)
			time.Sleep(time.Minute) // it ignores the stop
			return nil, nil
		}}).Handler()
		go post(t, h, "/", `{"analysis_id":"x"}`)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		began := time.Now()
		err := g.Shutdown(ctx)
		took := time.Since(began)
		if took != 9*time.Second || !strings.Contains(fmt.Sprint(err), "1 runs") {
			t.Errorf("%v after %v, want that it leaves one run after 9 s", err, took)
		}
		var stop *delivery.StopError
		if cause := <-stops; !errors.As(cause, &stop) || stop.Deadline.Sub(began) != 8500*time.Millisecond {
			t.Errorf("the run ended by %v, want that locks are released until 8.5 s after the stop", cause)
		}
		if term, kill := took+stop.TermAfter(), took+stop.KillAfter(); term != 5*time.Second || kill != 8*time.Second {
			t.Errorf("a program gets SIGTERM after %v and SIGKILL after %v, want 5s and 8s", term, kill)
		}
		if state := q.Conn.GetState(); state != connectivity.Shutdown {
			t.Errorf("the queue's connection: %v", state)
		}
		time.Sleep(2 * time.Minute)
	})
	worker.Subtest(t, "without a deadline, it books the run that it stops", func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := opened(t, b, q.Use)
		work := g.MustRegister(jobs(func(ctx context.Context, _ worker.Job) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		q.Serve(work.Handler())
		if _, err := work.Submit(t.Context(), "x", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := g.Shutdown(t.Context()); err != nil || len(q.Tasks()) != 2 {
			t.Errorf("%v, tasks %v", err, q.Tasks())
		}
		checkRecord(t, collection(t, b, "jobs").Doc("x"), map[string]any{"state": "PENDING", "lockOwner": nil})
	})
	worker.Subtest(t, "it waits for a submission", func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		q.Slow = time.Second
		g := opened(t, b, func(o *worker.Options) { q.Use(o); o.Collection = "other" })
		submitted, work := make(chan error, 2), g.MustRegister(worker.Kind{Collection: "own"})
		set(t, collection(t, b, "own").Doc("z"), map[string]any{"status": "QUEUED"})
		go func() {
			_, err := work.Submit(t.Context(), "x", 1)
			submitted <- err
		}()
		go func() {
			time.Sleep(time.Second / 2) // then it is the last
			submitted <- work.Book(t.Context(), "z")
		}()
		time.Sleep(time.Second * 3 / 4)
		if err := errors.Join(g.Shutdown(t.Context()), <-submitted, <-submitted); err != nil || len(q.Tasks()) != 2 {
			t.Errorf("%v, tasks %v", err, q.Tasks())
		}
		checkRecord(t, collection(t, b, "own").Doc("x"), map[string]any{"status": "QUEUED"})
		if _, err := work.Submit(t.Context(), "y", 1); !errors.Is(err, worker.ErrStopping) {
			t.Errorf("after the stop: %v", err)
		}
	})
}
