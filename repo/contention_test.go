package repo

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/emulator/emulatortest"
)

// BenchmarkAcquirersOfOneDocument lets n acquirers at one document on Google's
// emulator and reports, for a round: its time, the calls of each acquirer, and
// how many of them ended in an error instead of a win or a skip. Run it with
// -benchtime 3x. The emulator's contention is not production's.
func BenchmarkAcquirersOfOneDocument(b *testing.B) {
	ctx := context.Background()
	subjects := map[string]func(b *testing.B, e *emulatortest.Backend) func(id, owner string) (bool, error){
		"guard": func(b *testing.B, e *emulatortest.Backend) func(id, owner string) (bool, error) {
			a := open(b, e)
			return func(id, owner string) (bool, error) {
				acq, err := a.AcquireAnalysisLock(ctx, id, owner, 0)
				return acq.Acquired, err
			}
		},
		"plain": func(b *testing.B, e *emulatortest.Backend) func(id, owner string) (bool, error) {
			client, err := firestore.NewClient(ctx, e.Project, e.Client(b)...)
			if err != nil {
				b.Fatal(err)
			}
			p := plainLock{client: client, ttl: 5 * time.Minute}
			return func(id, owner string) (bool, error) { return p.acquire(ctx, id, owner) }
		},
	}
	for _, n := range []int{2, 32, 128} {
		for _, name := range []string{"guard", "plain"} {
			b.Run(fmt.Sprintf("%s/n=%d", name, n), func(b *testing.B) {
				e := emulatortest.OnGoogle(b)
				seeder, acquire := open(b, e), subjects[name](b, e)
				var failed, won atomic.Int64
				calls := 0
				b.ResetTimer()
				for i := range b.N {
					id := fmt.Sprint(i)
					if err := seeder.Create(ctx, id, nil); err != nil {
						b.Fatal(err)
					}
					before := e.Calls.Total()
					var wg sync.WaitGroup
					for k := range n {
						wg.Go(func() {
							got, err := acquire(id, fmt.Sprint("w/", k))
							if err != nil {
								failed.Add(1)
							} else if got {
								won.Add(1)
							}
						})
					}
					wg.Wait()
					calls += e.Calls.Total() - before
				}
				if name == "guard" && (failed.Load() != 0 || won.Load() != int64(b.N)) {
					b.Errorf("%d winners and %d errors in %d rounds", won.Load(), failed.Load(), b.N)
				}
				b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/round")
				b.ReportMetric(float64(calls)/float64(b.N*n), "calls/acquirer")
				b.ReportMetric(float64(failed.Load())/float64(b.N), "errors/round")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
