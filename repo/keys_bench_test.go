package repo

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

// BenchmarkKey measures how many changes a second the document of one key bears, on Google's emulator: each run takes
// a slot and frees it. It needs FIRESTORE_EMULATOR_HOST.
func BenchmarkKey(b *testing.B) {
	for _, workers := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			backend := emulatortest.OnGoogle(b)
			w := withKeys(b, backend, workers)
			ids := make(chan string, b.N)
			for n := range b.N {
				ids <- fmt.Sprint("x", n)
				backend.Put(b, fmt.Sprint("x", n), map[string]any{"status": analysislock.Queued, "tenant": "a"})
			}
			close(ids)

			var mu sync.Mutex
			var took []time.Duration
			run := func() {
				for id := range ids {
					began := time.Now()
					acq, err := w.AcquireAnalysisLock(b.Context(), id, "w/"+id, 0, analysislock.AcquireOptions{})
					waited := time.Since(began)
					if err == nil && acq.Acquired {
						err = acq.Hold.End(b.Context(), analysislock.Completing(acq.Hold.Now(), "done"))
					}
					if err == nil && acq.Slot != nil {
						_, err = w.Leave(b.Context(), acq.Slot, time.Time{})
					}
					if err != nil || !acq.Acquired {
						b.Errorf("%s: %+v, %v", id, acq, err)
					}
					mu.Lock()
					took = append(took, waited)
					mu.Unlock()
				}
			}
			b.ResetTimer()
			var all sync.WaitGroup
			for range workers {
				all.Go(run)
			}
			all.Wait()
			slices.Sort(took)
			b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			b.ReportMetric(float64(took[(len(took)-1)*99/100].Milliseconds()), "p99-ms-to-acquire")
		})
	}
}
