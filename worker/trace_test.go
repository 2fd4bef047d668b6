package worker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// trace returns the spans that have ended since the last call, with the values of their
// attributes. An error has a "!".
func (g gauges) trace() string {
	var spans []string
	for _, span := range g.spans.Ended() {
		s := span.Name()
		attributes := slices.Clone(span.Attributes())
		slices.SortFunc(attributes, func(a, b attribute.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
		for _, a := range attributes {
			s += " " + a.Value.String()
		}
		if span.Status().Code == codes.Error {
			s += "!"
		}
		spans = append(spans, s)
	}
	g.spans.Reset()
	return strings.Join(spans, ", ")
}

// lateAcquisition is Locks whose acquisitions take some time.
type lateAcquisition struct {
	delivery.Locks
	by time.Duration
}

func (l lateAcquisition) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration, early func(analysislock.Analysis) bool) (analysislock.Acquisition, error) {
	time.Sleep(l.by)
	return l.Locks.AcquireAnalysisLock(ctx, id, owner, ttl, early)
}

func TestARecoveryReportsTheAgeOfTheOldestUnfinishedAnalysis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		w := startOn(t, b, q.Queue, succeed)
		w.handle(&delivery.Guard{Kind: delivery.Kind{Name: "empty", Path: "/empty"}, Orphans: overdue(0), Queue: q, Oldest: func(context.Context) (d analysislock.Analysis, found bool, err error) {
			return d, false, nil
		}}, nil)
		want := func(age any, gauge string) {
			t.Helper()
			w.line(t, "/internal/tasks/recover", "", map[string]any{"level": "INFO", "outcome": "recovered", "oldest_ms": age})
			w.checkCounts(t, "taskguard.oldest.age", gauge)
		}
		b.Put(t, "undated", map[string]any{"status": "QUEUED"})
		want(nil, ":0")
		b.Put(t, "x", map[string]any{"status": "PROCESSING", "createdAt": time.Now().Add(-time.Hour)})
		want(3_600_000.0, ":3600")
		time.Sleep(time.Minute)
		b.Put(t, "y", map[string]any{"status": "QUEUED", "createdAt": time.Now()})
		want(3_660_000.0, ":3660")
		w.guard.Oldest = func(context.Context) (d analysislock.Analysis, found bool, err error) {
			return d, false, lease.ErrRefused // the index is missing
		}
		held(t, b, "orphan", -time.Hour)
		w.line(t, "/internal/tasks/recover", "", map[string]any{"level": "INFO", "outcome": "recovered", "booked": 1.0, "oldest_ms": nil})
		if log := w.log.String(); !strings.Contains(log, `"level":"WARN","msg":"the age of the oldest unfinished analysis is unknown"`) {
			t.Errorf("no warning: %s", log)
		}
	})
}
