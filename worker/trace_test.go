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
	"taskguard/orchestrator"
	"taskguard/repo"
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

func TestEachStepOfADeliveryIsASpanAndAFigure(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q, m := StartQueue(t), measured(t)
		var w *logged
		w = startLogged(t, b, q.Queue, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			switch job.AnalysisID {
			case "deleted":
				b.Delete(t, "deleted")
			case "taken":
				b.Merge(t, "taken", map[string]any{"lockOwner": "them"})
				<-ctx.Done()
			case "unreachable":
				w.unavailable.Store(true)
				<-ctx.Done()
			case "flaky":
				return nil, &orchestrator.FailureError{Reason: "exit status 1"}
			case "invalid":
				return nil, &orchestrator.PermanentError{Code: "invalid_input", Message: "no"}
			case "cancelled":
				if _, err := start(t, b, nil).guard.Locks.(*repo.Analyses).Cancel(ctx, "cancelled", "ops", nil); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
			case "resumable":
				// One after the end would be written by a renewal or, if the run ends sooner, by Flush.
				report(job, "page 7")
				return until(ctx, nothing)
			default:
				time.Sleep(350 * time.Second)
			}
			return "done", nil
		})
		w.guard.Telemetry, w.guard.RunTimeout = m.Telemetry, 6*time.Minute
		w.restart(CheckedByProxy())
		w.guard.Locks = lateAcquisition{w.guard.Locks, 100 * time.Millisecond}
		for _, id := range []string{"long", "deleted", "taken", "flaky", "invalid", "cancelled", "resumable", "unreachable"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
		}
		b.Put(t, "worn", map[string]any{"status": "QUEUED", "attempts": 3, "lockToken": 7})
		held(t, b, "stale", -time.Second)
		held(t, b, "held", 2*time.Hour)
		for _, tc := range []struct{ id, outcome, spans string }{
			{"long", "ready", "acquire acquired, heartbeat renewed, heartbeat renewed, heartbeat renewed, run, finish, delivery long 1 1 ready"},
			{"long", "already_finished", "acquire already_finished, delivery long already_finished"},
			{"stale", "ready", "acquire acquired, heartbeat renewed, heartbeat renewed, heartbeat renewed, run, finish, delivery stale 2 2 ready"},
			{"worn", "failed", "acquire attempts_exhausted, delivery worn 3 8 failed"},
			{"held", "locked", "acquire locked, follow_up booked, delivery held locked"},
			{"held", "locked", "acquire locked, follow_up already, delivery held locked"},
			{"deleted", "lock_lost", "acquire acquired, run, finish!, delivery deleted 1 1 lock_lost"},
			{"taken", "lock_lost", "acquire acquired, heartbeat lost!, run!, follow_up booked, delivery taken 1 1 lock_lost"},
			{"flaky", "retry", "acquire acquired, run!, release, follow_up booked, delivery flaky 1 1 retry"},
			{"invalid", "failed", "acquire acquired, run!, finish, delivery invalid 1 1 failed"},
			{"cancelled", "lock_lost", "acquire acquired, heartbeat lost!, run!, delivery cancelled 1 1 lock_lost"},
			{"resumable", "continued", "acquire acquired, heartbeat renewed, heartbeat renewed, heartbeat renewed, heartbeat renewed, run!, release, follow_up booked, delivery resumable 1 1 continued"},
			{"none", "not_found", "acquire error!, delivery none not_found"},
			{"unreachable", "lock_lost", "acquire acquired, heartbeat failed!, run!, release!, follow_up booked, delivery unreachable 1 1 lock_lost"},
			{"held", "unavailable", "acquire error!, delivery held unavailable!"},
		} {
			w.line(t, deliveryRoute, tc.id, map[string]any{"outcome": tc.outcome})
			if got := m.trace(); got != tc.spans {
				t.Errorf("%s: spans %q, want %q", tc.id, got, tc.spans)
			}
		}
		for metric, want := range map[string]string{
			"taskguard.deliveries":              "200 already_finished :1 200 continued :1 200 failed :2 200 lock_lost :4 200 locked :2 200 ready :2 200 retry :1 404 not_found :1 503 unavailable :1",
			"taskguard.run.duration":            "continued :360 failed :0 lock_lost :470 ready :700 retry :0",
			"taskguard.run.attempt":             ":10",
			"taskguard.lock.acquire.duration":   "acquired :0.9 already_finished :0.1 attempts_exhausted :0.1 error :15.2 locked :0.2",
			"taskguard.lock.heartbeat.duration": "failed :170 lost :0 renewed :0",
			"taskguard.lock.steals":             ":1",
			"taskguard.lock.losses":             "cancelled :1 deleted :1 out_of_time :1 taken :1",
			"taskguard.run.timeouts":            "continued :1",
			"taskguard.checkpoint.size":         ":8",
			"taskguard.followups":               "already :1 booked :5",
		} {
			if got := m.counts(t, metric); got != want {
				t.Errorf("%s: %q, want %q", metric, got, want)
			}
		}
	})
}

func TestARecoveryReportsTheAgeOfTheOldestUnfinishedAnalysis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q, m := StartQueue(t), measured(t)
		w := startLogged(t, b, q.Queue, succeed)
		w.guard.Telemetry = m.Telemetry
		w.restart(CheckedByProxy())
		w.handle(&delivery.Guard{Kind: delivery.Kind{Name: "empty", Path: "/empty"}, Orphans: overdue(0), Queue: q, Oldest: func(context.Context) (d analysislock.Analysis, found bool, err error) {
			return d, false, nil
		}}, nil)
		want := func(age, gauge any) {
			t.Helper()
			w.line(t, "/internal/tasks/recover", "", map[string]any{"level": "INFO", "outcome": "recovered", "oldest_ms": age})
			if got := m.counts(t, "taskguard.oldest.age"); got != gauge {
				t.Errorf("%q, want %q", got, gauge)
			}
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

func TestARecoveryIsASpanAndItsFigures(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q, m := StartQueue(t), measured(t)
		w := startLogged(t, b, q.Queue, succeed)
		w.guard.Telemetry = m.Telemetry
		w.restart(CheckedByProxy())
		held(t, b, "x", -time.Hour)
		w.line(t, "/internal/tasks/recover", "", map[string]any{"found": 1.0, "booked": 1.0})
		held(t, b, "y", -time.Hour)
		w.line(t, "/internal/tasks/recover", "", map[string]any{"found": 1.0, "booked": 1.0})
		w.unavailable.Store(true)
		w.line(t, "/internal/tasks/recover", "", map[string]any{"level": "WARN", "outcome": "unavailable"})
		if got, want := m.trace(), "recovery recovered, recovery recovered, recovery unavailable!"; got != want {
			t.Errorf("spans %q, want %q", got, want)
		}
		for metric, want := range map[string]string{"taskguard.stuck": ":1", "taskguard.recoveries": ":2", "taskguard.deliveries": ""} {
			if got := m.counts(t, metric); got != want {
				t.Errorf("%s: %q, want %q", metric, got, want)
			}
		}
	})
}
