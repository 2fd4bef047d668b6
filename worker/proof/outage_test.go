package proof

import (
	"context"
	"strings"
	"testing"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// outage runs the queue as it is shipped, 30 s doubled to 600 s without a limit
// of attempts, with ten attempts and recovery each minute, while the analyzer
// fails for a time, and returns how many analyses are FAILED.
func outage(t *testing.T, s seed, ttl, length time.Duration) (failed int) {
	t.Helper()
	p := perfect()
	p.policy.TTL = ttl
	p.arrivals = nil
	for n := range 20 { // at the start of the outage and during it
		p.arrivals = append(p.arrivals, time.Duration(n)*length/20)
	}
	p.end = length + time.Second
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when each bubble starts
	w := newSimulation(s, p, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(time.Second)
		if time.Since(bubble) < length {
			return nil, errForNow
		}
		return result(job.AnalysisID, job.LockToken), nil
	}).simulate(t)
	w.reportTo(t)
	for _, r := range w.records {
		if r.doc.Status == analysislock.Failed {
			failed++
		}
	}
	return failed
}

// For some TTLs this finds the longest outage after which no analysis is FAILED.
// Recovery treats an analysis that has waited longer than one TTL for the queue's next
// attempt as orphaned, and books a delivery, which has its own backoff: the shorter
// the TTL, the sooner all attempts are used.
func TestAShortOutageLeavesNoAnalysisFailed(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Second, 60 * time.Second, 10 * time.Second} {
		longest := 0
		for failed := 0; failed == 0 && longest < 120; longest++ {
			for s := range seed(2) {
				failed += outage(t, s, ttl, time.Duration(longest+1)*time.Minute)
			}
		}
		longest--
		t.Logf("TTL %v: the longest outage after which nothing is FAILED is %d min", ttl, longest)
		if longest < 1 || longest > 60 || ttl == 300*time.Second && longest < 10 {
			t.Errorf("TTL %v: longest outage %d min, want at least 10 with the default TTL, and an end to it", ttl, longest)
		}
	}
}

func TestACrashLoopEndsFailedWithTheLastErrorReported(t *testing.T) {
	for _, c := range []struct {
		from int // the attempt with which the process begins to die
		want string
	}{
		{1, "gave up after 10 attempts"},
		{3, errForNow.Error()},
	} {
		p := perfect()
		p.workers = 1
		var w *simulation
		w = newSimulation(7, p, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			time.Sleep(time.Second)
			if job.Attempt >= c.from {
				i := callerOf(ctx).on
				w.going.Go(func() {
					w.crash(i, "crashes")
					time.Sleep(10 * time.Second)
					w.replace(i.slot)
				})
				<-i.dead
			}
			return nil, errForNow
		})
		w.simulate(t).reportTo(t)
		d := w.records["a0"].doc
		if d.Status != analysislock.Failed || d.Error == nil || d.Error.Code != "attempts_exhausted" || !strings.Contains(d.Error.Message, c.want) {
			t.Errorf("dying from attempt %d: %s %+v, want FAILED attempts_exhausted with %q", c.from, d.Status, d.Error, c.want)
		}
		if got, want := d.Lock.Attempts, p.policy.MaxAttempts; got != want {
			t.Errorf("dying from attempt %d: %d attempts, want %d", c.from, got, want)
		}
	}
}
