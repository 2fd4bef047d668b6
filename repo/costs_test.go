package repo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
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
func TestNoDecisionMovesTheInput(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) { noDecisionMovesTheInput(t, b, false) })
	t.Run("in transactions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) { noDecisionMovesTheInput(t, b, true) })
	})
}

func noDecisionMovesTheInput(t *testing.T, b *emulatortest.Backend, inTransactions bool) {
	t.Helper()
	const most = 8 << 10
	large := func(fields map[string]any) map[string]any {
		fields["input"] = strings.Repeat("x", 240<<10)
		fields["result"], fields["checkpoint"], fields["progress"] = fields["input"], fields["input"], map[string]any{"theirs": fields["input"]}
		return fields
	}
	b.Put(t, "ready", large(map[string]any{"status": analysislock.Ready}))
	b.Put(t, "failed", large(map[string]any{"status": analysislock.Failed, "error": map[string]any{"code": "c", "message": strings.Repeat("m", 4096)}}))
	b.Put(t, "locked", large(map[string]any{"status": analysislock.Processing, "lockOwner": "them", "lockExpiresAt": iso8601.Format(time.Now().Add(time.Hour))}))
	b.Put(t, "exhausted", large(map[string]any{"status": analysislock.Queued, "attempts": 10}))
	b.Put(t, "x", large(map[string]any{"status": analysislock.Queued}))
	b.Put(t, "y", large(map[string]any{"status": analysislock.Queued}))
	m := &meter{}
	a, other := open(t, b, grpc.WithStatsHandler(m)), open(t, b, grpc.WithStatsHandler(m))
	if inTransactions {
		a.decideInTransactions(t)
		other.decideInTransactions(t)
	}
	a.again, other.again = true, true
	moves := func(what string, do func() error) {
		t.Helper()
		before := m.bytes.Load()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if moved := m.bytes.Load() - before; moved >= most {
			t.Errorf("%s moves %d bytes, want under %d", what, moved, most)
		}
	}
	skip := func(id, reason string) {
		t.Helper()
		moves("skip of "+id, func() error {
			acq, err := a.acquire(t.Context(), id, "w/0")
			if err == nil && acq.Reason != reason {
				err = fmt.Errorf("%+v, want %s", acq, reason)
			}
			return err
		})
	}
	skip("ready", analysislock.AlreadyFinished)
	skip("failed", analysislock.AlreadyFinished)
	skip("locked", analysislock.Locked)
	mustAcquire(t, a, "x", "w/1")
	a.runs(t, "w/1")
	moves("heartbeat", func() error { return a.holds["w/1"].Refresh(t.Context(), 0) })
	moves("release by another process", func() error { return other.ReleaseAnalysisLock(t.Context(), "x", "w/1") })
	mustAcquire(t, other, "x", "w/2")
	other.runs(t, "w/2")
	moves("finish", func() error { return other.holds["w/2"].Complete(t.Context(), "done") })
	mustAcquire(t, a, "y", "w/3")
	a.runs(t, "w/3")
	moves("retry", func() error {
		_, err := a.holds["w/3"].Retry(t.Context(), "c", "m", time.Minute, false, nil)
		return err
	})
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
func TestASkipOfALargeDocumentRefusesMostOfIt(t *testing.T) {
	b := emulatortest.Embedded(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	l := &sentBytes{Listener: tcp}
	go func() { _ = b.Server.Serve(l) }()
	a, err := Open(t.Context(), b.Project, Options{Emulator: tcp.Addr().String()})
	fatal(t, err)
	defer func() { check(t, a.Close()) }()
	b.Put(t, "x", map[string]any{"status": analysislock.Ready, "input": strings.Repeat("x", 1<<20-512)})
	for range 4 {
		_, err := a.Get(t.Context(), "x")
		fatal(t, err)
	}
	for most, want := range map[int64]lease.Want{8 << 10: lease.OnlyLease, 400_000: lease.LeaseAndWork} {
		before := l.n.Load()
		acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0, analysislock.AcquireOptions{Want: want})
		if moved := l.n.Load() - before; err != nil || acq.Reason != analysislock.AlreadyFinished || moved > most {
			t.Errorf("%+v, %v: %d bytes, want at most %d", acq, err, moved, most)
		}
	}
}

// latency is the time from a request to its answer on the slow network.
const latency = time.Second

var slowNetwork = []grpc.DialOption{
	grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		time.Sleep(latency)
		return invoke(ctx, method, req, reply, cc, opts...)
	}),
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
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a, other := open(t, b, slowNetwork...), open(t, b, slowNetwork...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
		b.Put(t, "y", map[string]any{"status": analysislock.Queued})
		b.Put(t, "large", map[string]any{"status": analysislock.Queued, "input": strings.Repeat("x", largeAnswer)})
		b.Put(t, "done", map[string]any{"status": analysislock.Ready, "input": "i"})
		began, calls := time.Now(), b.Calls.Total()
		cost := func(what string, trips, want int) {
			t.Helper()
			if took, got := time.Since(began), b.Calls.Total()-calls; took != time.Duration(trips)*latency || got != want {
				t.Errorf("%s: %v and %d calls, want %d round trips of %v and %d calls", what, took, got, trips, latency, want)
			}
			began, calls = time.Now(), b.Calls.Total()
		}
		acquire(t, a, "done", "w/0")
		cost("skip of a finished analysis", 1, 1)
		mustAcquire(t, a, "x", "w/1")
		err := a.run(t.Context(), "w/1", func(_ context.Context, work analysislock.Work) error {
			cost("acquisition, until the run has its input", 2, 2)
			if string(work.Input) != `"i"` {
				t.Errorf("work.Input = %s", work.Input)
			}
			return nil
		})
		cost("end of a run", 0, 0)
		acquire(t, a, "x", "w/2")
		cost("duplicate on the same instance", 1, 1)
		acquire(t, other, "x", "w/3")
		cost("duplicate on another instance", 1, 1)
		check(t, errors.Join(err, a.holds["w/1"].Refresh(t.Context(), 0)))
		cost("heartbeat", 1, 1)
		a.holds["w/1"].Report(analysislock.Report{Checkpoint: &analysislock.Checkpoint{Value: "c"}}, 0, nil)
		cost("report", 0, 0)
		check(t, a.holds["w/1"].Flush(t.Context()))
		cost("commit of a report", 1, 1)
		check(t, a.holds["w/1"].Complete(t.Context(), "done"))
		cost("finish", 1, 1)
		mustAcquire(t, a, "y", "w/4")
		a.runs(t, "w/4")
		cost("next acquisition", 2, 2)
		check(t, a.holds["w/4"].Release(t.Context(), analysislock.OutcomeShuttingDown, true, ""))
		cost("release", 1, 1)
		other.again = true
		mustAcquire(t, other, "y", "w/5")
		other.runs(t, "w/5")
		cost("acquisition by a retry", 3, 3)
		mustAcquire(t, a, "large", "w/6")
		a.runs(t, "w/6")
		cost("acquisition of a large document", 4, 4)
	})
}

// The limit is of the message. A fault of the limit would read a document for ever, or in part.
func TestAnInputIsReadWithTheLockUpToTheLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		size := 0
		a := open(t, b, eachStream(func(s grpc.ClientStream) grpc.ClientStream { return measuring{s, &size} }))
		n := largeAnswer - 512
		time.Sleep(300 * time.Millisecond) // the times of all answers have nanoseconds of the same length
		acquires := func(id string) (calls int) {
			t.Helper()
			b.Put(t, id, map[string]any{"status": analysislock.Queued, "input": strings.Repeat("x", n)})
			before := b.Calls.Total()
			mustAcquire(t, a, id, "w/"+id)
			err := a.run(t.Context(), "w/"+id, func(_ context.Context, work analysislock.Work) error {
				if len(work.Input) != n+2 {
					t.Errorf("%s: an input of %d bytes, want %d", id, len(work.Input), n+2)
				}
				return nil
			})
			check(t, err)
			return b.Calls.Total() - before
		}
		acquires("a")
		n += largeAnswer - size
		if calls := acquires("b"); calls != 2 || size != largeAnswer {
			t.Errorf("an answer of %d bytes: %d calls, want 2", size, calls)
		}
		n++
		if calls := acquires("c"); calls != 4 {
			t.Errorf("one byte more: %d calls, want 4", calls)
		}
	})
}

// measuring records the size of the last answer.
type measuring struct {
	grpc.ClientStream
	size *int
}

func (m measuring) RecvMsg(v any) error {
	err := m.ClientStream.RecvMsg(v)
	if f, ok := v.(*frame); ok && err == nil {
		*m.size = len(*f)
	}
	return err
}
