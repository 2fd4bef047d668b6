package repo

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

func TestStoreWithPessimisticTransactions(t *testing.T) {
	for name, backend := range map[string]func(testing.TB) *emulatortest.Backend{"embedded": emulatortest.Embedded, "google": emulatortest.OnGoogle} {
		t.Run(name, func(t *testing.T) {
			s := suite(backend)
			s.New = func(t testing.TB) lease.Store[analysislock.Analysis] {
				b := backend(t)
				docs := open(t, b).documents
				docs.pessimistic = true
				return onBackend{documents: docs, b: b}
			}
			s.TTL, s.Bubble = lease.DefaultTTL, true
			if name == "google" {
				emulatortest.Google(t)
				s.TTL, s.Bubble = 6*time.Second, false
			}
			leasetest.Run(t, s)
		})
	}
}

func TestPessimisticDecisionsAreMadeInsideATransaction(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "in"})
		mustAcquire(t, a, "x", "w/1")
		time.Sleep(2 * time.Millisecond)
		if err := a.RefreshAnalysisLock(t.Context(), "x", "w/1", 0); err != nil {
			t.Error(err)
		}
		if err := a.Complete(t.Context(), "x", "w/1", "done"); err != nil {
			t.Error(err)
		}
		if begun, commits := b.Calls.Count("BeginTransaction"), b.Calls.Count("Commit"); begun != 3 || commits != 3 {
			t.Errorf("%d transactions and %d commits of acquire, refresh and finish", begun, commits)
		}
	})
}

// A result that Firestore cannot hold is refused at once inside a transaction too.
func TestAPessimisticFinishThatIsRefusedIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		mustAcquire(t, a, "x", "w/1")
		began := time.Now()
		err := a.Complete(t.Context(), "x", "w/1", string(make([]byte, 1<<20)))
		if !errors.Is(err, lease.ErrRefused) || time.Since(began) > 10*time.Second {
			t.Errorf("%v after %v, want ErrRefused at once", err, time.Since(began))
		}
	})
}

// A status that is none of ours is its author's until the finish.
func TestAStatusOfOthersIsLeftAloneUntilTheFinish(t *testing.T) {
	for name, status := range map[string]any{"a word": "ANALYZING", "lower case": "queued", "a number": int64(5), "a map": map[string]any{"step": int64(1)}} {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
				a := open(t, b)
				b.Put(t, "x", map[string]any{"status": status})
				same := func(when string) {
					t.Helper()
					if diff := cmp.Diff(status, b.Fields(t, "x")["status"]); diff != "" {
						t.Errorf("%s: status (-want +got):\n%s", when, diff)
					}
				}
				mustAcquire(t, a, "x", "w/1")
				same("acquired")
				if err := a.Retry(t.Context(), "x", "w/1", "c", "m"); err != nil {
					t.Error(err)
				}
				same("released")
				mustAcquire(t, a, "x", "w/2")
				if _, err := a.Unlock(t.Context(), "x", nil); err != nil {
					t.Error(err)
				}
				same("unlocked")
				other := open(t, b)
				mustAcquire(t, other, "x", "w/3")
				if err := other.Complete(t.Context(), "x", "w/3", "done"); err != nil {
					t.Error(err)
				}
				if got := b.Fields(t, "x")["status"]; got != analysislock.Ready {
					t.Errorf("finished: status is %v", got)
				}
			})
		})
	}
}

func TestUpdatedAtKeepsItsType(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, at := range map[string]any{"timestamp": time.Now(), "string": timeValue(time.Now()), "none": nil} {
			fields := map[string]any{"status": analysislock.Queued, "createdAt": at, "updatedAt": at}
			if at == nil {
				delete(fields, "updatedAt")
			}
			b.Put(t, id, fields)
			mustAcquire(t, a, id, "w/1")
			time.Sleep(2 * time.Millisecond)
			if err := a.RefreshAnalysisLock(t.Context(), id, "w/1", 0); err != nil {
				t.Error(err)
			}
			if err := a.Complete(t.Context(), id, "w/1", "done"); err != nil {
				t.Error(err)
			}
			got := b.Fields(t, id)
			if _, is := got["updatedAt"].(time.Time); is != (id == "timestamp") {
				t.Errorf("%s: updatedAt is now %v", id, got["updatedAt"])
			}
			if kind(got["createdAt"]) != kind(at) {
				t.Errorf("%s: createdAt is now %v", id, got["createdAt"])
			}
		}
	})
}

// Else the year 9999 would block an analysis for ever.
func TestAnExpiryFarAheadIsUnreadable(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, more := range map[string]map[string]any{
			"heartbeat":            {"lockHeartbeatAt": timeValue(time.Now().Add(-time.Minute))},
			"no heartbeat":         {},
			"a heartbeat in 9999":  {"lockHeartbeatAt": "9999-01-01T00:00:00Z"},
			"a Timestamp in 9999":  {"lockExpiresAt": time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
			"a day and one second": {"lockExpiresAt": timeValue(time.Now().Add(24*time.Hour + time.Second))},
		} {
			fields := map[string]any{"status": analysislock.Processing, "lockOwner": "js/1", "lockExpiresAt": "9999-01-01T00:00:00Z"}
			for k, v := range more {
				fields[k] = v
			}
			b.Put(t, id, fields)
			if acq := acquire(t, a, id, "w/1"); acq.Reason != analysislock.Locked || acq.Remaining > lease.DefaultTTL {
				t.Errorf("%s: %+v, want locked for at most one TTL", id, acq)
			}
		}
		b.Put(t, "credible", map[string]any{"lockOwner": "js/1", "lockExpiresAt": timeValue(time.Now().Add(23 * time.Hour))})
		time.Sleep(lease.DefaultTTL + time.Second)
		for _, id := range []string{"heartbeat", "no heartbeat", "a heartbeat in 9999", "a Timestamp in 9999"} {
			mustAcquire(t, a, id, "w/2")
		}
		if acq := acquire(t, a, "credible", "w/2"); acq.Reason != analysislock.Locked {
			t.Errorf("%+v, want locked", acq)
		}
	})
}

func TestATokenThatIsNoIntegerIsReplacedByUnlock(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, fields := range map[string]map[string]any{
			"held":    {"status": analysislock.Processing, "lockOwner": "js/1", "lockToken": "seven", "lockExpiresAt": timeValue(time.Now().Add(time.Hour))},
			"free":    {"status": analysislock.Queued, "lockToken": true},
			"huge":    {"status": analysislock.Queued, "lockToken": int64(1<<63 - 1)},
			"foreign": {"status": "ANALYZING", "lockToken": []any{"x"}},
		} {
			b.Put(t, id, fields)
			if _, err := a.AcquireAnalysisLock(t.Context(), id, "w/1", 0); !errors.Is(err, lease.ErrMalformed) {
				t.Errorf("%s: acquire answers %v, want ErrMalformed", id, err)
			}
			earlier := time.Now().Add(-time.Hour).UnixMicro()
			if _, err := a.Unlock(t.Context(), id, nil); err != nil {
				t.Errorf("%s: unlock: %v", id, err)
			}
			if acq := mustAcquire(t, a, id, "w/2"); acq.Grant.Token < earlier {
				t.Errorf("%s: token %d is not one of the time", id, acq.Grant.Token)
			}
		}
	})
}

// A finished analysis is a skip whatever its token looks like, and can be opened again.
func TestAFinishedAnalysisWithoutAUsableTokenIsFinished(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Failed, "lockToken": "seven", "result": "old"})
		if acq := acquire(t, a, "x", "w/1"); acq.Reason != analysislock.AlreadyFinished {
			t.Errorf("%+v, want %s", acq, analysislock.AlreadyFinished)
		}
		if _, err := a.Requeue(t.Context(), "x", nil); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, a, "x", "w/2")
		if err := a.Fail(t.Context(), "x", "w/2", "c", "m"); err != nil {
			t.Fatal(err)
		}
		if got, there := b.Fields(t, "x")["result"]; there {
			t.Errorf("FAILED keeps the old result %v", got)
		}
	})
}

// The run of an acquisition whose reply was lost reads the input by itself.
func TestAnInputThatWasNotAskedForIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": map[string]any{"n": 1}})
		l.befall(map[string][]fault{read: {nil, dark, dark}}) // the decision's, the input's, and one try more
		mustAcquire(t, a, "x", "w/1")
		var got string
		err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(_ context.Context, input json.RawMessage) error {
			got = string(input)
			return nil
		})
		if err != nil || got != `{"n":1}` {
			t.Errorf("input %s, %v", got, err)
		}
		l.wantAllMet(t)
	})
}

func TestARunWithoutItsInputDoesNotBegin(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		mustAcquire(t, a, "x", "w/1")
		l.darken()
		began := time.Now()
		err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(context.Context, json.RawMessage) error {
			t.Error("the body ran")
			return nil
		})
		if !errors.Is(err, lease.ErrUnavailable) || time.Since(began) > 30*time.Second {
			t.Errorf("%v after %v, want ErrUnavailable", err, time.Since(began))
		}
	})
}

// A release deletes what it cannot read.
func TestUnlockDeletesALockThatCannotBeRead(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": analysislock.Processing, "lockOwner": true, "lockHeartbeatAt": "yesterday", "lockExpiresAt": []any{1}})
		if _, err := open(t, b).Unlock(t.Context(), "x", nil); err != nil {
			t.Fatal(err)
		}
		got := b.Fields(t, "x")
		for _, field := range []string{"lockOwner", "lockHeartbeatAt", "lockExpiresAt"} {
			if v, there := got[field]; there {
				t.Errorf("%s = %v", field, v)
			}
		}
	})
}

// A document that another writer keeps changing and that is refused each time is
// refused in the end.
func TestAPessimisticFinishThatIsAlwaysRefusedIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "theirs": 0})
		mustAcquire(t, a, "x", "w/1")
		refused := dropped(codes.InvalidArgument)
		l.befall(map[string][]fault{
			exclusiveCommit: {refused, refused},
			commit:          {overtaken(func() { b.Merge(t, "x", map[string]any{"theirs": 1}) })},
		})
		if err := a.Complete(t.Context(), "x", "w/1", "result"); !errors.Is(err, lease.ErrRefused) {
			t.Errorf("%v, want ErrRefused", err)
		}
		l.wantAllMet(t)
	})
}

// Results that wait for the network hold up no input.
func TestACommitThatHangsHoldsUpNoInput(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		large := make([]any, largeResult+1)
		for i := range large {
			large[i] = "twenty bytes of text"
		}
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		b.Put(t, "y", map[string]any{"status": analysislock.Queued, "input": large})
		mustAcquire(t, a, "x", "w/1")
		mustAcquire(t, a, "y", "w/2")
		l.befall(map[string][]fault{commit: {dark}})
		finished := make(chan error)
		go func() { finished <- a.Complete(t.Context(), "x", "w/1", large) }()
		synctest.Wait()
		began := time.Now()
		err := a.HoldAnalysisLock(t.Context(), "y", "w/2", func(context.Context, json.RawMessage) error { return nil })
		if took := time.Since(began); err != nil || took > time.Second {
			t.Errorf("the input came after %v, %v", took, err)
		}
		if err := <-finished; err != nil {
			t.Error(err)
		}
	})
}

// A read that fails for a moment is repeated.
func TestAReadIsRepeatedWhereItsErrorIsNotFinal(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.Aborted, codes.Unknown} {
		t.Run(code.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				l := &line{}
				a := open(t, b, l.options()...)
				b.Put(t, "x", map[string]any{"status": analysislock.Ready})
				l.befall(map[string][]fault{read: {dropped(code)}})
				if d, err := a.Get(t.Context(), "x"); err != nil || d.Status != analysislock.Ready {
					t.Errorf("%+v, %v", d, err)
				}
			})
		})
	}
}

// SIGTERM while an input is awaited.
func TestARunThatIsStoppedWhileItsInputIsAwaitedEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		l.befall(map[string][]fault{read: {nil, dark, dark}})
		mustAcquire(t, a, "x", "w/1")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		err := a.HoldAnalysisLock(ctx, "x", "w/1", func(context.Context, json.RawMessage) error { return nil })
		if took := time.Since(began); err == nil || took > time.Second {
			t.Errorf("%v after %v, want an error after 1 s", err, took)
		}
	})
}
