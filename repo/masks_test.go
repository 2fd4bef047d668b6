package repo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
)

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
						b.Put(t, "x", map[string]any{"status": analysislock.Queued, "attempts": 3, "lockToken": 7, "theirs": 0, "input": "i", "result": "old"})
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
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
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
