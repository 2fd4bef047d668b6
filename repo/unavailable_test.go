package repo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestAFirestoreThatDoesNotAnswerIsUnavailableInTime(t *testing.T) {
	cases := map[string]struct {
		within time.Duration
		do     func(ctx context.Context, a *worker) error
	}{
		"Get":        {5 * time.Second, func(ctx context.Context, a *worker) error { _, err := a.Get(ctx, "x"); return err }},
		"Ping":       {5 * time.Second, func(ctx context.Context, a *worker) error { return a.Ping(ctx) }},
		"Find":       {15 * time.Second, func(ctx context.Context, a *worker) error { return errorOf(a.Find(ctx, Filter{}, "", 10)) }},
		"Unfinished": {15 * time.Second, func(ctx context.Context, a *worker) error { _, err := a.Unfinished(ctx, 10); return err }},
		"Create":     {15 * time.Second, func(ctx context.Context, a *worker) error { return a.Create(ctx, "y", nil) }},
		"Delete":     {15 * time.Second, func(ctx context.Context, a *worker) error { _, err := a.Delete(ctx, "x"); return err }},
		"Unlock":     {15 * time.Second, func(ctx context.Context, a *worker) error { _, err := a.Unlock(ctx, "x", nil, ""); return err }},
		"AcquireAnalysisLock": {20 * time.Second, func(ctx context.Context, a *worker) error {
			_, err := a.acquire(ctx, "x", "w/2")
			return err
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", map[string]any{"status": analysislock.Queued})
				l.stopAnswering()
				began := time.Now()
				err := tc.do(t.Context(), a)
				if took := time.Since(began); !errors.Is(err, lease.ErrUnavailable) || took > tc.within {
					t.Errorf("%v after %v, want ErrUnavailable after at most %v", err, took, tc.within)
				}
			})
		})
	}
}

// The operation gives up the call after the call's own time limit, and succeeds.
func TestAnOperationSucceedsAfterACallThatIsNeverAnswered(t *testing.T) {
	for _, verb := range []string{"acquire", "heartbeat", "finish"} {
		op := operations[verb]
		for _, exclusive := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/exclusive=%v", verb, exclusive), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) { op.runWith(t, b, unanswered, exclusive, false) })
			})
		}
	}
}

// The transaction of a process that has died locks the document for a minute. Those of the
// deliveries would lock it for each other after that.
func TestAWriteThatATransactionAbortsOpensNone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		go func() {
			_ = a.documents.db.client.RunTransaction(t.Context(), func(ctx context.Context, tx *firestore.Transaction) error {
				_, _ = tx.Get(a.documents.collection.Doc("x"))
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(time.Millisecond)
		if _, err := a.acquire(t.Context(), "x", "w/1"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		time.Sleep(time.Minute)
		mustAcquire(t, a, "x", "w/2")
		if n := b.Calls.Count("BeginTransaction"); n != 1 {
			t.Errorf("%d transactions were opened beside the dead one", n-1)
		}
	})
}
