package worker_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"

	"taskguard/emulator/oidc"
	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

func get(t *testing.T, h http.Handler, path string) (code int) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return rec.Code
}

func TestTheServiceIsReadyFromFirestoresAnswerToTheStop(t *testing.T) {
	for name, of := range map[string]func(g *worker.Guard) http.Handler{
		"Health": (*worker.Guard).Health, "Routes": func(g *worker.Guard) http.Handler { return g.Routes() },
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, w := emulatortest.Embedded(t), &worker.Wall{}
			w.Up.Store(true)
			ctx, end := context.WithCancel(t.Context())
			g, err := worker.Open(ctx, worker.Options{Project: b.Project, Auth: refuse{}, FirestoreOptions: w.Client(t, b)})
			end() // as by a signal: only Shutdown ends the Guard
			if err != nil {
				t.Fatal(err)
			}
			h := of(g)
			check := func(when string, ready int) {
				t.Helper()
				time.Sleep(time.Minute)
				if live, code := get(t, h, "/health/live"), get(t, h, "/health/ready"); live != http.StatusOK || code != ready {
					t.Errorf("%s: %d, ready %d", when, live, code)
				}
			}
			check("without Firestore", http.StatusServiceUnavailable)
			w.Up.Store(false)
			check("with Firestore", http.StatusOK)
			if err := g.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			check("after the stop", http.StatusServiceUnavailable)
			if code := get(t, g.Health(), "/internal/tasks/recover"); code != http.StatusNotFound {
				t.Errorf("another route: %d", code)
			}
		})
	}
}

// A run ignores the stop.
func TestShutdownReportsWhatItLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := opened(t, b, q.Use)
		set(t, collection(t, b, "analyses").Doc("x"), map[string]any{"status": "QUEUED"})
		stops := make(chan error, 1)
		h := g.Handler(worker.Kind{Run: func(ctx context.Context, _ worker.Job) (any, error) {
			<-ctx.Done()
			stops <- context.Cause(ctx)
			time.Sleep(time.Minute)
			return nil, nil
		}})
		go post(t, h, "/", `{"analysis_id":"x"}`)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		began := time.Now()
		err := g.Shutdown(ctx)
		if err == nil || !strings.HasPrefix(err.Error(), "worker: 1 runs are still going") || time.Since(began) != 9*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		var stop *delivery.StopError
		if cause := <-stops; !errors.As(cause, &stop) || stop.Deadline.Sub(began) != 8500*time.Millisecond {
			t.Errorf("the run ended by %v, want that locks are released until 8.5 s after the stop", cause)
		}
		if state := q.Conn.GetState(); state != connectivity.Shutdown {
			t.Errorf("the queue's connection: %v", state)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestShutdownWaitsForASubmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		q.Slow = time.Second
		g := opened(t, b, func(o *worker.Options) { q.Use(o); o.Collection = "other" })
		submitted := make(chan error, 1)
		go func() {
			_, err := worker.Submit(t.Context(), g, worker.Kind{Collection: "own"}, "x", 1)
			submitted <- err
		}()
		synctest.Wait()
		if err := errors.Join(g.Shutdown(t.Context()), <-submitted); err != nil || len(q.Tasks()) != 1 {
			t.Errorf("%v, tasks %v", err, q.Tasks())
		}
		checkRecord(t, collection(t, b, "own").Doc("x"), map[string]any{"status": "QUEUED"})
		if _, err := worker.Submit(t.Context(), g, worker.Kind{}, "y", 1); !errors.Is(err, worker.ErrStopping) {
			t.Errorf("after the stop: %v", err)
		}
	})
}

func TestACallerNeedsATokenOfAnAccountForTheAudience(t *testing.T) {
	issuer := oidc.NewIssuer()
	keys := httptest.NewServer(issuer)
	defer keys.Close()
	o, err := worker.FromEnv(lookup("TASK_AUTH=oidc", "TASK_AUDIENCE=https://a.example", "TASK_SERVICE_ACCOUNTS=a@b.c", "TASK_JWKS_URL="+keys.URL))
	if err != nil {
		t.Fatal(err)
	}
	g := open(t, emulatortest.Embedded(t), func(own *worker.Options) { own.Auth = o.Auth })
	handlers := []http.Handler{g.Handler(jobs(succeed)), g.Recovery()}
	for _, c := range []struct {
		account, audience string
		want              [2]int
	}{
		{"a@b.c", "https://a.example", [2]int{404, 501}},
		{"other@b.c", "https://a.example", [2]int{403, 403}},
		{"a@b.c", "https://other.example", [2]int{401, 401}},
	} {
		token, err := issuer.Token(c.account, c.audience)
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range handlers {
			r, rec := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(`{"job_id":"x"}`)), httptest.NewRecorder()
			r.Header.Set("Authorization", "Bearer "+token)
			if h.ServeHTTP(rec, r); rec.Code != c.want[i] {
				t.Errorf("%s for %s: %d %s, want %d", c.account, c.audience, rec.Code, rec.Body, c.want[i])
			}
		}
	}
}
