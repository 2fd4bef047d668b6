package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/worker"
)

var (
	errBroken  = errors.New("broken")
	errOwn     = errors.New("of the function")
	errDropped = errors.New("connection dropped")
)

// run is what a kind, a call of Do, or a test does with a job.
type run = func(ctx context.Context, job worker.Job) (any, error)

// collection returns a collection as another program sees it.
func collection(t testing.TB, b *emulatortest.Backend, name string) *firestore.CollectionRef {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), b.Project, b.Client(t)...)
	must.OK(t, err)
	return client.Collection(name)
}

// fields reads a document; nil: there is none.
func fields(t testing.TB, doc *firestore.DocumentRef) map[string]any {
	t.Helper()
	snap, err := doc.Get(context.WithoutCancel(t.Context()))
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return snap.Data()
}

// checkRecord compares some fields of a document with want, where nil is a missing field.
func checkRecord(t testing.TB, doc *firestore.DocumentRef, want map[string]any) {
	t.Helper()
	got, some := fields(t, doc), map[string]any{}
	for name := range want {
		some[name] = got[name]
	}
	if diff := cmp.Diff(want, some); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// set writes some fields of a document.
func set(t testing.TB, doc *firestore.DocumentRef, record map[string]any) {
	t.Helper()
	if _, err := doc.Set(context.WithoutCancel(t.Context()), record, firestore.MergeAll); err != nil {
		t.Fatal(err)
	}
}

// remove deletes a document.
func remove(t testing.TB, doc *firestore.DocumentRef) {
	t.Helper()
	if _, err := doc.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// commit is one commit of a client of Firestore.
type commit struct {
	number int // from 1
	bytes  int
	send   func() error
}

// aroundCommits is an option of a client's connection: each commit is made by around.
func aroundCommits(around func(c commit) error) grpc.DialOption {
	var number atomic.Int64
	return grpc.WithChainUnaryInterceptor(func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		send := func() error { return invoke(ctx, method, req, reply, cc, opts...) }
		if !strings.HasSuffix(method, "/Commit") {
			return send()
		}
		message, _ := req.(proto.Message)
		return around(commit{int(number.Add(1)), proto.Size(message), send})
	})
}

// openAround opens a Guard on b whose commits are made by around.
func openAround(t *testing.T, b *emulatortest.Backend, around func(c commit) error) *worker.Guard {
	t.Helper()
	return open(t, b, func(o *worker.Options) { o.FirestoreOptions = b.Client(t, aroundCommits(around)) })
}

// openWalled opens a Guard on b, which Firestore does not answer while the wall is up.
func openWalled(t *testing.T, b *emulatortest.Backend) (*worker.Guard, *worker.Wall) {
	t.Helper()
	w := &worker.Wall{}
	return open(t, b, func(o *worker.Options) { o.FirestoreOptions = w.Client(t, b) }), w
}

// doWith is DoOutcome of one operation, without the rest of the outcome.
func doWith[T any](
	ctx context.Context, g *worker.Guard, key string, o worker.DoOptions,
	fn func(context.Context, worker.Job) (T, error),
) (T, error) {
	out, err := worker.DoOutcome(ctx, g, "op", key, o, fn)
	return out.Value, err
}

// returns is a function for Do.
func returns[T any](value T, err error) func(context.Context, worker.Job) (T, error) {
	return func(context.Context, worker.Job) (T, error) { return value, err }
}

// said describes what a call of Do has returned: "ran", "replayed" or "not run", the value, and the errors in the
// tree of err, for example "ran x not stored lost".
func said[T string | json.RawMessage](out worker.Outcome[T], err error) string {
	var words []string
	add := func(is bool, word string) {
		if is && word != "" {
			words = append(words, word)
		}
	}
	add(out.Ran, "ran")
	add(out.Replayed, "replayed")
	add(errors.Is(err, worker.ErrNotRun), "not run")
	add(true, string(out.Value))
	if lost, ok := errors.AsType[*worker.NotStoredError](err); ok {
		add(true, "not stored")
		add(fmt.Sprintf("%s", lost.Value) != string(out.Value), "of another value")
	}
	if permanent, ok := errors.AsType[*worker.PermanentError](err); ok {
		text := permanent.Code + ": " + permanent.Message
		failed, final := errors.AsType[*worker.FailedError](err)
		add(final && failed.Error() == "failed: "+text, "failed")
		add(true, text)
	}
	if uncertain, ok := errors.AsType[*worker.UncertainError](err); ok {
		add(true, "uncertain "+uncertain.Name)
	}
	if panicked, ok := errors.AsType[*worker.PanicError](err); ok {
		add(true, fmt.Sprint("panicked: ", panicked.Value))
	}
	add(errors.As(err, new(*worker.ResultError)), "result")
	if running, ok := errors.AsType[*worker.RunningError](err); ok {
		add(true, fmt.Sprint("running ", running.RetryIn.Round(10*time.Millisecond)))
	}
	for _, known := range []struct {
		word string
		err  error
	}{
		{"params", worker.ErrParams}, {"unfinished", worker.ErrUnfinished}, {"stopping", worker.ErrStopping},
		{"lost", lease.ErrLost}, {"unavailable", lease.ErrUnavailable}, {"not found", lease.ErrNotFound},
		{"malformed", lease.ErrMalformed}, {"invalid key", lease.ErrInvalidKey},
		{"broken", errBroken}, {"own", errOwn},
	} {
		add(errors.Is(err, known.err), known.word)
	}
	add(err != nil && len(words) == 0, "error")
	return strings.Join(words, " ")
}

// checkDo calls Do for op:key, and compares what it says with want.
func checkDo(
	ctx context.Context, t *testing.T, g *worker.Guard, want string,
	fn func(context.Context, worker.Job) (string, error),
) {
	t.Helper()
	_ = doError(ctx, t, g, want, fn) // it has compared the error
}

// doError is checkDo, and returns the error of Do.
func doError(
	ctx context.Context, t *testing.T, g *worker.Guard, want string,
	fn func(context.Context, worker.Job) (string, error),
) error {
	t.Helper()
	out, err := worker.DoOutcome(ctx, g, "op", "key", worker.DoOptions{}, fn)
	if got := said(out, err); got != want {
		t.Errorf("Do: %s, want %s", got, want)
	}
	return err
}

// finish makes another guard finish op:key with the result other.
func finish(t *testing.T, g *worker.Guard) {
	t.Helper()
	checkDo(t.Context(), t, g, "ran other", returns("other", nil))
}

// charges is a provider that counts the charges it was asked for.
type charges struct {
	n   int
	err error // of the next charge, which is made all the same
}

func (c *charges) charge(context.Context) (int, error) {
	c.n++
	err := c.err
	c.err = nil
	return c.n, err
}

// acting is an act that returns this.
func acting[T any](value T, err error) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return value, err }
}

// finds is a Find with this answer.
func finds(receipt int, found bool, err error) worker.Finder[int] {
	return worker.Find(func(context.Context) (int, bool, error) { return receipt, found, err })
}

// runJob serves so many deliveries of jobs/1 with this record, and returns the document.
func runJob(
	t *testing.T, b *emulatortest.Backend, g *worker.Guard, deliveries int, record map[string]any, run run,
) map[string]any {
	t.Helper()
	doc, h := collection(t, b, "jobs").Doc("1"), g.MustRegister(jobs(run)).Handler()
	set(t, doc, record)
	for range deliveries {
		post(t, h, "/tasks/job", `{"job_id":"1"}`)
	}
	return fields(t, doc)
}

// runAlone is runJob with a backend and a Guard of its own. Without a record, it is pending.
func runAlone(t *testing.T, deliveries int, record map[string]any, run run) map[string]any {
	t.Helper()
	if record == nil {
		record = pending
	}
	b := emulatortest.Embedded(t)
	return runJob(t, b, open(t, b, nil), deliveries, record, run)
}

var pending = map[string]any{"state": "PENDING"}

// withEffects returns the record of a job whose first attempt has left these acts.
func withEffects(effects any) map[string]any {
	return map[string]any{"state": "PENDING", "lockToken": 1, "effects": effects}
}

// full returns the record of a job that has so many bytes left for the fields of this program.
func full(left int) map[string]any {
	return map[string]any{"state": "PENDING", "theirs": strings.Repeat("x", 1<<20-left)}
}

// charged returns the act of a document.
func charged(document map[string]any) map[string]any {
	effects, _ := document["effects"].(map[string]any)
	act, _ := effects["charge"].(map[string]any)
	return act
}

// ended returns the state of a job's document and the code of its error, such as "ERROR effect_uncertain".
func ended(document map[string]any) string {
	failure, _ := document["error"].(map[string]any)
	code, _ := failure["code"].(string)
	return strings.TrimSpace(fmt.Sprint(document["state"], " ", code))
}

func account(r *http.Request) string { return r.Header.Get("Account") }

// order returns a request of the account a for the route /orders.
func order(t testing.TB, key, body string) *http.Request {
	t.Helper()
	return orderIn(t.Context(), key, body)
}

func orderIn(ctx context.Context, key, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders?a=1", strings.NewReader(body))
	r.Header.Set("Account", "a")
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

// answer serves a request, compares the summary of the answer with want, and returns its header.
func answer(t testing.TB, h http.Handler, r *http.Request, want string) http.Header {
	t.Helper()
	recorded := httptest.NewRecorder()
	h.ServeHTTP(recorded, r)
	if got := summary(t, recorded); got != want {
		t.Errorf("%s %s, key %q: %s; want %s", r.Method, r.URL, r.Header["Idempotency-Key"], got, want)
	}
	return recorded.Header()
}

// summary returns the status of an answer, "replayed" if it is, and the body or the last part of
// the type of a problem.
func summary(t testing.TB, recorded *httptest.ResponseRecorder) string {
	t.Helper()
	status, header, got := recorded.Code, recorded.Header(), fmt.Sprint(recorded.Code, " ")
	if header.Get("Idempotency-Replayed") == "true" {
		got += "replayed "
	}
	if header.Get("Content-Type") != "application/problem+json" {
		return got + recorded.Body.String()
	}

	var problem struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal(recorded.Body.Bytes(), &problem); err != nil || problem.Status != status {
		t.Errorf("problem %s, %v", recorded.Body, err)
	}
	if problem.Title == "" || problem.Detail == "" {
		t.Errorf("problem %s", recorded.Body)
	}
	repeatable := status == http.StatusConflict || status == http.StatusServiceUnavailable
	if after := header.Get("Retry-After"); (after == "1") != repeatable {
		t.Errorf("%d with Retry-After %q", status, after)
	}
	return got + strings.TrimPrefix(problem.Type, "urn:problem-type:idempotency:")
}

// counting returns a handler that answers 201 with the number of its calls and the body.
func counting(t testing.TB, calls *atomic.Int32) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", "/orders/1")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, calls.Add(1), string(body[:min(len(body), 9)]))
	})
}

// idempotent is a handler behind Idempotent.
func idempotent(g *worker.Guard, handler http.HandlerFunc) http.Handler {
	return g.Idempotent(worker.IdempotentOptions{Scope: account})(handler)
}
