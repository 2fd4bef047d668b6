package worker_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/repo"
	"taskguard/worker"
	"taskguard/worker/workertest"
)

// keyed is a service for documents with input.tenant, and what its runs did.
type keyed struct {
	*workertest.Rig
	work *worker.Work
	docs *emulatortest.Backend // the analyses
	keys *emulatortest.Backend // their keys
	late time.Duration         // of the deliveries that are not for a slot

	mu      sync.Mutex
	begun   []string
	running map[string]int
	most    map[string]int // of one tenant at a time
}

// byTenant makes the tenant the key, with a limit of 1.
var byTenant = worker.Options{KeyField: "input.tenant"}

// serveKeyed starts a service. Without a Run of the kind, each run takes 10 s.
func serveKeyed(t *testing.T, k worker.Kind, o worker.Options, dial ...grpc.DialOption) *keyed {
	t.Helper()
	s := &keyed{Rig: workertest.New(t), running: map[string]int{}, most: map[string]int{}}
	s.docs = &emulatortest.Backend{Project: "test-project", Server: s.Firestore, Calls: &emulatortest.Calls{}}
	s.keys = &emulatortest.Backend{Project: "test-project", Server: s.Firestore, Calls: &emulatortest.Calls{}}
	s.keys.Collection = "analysesKeys"
	body := k.Run
	if body == nil {
		body = runs(10 * time.Second)
	}
	k.Run = func(ctx context.Context, job worker.Job) (any, error) {
		tenant := strings.TrimRight(job.AnalysisID, "0123456789")
		s.count(tenant, job.AnalysisID, 1)
		defer s.count(tenant, "", -1)
		return body(ctx, job)
	}

	g := s.Guard(o, dial...)
	s.work = g.MustRegister(k)
	handler := s.work.Handler()
	s.Mux.HandleFunc("POST "+s.work.Path, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.Header.Get("X-CloudTasks-TaskName"), "-slot") {
			time.Sleep(s.late)
		}
		handler.ServeHTTP(w, r)
	})
	s.Mux.Handle("POST /internal/tasks/recover", g.Recovery())

	return s
}

// runs is a run that lasts so long.
func runs(d time.Duration) runFunc {
	return func(ctx context.Context, _ worker.Job) (any, error) { return lasting(d)(ctx) }
}

type runFunc = func(ctx context.Context, job worker.Job) (any, error)

// firstRun is act in the first run of a0. Every other run takes 10 s.
func firstRun(act runFunc) runFunc {
	return func(ctx context.Context, job worker.Job) (any, error) {
		if job.AnalysisID == "a0" && job.LockToken == 1 {
			return act(ctx, job)
		}
		return runs(10*time.Second)(ctx, job)
	}
}

func failsOnce(context.Context, worker.Job) (any, error) { return nil, errors.New("for now") }

// count counts a run that begins or ends. Without an id, it ends.
func (s *keyed) count(tenant, id string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.begun = append(s.begun, id)
	}
	s.running[tenant] += by
	s.most[tenant] = max(s.most[tenant], s.running[tenant])
}

// submit submits documents tenant0 to tenantN-1, one a second. Those of the tenant free have no key.
func (s *keyed) submit(t *testing.T, tenant string, count int) {
	t.Helper()
	for n := range count {
		input := map[string]any{"padding": strings.Repeat("x", n%2*80_000)} // more than a decision reads at once
		if tenant != "free" {
			input["tenant"] = tenant
		}
		if _, err := s.work.Submit(t.Context(), fmt.Sprint(tenant, n), input); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

// order returns the analyses in the order in which their runs have begun.
func (s *keyed) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.begun)
}

// checkOrder checks the order in which the runs have begun.
func (s *keyed) checkOrder(t *testing.T, want ...string) {
	t.Helper()
	if got := s.order(); !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
}

// recover makes one call of recovery, which must find no orphan and book so many.
func (s *keyed) recover(t *testing.T, booked int) {
	t.Helper()
	answer := httptest.NewRecorder()
	s.Mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/internal/tasks/recover", nil))
	want := fmt.Sprintf(`"found":0,"booked":%d`, booked)
	if got := answer.Body.String(); !strings.Contains(got, want) {
		t.Errorf("recovery answers %s, want %s", got, want)
	}
}

// state returns the state of the key of id, perhaps with a count of those that wait before it.
func (s *keyed) state(t *testing.T, id string, count bool) repo.KeyState {
	t.Helper()
	d, err := s.work.Operator().Summary(t.Context(), id)
	must.OK(t, err)
	state, err := s.work.Operator().KeyState(t.Context(), &d, count)
	must.OK(t, err)
	return state
}

// keyID returns the id of the record of a key.
func keyID(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

// idle waits for the end of all tasks, and checks that so many have run and are READY, and that nothing is left of
// their keys.
func (s *keyed) idle(t *testing.T, count int) {
	t.Helper()
	must.OK(t, s.Tasks.Idle(t.Context()))
	ran := slices.Compact(slices.Sorted(slices.Values(s.order())))
	if len(ran) != count {
		t.Errorf("%d have run, want %d", len(ran), count)
	}
	for _, id := range ran {
		d := s.docs.Fields(t, id)
		parked := d["parkedAt"] != nil || d["parkedFor"] != nil
		if parked || d["status"] != "READY" {
			t.Errorf("%s is %v, want it READY and not parked", id, d)
		}
	}
	for _, key := range []string{"a", "b", "A", "B"} {
		if left := s.keys.Fields(t, keyID(key)); left != nil {
			t.Errorf("the key %s is left: %v", key, left)
		}
	}
}

// calls counts the calls of a service to Firestore and Cloud Tasks, by method.
type calls struct {
	mu    sync.Mutex
	count map[string]int
}

// TagRPC counts a call.
func (c *calls) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[path.Base(call.FullMethodName)]++
	return ctx
}

func (*calls) HandleRPC(context.Context, stats.RPCStats)                         {}
func (*calls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*calls) HandleConn(context.Context, stats.ConnStats)                       {}

// afterKeySwap calls act after the first commit to the record of a key.
func afterKeySwap(act func()) grpc.DialOption {
	var once sync.Once
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		text := fmt.Sprint(req)
		if strings.Contains(text, "update:{name:") && strings.Contains(text, "/analysesKeys/") {
			once.Do(act)
		}
		return err
	})
}
