package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
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

// takeInput ends the run of id at once, when it has its input.
func takeInput(t *testing.T, a *Analyses, id, owner string) {
	t.Helper()
	ran := false
	err := a.HoldAnalysisLock(t.Context(), id, owner, func(context.Context, json.RawMessage) error {
		ran = true
		return nil
	})
	if err != nil || !ran {
		t.Errorf("hold %s as %s: %v, ran %v", id, owner, err, ran)
	}
}

// What no run needs is not moved: of a document with a megabyte of input, of
// result and of checkpoint each, no decision moves more than 8 KB.
func TestNoDecisionMovesTheInput(t *testing.T) {
	const most = 8 << 10
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		large := func(fields map[string]any) map[string]any {
			fields["input"] = strings.Repeat("x", 320<<10)
			fields["result"], fields["checkpoint"] = fields["input"], fields["input"]
			return fields
		}
		b.Put(t, "ready", large(map[string]any{"status": Ready}))
		b.Put(t, "failed", large(map[string]any{"status": Failed, "error": map[string]any{"code": "c", "message": strings.Repeat("m", maxMessage)}}))
		b.Put(t, "locked", large(map[string]any{"status": Processing, "lockOwner": "them", "lockExpiresAt": iso8601.Format(time.Now().Add(time.Hour))}))
		b.Put(t, "worn", large(map[string]any{"status": Queued, "attempts": 10}))
		b.Put(t, "x", large(map[string]any{"status": Queued}))
		b.Put(t, "y", large(map[string]any{"status": Queued}))
		m := &meter{}
		a, other := open(t, b, grpc.WithStatsHandler(m)), open(t, b, grpc.WithStatsHandler(m))
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
		skip("ready", lease.AlreadyFinished)
		skip("failed", lease.AlreadyFinished)
		skip("locked", lease.Locked)
		moves("peek", func() error { _, err := a.PeekAnalysisLock(t.Context(), "locked"); return err })
		mustAcquire(t, a, "x", "w/1")
		takeInput(t, a, "x", "w/1")
		moves("heartbeat", func() error { return a.RefreshAnalysisLock(t.Context(), "x", "w/1", 0) })
		moves("heartbeat of another process", func() error { return other.RefreshAnalysisLock(t.Context(), "x", "w/1", 0) })
		moves("release by another process", func() error { return other.ReleaseAnalysisLock(t.Context(), "x", "w/1", true) })
		mustAcquire(t, other, "x", "w/2") // a may think that it still holds it
		takeInput(t, other, "x", "w/2")
		moves("finish", func() error { return other.Complete(t.Context(), "x", "w/2", "done") })
		mustAcquire(t, a, "y", "w/3")
		takeInput(t, a, "y", "w/3")
		moves("retry", func() error { return a.Retry(t.Context(), "y", "w/3", "c", "m") })
		mustAcquire(t, a, "y", "w/4")
		takeInput(t, a, "y", "w/4")
		moves("failure", func() error { return a.Fail(t.Context(), "y", "w/4", "c", "m") })
	})
}

// everything is what a read without a mask asks for.
const everything = "(everything)"

// reads records which fields of documents are asked for, in their order.
type reads struct {
	mu    sync.Mutex
	asked [][]string
	sent  int // commits
}

func (r *reads) note(request any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q := request.(type) {
	case *firestorepb.BatchGetDocumentsRequest:
		r.ask(q.GetMask() != nil, q.GetMask().GetFieldPaths())
	case *firestorepb.GetDocumentRequest:
		r.ask(q.GetMask() != nil, q.GetMask().GetFieldPaths())
	case *firestorepb.RunQueryRequest:
		selected := q.GetStructuredQuery().GetSelect()
		fields := []string{}
		for _, f := range selected.GetFields() {
			fields = append(fields, f.GetFieldPath())
		}
		r.ask(selected != nil, fields)
	case *firestorepb.CommitRequest:
		r.sent++
	}
}

func (r *reads) ask(masked bool, fields []string) {
	if !masked {
		fields = []string{everything}
	}
	r.asked = append(r.asked, fields)
}

// options put r into a connection.
func (r *reads) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			r.note(req)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &noted{s, r}, err
		}),
	}
}

type noted struct {
	grpc.ClientStream
	reads *reads
}

func (s *noted) SendMsg(m any) error {
	s.reads.note(m)
	return s.ClientStream.SendMsg(m)
}

// check compares what was asked for with what a decision may ask for: of the
// fields that no decision needs only the input, alone, once a commit, where an
// acquisition needs it for its run.
func (r *reads) check(t *testing.T, acquisition bool) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	inputs := 0
	for _, fields := range r.asked {
		input := slices.Contains(fields, "input")
		if input {
			inputs++
		}
		if slices.Contains(fields, everything) || slices.Contains(fields, "result") || input && (!acquisition || slices.Contains(fields, "lockOwner")) {
			t.Errorf("a read asks for %v", fields)
		}
	}
	if inputs > r.sent {
		t.Errorf("the input is asked for %d times beside %d commits", inputs, r.sent)
	}
}

// Whatever happens on the way, only an acquisition loads the input, apart from
// what it decides by, and nothing loads the result.
func TestOnlyAnAcquisitionLoadsTheInput(t *testing.T) {
	ways := map[string]func(t *testing.T, b *emulatortest.Backend) map[string][]fault{
		"undisturbed": func(*testing.T, *emulatortest.Backend) map[string][]fault { return nil },
		"its reply is lost": func(*testing.T, *emulatortest.Backend) map[string][]fault {
			return map[string][]fault{commit: {lost(codes.Unknown)}}
		},
		"overtaken once": func(t *testing.T, b *emulatortest.Backend) map[string][]fault {
			faults := exclusively(t, b, nil)
			faults[commit] = faults[commit][:1]
			return faults
		},
		"overtaken until others are kept out": func(t *testing.T, b *emulatortest.Backend) map[string][]fault {
			return exclusively(t, b, nil)
		},
		"its reply is lost while others are kept out": func(t *testing.T, b *emulatortest.Backend) map[string][]fault {
			return exclusively(t, b, map[string][]fault{exclusiveCommit: {lost(codes.Unknown)}})
		},
	}
	for verb, op := range operations {
		for way, faults := range ways {
			for _, elsewhere := range []bool{false, true} {
				if elsewhere && !op.acquired {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/elsewhere=%v", verb, way, elsewhere), func(t *testing.T) {
					inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
						l, r := &line{}, &reads{}
						a := open(t, b, append(l.options(), r.options()...)...)
						b.Put(t, "x", map[string]any{"status": Queued, "attempts": 3, "lockToken": 7, "theirs": 0, "input": "i", "result": "old"})
						if op.acquired {
							holder := a
							if elsewhere {
								holder = open(t, b)
							}
							mustAcquire(t, holder, "x", "w/1")
							takeInput(t, holder, "x", "w/1")
							time.Sleep(time.Minute)
						}
						*r = reads{}
						l.befall(faults(t, b))
						if err := op.do(t, a); err != nil {
							t.Error(err)
						}
						l.wantAllMet(t)
						if !op.acquired {
							takeInput(t, a, "x", "w/1")
						}
						r.check(t, !op.acquired)
					})
				})
			}
		}
	}
}

// A renewal within the millisecond of the last changes nothing, and reads.
func TestARenewalThatChangesNothingLoadsNoInput(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		r := &reads{}
		a := open(t, b, r.options()...)
		b.Put(t, "x", map[string]any{"status": Queued, "input": "i"})
		mustAcquire(t, a, "x", "w/1")
		takeInput(t, a, "x", "w/1")
		*r = reads{}
		if err := a.RefreshAnalysisLock(t.Context(), "x", "w/1", 0); err != nil {
			t.Error(err)
		}
		if r.sent != 0 || len(r.asked) != 1 {
			t.Errorf("%d commits and %d reads, want one read", r.sent, len(r.asked))
		}
		r.check(t, false)
	})
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
		b.Put(t, "x", map[string]any{"status": Queued, "input": "i"})
		b.Put(t, "done", map[string]any{"status": Ready, "input": "i"})
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
		err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(_ context.Context, input json.RawMessage) error {
			took("acquire, until the run has its input", 2)
			if string(input) != `"i"` {
				t.Errorf("input = %s", input)
			}
			return nil
		})
		took("the end of a run", 0)
		if err := errors.Join(err, a.RefreshAnalysisLock(t.Context(), "x", "w/1", 0)); err != nil {
			t.Error(err)
		}
		took("heartbeat", 1)
		if err := a.Complete(t.Context(), "x", "w/1", "done"); err != nil {
			t.Error(err)
		}
		took("finish", 1)
		b.Put(t, "y", map[string]any{"status": Queued})
		mustAcquire(t, a, "y", "w/2")
		takeInput(t, a, "y", "w/2")
		took("the next", 2)
		if err := a.ReleaseAnalysisLock(t.Context(), "y", "w/2", true); err != nil {
			t.Error(err)
		}
		took("release", 1)
	})
}
