package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"google.golang.org/grpc/codes"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// The line contains the reason, and no text of the input or the analyzer.
func TestADeliveryIsOneLineWithoutTheInput(t *testing.T) {
	const secret = "s3cret"
	cases := map[string]struct {
		body    string
		before  int    // attempts
		also    string // another line's text
		analyze orchestrator.AnalyzerFunc
		want    map[string]any
	}{
		"ready":             {analyze: succeed, want: map[string]any{"outcome": "ready", "status": 200.0, "lock_token": 1.0}},
		"failed":            {analyze: failing(&orchestrator.PermanentError{Code: "invalid_input", Message: secret}), want: map[string]any{"level": "WARN", "outcome": "failed", "code": "invalid_input"}},
		"retry":             {analyze: failing(&orchestrator.FailureError{Code: "no_quota", Reason: "sh ended with exit status 1", Message: secret}), want: map[string]any{"outcome": "retry", "code": "no_quota", "reason": "sh ended with exit status 1"}},
		"a plug-in's error": {analyze: failing(errors.New(secret)), want: map[string]any{"outcome": "retry", "code": "analyzer_failed", "reason": "the analyzer returned a *errors.errorString"}},
		"an error without a reason, and with a code that is not UTF-8": {analyze: failing(&orchestrator.FailureError{Code: "\xff", Message: secret}), want: map[string]any{"outcome": "retry", "code": "analyzer_failed", "reason": "the analyzer returned a *orchestrator.FailureError"}},
		"a permanent error without a code":                             {analyze: failing(&orchestrator.PermanentError{Message: secret}), want: map[string]any{"outcome": "failed", "code": "analyzer_rejected", "reason": nil}},
		"a permanent error with a code that is not UTF-8":              {analyze: failing(&orchestrator.PermanentError{Code: "no\xff_page" + strings.Repeat("e", 100), Message: secret}), want: map[string]any{"outcome": "failed", "code": "no_page" + strings.Repeat("e", 56)}},
		"an uncertain act": {analyze: failing(&orchestrator.UncertainError{Key: "x", Name: "charge"}), want: map[string]any{"outcome": "failed", "code": "effect_uncertain"}},
		"an error of a run that passed its deadline": {analyze: func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			<-ctx.Done()
			return nil, &orchestrator.FailureError{Reason: "the model is away", Message: secret, Err: ctx.Err()}
		}, want: map[string]any{"outcome": "retry", "code": "run_timeout", "reason": "the model is away"}},
		"doubtful output": {analyze: func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			job.Reporter.(orchestrator.Warner).Warn("it begins like JSON") //nolint:forcetypeassert // the worker's is
			return secret, nil
		}, also: `"the analyzer's output is doubtful","analysis_id":"x","problem":"it begins like JSON"`, want: map[string]any{"outcome": "ready", "reason": nil}},
		"panic": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			panic(secret)
		}, also: `"the analyzer panicked","analysis_id":"x","stack":"goroutine`, want: map[string]any{"outcome": "retry", "code": "analyzer_panicked"}},
		"the last attempt": {before: 2, analyze: failing(&orchestrator.FailureError{Reason: "sh ended with exit status 1", Message: secret}), want: map[string]any{"outcome": "failed", "code": "attempts_exhausted", "reason": "sh ended with exit status 1"}},
		"a bad id":         {body: `{"analysis_id":"` + secret + `/"}`, analyze: succeed, want: map[string]any{"outcome": "bad_request", "analysis_id": nil}},
		"no JSON":          {body: secret, analyze: succeed, want: map[string]any{"level": "WARN", "outcome": "bad_request"}},
	}
	for name, tc := range cases {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": secret, "attempts": tc.before})
			w := start(t, b, tc.analyze)
			w.runner.RunTimeout = 10 * time.Second
			w.post(t, cmp.Or(tc.body, `{"analysis_id":"x"}`))
			if log := w.log.String(); strings.Contains(log, secret) || !strings.Contains(log, tc.also) {
				t.Errorf("the log shows the input, or lacks %s: %s", tc.also, log)
			}
			reply{Body: w.entry(t, "delivery")}.check(t, 0, tc.want)
		})
	}
}

// entry returns the one line with this message, or nil.
func (w *process) entry(t *testing.T, message string) (found map[string]any) {
	t.Helper()
	for line := range bytes.Lines(w.log.Bytes()) {
		var entry map[string]any
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == message {
			if found != nil {
				t.Errorf("%q is logged twice", message)
			}
			found = entry
		}
	}
	return found
}

// The log line of the delivery does not contain these failures.
func TestAFollowUpAReleaseAndAResultThatFailAreLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var w *process
		w = startOn(t, b, refusing{}, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "full" {
				return strings.Repeat("y", 600_000), nil
			}
			w.unavailable.Store(true)
			return nil, errors.New("flaky")
		})
		held(t, b, "held", time.Hour)
		b.Put(t, "full", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 600_000)})
		b.Put(t, "unavailable", map[string]any{"status": "QUEUED"})
		for _, tc := range []struct {
			id, message string
			error       any
		}{
			{"held", "could not enqueue a delivery", "no"},
			{"full", "Firestore refused the result", nil},
			{"unavailable", "lock not released", "*"},
		} {
			w.line(t, deliveryRoute, tc.id, nil)
			reply{Body: w.entry(t, tc.message)}.check(t, 0, map[string]any{"level": "WARN", "analysis_id": tc.id, "error": tc.error})
		}
	})
}

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
		if span.Status().Code == otelcodes.Error {
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

func (l lateAcquisition) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration, o analysislock.AcquireOptions) (analysislock.Acquisition, error) {
	time.Sleep(l.by)
	return l.Locks.AcquireAnalysisLock(ctx, id, owner, ttl, o)
}

func TestARecoveryReportsTheAgeOfTheOldestUnfinishedAnalysis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q := StartQueue(t)
		w := startOn(t, b, q.Queue, succeed)
		w.handle(&delivery.Runner{Names: delivery.TaskNames{Kind: "empty", Path: "/empty"}, Orphans: overdue(0), Queue: q, Oldest: func(context.Context) (d analysislock.Analysis, found bool, err error) {
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
		w.runner.Oldest = func(context.Context) (d analysislock.Analysis, found bool, err error) {
			return d, false, lease.ErrRefused // the index is missing
		}
		held(t, b, "orphan", -time.Hour)
		w.line(t, "/internal/tasks/recover", "", map[string]any{"level": "INFO", "outcome": "recovered", "booked": 1.0, "oldest_ms": nil})
		if log := w.log.String(); !strings.Contains(log, `"level":"WARN","msg":"the age of the oldest unfinished analysis is unknown"`) {
			t.Errorf("no warning: %s", log)
		}
	})
}

// line delivers id and compares its line's fields as answer.check does.
func (w *process) line(t *testing.T, path, id string, want map[string]any, headers ...string) (seen map[string]any) {
	t.Helper()
	w.log.Reset()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"analysis_id":"`+id+`"}`))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w.send(t, r)
	for l := range strings.Lines(w.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(l), &entry); err != nil {
			t.Fatal(err)
		}
		switch entry["msg"] {
		case "delivery", "rejected", "recovery":
			if seen != nil {
				t.Errorf("%s %s: several lines", path, id)
			}
			seen = entry
		}
	}
	reply{Body: seen}.check(t, 0, want)
	return seen
}

const deliveryRoute = "/internal/tasks/analysis"

// The lines have all fields of LogFields, and no other.
func TestEachStepOfADeliveryIsALineWithItsFieldsASpanAndAFigure(t *testing.T) {
	type line = map[string]any
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q, seen := StartQueue(t), map[string]any{}
		var w *process
		w = startOn(t, b, q.Queue, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
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
				failure := &orchestrator.FailureError{Reason: "exit status 1", Message: "s3cret"}
				return nil, &orchestrator.RetryAfterError{Wait: time.Minute, Err: failure}
			case "invalid":
				return nil, &orchestrator.PermanentError{Code: "invalid_input", Message: "s3cret"}
			case "cancelled":
				if _, err := start(t, b, nil).runner.Locks.(*repo.Analyses).Cancel(ctx, "cancelled", "ops", nil); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
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
		w.runner.RunTimeout = 6 * time.Minute
		w.runner.Locks = lateAcquisition{w.runner.Locks, 100 * time.Millisecond}
		for _, id := range []string{"long", "deleted", "taken", "flaky", "invalid", "cancelled", "resumable", "unreachable"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
		}
		b.Merge(t, "long", map[string]any{"createdAt": time.Now()})
		b.Put(t, "old", map[string]any{"status": "QUEUED", "createdAt": time.Now().Add(-time.Hour), "updatedAt": time.Now().Add(24 * time.Hour)})
		b.Put(t, "worn", map[string]any{"status": "QUEUED", "attempts": 3, "lockToken": 7})
		held(t, b, "stale", -time.Second)
		expires := held(t, b, "held", 2*time.Hour)
		held(t, b, "long-held", 2*time.Hour)
		b.Merge(t, "long-held", map[string]any{"lockOwner": strings.Repeat("é", 10_000)})

		const heartbeats = "heartbeat renewed, heartbeat renewed, heartbeat renewed, "
		for _, tc := range []struct {
			id, spans string
			want      line
		}{
			{"long", "acquire acquired, " + heartbeats + "run, finish, delivery long 1 1 ready", line{
				"level": "INFO", "outcome": "ready", "status": 200.0, "duration_ms": 350_100.0, "analysis_id": "long", "lock_token": 1.0, "attempt": 1.0, "stolen": nil,
				"acquire_ms": 100.0, "run_ms": 350_000.0, "heartbeats": 3.0, "lost": nil, "follow_up": nil, "retry_at": nil, "lock_owner": "*",
				"task": "a-task", "task_retry": 2.0, "time_to_start_ms": 100.0, "time_to_ready_ms": 350_100.0,
			}},
			{"long", "acquire already_finished, delivery long already_finished", line{
				"level": "INFO", "outcome": "already_finished", "acquire_ms": 100.0, "run_ms": nil, "heartbeats": nil, "attempt": nil, "lock_owner": nil,
			}},
			{"stale", "acquire acquired, " + heartbeats + "run, finish, delivery stale 2 2 ready", line{"outcome": "ready", "stolen": true, "attempt": 2.0}},
			{"worn", "acquire attempts_exhausted, delivery worn 3 8 failed", line{
				"level": "WARN", "outcome": "failed", "code": "attempts_exhausted", "attempt": 3.0, "lock_token": 8.0, "lock_owner": "*", "run_ms": nil, "held_by": nil,
			}},
			{"held", "acquire locked, follow_up booked, delivery held locked", line{
				"level": "INFO", "outcome": "locked", "status": 200.0, "follow_up": "booked", "retry_at": expires, "asked_ms": nil, "held_by": "them", "attempt": nil, "lock_owner": nil,
			}},
			{"held", "acquire locked, follow_up already, delivery held locked", line{"outcome": "locked", "follow_up": "booked"}},
			{"long-held", "acquire locked, follow_up failed!, delivery long-held locked", line{
				"level": "INFO", "outcome": "locked", "status": 409.0, "follow_up": "failed", "held_by": strings.Repeat("é", 2048),
			}},
			{"deleted", "acquire acquired, run, finish!, delivery deleted 1 1 lock_lost", line{"level": "WARN", "outcome": "lock_lost", "lost": "deleted", "error": "*"}},
			{"taken", "acquire acquired, heartbeat lost!, run!, follow_up booked, delivery taken 1 1 lock_lost", line{"lost": "taken", "heartbeats": 0.0}},
			{"flaky", "acquire acquired, run!, release, follow_up booked, delivery flaky 1 1 retry", line{
				"level": "WARN", "outcome": "retry", "code": "analyzer_failed", "reason": "exit status 1", "error": nil, "asked_ms": 60_000.0,
			}},
			{"invalid", "acquire acquired, run!, finish, delivery invalid 1 1 failed", line{"outcome": "failed", "code": "invalid_input"}},
			{"cancelled", "acquire acquired, heartbeat lost!, run!, delivery cancelled 1 1 lock_lost", line{"outcome": "lock_lost", "lost": "cancelled"}},
			{"resumable", "acquire acquired, " + heartbeats + heartbeats + "run!, release, follow_up booked, delivery resumable 1 1 continued", line{
				"level": "INFO", "outcome": "continued", "status": 200.0, "attempt": 1.0, "heartbeats": 6.0, "checkpoints": 3.0, "follow_up": "booked",
			}},
			{"none", "acquire error!, delivery none not_found", line{"outcome": "not_found"}},
			{"unreachable", "acquire acquired, heartbeat failed!, run!, release!, follow_up booked, delivery unreachable 1 1 lock_lost", line{"lost": "out_of_time"}},
			{"held", "acquire error!, delivery held unavailable!", line{"outcome": "unavailable"}},
		} {
			headers := []string{}
			if tc.want["task"] != nil {
				headers = []string{"X-CloudTasks-TaskName: a-task", "X-CloudTasks-TaskRetryCount: 2"}
			}
			q.Fail(map[bool]codes.Code{true: codes.Unavailable}[tc.id == "long-held"])
			maps.Copy(seen, w.line(t, deliveryRoute, tc.id, tc.want, headers...))
			if got := w.trace(); got != tc.spans || strings.Contains(w.log.String(), "s3cret") {
				t.Errorf("%s: spans %q, want %q; log %s", tc.id, got, tc.spans, w.log)
			}
		}
		w.line(t, "/internal/tasks/recover", "", line{"level": "WARN", "outcome": "unavailable"})
		w.unavailable.Store(false)
		maps.Copy(seen, w.line(t, "/internal/tasks/recover", "", line{
			"level": "INFO", "outcome": "recovered", "found": 2.0, "booked": 1.0, "waiting": 1.0, "stuck": 1.0, "oldest_ms": "*", "acquire_ms": nil,
		}))
		if got, want := w.trace(), "recovery unavailable!, recovery recovered"; got != want {
			t.Errorf("spans %q, want %q", got, want)
		}
		w.line(t, deliveryRoute, "long", line{"task": nil, "task_retry": nil}, "X-CloudTasks-TaskName: a\nb c", "X-CloudTasks-TaskRetryCount: -1")
		job := *w.runner
		job.Names = delivery.TaskNames{Kind: "job", IDField: "analysis_id", Path: "/jobs"}
		w.handle(&job, w.analyze)
		maps.Copy(seen, w.line(t, "/jobs", "long", line{"kind": "job", "outcome": "already_finished"}))

		for metric, want := range map[string]string{
			"taskguard.deliveries":              "200 already_finished :3 200 continued :1 200 failed :2 200 lock_lost :4 200 locked :2 200 ready :2 200 retry :1 404 not_found :1 409 locked :1 503 unavailable :1",
			"taskguard.run.duration":            "continued :360 failed :0 lock_lost :470 ready :700 retry :0",
			"taskguard.run.attempt":             ":10",
			"taskguard.lock.acquire.duration":   "acquired :0.9 already_finished :0.3 attempts_exhausted :0.1 error :15.2 locked :0.3",
			"taskguard.lock.heartbeat.duration": "failed :170 lost :0 renewed :0",
			"taskguard.lock.steals":             ":1",
			"taskguard.lock.losses":             "cancelled :1 deleted :1 out_of_time :1 taken :1",
			"taskguard.run.timeouts":            "continued :1",
			"taskguard.checkpoint.size":         ":24",
			"taskguard.followups":               "already :1 booked :5 failed :1",
			"taskguard.stuck":                   ":1",
			"taskguard.recoveries":              ":1",
		} {
			w.checkCounts(t, metric, want)
		}
		for _, always := range []string{"time", "level", "msg"} {
			delete(seen, always)
		}
		var named []string
		for _, f := range delivery.LogFields() {
			named = append(named, f.Name)
		}
		if all := slices.Sorted(maps.Keys(seen)); !slices.Equal(all, slices.Sorted(slices.Values(named))) {
			t.Errorf("fields %v, want LogFields %v", all, named)
		}
	})
}

func TestTimeToStartIsOfTheFirstAcquisitionAndTimeToReadyOfTheLast(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		failures := 1
		w := startOn(t, b, &recordingQueue{}, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			time.Sleep(10 * time.Second)
			if failures--; failures >= 0 {
				return nil, errors.New("not yet")
			}
			return "done", nil
		})
		now := time.Now()
		b.Put(t, "text", map[string]any{"status": "QUEUED", "createdAt": iso8601.Format(now), "lockToken": 7}) // as with Keep
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
		if _, err := w.runner.Orphans.(*repo.Analyses).Requeue(t.Context(), "stamp", "", nil, false, ""); err != nil {
			t.Fatal(err)
		}
		w.line(t, deliveryRoute, "stamp", map[string]any{"outcome": "ready", "attempt": 1.0, "time_to_start_ms": nil, "time_to_ready_ms": 170_000.0})
		for metric, want := range map[string]string{"taskguard.analysis.start.duration": ":220", "taskguard.analysis.ready.duration": ":440"} {
			w.checkCounts(t, metric, want)
		}
	})
}
