package firestore_test

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	client "cloud.google.com/go/firestore"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/firestore"
)

// line is where a client's connections run, and can be cut.
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

func dialLine(t testing.TB, l *line, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append(opts, grpc.WithContextDialer(l.connect),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(owner{}))
	conn, err := grpc.NewClient("passthrough:///line", opts...)
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
	w := listener.watch(t, listener.client.Collection("v").OrderBy("n", client.Asc))
	w.wantNext(t, ":")
	writer.set(t, object{"a": 1, "b": 2, "c": 3})
	w.wantNext(t, "a=1 b=2 c=3: +a@0 +b@1 +c@2")
	wire.cut(dial)
	writer.set(t, object{"a": nil, "b": 5, "d": 4})
	w.wantNext(t, "c=3 d=4 b=5: -a@0 +d@2 ~b@0-2")
	writer.set(t, object{"c": nil})
	w.wantNext(t, "d=4 b=5: -c@0")
	wire.cut(dial)
	writer.set(t, object{"e": 6})
	w.wantNext(t, "d=4 b=5 e=6: +e@2")
}

func TestListenerSurvivesABrokenConnection(t *testing.T) {
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

func TestListenerFollowsToANewServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := firestore.NewServer(firestore.Options{})
		wire := &line{dial: servePipe(t, first)}
		r := newRig(t, dialLine(t, wire))
		r.set(t, object{"a": 1, "b": 2})
		w := r.watch(t, r.client.Collection("v").Query)
		w.wantNext(t, "a=1 b=2: +a@0 +b@1")
		first.Close()
		time.Sleep(time.Second)
		second := firestore.NewServer(firestore.Options{})
		wire.cut(servePipe(t, second))
		rigOf(t, dialServer(t, second), strings.Split(r.database, "/")[1]).set(t, object{"b": 3, "c": 4})
		w.wantNext(t, "b=3 c=4: -a@0 +c@1 ~b@0-0")
	})
}

func TestCloseEndsListenersAndLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	server, l := firestore.NewServer(firestore.Options{}), listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Run("clients", func(t *testing.T) { // its end closes them
		for _, conn := range []*grpc.ClientConn{dialServer(t, server), dialHost(t, l.Addr().String())} {
			r := newRig(t, conn)
			s := r.stream(t)
			s.add(t, s.on(5))
			s.until(t, "5:")
		}
		server.Close()
		stacks := make([]byte, 1<<20)
		if stacks = stacks[:runtime.Stack(stacks, true)]; strings.Contains(string(stacks), "emulator/firestore.(*listener)") {
			t.Errorf("a listener outlives its server:\n%s", stacks)
		}
	})
	if err := <-served; err != nil {
		t.Errorf("serve ended with %v, want nil", err)
	}
	goleak.VerifyNone(t, before)
}
