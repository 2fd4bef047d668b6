package cloudtasks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"

	"taskguard/emulator/internal/wire"
)

const (
	// maxMessageBytes lets a task somewhat over the limit reach the handler, which
	// refuses it as the service does; the transport would answer otherwise.
	maxMessageBytes = 16 << 20
	// idleConnsPerHost keeps the connections of a queue with the default
	// concurrency: dispatches usually all go to one worker.
	idleConnsPerHost = 1000
)

// ErrClosed is returned by Idle on a server that has been closed.
var ErrClosed = errors.New("cloud tasks emulator: closed")

// Options configures a Server. The zero value is ready to use.
type Options struct {
	// Transport sends every delivery; nil means a private http.Transport with
	// keep-alives and no proxy. An attempt ends at its dispatch deadline, even if
	// RoundTrip has not returned. Close waits for RoundTrip.
	Transport http.RoundTripper
	// Extra returns the delays of duplicates, which make at-least-once delivery
	// visible. It is called at each dispatch of a first attempt. For each delay an
	// identical delivery is sent that long after the first. Duplicates obey the
	// queue's limits, and their answers change nothing for the task. nil means none.
	// Extra must neither block nor call the API or the Server; it may keep the task.
	Extra func(task *cloudtaskspb.Task) []time.Duration
	// Observe is called when a delivery has ended, concurrently for different
	// deliveries; nil means none. The task is retried or removed after Observe has
	// returned, so the attempts of one task are observed in order. Observe must not
	// call Idle or Close.
	Observe func(Delivery)
	// Token signs the ID token of each delivery whose task has an oidc_token, for
	// the task's service account and audience. As in the service, the default
	// audience is the task's whole URL. After an error the attempt has no answer and
	// is retried. nil means that such a task is sent without Authorization. Token may
	// be called concurrently, and Close waits for it.
	Token func(email, audience string) (string, error)
	// Throttling selects how each queue adapts its rate to the answers; the zero
	// value is Unthrottled.
	Throttling Throttling
	// Spread is the largest fraction of its backoff or Retry-After by which a retry is
	// delayed at random, so that tasks that failed together are not retried together.
	Spread float64
}

// Delivery is one request sent to a worker, and its outcome.
type Delivery struct {
	Task      string // short id
	Attempt   int    // 0 for the first, like X-CloudTasks-TaskRetryCount
	Duplicate bool   // sent because of Options.Extra
	Status    int    // HTTP status; 0 means no complete answer
	// Err is the reason for no complete answer: context.DeadlineExceeded when the
	// dispatch deadline passed, context.Canceled when the server was closed.
	Err     error
	Started time.Time // when the request was sent
}

// Server is an in-memory Cloud Tasks. All its methods may be called
// concurrently.
type Server struct {
	*wire.Server // Serve and Dial

	options Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // schedulers and deliveries

	mu      sync.Mutex // guards all below, every queue and task, and cancel
	queues  map[string]*queue
	settled *sync.Cond // broadcast when the server may be idle or closed
}

// NewServer returns a server without queues. It needs Close.
func NewServer(o Options) *Server {
	if o.Transport == nil {
		o.Transport = &http.Transport{MaxIdleConnsPerHost: idleConnsPerHost, ForceAttemptHTTP2: true}
	}
	s := &Server{options: o, queues: map[string]*queue{}}
	s.settled = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.Server = wire.NewServer(maxMessageBytes, func(r grpc.ServiceRegistrar) {
		cloudtaskspb.RegisterCloudTasksServer(r, &api{s: s})
	})
	return s
}

// Close stops dispatching, cancels the requests in flight, ends all calls, and
// waits until every goroutine of the server has ended. The tasks are gone with
// it. Closing twice is harmless.
func (s *Server) Close() {
	s.mu.Lock()
	s.cancel() // under mu, so that running.Wait sees a delivery that begins now
	s.settled.Broadcast()
	s.mu.Unlock()
	s.Server.Close()
	s.running.Wait()
	if t, ok := s.options.Transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Idle blocks until every queue is empty, no duplicate is pending and nothing is
// in flight; every Observe call of those has then returned. It returns ctx's
// error if ctx ends first, and ErrClosed if the server is closed first.
func (s *Server) Idle(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settled.Broadcast()
	})()

	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy() {
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("cloud tasks emulator: idle: %w", context.Cause(ctx))
		case s.ctx.Err() != nil:
			return ErrClosed
		}
		s.settled.Wait()
	}
	return nil
}

// busy reports whether there are tasks, pending duplicates or deliveries. It needs s.mu.
func (s *Server) busy() bool {
	for _, q := range s.queues {
		if len(q.tasks)+len(q.schedule)+q.inFlight > 0 {
			return true
		}
	}
	return false
}

// nameHeld is how long the name of a finished task is refused. The service documents
// up to 24 h, and the longest time finds the most callers that reuse names.
const nameHeld = 24 * time.Hour

var (
	queueName = regexp.MustCompile(`^projects/[A-Za-z0-9:.-]+/locations/[A-Za-z0-9-]+/queues/[A-Za-z0-9-]{1,100}$`)
	taskID    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,500}$`)
)

// checkQueueName refuses a name that is not projects/P/locations/L/queues/Q.
// field is the request's field that holds name.
func checkQueueName(field, name string) error {
	if !queueName.MatchString(name) {
		return invalid(field, "want projects/PROJECT/locations/LOCATION/queues/QUEUE, "+
			"QUEUE of 1 to 100 letters, digits and hyphens")
	}
	return nil
}

// splitTaskName returns the queue's full name and the task's id.
func splitTaskName(name string) (queue, id string, err error) {
	i := max(0, strings.LastIndex(name, "/tasks/")) // the queue may have the name tasks too
	queue, id = name[:i], strings.TrimPrefix(name[i:], "/tasks/")
	if !queueName.MatchString(queue) || !taskID.MatchString(id) {
		return "", "", invalid("name", "want QUEUE_NAME/tasks/TASK, "+
			"TASK of 1 to 500 letters, digits, hyphens and underscores")
	}
	return queue, id, nil
}
