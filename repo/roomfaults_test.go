package repo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/locks/document"
)

// D4: an extension and a sweep at the time of the expiry, with the real client. A lock that
// was extended exists afterwards, and one that was swept does not.
func TestASweepNeverDeletesALockThatWasJustExtended(t *testing.T) {
	const room = "a"
	was := map[string]int{}
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		r := openRooms(t, b, delayed())
		l, sweeper := locksFor(t, r, time.Second), locksFor(t, r, time.Second)
		for i := range 400 {
			first := locked(t, l, room, "s/1")
			var (
				extended error
				after    document.State
				swept    int
				both     sync.WaitGroup
			)
			about := time.Until(first.Lock.ExpiresAt) - 30*time.Millisecond
			both.Go(func() {
				time.Sleep(about + time.Duration(i%50)*time.Millisecond)
				after, extended = l.Extend(t.Context(), room, "s/1")
			})
			both.Go(func() {
				time.Sleep(about + time.Duration(i*37%101)*time.Millisecond)
				var err error
				if swept, err = sweeper.Sweep(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			c := mustLoad(t, r)
			switch {
			case extended == nil && c.Doc != after.Lock, extended != nil && !errors.Is(extended, document.ErrNotLocked), swept == 1 && c.Exists:
				t.Fatalf("%d: extended %+v, %v; swept %d; then %+v", i, after, extended, swept, c)
			}
			was[fmt.Sprintf("extended %v, swept %d", extended == nil, swept)]++
			time.Sleep(2 * time.Second) // until it has expired
		}
	})
	if was["extended true, swept 0"] < 40 || was["extended false, swept 1"] < 40 {
		t.Errorf("was %v; want both orders often", was)
	}
}

// delayed delays each request and answer by some milliseconds, which depend only on the time.
func delayed() grpc.DialOption {
	trip := func() { time.Sleep(time.Duration(time.Now().UnixNano()/1e5%7919%97) * 100 * time.Microsecond) }
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		trip()
		defer trip()
		return invoke(ctx, method, req, reply, cc, opts...)
	})
}

// The first commit returns any code, and was made or not. The operation has the same result
// each time.
func TestARoomsCommitOfUnknownOutcomeIsAppliedOnce(t *testing.T) {
	for verb, op := range map[string]struct {
		held bool
		do   func(ctx context.Context, l *document.Locks) (bool, error)
		want bool // held after it
	}{
		"acquire": {false, func(ctx context.Context, l *document.Locks) (bool, error) {
			s, err := l.Acquire(ctx, "a", "s/1")
			return s.Mine, err
		}, true},
		"extend": {true, func(ctx context.Context, l *document.Locks) (bool, error) {
			s, err := l.Extend(ctx, "a", "s/1")
			return s.Mine, err
		}, true},
		"release": {true, func(ctx context.Context, l *document.Locks) (bool, error) { return l.Release(ctx, "a", "s/1") }, false},
		"break":   {true, func(ctx context.Context, l *document.Locks) (bool, error) { return l.Break(ctx, "a") }, false},
	} {
		for _, code := range doubtful {
			for how, f := range map[string]fault{"carried out": lost(code), "dropped": dropped(code)} {
				if how == "dropped" && code == codes.InvalidArgument {
					continue // a refusal
				}
				t.Run(fmt.Sprintf("%s/%v/%s", verb, code, how), func(t *testing.T) {
					inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
						bad := &faultyConn{}
						r := openRooms(t, b, bad.options()...)
						l := locksFor(t, r, 0)
						if op.held {
							locked(t, l, "a", "s/1")
							time.Sleep(10 * time.Second)
						}
						bad.inject(map[string][]fault{commit: {f}})
						done, err := op.do(t.Context(), l)
						bad.wantAllInjected(t)
						c := mustLoad(t, r)
						if err != nil || !done || (c.Doc.Owner == "s/1") != op.want || op.want && c.Doc.Holder == "" {
							t.Errorf("%v, %v; then %+v", done, err, c.Doc)
						}
					})
				})
			}
		}
	}
}
