package repo

import (
	"context"
	"path"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// lostReply lets the first commit be applied, runs meanwhile, and loses its
// reply with code.
func lostReply(code codes.Code, meanwhile func()) grpc.DialOption {
	done := false
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if path.Base(method) == "Commit" && !done {
			done = true
			meanwhile()
			return status.Error(code, "reply lost")
		}
		return err
	})
}

// An operator's change whose reply was lost is not made again over what others
// have done since.
func TestAnOperatorsLostReplyUndoesNothing(t *testing.T) {
	finished := func(t *testing.T, other *Analyses) {
		mustAcquire(t, other, "x", "w/2")
		if err := other.Complete(t.Context(), "x", "w/2", "second"); err != nil {
			t.Error(err)
		}
	}
	for name, tc := range map[string]struct {
		before    map[string]any
		change    func(ctx context.Context, a *Analyses, id string) (analysislock.Analysis, error)
		meanwhile func(t *testing.T, other *Analyses)
	}{
		"requeue, then finished by the next": {
			before: map[string]any{"status": analysislock.Failed, "attempts": 10, "lockToken": 10},
			change: func(ctx context.Context, a *Analyses, id string) (analysislock.Analysis, error) {
				return a.Requeue(ctx, id, nil)
			},
			meanwhile: finished,
		},
		"requeue, and nothing since": {
			before: map[string]any{"status": analysislock.Failed, "attempts": 10, "lockToken": 10},
			change: func(ctx context.Context, a *Analyses, id string) (analysislock.Analysis, error) {
				return a.Requeue(ctx, id, nil)
			},
			meanwhile: func(*testing.T, *Analyses) {},
		},
		"requeue of what was seen, then finished by the next": {
			before: map[string]any{"status": analysislock.Failed, "attempts": 10, "lockToken": 10},
			change: func(ctx context.Context, a *Analyses, id string) (analysislock.Analysis, error) {
				return a.Requeue(ctx, id, &analysislock.Seen{Status: analysislock.Failed, Grant: lease.Grant{Token: 10}})
			},
			meanwhile: finished,
		},
		"unlock of what was seen, and nothing since": {
			before: map[string]any{"status": analysislock.Processing, "lockOwner": "w/1", "lockToken": 1, "lockExpiresAt": "2999-01-01T00:00:00Z"},
			change: func(ctx context.Context, a *Analyses, id string) (analysislock.Analysis, error) {
				return a.Unlock(ctx, id, &analysislock.Seen{Status: analysislock.Processing, Grant: lease.Grant{Owner: "w/1", Token: 1}})
			},
			meanwhile: func(*testing.T, *Analyses) {},
		},
		"unlock, then taken by the next": {
			before: map[string]any{"status": analysislock.Processing, "lockOwner": "w/1", "lockToken": 1, "lockExpiresAt": "2999-01-01T00:00:00Z"},
			change: func(ctx context.Context, a *Analyses, id string) (analysislock.Analysis, error) {
				return a.Unlock(ctx, id, nil)
			},
			meanwhile: func(t *testing.T, other *Analyses) { mustAcquire(t, other, "x", "w/2") },
		},
	} {
		for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Internal} {
			t.Run(name+", "+code.String(), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					b.Put(t, "x", tc.before)
					other := open(t, b)
					var since map[string]any
					a := open(t, b, lostReply(code, func() {
						tc.meanwhile(t, other)
						since = b.Fields(t, "x")
					}))
					before, err := tc.change(t.Context(), a, "x")
					if err != nil || before.Status != tc.before["status"] {
						t.Errorf("%+v, %v; want the analysis as it was", before, err)
					}
					if diff := cmp.Diff(since, b.Fields(t, "x")); diff != "" {
						t.Errorf("what the others did was undone (-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// Another's write just before an operator's commit is no commit of his.
func TestAnOvertakenRequeueIsMadeAllTheSame(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "ARCHIVED", "error": map[string]any{"code": "c"}})
		overtaken := false
		a := open(t, b, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if path.Base(method) == "Commit" && !overtaken {
				overtaken = true
				b.Merge(t, "x", map[string]any{"theirs": 1})
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
		if _, err := a.Requeue(t.Context(), "x", nil); err != nil {
			t.Fatal(err)
		}
		if got := b.Fields(t, "x"); got["status"] != analysislock.Queued || got["error"] != nil || got["theirs"] != int64(1) {
			t.Errorf("document: %v", got)
		}
	})
}

// A creation whose reply was lost, which the client sends again by itself, is
// no conflict with itself.
func TestACreationsLostReplyIsNoConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b, lostReply(codes.Unavailable, func() {}))
		input := map[string]any{"n": int64(1), "l": []any{"x", nil}}
		if err := a.Create(t.Context(), "x", input); err != nil {
			t.Error(err)
		}
		if err := a.Create(t.Context(), "x", "another"); err == nil {
			t.Error("another input took the same id")
		}
	})
}

// READY has a result, and no error, whatever others left there.
func TestReadyHasAResultAndNoError(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"error": "a string", "result": "old"})
		a := open(t, b)
		mustAcquire(t, a, "x", "w/1")
		if err := a.Complete(t.Context(), "x", "w/1", nil); err != nil {
			t.Fatal(err)
		}
		got := b.Fields(t, "x")
		if _, failed := got["error"]; failed {
			t.Errorf("error = %v", got["error"])
		}
		if result, ok := got["result"]; !ok || result != nil {
			t.Errorf("result = %v, %v; want null", result, ok)
		}
	})
}
