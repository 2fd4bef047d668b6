package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// meter counts the bytes that calls move, in both directions.
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

// What no run needs is not moved: of a document with a megabyte of input, of
// result and of checkpoint each, no decision moves more than 8 KB.
func TestNoDecisionMovesTheInput(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) { noDecisionMovesTheInput(t, b, false) })
	t.Run("pessimistic", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) { noDecisionMovesTheInput(t, b, true) })
	})
}

func noDecisionMovesTheInput(t *testing.T, b *emulatortest.Backend, pessimistic bool) {
	t.Helper()
	const most = 8 << 10
	large := func(fields map[string]any) map[string]any {
		fields["input"] = strings.Repeat("x", 320<<10)
		fields["result"], fields["checkpoint"] = fields["input"], fields["input"]
		return fields
	}
	b.Put(t, "ready", large(map[string]any{"status": analysislock.Ready}))
	b.Put(t, "failed", large(map[string]any{"status": analysislock.Failed, "error": map[string]any{"code": "c", "message": strings.Repeat("m", 4096)}}))
	b.Put(t, "locked", large(map[string]any{"status": analysislock.Processing, "lockOwner": "them", "lockExpiresAt": iso8601.Format(time.Now().Add(time.Hour))}))
	b.Put(t, "worn", large(map[string]any{"status": analysislock.Queued, "attempts": 10}))
	b.Put(t, "x", large(map[string]any{"status": analysislock.Queued}))
	b.Put(t, "y", large(map[string]any{"status": analysislock.Queued}))
	m := &meter{}
	a, other := open(t, b, grpc.WithStatsHandler(m)), open(t, b, grpc.WithStatsHandler(m))
	a.documents.pessimistic, other.documents.pessimistic = pessimistic, pessimistic
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
			acq, err := a.AcquireAnalysisLock(t.Context(), id, "w/0", 0)
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
	moves("heartbeat of another process", func() error { return other.RefreshAnalysisLock(t.Context(), "x", "w/1", 0) })
	moves("release by another process", func() error { return other.ReleaseAnalysisLock(t.Context(), "x", "w/1") })
	mustAcquire(t, other, "x", "w/2")
	other.runs(t, "w/2")
	moves("finish", func() error { return other.holds["w/2"].Complete(t.Context(), "done") })
	mustAcquire(t, a, "y", "w/3")
	a.runs(t, "w/3")
	moves("retry", func() error { return a.holds["w/3"].Retry(t.Context(), "c", "m") })
	mustAcquire(t, a, "y", "w/4")
	a.runs(t, "w/4")
	moves("failure", func() error { return a.holds["w/4"].Fail(t.Context(), "c", "m") })
}

// distance is a network on which each answer takes a second.
const distance = time.Second

var distant = []grpc.DialOption{
	grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		time.Sleep(distance)
		return invoke(ctx, method, req, reply, cc, opts...)
	}),
	grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return &far{ClientStream: s}, err
	}),
}

// far is a stream whose answers take a distance from its request on.
type far struct {
	grpc.ClientStream
	sent time.Time
}

func (s *far) SendMsg(m any) error {
	s.sent = time.Now()
	return s.ClientStream.SendMsg(m)
}

func (s *far) RecvMsg(m any) error {
	time.Sleep(time.Until(s.sent.Add(distance)))
	return s.ClientStream.RecvMsg(m)
}

// Round trips one after another: what a call waits for. The input comes beside
// the commit.
func TestRoundTripsOneAfterAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b, distant...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
		b.Put(t, "done", map[string]any{"status": analysislock.Ready, "input": "i"})
		began := time.Now()
		took := func(what string, want int) {
			t.Helper()
			if got := time.Since(began); got != time.Duration(want)*distance {
				t.Errorf("%s: %v, want %d round trips of %v", what, got, want, distance)
			}
			began = time.Now()
		}
		acquire(t, a, "done", "w/0")
		took("skip", 1)
		mustAcquire(t, a, "x", "w/1")
		err := a.run(t.Context(), "w/1", func(_ context.Context, input json.RawMessage) error {
			took("acquire, until the run has its input", 2)
			if string(input) != `"i"` {
				t.Errorf("input = %s", input)
			}
			return nil
		})
		took("the end of a run", 0)
		if err := errors.Join(err, a.holds["w/1"].Refresh(t.Context(), 0)); err != nil {
			t.Error(err)
		}
		took("heartbeat", 1)
		if err := a.holds["w/1"].Complete(t.Context(), "done"); err != nil {
			t.Error(err)
		}
		took("finish", 1)
		b.Put(t, "y", map[string]any{"status": analysislock.Queued})
		mustAcquire(t, a, "y", "w/2")
		a.runs(t, "w/2")
		took("the next", 2)
		if err := a.holds["w/2"].Release(t.Context(), true); err != nil {
			t.Error(err)
		}
		took("release", 1)
	})
}
