// Package wire serves an embedded API over gRPC, on ports and inside the process.
package wire

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// pipeBytes is the buffer of the in-process connection, in each direction.
const pipeBytes = 64 << 10

// Server is a plaintext gRPC server. Its methods may be called concurrently.
type Server struct {
	grpc       *grpc.Server
	maxMessage int
	pipe       *bufconn.Listener // in-process
	served     sync.WaitGroup    // the goroutine that serves pipe
}

// NewServer returns a server for messages of up to maxMessage bytes. It needs Close.
func NewServer(maxMessage int, register func(grpc.ServiceRegistrar)) *Server {
	s := &Server{maxMessage: maxMessage, pipe: bufconn.Listen(pipeBytes), grpc: grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.WaitForHandlers(true),
	)}
	register(s.grpc)
	s.served.Go(func() { _ = s.grpc.Serve(s.pipe) }) // it fails only after Stop
	return s
}

// Serve answers plaintext gRPC calls arriving on l until Close, and then returns
// nil. It blocks, owns l, and may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) { // Close came before
		return nil
	}
	return err
}

// Dial returns a connection inside the process, without a socket, so that it also
// works in a testing/synctest bubble. opts are applied after Dial's own. The
// caller closes the connection. Dial does not block.
func (s *Server) Dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.pipe.DialContext(ctx)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.maxMessage), grpc.MaxCallSendMsgSize(s.maxMessage)),
	}
	return grpc.NewClient("passthrough:///emulator", append(options, opts...)...)
}

// Close ends all calls, stops serving, and waits for the handlers and
// for every goroutine of the server. Closing twice is harmless.
func (s *Server) Close() {
	s.grpc.Stop()
	s.served.Wait()
}
