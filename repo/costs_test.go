package repo

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Round trips, counted at the connection.
func TestRoundTrips(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		b.Put(t, "done", map[string]any{"status": analysislock.Ready})
		count := func(what string, want int, do func()) {
			t.Helper()
			before := b.Calls.Total()
			do()
			if got := b.Calls.Total() - before; got != want {
				t.Errorf("%s: %d round trips, want %d", what, got, want)
			}
		}
		count("skip of a finished analysis", 1, func() { acquire(t, a, "done", "w/0") })
		count("acquire: a read, then the commit and beside it the input's read", 3, func() { mustAcquire(t, a, "x", "w/1") })
		count("duplicate on the holder's own instance", 1, func() { acquire(t, a, "x", "w/2") })
		other := open(t, b)
		count("duplicate elsewhere", 1, func() { acquire(t, other, "x", "w/3") })
		time.Sleep(2 * time.Millisecond) // a renewal within the millisecond would change nothing
		count("heartbeat", 1, func() {
			if err := a.holds["w/1"].Refresh(t.Context(), 0); err != nil {
				t.Error(err)
			}
		})
		count("finish", 1, func() {
			if err := a.holds["w/1"].Complete(t.Context(), "done"); err != nil {
				t.Error(err)
			}
		})
		b.Put(t, "y", map[string]any{"status": analysislock.Queued})
		mustAcquire(t, a, "y", "w/4")
		count("release", 1, func() {
			if err := a.holds["w/4"].Release(t.Context(), true); err != nil {
				t.Error(err)
			}
		})
	})
}

// What one delivery with three heartbeats is billed.
func TestADeliveryIsBilledTwoReadsTwoWritesAndOneWriteAHeartbeat(t *testing.T) {
	run := func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		before := b.Server.Usage()
		mustAcquire(t, a, "x", "w/1")
		err := a.run(t.Context(), "w/1", func(context.Context, json.RawMessage) error {
			time.Sleep(350 * time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.holds["w/1"].Complete(t.Context(), "done"); err != nil {
			t.Fatal(err)
		}
		after := b.Server.Usage()
		if reads, writes := after.Reads-before.Reads, after.Writes-before.Writes; reads != 2 || writes != 2+3 {
			t.Errorf("billed %d reads and %d writes, want 2 and 5", reads, writes)
		}
	}
	inBubble(t, run)
}

func TestOf128AcquirersOneWinsAnd127SkipCleanly(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		const n = 128
		instances := make([]*worker, 8)
		for i := range instances {
			instances[i] = open(t, b)
		}
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		start := make(chan struct{})
		var mu sync.Mutex
		outcomes := map[string]int{}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				<-start
				acq, err := instances[i%len(instances)].AcquireAnalysisLock(t.Context(), "x", fmt.Sprint("w/", i), lease.DefaultTTL)
				key := acq.Reason
				if err != nil {
					key = err.Error()
				}
				mu.Lock()
				defer mu.Unlock()
				outcomes[key]++
			})
		}
		before := b.Calls.Total()
		close(start)
		wg.Wait()
		if outcomes[""] != 1 || outcomes[analysislock.Locked] != n-1 {
			t.Errorf("outcomes = %v, want one winner and %d %s", outcomes, n-1, analysislock.Locked)
		}
		// A read, the commit that one of them makes and beside it the input's read, and a
		// read that tells why.
		if calls := b.Calls.Total() - before; calls > 4*n {
			t.Errorf("%d calls, want at most 4 each", calls)
		}
	})
}

// A writer of a foreign field every 100 ms neither starves a heartbeat nor
// loses a result nor a write of its own.
func TestABusyForeignWriterDisturbsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "n": 0})
		mustAcquire(t, a, "x", "w/1")
		ctx, stop := context.WithCancel(t.Context())
		wrote := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				b.Merge(t, "x", map[string]any{"n": firestore.Increment(1)})
				wrote++
				time.Sleep(100 * time.Millisecond)
			}
		})
		err := a.run(t.Context(), "w/1", func(ctx context.Context, _ json.RawMessage) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(2 * ttl(b)):
				return nil
			}
		})
		if err == nil {
			err = a.holds["w/1"].Complete(t.Context(), "result")
		}
		stop()
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		got := b.Fields(t, "x")
		if got["result"] != "result" || got["status"] != analysislock.Ready || got["n"] != int64(wrote) {
			t.Errorf("document: %v; want the result and n = %d", got, wrote)
		}
	})
}
