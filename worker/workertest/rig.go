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

// New returns a Rig with an empty database and an empty queue, which retries without a limit. At the
// end of t it is closed. In a testing/synctest bubble, the time of the servers is that of the bubble.
func New(t testing.TB) *Rig {
	t.Helper()
	r := &Rig{Mux: http.NewServeMux()}
	r.start(t, local{r.Mux})
	return r
}

// start starts the servers of r. The transport delivers the tasks.
func (r *Rig) start(t testing.TB, transport http.RoundTripper) {
	t.Helper()
	r.t = t
	r.Firestore = firestore.NewServer(firestore.Options{})
	t.Cleanup(r.Firestore.Close)
	r.Tasks = cloudtasks.NewServer(cloudtasks.Options{Transport: transport})
	t.Cleanup(r.Tasks.Close)

	unlimited := &cloudtaskspb.RetryConfig{MaxAttempts: -1}
	if err := r.Tasks.CreateQueue(&cloudtaskspb.Queue{Name: queue, RetryConfig: unlimited}); err != nil {
		t.Fatal(err)
	}
}

// Options returns options for [worker.Open], with new connections to both servers: Project, Queue,
// FirestoreOptions and QueueOptions are set. Auth accepts every caller, and Log discards.
func (r *Rig) Options() worker.Options {
	r.t.Helper()
	return r.options(worker.Options{})
}

// options returns o with what Options sets. dial is for both connections.
func (r *Rig) options(o worker.Options, dial ...grpc.DialOption) worker.Options {
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

// Guard opens a Guard on the servers, and adds its Routes of the kinds to Mux. At the end of the test
// it is shut down. What Options sets replaces that of o, but for Auth and Log. Guard may be called
// once: a second call would add the routes twice.
func (r *Rig) Guard(o worker.Options, kinds ...worker.Kind) *worker.Guard {
	r.t.Helper()
	g, err := worker.Open(r.t.Context(), r.options(o))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), stopTime)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			r.t.Error(err)
		}
	})
	r.Mux.Handle("/", g.Routes(kinds...))
	return g
}

// stopTime is the time that Cloud Run gives to a process after SIGTERM, less a second.
const stopTime = 9 * time.Second

// local is a transport that calls a handler in this process.
type local struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (l local) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	l.handler.ServeHTTP(w, r)
	return w.Result(), nil
}
