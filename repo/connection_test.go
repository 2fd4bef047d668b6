package repo

import (
	"context"
	"path"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The kinds of calls. Any other kind is the name of its method.
const (
	read            = "BatchGetDocuments"
	commit          = "Commit"
	exclusiveRead   = "RunQuery in a transaction"
	exclusiveCommit = "Commit in a transaction"
)

// faultyConn is a connection whose calls fail as a test plans. The zero faultyConn makes
// every call.
type faultyConn struct {
	mu      sync.Mutex
	next    faults // of the next calls
	stopped bool   // no other call is answered
}

// fault makes a call or fails it. A nil fault makes it.
type fault func(ctx context.Context, do func() error) error

// faults are those of the next calls by their kind, in order.
type faults map[string][]fault

// inject sets the faults of the next calls.
func (l *faultyConn) inject(next faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = faults{}
	for kind, all := range next {
		l.next[kind] = all
	}
}

// stopAnswering makes every call hang for which inject has set no fault.
func (l *faultyConn) stopAnswering() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
}

// wantAllInjected fails the test if a fault was set for a call that was not made.
func (l *faultyConn) wantAllInjected(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, left := range l.next {
		if len(left) > 0 {
			t.Errorf("%d faults were left for a call of %s", len(left), kind)
		}
	}
}

func (l *faultyConn) call(ctx context.Context, kind string, do func() error) error {
	l.mu.Lock()
	var f fault
	if l.stopped {
		f = unanswered
	}
	if next := l.next[kind]; len(next) > 0 {
		f, l.next[kind] = next[0], next[1:]
	}
	l.mu.Unlock()
	if f == nil {
		return do()
	}
	return f(ctx, do)
}

// options returns the options of a connection that fails as l does.
func (l *faultyConn) options() []grpc.DialOption {
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		kind := path.Base(method)
		if c, ok := req.(*firestorepb.CommitRequest); ok && len(c.GetTransaction()) > 0 {
			kind = exclusiveCommit
		}
		return l.call(ctx, kind, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	}
	streams := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return &stream{ClientStream: s, conn: l, ctx: ctx, kind: path.Base(method)}, err
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams)}
}

// stream is a call with one request. It sends the request when the caller waits for the
// first answer.
type stream struct {
	grpc.ClientStream
	conn    *faultyConn
	ctx     context.Context //nolint:containedctx // the call's own
	kind    string
	request any
}

func (s *stream) SendMsg(m any) error {
	s.request = m
	if r, ok := m.(*firestorepb.RunQueryRequest); ok && len(r.GetTransaction()) > 0 {
		s.kind = exclusiveRead
	}
	return nil
}

func (s *stream) CloseSend() error { return nil }

func (s *stream) RecvMsg(m any) error {
	request := s.request
	if s.request = nil; request == nil {
		return s.ClientStream.RecvMsg(m)
	}
	return s.conn.call(s.ctx, s.kind, func() error {
		if err := s.ClientStream.SendMsg(request); err != nil {
			return err
		}
		if err := s.ClientStream.CloseSend(); err != nil {
			return err
		}
		return s.ClientStream.RecvMsg(m)
	})
}

// lost makes a call and then returns code.
func lost(code codes.Code) fault {
	return func(_ context.Context, do func() error) error {
		if err := do(); err != nil {
			return err
		}
		return status.Error(code, "injected after the call")
	}
}

// dropped returns code without making the call.
func dropped(code codes.Code) fault {
	return func(context.Context, func() error) error { return status.Error(code, "injected before the call") }
}

var denied = dropped(codes.PermissionDenied)

// delay is shorter than the time limit of a call.
const delay = 4 * time.Second

// slowReply makes a call at once and delays its answer.
func slowReply(ctx context.Context, do func() error) error {
	err := do()
	if late := wait(ctx); late != nil {
		return late
	}
	return err
}

// slowRequest delays a call.
func slowRequest(ctx context.Context, do func() error) error {
	if err := wait(ctx); err != nil {
		return err
	}
	return do()
}

func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(delay):
		return nil
	}
}

// unanswered does not make the call, and never answers.
func unanswered(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// overtaken calls write just before the call.
func overtaken(write func()) fault {
	return func(_ context.Context, do func() error) error {
		write()
		return do()
	}
}

// exclusively returns faults with which another writer precedes two commits, so that the
// third try is made in a transaction.
func exclusively(t *testing.T, b *backend, more faults) faults {
	t.Helper()
	other := overtaken(func() { b.Merge(t, "x", doc{"theirs": firestore.Increment(1)}) })
	all := faults{commit: {other, other}}
	for kind, f := range more {
		all[kind] = append(all[kind], f...)
	}
	return all
}

// eachStream wraps every stream of a connection.
func eachStream(wrap func(grpc.ClientStream) grpc.ClientStream) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
		method string, open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return wrap(s), err
	})
}

// eachCall calls do before every unary call of a connection.
func eachCall(do func()) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		do()
		return invoke(ctx, method, req, reply, cc, opts...)
	})
}
