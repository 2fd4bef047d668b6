package repo

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestPessimisticDecisionsAreMadeInsideATransaction(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "in"})
		mustAcquire(t, a, "x", "w/1")
		time.Sleep(2 * time.Millisecond)
		if err := a.holds["w/1"].Refresh(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if err := a.holds["w/1"].Complete(t.Context(), "done"); err != nil {
			t.Error(err)
		}
		if begun, commits := b.Calls.Count("BeginTransaction"), b.Calls.Count("Commit"); begun != 3 || commits != 3 {
			t.Errorf("%d transactions and %d commits of acquire, refresh and finish", begun, commits)
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
				if err := a.holds["w/1"].Retry(t.Context(), "c", "m"); err != nil {
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
				if err := other.holds["w/3"].Complete(t.Context(), "done"); err != nil {
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
			if err := a.holds["w/1"].Refresh(t.Context(), 0); err != nil {
				t.Error(err)
			}
			if err := a.holds["w/1"].Complete(t.Context(), "done"); err != nil {
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

// The run of an acquisition whose reply was lost reads the input by itself.
func TestAnInputWithoutARequestIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": map[string]any{"n": 1}})
		l.inject(map[string][]fault{read: {nil, dark, dark}}) // the decision's, the input's, and one try more
		mustAcquire(t, a, "x", "w/1")
		var got string
		err := a.run(t.Context(), "w/1", func(_ context.Context, input json.RawMessage) error {
			got = string(input)
			return nil
		})
		if err != nil || got != `{"n":1}` {
			t.Errorf("input %s, %v", got, err)
		}
		l.wantAllInjected(t)
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
		l.inject(map[string][]fault{commit: {dark}})
		finished := make(chan error)
		go func() { finished <- a.holds["w/1"].Complete(t.Context(), large) }()
		synctest.Wait()
		began := time.Now()
		err := a.run(t.Context(), "w/2", func(context.Context, json.RawMessage) error { return nil })
		if took := time.Since(began); err != nil || took > time.Second {
			t.Errorf("the input came after %v, %v", took, err)
		}
		if err := <-finished; err != nil {
			t.Error(err)
		}
	})
}
