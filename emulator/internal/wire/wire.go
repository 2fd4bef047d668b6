// Package wire serves an embedded API over gRPC, on ports and inside the process.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// ErrClosed is returned by a server that has been closed.
var ErrClosed = errors.New("emulator: closed")

// pipeBytes is the buffer of the in-process connection, in each direction.
const pipeBytes = 1 << 20

// Server is a plaintext gRPC server. Its methods may be called concurrently.
type Server struct {
	grpc       *grpc.Server
	maxMessage int

	mu     sync.Mutex
	closed bool
	pipe   *bufconn.Listener // in-process; opened by the first Dial
	served sync.WaitGroup    // the goroutine that serves pipe
}

// NewServer returns a server for messages of up to maxMessage bytes. It starts no
// goroutine; Close is needed once Serve or Dial has been called.
func NewServer(maxMessage int, register func(grpc.ServiceRegistrar)) *Server {
	s := &Server{maxMessage: maxMessage, grpc: grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.WaitForHandlers(true),
	)}
	register(s.grpc)
	return s
}

// Serve answers plaintext gRPC calls arriving on l until Close, and then returns
// nil. It blocks, owns l, and may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.closed {
		return fmt.Errorf("emulator: serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Dial returns a connection inside the process, without a socket, so that it also
// works in a testing/synctest bubble. opts are applied after Dial's own. The
// caller closes the connection. Dial does not block.
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
			grpc.MaxCallRecvMsgSize(s.maxMessage),
			grpc.MaxCallSendMsgSize(s.maxMessage),
		),
	}

	conn, err := grpc.NewClient("passthrough:///emulator", append(own, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("emulator: dial: %w", err)
	}
	return conn, nil
}

// Close ends all calls, stops serving, and waits for the handlers and
// for every goroutine of the server. Closing twice is harmless.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.grpc.Stop()
	s.served.Wait()
}

func (s *Server) openPipe() (*bufconn.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.pipe == nil {
		pipe := bufconn.Listen(pipeBytes)
		s.pipe = pipe
		// It fails only after Stop.
		s.served.Go(func() { _ = s.grpc.Serve(pipe) })
	}
	return s.pipe, nil
}
