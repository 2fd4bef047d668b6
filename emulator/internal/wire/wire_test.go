package wire_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"taskguard/emulator/internal/wire"
	"taskguard/internal/testing/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newServer serves one method, test.Wait/Wait, by handler.
func newServer(handler func(context.Context)) *wire.Server {
	wait := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if err := decode(&emptypb.Empty{}); err != nil {
			return nil, err
		}
		handler(ctx)
		return &emptypb.Empty{}, nil
	}
	methods := []grpc.MethodDesc{{MethodName: "Wait", Handler: wait}}
	return wire.NewServer(1<<20, func(r grpc.ServiceRegistrar) {
		service := &grpc.ServiceDesc{ServiceName: "test.Wait", HandlerType: (*any)(nil), Methods: methods}
		r.RegisterService(service, struct{}{})
	})
}

func call(conn *grpc.ClientConn) error {
	return conn.Invoke(context.Background(), "/test.Wait/Wait", &emptypb.Empty{}, &emptypb.Empty{})
}

func TestServer_Close(t *testing.T) {
	entered := make(chan struct{})
	var left atomic.Bool
	s := newServer(func(ctx context.Context) {
		close(entered)
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		left.Store(true)
	})
	conn, err := s.Dial()
	must.OK(t, err)
	defer func() { _ = conn.Close() }()
	failed := make(chan error)
	go func() { failed <- call(conn) }()
	<-entered
	s.Close()
	if !left.Load() {
		t.Error("Close returned before the handler")
	}
	if err := <-failed; err == nil {
		t.Error("the call succeeded")
	}
	s.Close()
}

func TestServer_Serve(t *testing.T) {
	s := newServer(func(context.Context) {})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	_ = l.Close()
	if err := s.Serve(l); err == nil {
		t.Error("a closed listener is no error")
	}
	s.Close()
	if err := s.Serve(l); err != nil {
		t.Errorf("%v after Close", err)
	}
}
