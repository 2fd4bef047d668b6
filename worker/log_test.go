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
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
	"taskguard/repo"
)

const deliveryRoute = "/internal/tasks/analysis"

// entry returns the one line with one of these messages, or nil.
func (w *process) entry(t *testing.T, messages ...string) (found map[string]any) {
	t.Helper()
	for line := range bytes.Lines(w.log.Bytes()) {
		var entry map[string]any
		must.OK(t, json.Unmarshal(line, &entry))
		if message, _ := entry["msg"].(string); slices.Contains(messages, message) {
			if found != nil {
				t.Errorf("%q is logged twice", message)
			}
			found = entry
		}
	}
	return found
}

// line delivers id and compares its line's fields as answer.check does.
func (w *process) line(t *testing.T, path, id string, want map[string]any, headers ...string) (seen map[string]any) {
	t.Helper()
	w.log.Reset()
	body := strings.NewReader(`{"analysis_id":"` + id + `"}`)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w.send(t, r)
	seen = w.entry(t, "delivery", "rejected", "recovery")
	reply{Body: seen}.check(t, 0, want)
	return seen
}

// logged returns fields of a line from a text such as "status=200, code=, error=*": 200, none and any.
func logged(text string) map[string]any {
	all := map[string]any{}
	for field := range strings.SplitSeq(text, ", ") {
		name, value, _ := strings.Cut(field, "=")
		var v any
		if json.Unmarshal([]byte(value), &v) != nil && value != "" {
			v = value
		}
		all[name] = v
	}
	return all
}

// trace returns the spans that have ended since the last call, with the values of their
// attributes. An error has a "!".
func (g gauges) trace() string {
	var spans []string
	for _, span := range g.spans.Ended() {
		s := span.Name()
		attributes := slices.SortedFunc(slices.Values(span.Attributes()), func(a, b attribute.KeyValue) int {
			return cmp.Compare(a.Key, b.Key)
		})
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

// The line has the reason, and no text of the input or of the analyzer.
func TestLog_Secrets(t *testing.T) {
	const secret = "s3cret"
	check := func(name string, attempts int, analyze orchestrator.AnalyzerFunc, want string, also ...string) {
		t.Helper()
		Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": secret, "attempts": attempts})
			w := start(t, b, analyze)
			w.runner.RunTimeout = 10 * time.Second
			w.deliver(t, "x")
			var got []string
			for _, field := range []string{"level", "outcome", "code", "reason"} {
				if value, ok := w.entry(t, "delivery")[field].(string); ok {
					got = append(got, value)
				}
			}
			if got := strings.Join(got, " | "); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			for _, message := range also {
				reply{Body: w.entry(t, message)}.check(t, 0, logged("analysis_id=x"))
			}
			if log := w.log.String(); strings.Contains(log, secret) {
				t.Errorf("the log has the input, or the analyzer's text: %s", log)
			}
		})
	}

	const returned = "the analyzer returned a *"
	quota := &orchestrator.FailureError{Code: "no_quota", Reason: "exit status 1", Message: secret}
	check("a failure", 0, failing(quota), "WARN | retry | no_quota | exit status 1")
	check("the last failure", 2, failing(quota), "WARN | failed | attempts_exhausted | exit status 1")
	check("a failure of no type", 0, failing(errors.New(secret)),
		"WARN | retry | analyzer_failed | "+returned+"errors.errorString")
	check("a failure without a reason", 0, failing(&orchestrator.FailureError{Code: "\xff", Message: secret}),
		"WARN | retry | analyzer_failed | "+returned+"orchestrator.FailureError")
	long := strings.Repeat("e", 100) // a code has 64 bytes
	for code, short := range map[string]string{
		"invalid_input": "invalid_input", "": "analyzer_rejected", "no\xff_page" + long: "no_page" + long[:56],
	} {
		rejected := &orchestrator.PermanentError{Code: code, Message: secret}
		check("a permanent error: "+short, 0, failing(rejected), "WARN | failed | "+short)
	}
	check("after the deadline", 0, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
		<-ctx.Done()
		return nil, &orchestrator.FailureError{Reason: "the model is away", Message: secret, Err: ctx.Err()}
	}, "WARN | retry | run_timeout | the model is away")
	check("a panic", 0, doing(func() { panic(secret) }),
		"WARN | retry | analyzer_panicked | "+returned+"orchestrator.PanicError", "the analyzer panicked")
	check("doubtful output", 0, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		job.Reporter.(orchestrator.Warner).Warn("like JSON") //nolint:forcetypeassert // the worker's is
		return secret, nil
	}, "INFO | ready", "the analyzer's output is doubtful")

	Subtest(t, "a request that has no delivery", func(t *testing.T) {
		for _, body := range []string{secret, `{"analysis_id":"` + secret + `/"}`} {
			w := start(t, emulatortest.Embedded(t), succeed)
			w.post(t, body)
			if log := w.log.String(); strings.Contains(log, secret) {
				t.Errorf("the log has the body: %s", log)
			}
			reply{Body: w.entry(t, "delivery")}.check(t, 0, logged("level=WARN, outcome=bad_request"))
		}
	})
}

// The log line of the delivery does not contain these failures.
func TestLog_Warnings(t *testing.T) {
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
		check := func(id, message, fields string) {
			t.Helper()
			w.line(t, deliveryRoute, id, nil)
			reply{Body: w.entry(t, message)}.check(t, 0, logged("level=WARN, analysis_id="+id+", "+fields))
		}
		check("held", "could not enqueue a delivery", "error=no")
		check("full", "Firestore refused the result", "error=")
		check("unavailable", "lock not released", "error=*")
	})
}

// lateAcquisition is Locks whose acquisitions take some time.
type lateAcquisition struct {
	delivery.Locks
	by time.Duration
}

func (l lateAcquisition) AcquireAnalysisLock(
	ctx context.Context, id, owner string, ttl time.Duration, o analysislock.AcquireOptions,
) (analysislock.Acquisition, error) {
	time.Sleep(l.by)
	return l.Locks.AcquireAnalysisLock(ctx, id, owner, ttl, o)
}

// startSteps starts a worker, in whose runs happens what the id of the analysis says.
// expires is when the lock of held ends.
func startSteps(t *testing.T, b *emulatortest.Backend, q delivery.Queue) (w *process, expires string) {
	t.Helper()
	w = startOn(t, b, q, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
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
	for _, id := range []string{"long", "deleted", "taken", "flaky", "resumable", "unreachable"} {
		b.Put(t, id, map[string]any{"status": "QUEUED", "createdAt": time.Now()})
	}
	b.Put(t, "worn", map[string]any{"status": "QUEUED", "attempts": 3, "lockToken": 7})
	held(t, b, "stale", -time.Second)
	expires = held(t, b, "held", 2*time.Hour)
	held(t, b, "long-held", 2*time.Hour)
	b.Merge(t, "long-held", map[string]any{"lockOwner": strings.Repeat("é", 10_000)})
	return w, expires
}

// Each step of a delivery is a line with its fields, a span and a figure. The lines have all fields of LogFields,
// and no other.
func TestLog_Steps(t *testing.T) {
	const (
		beats    = "heartbeat renewed, heartbeat renewed, heartbeat renewed, "
		recovery = "/internal/tasks/recover"
	)
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		q, seen := StartQueue(t), map[string]any{}
		w, expires := startSteps(t, b, q.Queue)
		check := func(id, spans, line string, headers ...string) {
			t.Helper()
			maps.Copy(seen, w.line(t, deliveryRoute, id, logged(line), headers...))
			if got := w.trace(); got != spans {
				t.Errorf("%s: spans %q, want %q", id, got, spans)
			}
			if strings.Contains(w.log.String(), "s3cret") {
				t.Errorf("%s: log %s", id, w.log)
			}
		}
		check("long", "acquire acquired, "+beats+"run, finish, delivery long 1 1 ready",
			"level=INFO, outcome=ready, status=200, duration_ms=350100, analysis_id=long, lock_token=1, attempt=1, "+
				"stolen=, acquire_ms=100, run_ms=350000, heartbeats=3, lost=, follow_up=, retry_at=, lock_owner=*, "+
				"task=a-task, task_retry=2, time_to_start_ms=100, time_to_ready_ms=350100",
			"X-CloudTasks-TaskName: a-task", "X-CloudTasks-TaskRetryCount: 2")
		check("long", "acquire already_finished, delivery long already_finished",
			"outcome=already_finished, acquire_ms=100, run_ms=, heartbeats=, attempt=, lock_owner=, task=, task_retry=",
			"X-CloudTasks-TaskName: a\nb c", "X-CloudTasks-TaskRetryCount: -1")
		check("stale", "acquire acquired, "+beats+"run, finish, delivery stale 2 2 ready",
			"outcome=ready, stolen=true, attempt=2")
		check("worn", "acquire attempts_exhausted, delivery worn 3 8 failed",
			"level=WARN, outcome=failed, code=attempts_exhausted, attempt=3, lock_token=8, lock_owner=*, run_ms=")
		check("held", "acquire locked, follow_up booked, delivery held locked",
			"level=INFO, outcome=locked, status=200, follow_up=booked, retry_at="+expires+", held_by=them, attempt=")
		check("held", "acquire locked, follow_up already, delivery held locked", "outcome=locked, follow_up=booked")
		q.Fail(codes.Unavailable)
		check("long-held", "acquire locked, follow_up failed!, delivery long-held locked",
			"level=INFO, outcome=locked, status=409, follow_up=failed, held_by="+strings.Repeat("é", 2048))
		q.Fail(codes.OK)
		check("deleted", "acquire acquired, run, finish!, delivery deleted 1 1 lock_lost",
			"level=WARN, outcome=lock_lost, lost=deleted, error=*")
		check("taken", "acquire acquired, heartbeat lost!, run!, follow_up booked, delivery taken 1 1 lock_lost",
			"lost=taken, heartbeats=0")
		check("flaky", "acquire acquired, run!, release, follow_up booked, delivery flaky 1 1 retry",
			"level=WARN, outcome=retry, code=analyzer_failed, reason=exit status 1, error=, asked_ms=60000")
		check("resumable",
			"acquire acquired, "+beats+beats+"run!, release, follow_up booked, delivery resumable 1 1 continued",
			"level=INFO, outcome=continued, status=200, attempt=1, heartbeats=6, checkpoints=3, follow_up=booked")
		check("unreachable",
			"acquire acquired, heartbeat failed!, run!, release!, follow_up booked, delivery unreachable 1 1 lock_lost",
			"lost=out_of_time")
		check("held", "acquire error!, delivery held unavailable!", "outcome=unavailable")

		w.line(t, recovery, "", logged("level=WARN, outcome=unavailable"))
		w.unavailable.Store(false)
		line := "level=INFO, outcome=recovered, found=2, booked=1, waiting=1, stuck=1, oldest_ms=*, acquire_ms="
		maps.Copy(seen, w.line(t, recovery, "", logged(line)))
		if got, want := w.trace(), "recovery unavailable!, recovery recovered"; got != want {
			t.Errorf("spans %q, want %q", got, want)
		}
		job := *w.runner
		job.Names = delivery.TaskNames{Kind: "job", IDField: "analysis_id", Path: "/jobs"}
		w.handle(&job, w.analyze)
		maps.Copy(seen, w.line(t, "/jobs", "long", logged("kind=job, outcome=already_finished")))

		for metric, want := range map[string]string{
			"deliveries":              "200 already_finished :2 200 continued :1 200 failed :1 200 lock_lost :3 200 locked :2 200 ready :2 200 retry :1 409 locked :1 503 unavailable :1",
			"run.duration":            "continued :360 lock_lost :370 ready :700 retry :0",
			"run.attempt":             ":8",
			"lock.acquire.duration":   "acquired :0.7 already_finished :0.2 attempts_exhausted :0.1 error :15.1 locked :0.3",
			"lock.heartbeat.duration": "failed :170 lost :0 renewed :0",
			"lock.steals":             ":1",
			"lock.losses":             "deleted :1 out_of_time :1 taken :1",
			"run.timeouts":            "continued :1",
			"checkpoint.size":         ":24",
			"followups":               "already :1 booked :5 failed :1",
			"stuck":                   ":1",
			"recoveries":              ":1",
		} {
			w.checkCounts(t, "taskguard."+metric, want)
		}
		for _, always := range []string{"time", "level", "msg"} {
			delete(seen, always)
		}
		var named []string
		for _, f := range delivery.LogFields() {
			named = append(named, f.Name)
		}
		slices.Sort(named)
		if all := slices.Sorted(maps.Keys(seen)); !slices.Equal(all, named) {
			t.Errorf("fields %v, want LogFields %v", all, named)
		}
	})
}

// A recovery reports the age of the oldest unfinished analysis.
func TestLog_Oldest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := startOn(t, b, StartQueue(t).Queue, succeed)
		check := func(age any, gauge string) {
			t.Helper()
			line := map[string]any{"level": "INFO", "outcome": "recovered", "oldest_ms": age}
			w.line(t, "/internal/tasks/recover", "", line)
			w.checkCounts(t, "taskguard.oldest.age", gauge)
		}
		b.Put(t, "undated", map[string]any{"status": "QUEUED"})
		check(nil, ":0")
		b.Put(t, "x", map[string]any{"status": "PROCESSING", "createdAt": time.Now().Add(-time.Hour)})
		check(3_600_000.0, ":3600")
		time.Sleep(time.Minute)
		b.Put(t, "y", map[string]any{"status": "QUEUED", "createdAt": time.Now()})
		check(3_660_000.0, ":3660")

		w.runner.Oldest = func(context.Context) (d analysislock.Analysis, found bool, err error) {
			return d, false, lease.ErrRefused // the index is missing
		}
		held(t, b, "orphan", -time.Hour)
		w.line(t, "/internal/tasks/recover", "", logged("outcome=recovered, booked=1, oldest_ms="))
		unknown := reply{Body: w.entry(t, "the age of the oldest unfinished analysis is unknown")}
		unknown.check(t, 0, logged("level=WARN"))
	})
}

// The time to the start is that of the first acquisition, and the time to READY that of the last.
func TestLog_Times(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		failures := 1
		w := startOn(t, b, &recordingQueue{}, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			time.Sleep(10 * time.Second)
			if failures--; failures >= 0 {
				return nil, errors.New("not yet")
			}
			return "done", nil
		})
		check := func(id string, attempt, toStart, toReady any) {
			t.Helper()
			w.line(t, deliveryRoute, id, map[string]any{
				"attempt": attempt, "time_to_start_ms": toStart, "time_to_ready_ms": toReady,
			})
		}
		now := time.Now()
		b.Put(t, "text", map[string]any{"status": "QUEUED", "createdAt": iso8601.Format(now), "lockToken": 7})
		b.Put(t, "stamp", map[string]any{"status": "QUEUED", "createdAt": now})
		b.Put(t, "ahead", map[string]any{"status": "QUEUED", "createdAt": now.Add(time.Hour)})
		b.Put(t, "undated", map[string]any{"status": "QUEUED"})
		time.Sleep(90 * time.Second)
		check("text", 1.0, 90_000.0, nil)
		time.Sleep(20 * time.Second)
		check("text", 2.0, nil, 130_000.0)
		check("stamp", 1.0, 130_000.0, 140_000.0)
		check("ahead", 1.0, 0.0, 0.0)
		check("undated", 1.0, nil, nil)
		if _, err := w.runner.Orphans.(*repo.Analyses).Requeue(t.Context(), "stamp", "", nil, false, ""); err != nil {
			t.Fatal(err)
		}
		check("stamp", 1.0, nil, 170_000.0)
		w.checkCounts(t, "taskguard.analysis.start.duration", ":220")
		w.checkCounts(t, "taskguard.analysis.ready.duration", ":440")
	})
}
