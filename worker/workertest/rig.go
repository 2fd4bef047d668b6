package workertest

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/worker"
)

// Names in the embedded servers. Nothing listens at target.
const (
	project = "test-project"
	queue   = "projects/" + project + "/locations/here/queues/work"
	target  = "http://service.test"
)

// Rig is an embedded Firestore and an embedded Cloud Tasks of one test, and the service that the
// queue calls. Its methods are safe for concurrent use.
type Rig struct {
	// Mux has the routes of the service. The queue delivers its tasks to it, in this process.
	Mux       *http.ServeMux
	Firestore *firestore.Server  // its method Dial connects a client of the test
	Tasks     *cloudtasks.Server // its method Idle waits until the queue is empty

	t testing.TB
}

// New returns a Rig with an empty database and an empty queue, which retries without a limit. It is
// closed at the end of t. In a testing/synctest bubble, the servers use the bubble's time.
func New(t testing.TB) *Rig {
	t.Helper()
	mux := http.NewServeMux()
	return newRig(t, mux, local{mux})
}

// newRig returns a Rig whose tasks the transport delivers.
func newRig(t testing.TB, mux *http.ServeMux, transport http.RoundTripper) *Rig {
	tasks := cloudtasks.NewServer(cloudtasks.Options{Transport: transport})
	r := &Rig{mux, firestore.NewServer(firestore.Options{}), tasks, t}
	t.Cleanup(r.Firestore.Close)
	t.Cleanup(r.Tasks.Close)

	unlimited := &cloudtaskspb.RetryConfig{MaxAttempts: -1}
	if err := r.Tasks.CreateQueue(&cloudtaskspb.Queue{Name: queue, RetryConfig: unlimited}); err != nil {
		t.Fatal(err)
	}
	return r
}

// Options returns o for [worker.Open], with new connections to both servers: Project, Queue,
// FirestoreOptions and QueueOptions are replaced. A nil Auth accepts every caller, and a nil Log
// discards. dial is for both connections, for example an interceptor that fails calls.
func (r *Rig) Options(o worker.Options, dial ...grpc.DialOption) worker.Options {
	r.t.Helper()
	connect := func(open func(...grpc.DialOption) (*grpc.ClientConn, error)) []option.ClientOption {
		conn, err := open(dial...)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = conn.Close() })
		return []option.ClientOption{option.WithGRPCConn(conn)}
	}

	o.FirestoreOptions, o.QueueOptions = connect(r.Firestore.Dial), connect(r.Tasks.Dial)
	o.Project, o.Queue = project, worker.Queue{Name: queue, TargetURL: target}
	if o.Auth == nil {
		o.Auth = worker.CheckedByProxy()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Guard opens a Guard with the Options of o. At the end of the test it is shut down.
func (r *Rig) Guard(o worker.Options, dial ...grpc.DialOption) *worker.Guard {
	r.t.Helper()
	g, err := worker.Open(r.t.Context(), r.Options(o, dial...))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := shutdown(g); err != nil {
			r.t.Error(err)
		}
	})
	return g
}

// stopTime is the time that Cloud Run gives to a process after SIGTERM, less a second.
const stopTime = 9 * time.Second

// shutdown stops a guard as a service on Cloud Run does.
func shutdown(g *worker.Guard) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	return g.Shutdown(ctx)
}

// local is a transport that calls a handler in this process.
type local struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (l local) RoundTrip(r *http.Request) (*http.Response, error) {
	return serve(l.handler, r).Result(), nil
}

// serve returns what a handler answers to a request of a client.
func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w, received := httptest.NewRecorder(), r.Clone(r.Context())
	if r.Body == nil {
		received.Body = http.NoBody
	}
	defer func() { _ = received.Body.Close() }()
	h.ServeHTTP(w, received)
	return w
}
