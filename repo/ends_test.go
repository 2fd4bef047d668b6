package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/documentlock"
)

// contexts are those of the calls of a connection.
type contexts struct {
	mu    sync.Mutex
	calls map[context.Context]string
}

func (c *contexts) note(ctx context.Context, method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[ctx] = path.Base(method)
}

func (c *contexts) options() []grpc.DialOption {
	c.calls = map[context.Context]string{}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			c.note(ctx, method)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			c.note(ctx, method)
			return open(ctx, desc, cc, method, opts...)
		}),
	}
}

// wantEnded fails the test where more than open calls go on, or none was made.
func (c *contexts) wantEnded(t *testing.T, what string, open int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var alive []string
	for ctx, method := range c.calls {
		if ctx.Err() == nil {
			alive = append(alive, method)
		}
	}
	if len(alive) != open || len(c.calls) == 0 {
		t.Errorf("%s: of %d calls %q go on, want %d", what, len(c.calls), alive, open)
	}
}

func TestNoCallOutlivesWhatItWasFor(t *testing.T) {
	fresh := func() map[string]any { return map[string]any{"status": analysislock.Queued, "input": "in"} }
	for name, do := range map[string]func(t *testing.T, b *emulatortest.Backend, a *Analyses, c *contexts) error{
		"Create": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			return a.Create(t.Context(), "new", 1)
		},
		"Get": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.Get(t.Context(), "x")
			return err
		},
		"Count": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.Count(t.Context(), "")
			return err
		},
		"List": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.List(t.Context(), 1)
			return err
		},
		"a run": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, c *contexts) error {
			mustAcquire(t, a, "x", "w/1")
			c.wantEnded(t, "before the input is asked for", 1)
			err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(context.Context, json.RawMessage) error { return nil })
			c.wantEnded(t, "after its input", 0)
			return errors.Join(err, a.RefreshAnalysisLock(t.Context(), "x", "w/1", time.Hour), a.Complete(t.Context(), "x", "w/1", "out"))
		},
		"an operator's change": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.Requeue(t.Context(), "x", nil)
			return err
		},
	} {
		for _, pessimistic := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", pessimistic ", pessimistic), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					c := &contexts{}
					a := open(t, b, c.options()...)
					a.documents.pessimistic = pessimistic
					b.Put(t, "x", fresh())
					if err := do(t, b, a, c); err != nil {
						t.Error(err)
					}
					c.wantEnded(t, name, 0)
				})
			})
		}
	}
}

// An input that was asked for beside a commit that did not hold is awaited by nobody.
func TestTheInputOfACommitThatFailedIsNotAwaited(t *testing.T) {
	for kind, pessimistic := range map[string]bool{commit: false, exclusiveCommit: true} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				c, l := &contexts{}, &line{}
				a := open(t, b, append(c.options(), l.options()...)...)
				a.documents.pessimistic = pessimistic
				b.Put(t, "x", map[string]any{"status": analysislock.Queued})
				l.befall(map[string][]fault{kind: {dropped(codes.Aborted)}})
				mustAcquire(t, a, "x", "w/1")
				c.wantEnded(t, "acquired at the second try", 1)
				refusals := slices.Repeat([]fault{dropped(codes.InvalidArgument)}, 20)
				l.befall(map[string][]fault{commit: refusals, exclusiveCommit: refusals})
				b.Put(t, "y", map[string]any{"status": analysislock.Queued})
				if acq, err := a.AcquireAnalysisLock(t.Context(), "y", "w/2", 0); err == nil {
					t.Errorf("%+v, want it refused", acq)
				}
				c.wantEnded(t, "refused", 1)
			})
		})
	}
}

func TestNoCallForARoomOutlivesIt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		c := &contexts{}
		r := openRooms(t, b, c.options()...)
		made := mustSwap(t, r, mustLoad(t, r), anOwned(time.Now()))
		c.wantEnded(t, "create", 0)
		mustSwap(t, r, made, documentlock.Lock{})
		c.wantEnded(t, "delete", 0)
		if _, err := r.Current(t.Context()); err != nil {
			t.Error(err)
		}
		c.wantEnded(t, "query", 0)
	})
}
