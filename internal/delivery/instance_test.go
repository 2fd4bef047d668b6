package delivery_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

// instance is one worker, as on Cloud Run.
type instance struct {
	*delivery.Server
	stop        context.CancelCauseFunc
	unavailable atomic.Bool // no call of this worker reaches Firestore
	guard       *delivery.Guard
}

// ttl returns the default, or a short TTL where time is real.
func ttl(b *emulatortest.Backend) time.Duration {
	if b.Google() {
		return 20 * time.Second
	}
	return lease.DefaultTTL
}

// start runs a worker on b whose analyzer is body.
func start(t testing.TB, b *emulatortest.Backend, body orchestrator.AnalyzerFunc) *instance {
	t.Helper()
	w := &instance{}
	wall := func(ctx context.Context) error {
		if w.unavailable.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	policy := lease.Policy{TTL: ttl(b), MaxAttempts: 3}
	a, err := repo.Open(t.Context(), b.Project, repo.Options{
		Collection: b.Collection, Fields: repo.Fields(b.Vocabulary), Policy: policy, MaxRunTime: delivery.DefaultMaxRunTime,
	}, b.Client(t,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := wall(ctx); err != nil {
				return err
			}
			return invoke(ctx, m, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := wall(ctx); err != nil {
				return nil, err
			}
			return open(ctx, d, cc, m, opts...)
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	work, stop := context.WithCancelCause(context.Background())
	w.stop = stop
	w.guard = &delivery.Guard{
		Locks: a, Orphans: a, Oldest: a.OldestUnfinished, Analyzer: body, Instance: "test/1",
		RunTimeout: 25 * time.Minute, CheckpointInterval: delivery.DefaultCheckpointInterval, Log: slog.New(slog.DiscardHandler),
	}
	w.Server = serverOf(work, w.guard, nil)
	return w
}

// answer is a decoded answer.
type answer struct {
	Code       int
	RetryAfter string
	Challenge  string // WWW-Authenticate
	Body       map[string]any
}

func (w *instance) post(t testing.TB, body string) answer {
	t.Helper()
	return w.call(t, http.MethodPost, "/internal/tasks/analysis", body)
}

func (w *instance) deliver(t testing.TB, id string) answer {
	t.Helper()
	body, err := json.Marshal(map[string]string{"analysis_id": id})
	if err != nil {
		t.Fatal(err)
	}
	return w.post(t, string(body))
}

func (w *instance) call(t testing.TB, method, path, body string) answer {
	t.Helper()
	return w.send(t, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
}

func (w *instance) send(t testing.TB, r *http.Request) answer {
	t.Helper()
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	a := answer{Code: rec.Code, RetryAfter: rec.Header().Get("Retry-After"), Challenge: rec.Header().Get("WWW-Authenticate")}
	if err := json.Unmarshal(rec.Body.Bytes(), &a.Body); err != nil {
		t.Fatalf("%s %s answered %d with %q, which is not JSON", r.Method, r.URL.Path, rec.Code, rec.Body)
	}
	return a
}

// check compares the status and the named fields of an answer. A nil value wants the field
// absent, and "*" any value.
func (a answer) check(t testing.TB, code int, want map[string]any) {
	t.Helper()
	if a.Code != code {
		t.Errorf("status %d, want %d (%v)", a.Code, code, a.Body)
	}
	for k, v := range want {
		got, ok := a.Body[k]
		if v == nil && ok || v == "*" && !ok || v != nil && v != "*" && got != v {
			t.Errorf("%s = %v, want %v (%v)", k, got, v, a.Body)
		}
	}
}

func checkFields(t testing.TB, b *emulatortest.Backend, id string, want map[string]any) {
	t.Helper()
	answer{Body: b.Fields(t, id)}.check(t, 0, want)
}

func succeed(context.Context, orchestrator.Job) (orchestrator.Result, error) { return "done", nil }

// inBubble runs a test on the embedded server in virtual time.
func inBubble(t *testing.T, run func(t *testing.T, b *emulatortest.Backend)) {
	t.Helper()
	emulatortest.EmbeddedKinds(t, run)
}

// serverOf returns a server of one kind.
func serverOf(work context.Context, g *delivery.Guard, auth delivery.Authenticator) *delivery.Server {
	return delivery.NewServer(work, g.Log, auth).Route(g)
}
