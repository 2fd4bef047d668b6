package firestore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

const (
	// maxRequestBytes is Firestore's limit on one API request.
	maxRequestBytes = 10 << 20
	// maxMessageBytes lets a request somewhat over the limit reach the handler,
	// so that it is refused as Firestore refuses it (INVALID_ARGUMENT) and not
	// by the transport.
	maxMessageBytes = 4 * maxRequestBytes
	// pipeBytes is the buffer of the in-process connection, in each direction.
	pipeBytes = 1 << 20
)

// ErrClosed is returned by Dial on a server that has been closed.
var ErrClosed = errors.New("firestore emulator: closed")

// Options configures a Server. The zero value is ready to use.
type Options struct {
	// Now is the clock that dates commits and reads; nil means time.Now. The
	// store's own time never runs backwards even if Now does. Timeouts of
	// transactions are measured by real elapsed time, not by Now.
	Now func() time.Time
}

// Usage counts operations as Firestore bills them.
type Usage struct {
	// Reads is one per document looked up or returned by a query; looking up a
	// missing document, or a query without results, is one as well.
	Reads int64
	// Writes is one per committed write that is not a delete.
	Writes int64
	// Deletes is one per committed delete.
	Deletes int64
}

// Server is an in-memory Firestore. All its methods may be called concurrently.
type Server struct {
	store *store
	grpc  *grpc.Server

	mu     sync.Mutex
	closed bool
	pipe   *bufconn.Listener // in-process; opened by the first Dial
	served sync.WaitGroup    // the goroutine that serves pipe
}

// NewServer returns an empty server that serves nobody yet. It starts no
// goroutine; Close is needed once Serve or Dial has been called.
func NewServer(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{
		store: newStore(o.Now),
		grpc: grpc.NewServer(
			grpc.MaxRecvMsgSize(maxMessageBytes),
			grpc.MaxSendMsgSize(maxMessageBytes),
			grpc.WaitForHandlers(true),
		),
	}
	firestorepb.RegisterFirestoreServer(s.grpc, &api{store: s.store})
	return s
}

// Serve answers calls arriving on l until Close, and then returns nil. It
// blocks, owns l, and may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(l)
	if s.isClosed() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("firestore emulator: serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Dial returns a connection to the server that stays inside the process and
// uses no socket, so that it also works in a testing/synctest bubble. opts are
// applied after Dial's own. The caller closes the connection. Dial does not
// block.
func (s *Server) Dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	pipe, err := s.openPipe()
	if err != nil {
		return nil, err
	}
	own := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return pipe.DialContext(ctx)
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxMessageBytes),
			grpc.MaxCallSendMsgSize(maxMessageBytes),
		),
	}
	conn, err := grpc.NewClient("passthrough:///firestore", append(own, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("firestore emulator: dial: %w", err)
	}
	return conn, nil
}

// Close ends all calls under way, stops serving, and waits until every
// goroutine of the server has ended. The data are gone with the Server. Closing
// twice is harmless.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.grpc.Stop()
	s.served.Wait()
}

// Usage returns the billed operations so far.
func (s *Server) Usage() Usage { return s.store.usage() }

func (s *Server) openPipe() (*bufconn.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.pipe == nil {
		pipe := bufconn.Listen(pipeBytes)
		s.pipe = pipe
		// Serve's error after Stop is the expected end; before it, bufconn's
		// Accept fails for no other reason.
		s.served.Go(func() { _ = s.grpc.Serve(pipe) })
	}
	return s.pipe, nil
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
