package simulate

import (
	"context"
	"strings"
	"testing"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// out is an analyzer whose downstream is out for a while.
func out(from time.Time, length time.Duration) orchestrator.AnalyzerFunc {
	return func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(time.Second)
		if time.Since(from) < length {
			return nil, errForNow
		}
		return result(job.AnalysisID, job.LockToken), nil
	}
}

// outage runs the queue as it is shipped, 30 s doubled to 600 s without a limit
// of attempts, with ten attempts and recovery each minute, through an outage of
// that length, and answers how many analyses were FAILED.
func outage(t *testing.T, seed uint64, ttl, length time.Duration) (failed int) {
	t.Helper()
	p := perfect()
	p.policy.TTL = ttl
	p.arrivals = nil
	for n := range 20 { // before the outage begins, and all along
		p.arrivals = append(p.arrivals, time.Duration(n)*length/20)
	}
	p.end = length + time.Second
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when each begins
	w := run(t, seed, p, out(bubble, length))
	report(t, w)
	for _, r := range w.store.records {
		if r.doc.Status == analysislock.Failed {
			failed++
		}
	}
	return failed
}

func TestAnOutageOfTenMinutesLeavesNothingFailed(t *testing.T) {
	for seed := range uint64(10) {
		if failed := outage(t, seed, 300*time.Second, 10*time.Minute); failed > 0 {
			t.Errorf("seed %d: %d analyses FAILED", seed, failed)
		}
	}
}

// TestAnOutageIsOutlastedOrEndsInFailed finds, for some TTLs, the longest outage
// that leaves nothing FAILED. Recovery takes an analysis that waits longer than
// one TTL for the queue's next attempt for orphaned, and adds a delivery with a
// backoff of its own: the shorter the TTL, the sooner the attempts are spent.
func TestAnOutageIsOutlastedOrEndsInFailed(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Second, 120 * time.Second, 60 * time.Second, 30 * time.Second, 10 * time.Second} {
		longest := 0
		for failed := 0; failed == 0 && longest < 120; longest++ {
			for seed := range uint64(2) {
				failed += outage(t, seed, ttl, time.Duration(longest+1)*time.Minute)
			}
		}
		longest--
		t.Logf("TTL %v: the longest outage that leaves nothing FAILED is %d min", ttl, longest)
		if longest < 1 || longest > 60 || ttl == 300*time.Second && longest < 10 {
			t.Errorf("TTL %v: longest outage %d min, want at least 10 with the default TTL, and an end to it", ttl, longest)
		}
	}
}

// dying is an analyzer whose process dies with each run from one on.
func dying(w **world, from int) orchestrator.AnalyzerFunc {
	return func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(time.Second)
		if job.Attempt < from {
			return nil, errForNow
		}
		world := *w
		b := world.last()
		world.going.Go(func() {
			b.on.crash("crashes")
			time.Sleep(10 * time.Second)
			world.replace(b.on.slot)
		})
		<-b.on.dead
		return nil, errDead
	}
}

func (w *world) last() *body {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bodies[len(w.bodies)-1]
}

func TestACrashLoopEndsFailedWithTheLastErrorThatWasTold(t *testing.T) {
	for _, c := range []struct {
		from int
		want string
	}{
		{1, "no attempt reported a cause"},
		{3, errForNow.Error()},
	} {
		p := perfect()
		p.workers = 1
		var w *world
		w = newWorld(7, p, dying(&w, c.from))
		w.run(t)
		report(t, w)
		d := w.store.records["a0"].doc
		if d.Status != analysislock.Failed || d.Error == nil || d.Error.Code != "attempts_exhausted" || !strings.Contains(d.Error.Message, c.want) {
			t.Errorf("dying from attempt %d: %s %+v, want FAILED attempts_exhausted with %q", c.from, d.Status, d.Error, c.want)
		}
		if got, want := d.Lock.Attempts, p.policy.MaxAttempts; got != want {
			t.Errorf("dying from attempt %d: %d attempts, want %d", c.from, got, want)
		}
	}
}
