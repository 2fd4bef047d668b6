package repo

import (
	"context"
	"errors"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

// network connects to a server in memory. It can drop its connections without closing them:
// they accept writes, and nothing arrives.
type network struct {
	*bufconn.Listener
	made, dropped atomic.Int32 // numbers of connections
}

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := n.DialContext(ctx)
	return &droppable{c, n, n.made.Add(1)}, err
}

type droppable struct {
	net.Conn
	network *network
	number  int32
}

func (c *droppable) dropped() bool { return c.number <= c.network.dropped.Load() }

func (c *droppable) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.dropped() {
			return n, err
		}
	}
}

func (c *droppable) Write(b []byte) (int, error) {
	if c.dropped() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestAWatchContinuesAfterItsConnectionWasDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		n := &network{Listener: bufconn.Listen(1 << 20)}
		go func() { _ = b.Server.Serve(n) }()
		r, err := OpenRooms(t.Context(), b.Project, Options{}, option.WithEndpoint("passthrough:///firestore"), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())), option.WithGRPCDialOption(grpc.WithContextDialer(n.dial)))
		fatal(t, err)
		others := openRooms(t, b)
		snapshots, ended := make(chan document.Snapshot, 10), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- r.Watch(ctx, func(s document.Snapshot) { snapshots <- s }) }()
		defer func() {
			cancel()
			<-ended
			_ = r.Close()
		}()
		<-snapshots
		n.dropped.Store(n.made.Load())
		others.put(t, "x", map[string]any{"lockOwner": "s/1"})
		select {
		case <-snapshots:
		case <-time.After(time.Minute):
			t.Error("no snapshot for a minute")
		}
	})
}

// fakeFirestore is a Firestore whose only document has 5 MiB on the wire, as a document of
// 1 MiB can have. It answers the next commits with these codes.
type fakeFirestore struct {
	firestorepb.UnimplementedFirestoreServer
	codes []codes.Code
	names []string // of the database, in the headers of the last commit
}

// serve returns the address of f.
func (f *fakeFirestore) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	s := grpc.NewServer()
	firestorepb.RegisterFirestoreServer(s, f)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func (f *fakeFirestore) RunQuery(r *firestorepb.RunQueryRequest, s firestorepb.Firestore_RunQueryServer) error {
	return s.Send(&firestorepb.RunQueryResponse{
		Document: &firestorepb.Document{Name: r.GetParent() + "/analyses/x", CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now(), Fields: map[string]*firestorepb.Value{"theirs": stringValue(strings.Repeat("x", 5<<20))}},
		ReadTime: timestamppb.Now(),
	})
}

func TestADocumentOfMoreThan4MiBOnTheWireIsReadFromAnEmulator(t *testing.T) {
	a, err := Open(t.Context(), "p", Options{Emulator: new(fakeFirestore).serve(t)})
	fatal(t, err)
	defer func() { _ = a.Close() }()
	if found, err := a.Find(t.Context(), Filter{}, "", 1); err != nil || len(found) != 1 {
		t.Errorf("%d documents, %v", len(found), err)
	}
}

func TestOnlyAnOddNumberOfUsableNamesIsACollection(t *testing.T) {
	for path, want := range map[string]bool{"a": true, "a/b/c": true, "a/b": false, "": false, "a//c": false, "a/../c": false} {
		if err := CheckCollection(path); (err == nil) != want {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// Google's client then opens a connection of its own.
func TestCloseEndsOurConnectionAlsoIfTheEnvironmentNamesAnEmulator(t *testing.T) {
	t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
	a, err := Open(t.Context(), "p", Options{})
	fatal(t, err)
	if err := a.Close(); err != nil || a.documents.db.conn.GetState() != connectivity.Shutdown {
		t.Errorf("%v, %v", err, a.documents.db.conn.GetState())
	}
}

func TestAnEmulatorsOwnerIsNamed(t *testing.T) {
	if got, err := (emulatorOwner{}).GetRequestMetadata(t.Context()); err != nil || got["authorization"] != "Bearer owner" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestWhatCannotBeOpenedIsAnError(t *testing.T) {
	for name, o := range map[string]Options{
		"the path of a document": {Collection: "analyses/x"},
		"a reserved name":        {Collection: "tenants/../analyses"},
		"a negative TTL":         {Emulator: "127.0.0.1:1", Policy: lease.Policy{TTL: -1}},
	} {
		if _, err := Open(t.Context(), "p", o); err == nil || !strings.HasPrefix(err.Error(), "repo: ") && o.Collection != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.Context(), "", Options{Emulator: "127.0.0.1:1"}); err == nil {
		t.Error("no project: no error")
	}
	broken := option.WithAuthCredentialsFile(option.ServiceAccount, "/nonexistent")
	if _, err := Open(t.Context(), "p", Options{}, broken); err == nil || !strings.Contains(err.Error(), "open database (default) of project p") {
		t.Errorf("%v", err)
	}
	if _, err := OpenRooms(t.Context(), "p", Options{}, broken); err == nil {
		t.Error("rooms: no error")
	}
}

func (f *fakeFirestore) Commit(ctx context.Context, _ *firestorepb.CommitRequest) (*firestorepb.CommitResponse, error) {
	sent, _ := metadata.FromIncomingContext(ctx)
	f.names = slices.Concat(sent["google-cloud-resource-prefix"], sent["x-goog-request-params"])
	next := f.codes[0]
	f.codes = f.codes[1:]
	return nil, status.Error(next, "")
}

// Else a lost reply would be taken for a conflict with another operator.
func TestACommitIsSentOnceOnEachConnection(t *testing.T) {
	fake := &fakeFirestore{}
	host := fake.serve(t)
	for name, tc := range map[string]struct {
		o    Options
		opts []option.ClientOption
	}{
		"an emulator's": {Options{Emulator: host}, nil},
		"Google's": {Options{}, []option.ClientOption{
			option.WithEndpoint(host), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		}},
	} {
		a, err := Open(t.Context(), "p", tc.o, tc.opts...)
		fatal(t, err)
		for code, unwritten := range map[codes.Code]bool{codes.FailedPrecondition: true, codes.Unavailable: false, codes.ResourceExhausted: false} {
			fake.codes = []codes.Code{code, code}
			read := lease.Cell[analysislock.Analysis]{Exists: true, Rev: &revision{updated: time.Now()}}
			if _, err := a.documents.Swap(t.Context(), "x", read, analysislock.Analysis{Status: "s"}); err == nil || errors.Is(err, lease.ErrUnwritten) != unwritten || len(fake.codes) != 1 {
				t.Errorf("%s, %v: %v, sent %d times", name, code, err, 2-len(fake.codes))
			}
			if want := []string{"projects/p/databases/(default)", "database_id=%28default%29&project_id=p"}; !slices.Equal(fake.names, want) {
				t.Errorf("%s: headers %q, want %q", name, fake.names, want)
			}
		}
		check(t, a.Close())
	}
}

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
	next    map[string][]fault // of the next calls, by kind, in order
	stopped bool               // no other call is answered
}

// fault makes a call or fails it. A nil fault makes it.
type fault func(ctx context.Context, do func() error) error

// inject sets the faults of the next calls.
func (l *faultyConn) inject(next map[string][]fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = map[string][]fault{}
	for kind, faults := range next {
		l.next[kind] = faults
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
	for kind, faults := range l.next {
		if len(faults) > 0 {
			t.Errorf("%d faults were left for a call of %s", len(faults), kind)
		}
	}
}

func (l *faultyConn) call(ctx context.Context, kind string, do func() error) error {
	l.mu.Lock()
	var f fault
	if l.stopped {
		f = unanswered
	}
	if faults := l.next[kind]; len(faults) > 0 {
		f, l.next[kind] = faults[0], faults[1:]
	}
	l.mu.Unlock()
	if f == nil {
		return do()
	}
	return f(ctx, do)
}

// options returns the options of a connection that fails as l does.
func (l *faultyConn) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			kind := path.Base(method)
			if c, ok := req.(*firestorepb.CommitRequest); ok && len(c.GetTransaction()) > 0 {
				kind = exclusiveCommit
			}
			return l.call(ctx, kind, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &stream{ClientStream: s, conn: l, ctx: ctx, kind: path.Base(method)}, err
		}),
	}
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
func exclusively(t *testing.T, b *emulatortest.Backend, faults map[string][]fault) map[string][]fault {
	t.Helper()
	other := overtaken(func() { b.Merge(t, "x", map[string]any{"theirs": firestore.Increment(1)}) })
	all := map[string][]fault{commit: {other, other}}
	for kind, f := range faults {
		all[kind] = append(all[kind], f...)
	}
	return all
}

// eachStream wraps every stream of a connection.
func eachStream(wrap func(grpc.ClientStream) grpc.ClientStream) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return wrap(s), err
	})
}
