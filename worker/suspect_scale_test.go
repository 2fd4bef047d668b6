package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// service is a service of one instance, as on Cloud Run: an instance that dies is replaced.
type service struct {
	t      *testing.T
	b      *emulatortest.Backend
	queue  *worker.CloudQueue
	places int
	over   chan struct{} // the end of the test: before it, a dead instance gets no reply

	mu        sync.Mutex
	instances []*instance
}

// instance is one process of the service.
type instance struct {
	guard  *worker.Guard
	routes http.Handler
	dead   context.Context //nolint:containedctx // ends when the process dies
	die    context.CancelFunc
}

var errDead = errors.New("the process is dead")

// unary makes the calls of a dead process end with the test.
func (s *service) unary(dead context.Context) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		err := dead.Err()
		if err == nil {
			err = invoke(ctx, method, req, reply, conn, opts...)
		}
		if dead.Err() != nil {
			<-s.over
			return errDead
		}
		return err
	})
}

// open opens the guard of a process, with the default options but for MaxRuns.
func (s *service) open(dead context.Context, run func(context.Context, worker.Job) (any, error)) (*worker.Guard, *worker.Work) {
	o := worker.Options{
		Project: s.b.Project, Auth: worker.CheckedByProxy(), MaxRuns: s.places, Log: slog.New(slog.DiscardHandler),
		FirestoreOptions: s.b.Client(s.t, s.unary(dead)),
	}
	s.queue.Use(&o)
	conn, err := s.queue.Dial(s.unary(dead))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	o.QueueOptions = []option.ClientOption{option.WithGRPCConn(conn)}

	guard, err := worker.Open(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	work := guard.MustRegister(worker.Kind{Run: run})
	return guard, work
}

// start starts an instance. An analysis named killer kills it after 20 s, any other takes two minutes.
func (s *service) start() {
	i := &instance{}
	i.dead, i.die = context.WithCancel(context.WithoutCancel(s.t.Context()))
	var work *worker.Work
	i.guard, work = s.open(i.dead, func(ctx context.Context, job worker.Job) (any, error) {
		if job.AnalysisID == "killer" {
			time.Sleep(20 * time.Second)
			i.die()
			time.AfterFunc(5*time.Second, s.start)
		}
		select {
		case <-time.After(2 * time.Minute):
			return "done", nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-i.dead.Done():
			<-s.over
			return nil, errDead
		}
	})
	routes, err := i.guard.Routes(work)
	if err != nil {
		s.t.Fatal(err)
	}
	i.routes = routes
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = append(s.instances, i)
}

// ServeHTTP sends a request to the newest instance. Without a living one, or if it dies, the answer is
// that of Cloud Run: 503.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	i := s.instances[len(s.instances)-1]
	s.mu.Unlock()
	answers := make(chan *httptest.ResponseRecorder, 1)
	if i.dead.Err() == nil {
		go func() {
			answer := httptest.NewRecorder()
			i.routes.ServeHTTP(answer, r)
			answers <- answer
		}()
	}
	select {
	case answer := <-answers:
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
	case <-i.dead.Done():
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// await calls recovery each minute until every document is finished, at most a day.
func (s *service) await(ids []string) {
	for range 24 * 60 {
		time.Sleep(time.Minute)
		call := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, "/internal/tasks/recover", http.NoBody)
		s.ServeHTTP(httptest.NewRecorder(), call)
		if !slices.ContainsFunc(ids, func(id string) bool {
			status := s.b.Fields(s.t, id)["status"]
			return status != "READY" && status != "FAILED"
		}) {
			return
		}
	}
	s.t.Error("not all is finished after a day")
}

// end ends all instances.
func (s *service) end() {
	close(s.over)
	for _, i := range s.instances {
		i.die()
		_ = i.guard.Shutdown(context.WithoutCancel(s.t.Context())) // it reaches nothing
	}
}

// An analysis that kills its instance takes no other with it, and is named.
func TestAKillerRunsAloneAndTheOthersAreReady(t *testing.T) {
	for name, apart := range map[string]time.Duration{"at once": 0, "one after the other": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &service{t: t, b: emulatortest.Embedded(t), queue: worker.StartQueue(t), places: 10}
				s.over = make(chan struct{})
				defer s.end()
				s.start()
				s.queue.Serve(s)
				application, work := s.open(t.Context(), nil)
				defer func() { _ = application.Shutdown(t.Context()) }()

				ids := []string{"killer"}
				for n := range 8 {
					ids = append(ids, fmt.Sprint("innocent-", n))
				}
				for n := range ids {
					id := ids[(n+4)%len(ids)] // the killer is in their midst
					if _, err := work.Submit(t.Context(), id, nil); err != nil {
						t.Fatal(err)
					}
					time.Sleep(apart)
				}
				s.await(ids)

				for _, id := range ids {
					doc := s.b.Fields(t, id)
					failure, _ := doc["error"].(map[string]any)
					attempts, _ := doc["attempts"].(int64)
					switch killer := id == "killer"; {
					case killer && (doc["status"] != "FAILED" || failure["code"] != "crashed" || attempts > 4):
						t.Errorf("the killer is %v, %v after %d attempts; want FAILED, crashed after 4 at most",
							doc["status"], failure, attempts)
					case !killer && (doc["status"] != "READY" || attempts > 3):
						t.Errorf("%s is %v, %v after %d attempts; want READY after 3 at most", id, doc["status"], failure, attempts)
					}
				}
			})
		})
	}
}
