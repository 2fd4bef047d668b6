package repo

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestPessimisticDecisionsAreMadeInsideATransaction(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "in"})
		mustAcquire(t, a, "x", "w/1")
		time.Sleep(2 * time.Millisecond)
		check(t, a.holds["w/1"].Refresh(t.Context(), 0))
		check(t, a.holds["w/1"].Complete(t.Context(), "done"))
		if begun, commits := b.Calls.Count("BeginTransaction"), b.Calls.Count("Commit"); begun != 3 || commits != 3 {
			t.Errorf("%d transactions and %d commits of acquire, refresh and finish", begun, commits)
		}
	})
}

// A status of another program is kept until the finish. No status, QUEUED and
// PROCESSING become PROCESSING, and QUEUED with the release.
func TestAStatusOfAnotherProgramIsKeptUntilTheFinish(t *testing.T) {
	step := map[string]any{"step": int64(1)}
	for _, tc := range []struct{ status, held, free any }{
		{nil, analysislock.Processing, analysislock.Queued},
		{"", analysislock.Processing, analysislock.Queued},
		{analysislock.Queued, analysislock.Processing, analysislock.Queued},
		{"queued", "queued", "queued"},
		{int64(5), int64(5), int64(5)},
		{step, step, step},
	} {
		b := emulatortest.Embedded(t)
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": tc.status})
		mustAcquire(t, a, "x", "w/1")
		held := b.Fields(t, "x")["status"]
		check(t, a.holds["w/1"].Release(t.Context(), analysislock.OutcomeRetry, false, ""))
		free := b.Fields(t, "x")["status"]
		mustAcquire(t, a, "x", "w/2")
		check(t, a.holds["w/2"].Complete(t.Context(), "done"))
		same(t, []any{tc.held, tc.free, analysislock.Ready}, []any{held, free, b.Fields(t, "x")["status"]})
	}
}

func TestUnlockReplacesATokenThatIsNoIntegerAndDeletesAnUnreadableLock(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, fields := range map[string]map[string]any{
			"held":       {"status": analysislock.Processing, "lockOwner": "js/1", "lockToken": "seven", "lockExpiresAt": timeValue(time.Now().Add(time.Hour))},
			"free":       {"status": analysislock.Queued, "lockToken": true},
			"huge":       {"status": analysislock.Queued, "lockToken": int64(1<<63 - 1)},
			"foreign":    {"status": "ANALYZING", "lockToken": []any{"x"}},
			"unreadable": {"status": analysislock.Processing, "lockOwner": true, "lockToken": 1.5, "lockHeartbeatAt": "yesterday", "lockExpiresAt": []any{1}},
		} {
			b.Put(t, id, fields)
			if _, err := a.acquire(t.Context(), id, "w/1"); !errors.Is(err, lease.ErrMalformed) {
				t.Errorf("%s: acquire: %v, want ErrMalformed", id, err)
			}
			earlier := time.Now().Add(-time.Hour).UnixMicro()
			if _, err := a.Unlock(t.Context(), id, nil, ""); err != nil {
				t.Errorf("%s: unlock: %v", id, err)
			}
			got := b.Fields(t, id)
			for _, field := range []string{"lockOwner", "lockHeartbeatAt", "lockExpiresAt"} {
				if v, found := got[field]; found {
					t.Errorf("%s: %s = %v", id, field, v)
				}
			}
			if acq := mustAcquire(t, a, id, "w/2"); acq.Grant.Token < earlier {
				t.Errorf("%s: token %d, want microseconds of the time", id, acq.Grant.Token)
			}
		}
	})
}

// If a large input makes the worker crash, the attempt has been counted.
func TestTheInputIsReceivedAfterTheCommitThatCountsTheAttempt(t *testing.T) {
	for kind, pessimistic := range map[string]bool{commit: false, exclusiveCommit: true} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l, counted := &faultyConn{}, false
			a := open(t, b, l.options()...)
			a.documents.pessimistic, a.again = pessimistic, true
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
			reads := []fault{nil, func(_ context.Context, do func() error) error { // the decision's, unless it is in a transaction, and the input's
				if !counted {
					t.Errorf("%s: the input is received before the commit's answer", kind)
				}
				return do()
			}}
			if pessimistic {
				reads = reads[1:]
			}
			l.inject(map[string][]fault{read: reads, kind: {func(ctx context.Context, do func() error) error {
				err := slowReply(ctx, do)
				counted = true
				return err
			}}})
			mustAcquire(t, a, "x", "w/1")
			a.runs(t, "w/1")
			l.wantAllInjected(t)
		})
	}
}
