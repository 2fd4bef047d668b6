package cloudtasks

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"

	"taskguard/emulator/wire"
)

const (
	// maxMessageBytes lets a task somewhat over the limit reach the handler, so
	// that it is refused as the service refuses it and not by the transport.
	maxMessageBytes = 16 << 20
	// idleConnsPerHost keeps the connections of a queue with the default
	// concurrency: dispatches usually all go to one worker.
	idleConnsPerHost = 1000
)

// ErrClosed is returned by Dial and Idle on a server that has been closed.
var ErrClosed = wire.ErrClosed

// Options configures a Server. The zero value is ready to use.
type Options struct {
	// Transport carries every dispatch; nil means a private http.Transport with
	// keep-alives and no proxy. An attempt ends at its dispatch deadline whether
	// or not RoundTrip has returned, but Close waits for RoundTrip.
	Transport http.RoundTripper
	// Extra makes at-least-once delivery visible. It is asked at each dispatch of
	// a first attempt; for each delay it returns, an identical delivery is sent
	// that long after the first. They obey the queue's limits, and their answers
	// change nothing. nil means none. It may be called concurrently and must not
	// keep the server waiting; the task is the callee's to keep.
	Extra func(task *cloudtaskspb.Task) []time.Duration
	// Observe is called after each delivery ended, from the delivery's own
	// goroutine, so concurrently for different deliveries; nil means none. Its
	// effect on the task (retry, removal) comes after Observe has returned, so
	// the deliveries of one task are seen in order, overlaps by RunTask apart.
	// It must not call Idle or Close.
	Observe func(Delivery)
	// Token mints the ID token of each delivery whose task has an oidc_token, for
	// the service account and the audience that the task names; without an audience
	// that is the task's whole URL, as with the service. Its error is an attempt
	// without an answer, and retried. nil means none: such a task is sent without
	// Authorization. It may be called concurrently, and Close waits for it.
	Token func(email, audience string) (string, error)
	// Log receives deliveries at debug level, given-up tasks and missing tokens at
	// warn level, without bodies, URLs or header values; nil means silent.
	Log *slog.Logger
}

// Delivery is one request sent to a worker, and what came of it.
type Delivery struct {
	Task, Queue string // short ids
	TaskName    string // projects/P/locations/L/queues/Q/tasks/ID
	Attempt     int    // as X-CloudTasks-TaskRetryCount: 0 for the first
	Duplicate   bool   // sent because of Options.Extra
	Status      int    // HTTP status; 0 means no complete answer
	Body        []byte // the answer's first 64 KiB
	// Err is why there was no complete answer: context.DeadlineExceeded when the
	// dispatch deadline passed, context.Canceled when the server was closed.
	Err         error
	Scheduled   time.Time // when it was due
	Started     time.Time
	Ended       time.Time
	RequestBody []byte // shared: not to be changed
}

// Server is an in-memory Cloud Tasks. All its methods may be called
// concurrently.
type Server struct {
	*wire.Server // Serve and Dial

	transport http.RoundTripper
	extra     func(*cloudtaskspb.Task) []time.Duration
	observe   func(Delivery)
	token     func(email, audience string) (string, error) // nil: none
	log       *slog.Logger
	private   *http.Transport // the transport, if it is ours

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // schedulers and deliveries

	mu     sync.Mutex // guards all below, and every queue and task
	closed bool
	queues map[string]*queue
	busy   int           // tasks, pending duplicates and deliveries in flight
	quiet  chan struct{} // closed while busy is 0
}

// NewServer returns a server without queues. It starts no goroutine; Close is
// needed once a queue has been created or Serve or Dial called.
func NewServer(o Options) *Server {
	s := &Server{
		transport: o.Transport,
		extra:     o.Extra,
		observe:   o.Observe,
		token:     o.Token,
		log:       o.Log,
		queues:    map[string]*queue{},
		quiet:     make(chan struct{}),
	}
	close(s.quiet)
	if s.transport == nil {
		s.private = &http.Transport{
			MaxIdleConnsPerHost: idleConnsPerHost,
			IdleConnTimeout:     90 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second,
			ForceAttemptHTTP2:   true,
		}
		s.transport = s.private
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
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
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.Server.Close()
	s.running.Wait()
	if s.private != nil {
		s.private.CloseIdleConnections()
	}
}

// Idle blocks until no task is left in any queue, no duplicate is pending and
// nothing is in flight; every Observe call of those has then returned. It returns
// ctx's error if ctx ends first, and ErrClosed if the server is closed first. A
// paused queue that holds tasks is not idle.
func (s *Server) Idle(ctx context.Context) error {
	s.mu.Lock()
	quiet := s.quiet
	s.mu.Unlock()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cloud tasks emulator: idle: %w", context.Cause(ctx))
	case <-s.ctx.Done():
		return ErrClosed
	}
}

// hold and release count what keeps the server from being idle. Both need s.mu.
func (s *Server) hold() {
	if s.busy == 0 {
		s.quiet = make(chan struct{})
	}
	s.busy++
}

func (s *Server) release() {
	s.busy--
	if s.busy == 0 {
		close(s.quiet)
	}
}
