package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// process is one worker, as on Cloud Run, with its log lines, metrics and spans.
type process struct {
	*Guard
	gauges
	log         *bytes.Buffer
	stop        context.CancelCauseFunc
	unavailable *atomic.Bool // no call of this worker reaches Firestore
	runner      *delivery.Runner
	analyze     orchestrator.AnalyzerFunc
}

// ttl returns the default, or a short TTL where time is real.
func ttl(b *emulatortest.Backend) time.Duration {
	if b.Google() {
		return 20 * time.Second
	}
	return lease.DefaultTTL
}

// start runs a worker on b whose analyzer is body, with three attempts.
func start(t testing.TB, b *emulatortest.Backend, body orchestrator.AnalyzerFunc) *process {
	t.Helper()
	return startWith(t, b, 3, body)
}

// startOn is like start, with a queue.
func startOn(t testing.TB, b *emulatortest.Backend, q delivery.Queue, body orchestrator.AnalyzerFunc) *process {
	t.Helper()
	w := start(t, b, body)
	w.runner.Queue = q
	return w
}

// startWith is like start, with so many attempts, and with opts for the connection to Firestore.
func startWith(
	t testing.TB, b *emulatortest.Backend, attempts int, body orchestrator.AnalyzerFunc, opts ...grpc.DialOption,
) *process {
	t.Helper()
	wall := &Wall{}
	w := &process{analyze: body, unavailable: &wall.Up, gauges: measured(t), log: &bytes.Buffer{}}
	a, err := repo.Open(t.Context(), b.Project, repo.Options{
		Collection: b.Collection, Fields: repo.Fields(b.Vocabulary),
		Policy: lease.Policy{TTL: ttl(b), MaxAttempts: attempts}, MaxRunTime: delivery.DefaultMaxRunTime,
	}, wall.Client(t, b, opts...)...)
	must.OK(t, err)
	w.runner = &delivery.Runner{
		Locks: a, Orphans: a, Oldest: a.OldestUnfinished, Instance: "test/1",
		RunTimeout: 25 * time.Minute, CheckpointInterval: delivery.DefaultCheckpointInterval,
		Log: slog.New(slog.NewJSONHandler(w.log, nil)), Telemetry: w.Telemetry,
	}
	w.restart(CheckedByProxy())
	return w
}

// Wall makes the calls of a client of Firestore hang while it is up.
type Wall struct{ Up atomic.Bool }

// Client returns the options of the client's connection to b.
func (w *Wall) Client(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) []option.ClientOption {
	t.Helper()
	hang := func(ctx context.Context) error {
		if w.Up.Load() {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		return nil
	}
	unary := func(
		ctx context.Context, m string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if err := hang(ctx); err != nil {
			return err
		}
		return invoke(ctx, m, req, reply, cc, opts...)
	}
	stream := func(
		ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if err := hang(ctx); err != nil {
			return nil, err
		}
		return open(ctx, d, cc, m, opts...)
	}
	walled := []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
	return b.Client(t, append(walled, opts...)...)
}

// reply is a decoded answer.
type reply struct {
	Code       int
	RetryAfter string
	Challenge  string // WWW-Authenticate
	Body       map[string]any
}

func (w *process) post(t testing.TB, body string) reply {
	t.Helper()
	return w.call(t, http.MethodPost, "/internal/tasks/analysis", body)
}

func (w *process) deliver(t testing.TB, id string) reply {
	t.Helper()
	body, err := json.Marshal(map[string]string{"analysis_id": id})
	must.OK(t, err)
	return w.post(t, string(body))
}

func (w *process) call(t testing.TB, method, path, body string) reply {
	t.Helper()
	return w.send(t, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
}

func (w *process) send(t testing.TB, r *http.Request) reply {
	t.Helper()
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	header := rec.Header()
	a := reply{Code: rec.Code, RetryAfter: header.Get("Retry-After"), Challenge: header.Get("WWW-Authenticate")}
	if err := json.Unmarshal(rec.Body.Bytes(), &a.Body); err != nil {
		t.Fatalf("%s %s answered %d with %q, which is not JSON", r.Method, r.URL.Path, rec.Code, rec.Body)
	}
	return a
}

// check compares the status, the header Retry-After and the named fields of an answer. A nil value
// wants the field absent, and "*" any value.
func (a reply) check(t testing.TB, code int, want map[string]any) {
	t.Helper()
	if a.Code != code {
		t.Errorf("status %d, want %d (%v)", a.Code, code, a.Body)
	}
	for k, v := range want {
		got, ok := a.Body[k]
		if k == "Retry-After" {
			got, ok = a.RetryAfter, a.RetryAfter != ""
		}
		matches := got == v
		switch v {
		case nil:
			matches = !ok
		case "*":
			matches = ok
		}
		if !matches {
			t.Errorf("%s = %v, want %v (%v)", k, got, v, a.Body)
		}
	}
}

func checkFields(t testing.TB, b *emulatortest.Backend, id string, want map[string]any) {
	t.Helper()
	reply{Body: b.Fields(t, id)}.check(t, 0, want)
}

func succeed(context.Context, orchestrator.Job) (orchestrator.Result, error) { return "done", nil }

// inBubble runs a test on the embedded server in virtual time.
func inBubble(t *testing.T, run func(t *testing.T, b *emulatortest.Backend)) {
	t.Helper()
	emulatortest.EmbeddedKinds(t, run)
}

// forKinds runs a subtest inBubble.
func forKinds(t *testing.T, name string, run func(t *testing.T, b *emulatortest.Backend)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, run) })
}

// Subtest runs a subtest in virtual time.
func Subtest(t *testing.T, name string, run func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, run) })
}

// restart gives w a new server, which calls its analyzer as it is then.
func (w *process) restart(auth Authenticator) {
	work, stop := context.WithCancelCause(context.Background())
	w.stop = stop
	analyze := func(ctx context.Context, job Job) (any, error) { return w.analyze(ctx, job) }
	w.Guard = serverOf(work, w.runner, auth, analyze)
}

// serverOf returns a Guard that serves one kind.
func serverOf(work context.Context, d *delivery.Runner, auth Authenticator, analyze orchestrator.AnalyzerFunc) *Guard {
	d.Names.IDField = cmp.Or(d.Names.IDField, taskqueue.DefaultIDField)
	d.Names.Path = cmp.Or(d.Names.Path, taskqueue.DefaultPath)
	g := &Guard{options: Options{Log: d.Log}, auth: auth, work: work, telemetry: d.Telemetry}
	g.places = delivery.NewPlaces(100)
	g.route()
	g.handle(d, analyze)
	return g
}

// handle adds the route of d's kind.
func (g *Guard) handle(d *delivery.Runner, analyze orchestrator.AnalyzerFunc) {
	work := Work{Kind: Kind{Run: analyze}, collection: collection{runner: d}, service: g}
	g.echo.POST(d.Names.Path, work.Echo())
}

// ServeHTTP makes Guard an http.Handler.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.echo.ServeHTTP(w, r) }
