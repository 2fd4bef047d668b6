package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// logged is a worker on b, and the log lines of its requests.
type logged struct {
	*process
	log  *bytes.Buffer
	seen map[string]bool // fields
}

func startLogged(t *testing.T, b *emulatortest.Backend, q delivery.Queue, body orchestrator.AnalyzerFunc) *logged {
	t.Helper()
	w := &logged{start(t, b, body), &bytes.Buffer{}, map[string]bool{}}
	w.guard.Queue = q
	w.guard.Log = slog.New(slog.NewJSONHandler(w.log, nil))
	w.restart(CheckedByProxy())
	return w
}

// line delivers id and compares its line's fields as answer.check does.
func (w *logged) line(t *testing.T, path, id string, want map[string]any, headers ...string) {
	t.Helper()
	w.log.Reset()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"analysis_id":"`+id+`"}`))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w.send(t, r)
	lines := 0
	defer func() {
		if lines != 1 {
			t.Errorf("%s %s: %d lines, want 1", path, id, lines)
		}
	}()
	for l := range strings.Lines(w.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(l), &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] != "delivery" && entry["msg"] != "rejected" && entry["msg"] != "recovery" {
			continue
		}
		lines++
		reply{Body: entry}.check(t, 0, want)
		for name := range entry {
			w.seen[name] = true
		}
	}
}

const deliveryRoute = "/internal/tasks/analysis"

// The lines have all fields of LogFields, and no other.
func TestTheLogLineOfADeliveryHasAllItsFields(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		w := startLogged(t, b, q.Queue, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			switch job.AnalysisID {
			case "deleted":
				b.Delete(t, "deleted")
			case "taken":
				b.Merge(t, "taken", map[string]any{"lockOwner": "them"})
				<-ctx.Done()
			case "flaky":
				return nil, &orchestrator.FailureError{Reason: "exit status 1", Message: "s3cret"}
			case "resumable":
				for page := range 3 {
					if err := job.Checkpoint(ctx, strings.Repeat("s3cret", page)); err != nil {
						t.Error(err)
					}
				}
				return until(ctx, nothing)
			default:
				time.Sleep(350 * time.Second)
			}
			return "done", nil
		})
		w.guard.RunTimeout -= time.Minute // no heartbeat is due when it ends
		for _, id := range []string{"long", "deleted", "taken", "flaky", "resumable"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
		}
		b.Merge(t, "long", map[string]any{"createdAt": time.Now()})
		b.Put(t, "worn", map[string]any{"status": "QUEUED", "attempts": 3, "lockToken": 7})
		held(t, b, "stale", -time.Second)
		expires := held(t, b, "held", time.Hour)
		w.line(t, deliveryRoute, "long", map[string]any{
			"level": "INFO", "outcome": "ready", "status": 200.0, "duration_ms": 350_000.0, "analysis_id": "long", "lock_token": 1.0, "attempt": 1.0, "stolen": nil,
			"acquire_ms": 0.0, "run_ms": 350_000.0, "heartbeats": 3.0, "lost": nil, "follow_up": nil, "retry_at": nil, "lock_owner": "*",
			"task": "a-task", "task_retry": 2.0, "time_to_start_ms": 0.0, "time_to_ready_ms": 350_000.0,
		}, "X-CloudTasks-TaskName: a-task", "X-CloudTasks-TaskRetryCount: 2")
		w.line(t, deliveryRoute, "long", map[string]any{"level": "INFO", "outcome": "already_finished", "acquire_ms": 0.0, "run_ms": nil, "heartbeats": nil, "attempt": nil, "lock_owner": nil, "task": nil, "task_retry": nil})
		w.line(t, deliveryRoute, "long", map[string]any{"task": nil, "task_retry": nil}, "X-CloudTasks-TaskName: a\nb c", "X-CloudTasks-TaskRetryCount: -1")
		w.line(t, deliveryRoute, "stale", map[string]any{"outcome": "ready", "stolen": true, "attempt": 2.0})
		w.line(t, deliveryRoute, "held", map[string]any{"level": "INFO", "outcome": "locked", "status": 200.0, "follow_up": "booked", "retry_at": expires, "held_by": "them", "attempt": nil, "lock_owner": nil})
		b.Merge(t, "held", map[string]any{"lockOwner": strings.Repeat("é", 10_000)})
		w.line(t, deliveryRoute, "held", map[string]any{"outcome": "locked", "held_by": strings.Repeat("é", 2048)})
		w.line(t, deliveryRoute, "worn", map[string]any{
			"level": "WARN", "outcome": "failed", "code": "attempts_exhausted", "attempt": 3.0, "lock_token": 8.0, "lock_owner": "*", "run_ms": nil, "held_by": nil,
		})
		w.line(t, deliveryRoute, "deleted", map[string]any{"level": "WARN", "outcome": "lock_lost", "lost": "deleted", "error": "*"})
		w.line(t, deliveryRoute, "taken", map[string]any{"outcome": "lock_lost", "lost": "taken", "heartbeats": 0.0})
		w.line(t, deliveryRoute, "flaky", map[string]any{"level": "WARN", "outcome": "retry", "code": "analyzer_failed", "reason": "exit status 1"})
		b.Put(t, "old", map[string]any{"status": "QUEUED", "createdAt": time.Now().Add(-time.Hour)})
		q.Fail(codes.Unavailable)
		held(t, b, "held", time.Hour)
		w.line(t, deliveryRoute, "held", map[string]any{"level": "INFO", "outcome": "locked", "status": 409.0, "follow_up": "failed"})
		q.Fail(codes.OK)
		w.line(t, "/internal/tasks/recover", "", map[string]any{"level": "INFO", "outcome": "recovered", "found": 0.0, "booked": 0.0, "oldest_ms": "*", "acquire_ms": nil})
		w.line(t, deliveryRoute, "resumable", map[string]any{"level": "INFO", "outcome": "continued", "status": 200.0, "attempt": 1.0, "heartbeats": 17.0, "checkpoints": 3.0, "follow_up": "booked"})
		if strings.Contains(w.log.String(), "s3cret") {
			t.Errorf("the log shows it: %s", w.log)
		}
		job := *w.guard
		job.Kind = delivery.Kind{Name: "job", IDField: "analysis_id", Path: "/jobs"}
		w.handle(&job, w.analyze)
		w.line(t, "/jobs", "long", map[string]any{"kind": "job", "outcome": "already_finished"})

		for _, always := range []string{"time", "level", "msg"} {
			delete(w.seen, always)
		}
		var named []string
		for _, f := range delivery.LogFields() {
			named = append(named, f.Name)
			if f.Type == "" || f.Meaning == "" {
				t.Errorf("field %+v has no type or meaning", f)
			}
		}
		if seen := slices.Sorted(maps.Keys(w.seen)); !slices.Equal(seen, slices.Sorted(slices.Values(named))) {
			t.Errorf("fields %v, want LogFields %v", seen, named)
		}
	})
}

func TestTimeToStartIsOfTheFirstAcquisitionAndTimeToReadyOfTheLast(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		m := measured(t)
		failures := 1
		w := startLogged(t, b, &recordingQueue{}, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			time.Sleep(10 * time.Second)
			if failures--; failures >= 0 {
				return nil, errors.New("not yet")
			}
			return "done", nil
		})
		w.guard.Telemetry = m.Telemetry
		w.restart(CheckedByProxy())
		now := time.Now()
		b.Put(t, "text", map[string]any{"status": "QUEUED", "createdAt": iso8601.Format(now)})
		b.Put(t, "stamp", map[string]any{"status": "QUEUED", "createdAt": now})
		b.Put(t, "ahead", map[string]any{"status": "QUEUED", "createdAt": now.Add(time.Hour)})
		b.Put(t, "undated", map[string]any{"status": "QUEUED"})
		time.Sleep(90 * time.Second)
		w.line(t, deliveryRoute, "text", map[string]any{"outcome": "retry", "time_to_start_ms": 90_000.0, "time_to_ready_ms": nil})
		time.Sleep(20 * time.Second)
		w.line(t, deliveryRoute, "text", map[string]any{"outcome": "ready", "attempt": 2.0, "time_to_start_ms": nil, "time_to_ready_ms": 130_000.0})
		w.line(t, deliveryRoute, "stamp", map[string]any{"outcome": "ready", "time_to_start_ms": 130_000.0, "time_to_ready_ms": 140_000.0})
		w.line(t, deliveryRoute, "ahead", map[string]any{"outcome": "ready", "time_to_start_ms": 0.0, "time_to_ready_ms": 0.0})
		w.line(t, deliveryRoute, "undated", map[string]any{"outcome": "ready", "time_to_start_ms": nil, "time_to_ready_ms": nil})
		if _, err := w.guard.Orphans.(*repo.Analyses).Requeue(t.Context(), "stamp", nil, false, ""); err != nil {
			t.Fatal(err)
		}
		w.line(t, deliveryRoute, "stamp", map[string]any{"outcome": "ready", "attempt": 1.0, "time_to_start_ms": nil, "time_to_ready_ms": 170_000.0})
		for metric, want := range map[string]string{"taskguard.analysis.start.duration": ":220", "taskguard.analysis.ready.duration": ":440"} {
			if got := m.counts(t, metric); got != want {
				t.Errorf("%s: %q, want %q", metric, got, want)
			}
		}
	})
}
