package firestore_test

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	client "cloud.google.com/go/firestore"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// line makes a client's connections, and can cut them.
type line struct {
	mu   sync.Mutex
	dial func(context.Context) (net.Conn, error)
	open []net.Conn
}

func (l *line) connect(ctx context.Context, _ string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, err := l.dial(ctx)
	if err == nil {
		l.open = append(l.open, conn)
	}
	return conn, err
}

// cut breaks the connections; those that follow are dialed by dial.
func (l *line) cut(dial func(context.Context) (net.Conn, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dial = dial
	for _, conn := range l.open {
		_ = conn.Close()
	}
	l.open = nil
}

func dialLine(t testing.TB, l *line) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///line", grpc.WithContextDialer(l.connect),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// servePipe serves inside the process, on a listener of its own, until the
// server is closed.
func servePipe(t testing.TB, s *firestore.Server) (dial func(context.Context) (net.Conn, error)) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	var served sync.WaitGroup
	served.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() { s.Close(); served.Wait() })
	return l.DialContext
}

// brokenConnection is the case: one client listens while others write, and
// while its connection is cut.
func brokenConnection(t *testing.T, dial func(context.Context) (net.Conn, error)) {
	wire := &line{dial: dial}
	listener := newRig(t, dialLine(t, wire))
	writer := rigOf(t, dialLine(t, &line{dial: dial}), strings.Split(listener.database, "/")[1])
	w := listener.watch(listener.client.Collection("v").OrderBy("n", client.Asc))
	w.wantNext(":")
	writer.set(object{"a": 1, "b": 2, "c": 3})
	w.wantNext("a=1 b=2 c=3: +a@0 +b@1 +c@2")
	wire.cut(dial)
	writer.set(object{"a": nil, "b": 5, "d": 4})
	w.wantNext("c=3 d=4 b=5: -a@0 +d@2 ~b@0-2")
	writer.set(object{"c": nil})
	w.wantNext("d=4 b=5: -c@0")
	wire.cut(dial)
	writer.set(object{"e": 6})
	w.wantNext("d=4 b=5 e=6: +e@2")
}

func TestListen_BrokenConnection(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			brokenConnection(t, servePipe(t, firestore.NewServer(firestore.Options{})))
		})
	})
	t.Run("google", func(t *testing.T) {
		host := emulatortest.Google(t)
		brokenConnection(t, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", host)
		})
	})
}

func TestClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := firestore.NewServer(firestore.Options{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Run("clients", func(t *testing.T) { // its end closes them
		for _, conn := range []*grpc.ClientConn{dialServer(t, server), dialHost(t, l.Addr().String())} {
			r := newRig(t, conn)
			r.watch(r.client.Collection("v").Query).wantNext(":")
			ref := r.doc(nil)
			r.ok(r.read(r.begin(), ref))
			go func() { _, _ = r.commit(nil, put(ref, 1)) }() // waits for the lock
		}
		server.Close()
		server.Close()
		stacks := make([]byte, 1<<20)
		if stacks = stacks[:runtime.Stack(stacks, true)]; strings.Contains(string(stacks), "emulator/firestore.(*") {
			t.Errorf("a call outlives its server:\n%s", stacks)
		}
	})
	if err := <-served; err != nil {
		t.Errorf("serve ended with %v, want nil", err)
	}
	goleak.VerifyNone(t, before)
}
