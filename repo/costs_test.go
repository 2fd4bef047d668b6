package repo

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// meter counts the bytes that calls send and receive.
type meter struct{ bytes atomic.Int64 }

func (*meter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (m *meter) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InHeader:
		m.bytes.Add(int64(s.WireLength))
	case *stats.InPayload:
		m.bytes.Add(int64(s.WireLength))
	case *stats.OutPayload:
		m.bytes.Add(int64(s.WireLength))
	}
}

func (*meter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (*meter) HandleConn(context.Context, stats.ConnStats) {}

// The document has 240 KiB each of input, result, checkpoint and another program's field.
func TestCost_Bytes(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) { wantFewBytes(t, b, false) })
	t.Run("in transactions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *backend) { wantFewBytes(t, b, true) })
	})
}

func wantFewBytes(t *testing.T, b *backend, inTransactions bool) {
	t.Helper()
	const most = 8 << 10
	large := strings.Repeat("x", 240<<10)
	put := func(id string, fields doc) {
		b.Put(t, id, with(doc{
			"status": "QUEUED", "input": large, "result": large, "checkpoint": large, "progress": doc{"theirs": large},
		}, fields))
	}
	m := &meter{}
	a := open(t, b, grpc.WithStatsHandler(m))
	if inTransactions {
		a.decideInTransactions(t)
	}
	a.again = true
	moves := func(what string, do func() error) {
		t.Helper()
		before := m.bytes.Load()
		check(t, do())
		if moved := m.bytes.Load() - before; moved >= most {
			t.Errorf("%s moves %d bytes, want under %d", what, moved, most)
		}
	}
	for reason, fields := range map[string]doc{
		analysislock.AlreadyFinished: {"status": "FAILED", "error": doc{"message": strings.Repeat("m", 4096)}},
		analysislock.Locked:          {"lockOwner": "them", "lockExpiresAt": time.Now().Add(time.Hour)},
	} {
		put(reason, fields)
		moves("skip", func() error {
			acq, err := a.acquire(t.Context(), reason, "w/0")
			same(t, reason, acq.Reason)
			return err
		})
	}
	for what, end := range map[string]func() error{
		"finish":  func() error { return a.complete(t, "w/1", "done") },
		"retry":   func() error { return a.retry(t) },
		"release": func() error { return a.ReleaseAnalysisLock(t.Context(), "release", "w/1") },
	} {
		put(what, nil)
		mustAcquire(t, a, what, "w/1")
		a.runs(t, "w/1")
		moves("heartbeat", func() error { return a.holds["w/1"].Renew(t.Context()) })
		moves(what, end)
	}
}

// sentBytes is a listener that counts what its connections send.
type sentBytes struct {
	net.Listener
	n atomic.Int64
}

func (l *sentBytes) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countedConn{c, l}, err
}

type countedConn struct {
	net.Conn
	l *sentBytes
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.l.n.Add(int64(n))
	return n, err
}

// The windows of the connection have received a megabyte before, after which gRPC's own would have
// room for the whole document.
func TestCost_LargeSkip(t *testing.T) {
	b := emulatortest.Embedded(t)
	tcp := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := &sentBytes{Listener: tcp}
	go func() { _ = b.Server.Serve(l) }()
	a := must.Get(Open(t.Context(), b.Project, Options{Emulator: tcp.Addr().String()}))(t)
	defer func() { check(t, a.Close()) }()
	b.Put(t, "x", doc{"status": "READY", "input": strings.Repeat("x", 1<<20-512)})
	for range 4 {
		must.OK(t, errorOf(a.Get(t.Context(), "x")))
	}
	for most, want := range map[int64]lease.Want{8 << 10: lease.OnlyLease, 400_000: lease.LeaseAndWork} {
		before := l.n.Load()
		acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0, analysislock.AcquireOptions{Want: want})
		if moved := l.n.Load() - before; acq.Reason != analysislock.AlreadyFinished || moved > most {
			t.Errorf("%+v, %v: %d bytes, want at most %d", acq, err, moved, most)
		}
	}
}

// latency is the time from a request to its answer on the slow network.
const latency = time.Second

var slowNetwork = []grpc.DialOption{
	eachCall(func() { time.Sleep(latency) }),
	eachStream(func(s grpc.ClientStream) grpc.ClientStream { return &slowStream{ClientStream: s} }),
}

// slowStream delivers answers one latency after the request.
type slowStream struct {
	grpc.ClientStream
	sent time.Time
}

func (s *slowStream) SendMsg(m any) error {
	s.sent = time.Now()
	return s.ClientStream.SendMsg(m)
}

func (s *slowStream) RecvMsg(m any) error {
	time.Sleep(time.Until(s.sent.Add(latency)))
	return s.ClientStream.RecvMsg(m)
}

// The number of round trips that an operation waits for, and the number of its calls.
func TestRoundTrips(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		a, other := open(t, b, slowNetwork...), open(t, b, slowNetwork...)
		b.Put(t, "x", doc{"status": "QUEUED", "input": "i"})
		b.Put(t, "y", doc{"status": "QUEUED"})
		b.Put(t, "large", doc{"status": "QUEUED", "input": strings.Repeat("x", largeAnswer)})
		b.Put(t, "done", doc{"status": "READY", "input": "i"})
		began, calls := time.Now(), b.Calls.Total()
		cost := func(what string, trips, want int) {
			t.Helper()
			took, got := time.Since(began), b.Calls.Total()-calls
			if took != time.Duration(trips)*latency || got != want {
				t.Errorf("%s: %v and %d calls, want %d round trips and %d calls", what, took, got, trips, want)
			}
			began, calls = time.Now(), b.Calls.Total()
		}
		acquire(t, a, "done", "w/0")
		cost("skip of a finished analysis", 1, 1)
		mustAcquire(t, a, "x", "w/1")
		a.runs(t, "w/1")
		cost("acquisition, and a run with its input", 2, 2)
		acquire(t, a, "x", "w/2")
		cost("duplicate on the same instance", 1, 1)
		acquire(t, other, "x", "w/3")
		cost("duplicate on another instance", 1, 1)
		check(t, a.holds["w/1"].Renew(t.Context()))
		cost("heartbeat", 1, 1)
		a.holds["w/1"].Send(analysislock.Checkpointed(&analysislock.Checkpoint{Value: "c"}))
		cost("report", 0, 0)
		check(t, a.holds["w/1"].Flush(t.Context()))
		cost("commit of a report", 1, 1)
		check(t, a.complete(t, "w/1", "done"))
		cost("finish", 1, 1)
		mustAcquire(t, a, "y", "w/4")
		a.runs(t, "w/4")
		cost("next acquisition", 2, 2)
		check(t, a.release(t, "w/4"))
		cost("release", 1, 1)
		other.again = true
		mustAcquire(t, other, "y", "w/5")
		other.runs(t, "w/5")
		cost("acquisition by a retry", 3, 3)
		mustAcquire(t, a, "large", "w/6")
		same(t, largeAnswer+2, len(a.runs(t, "w/6").Input))
		cost("acquisition of a large document", 4, 4)
	})
}
