package delivery_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/emulatortest"
	"taskguard/orchestrator"
)

// Of 1,000 analyses, 200 fail temporarily at each attempt. The others are READY within two
// minutes if the worker books the next attempts. If the queue retries, their delay is at least
// ten minutes, since the queue slows down with the errors.
func TestFailingAnalysesDelayTheOthersOnlyIfTheQueueRetriesThem(t *testing.T) {
	const all, every = 1000, 5
	for name, tc := range map[string]struct {
		booked      bool
		least, most time.Duration
	}{
		"the queue retries":            {false, 10 * time.Minute, time.Hour},
		"the next attempts are booked": {true, 0, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				q := startThrottled(t, cloudtasks.AsDocumented)
				began := time.Now()
				var ready, took atomic.Int64
				w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
					time.Sleep(time.Second)
					if n, err := strconv.Atoi(job.AnalysisID); err != nil || n%every == 0 {
						return nil, errors.New("flaky")
					}
					ready.Add(1)
					took.Store(int64(time.Since(began)))
					return "done", nil
				})
				w.guard.RetryMin, w.guard.RetryMax = 30*time.Second, 10*time.Minute
				q.serve(w)
				if !tc.booked {
					w.guard.Queue = nil
				}
				for i := range all {
					b.Put(t, strconv.Itoa(i), map[string]any{"status": "QUEUED"})
					q.submit(t, strconv.Itoa(i))
				}
				for ready.Load() < all-all/every && time.Since(began) < tc.most {
					time.Sleep(time.Second)
				}
				answered := func() (errors, of int) {
					statuses := q.statuses()
					return len(slices.DeleteFunc(slices.Clone(statuses), func(status int) bool { return status == 200 })), len(statuses)
				}
				healthy := time.Duration(took.Load())
				n, of := answered()
				t.Logf("%d READY after %v; %d of %d answers were errors", ready.Load(), healthy, n, of)
				if got := ready.Load(); got != all-all/every || healthy < tc.least || healthy > tc.most {
					t.Errorf("%d READY after %v, want %d within %v to %v", got, healthy, all-all/every, tc.least, tc.most)
				}
				if !tc.booked {
					q.Server.Close()
					return
				}
				if err := q.Idle(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n, of = answered(); n != 0 || of != all-all/every+all/every*3 {
					t.Errorf("until all attempts were used, %d of %d answers were errors, want 0 of 1,400", n, of)
				}
				checkFields(t, b, "0", map[string]any{"status": "FAILED", "attempts": int64(3)})
			})
		})
	}
}
