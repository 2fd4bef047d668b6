package proof

import (
	"context"
	"strings"
	"testing"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
	"taskguard/orchestrator"
)

// The queue and the workers run as they are shipped, with recovery each minute, while the analyzer
// fails for 55 minutes. Analyses arrive during all of it, and each task is dispatched twice. Every
// third run takes 40 s, so that its duplicate books a follow-up.
func TestSimulation_Outage(t *testing.T) {
	const length = 55 * time.Minute
	for _, ttl := range []time.Duration{300 * time.Second, 60 * time.Second} {
		p, all := perfect(), figures{}
		p.policy.TTL, p.twice, p.end = ttl, 1, length+time.Second
		for n := range 20 {
			p.arrivals = append(p.arrivals, time.Duration(n)*length/20)
		}
		for s := range seed(4) {
			var w *simulation
			w = newSimulation(s, p, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				time.Sleep(pick(s.of(job.AnalysisID, job.LockToken), time.Second, time.Second, 40*time.Second))
				if w.since() < length {
					return nil, errForNow
				}
				return result(job.AnalysisID, job.LockToken), nil
			})
			w.simulate(t).reportTo(t)
			all.add(w.figures)
			for id, r := range w.records {
				if r.doc.Status != analysislock.Ready {
					t.Errorf("TTL %v, seed %d: %s is %s", ttl, s, id, w.show(r.doc))
				}
			}
		}
		for name := range all {
			if strings.HasPrefix(string(name), "unsettled ") {
				t.Errorf("TTL %v: %d %s, want none", ttl, all[name], name)
			}
		}
		all.expect(t, []figure{
			"settled retry", "settled waiting", "settled locked", leasetest.DeliveredTwice,
		})
	}
}
