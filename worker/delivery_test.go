package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// checkDocument compares fields of the document x with a text as logged reads it, such as "attempts=1, error.code=c".
func checkDocument(t *testing.T, b *emulatortest.Backend, want string) {
	t.Helper()
	document := b.Fields(t, "x")
	for name, value := range b.Fields(t, "x") {
		if number, ok := value.(int64); ok {
			document[name] = float64(number)
		}
		if nested, ok := value.(map[string]any); ok {
			for field := range nested {
				document[name+"."+field] = nested[field]
			}
		}
	}
	reply{Body: document}.check(t, 0, logged(want))
}

// Every row of the contract's table.
func TestDelivery(t *testing.T) {
	never := doing(func() { t.Error("it ran") })
	for name, tc := range map[string]struct {
		before        map[string]any
		analyze       orchestrator.AnalyzerFunc
		code          int
		answer, after string
	}{
		"it ran to the end": {
			before: map[string]any{"input": map[string]any{"n": 1}, "lockToken": 4, "bookedTask": "own"},
			analyze: func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				got := fmt.Sprint(job.AnalysisID, job.LockToken, job.Attempt, string(job.Input))
				if want := fmt.Sprint("x", 5, 1, `{"n":1}`); got != want {
					t.Errorf("job = %+v", job)
				}
				return map[string]int{"sum": 3}, nil
			},
			code: 200, answer: "analysis_id=x, acquired=true, status=READY, lock_token=5, reason=",
			after: "status=READY, finishedBy=*, lockOwner=, lockExpiresAt=, lockHeartbeatAt=, lockToken=5, bookedTask=",
		},
		"it failed for good": {
			analyze: failing(&orchestrator.PermanentError{Code: "invalid_input", Message: "no text"}),
			code:    200, answer: "acquired=true, status=FAILED, error=no text, lock_token=, reason=",
			after: "status=FAILED, finishedBy=*, lockOwner=, error.code=invalid_input, error.message=no text",
		},
		"the last attempt's failure is for good": {
			before:  map[string]any{"attempts": 2},
			analyze: failing(&orchestrator.FailureError{Code: "no_quota", Reason: "flaky"}),
			code:    200, answer: "acquired=true, status=FAILED, error=*",
			after: "error.code=attempts_exhausted, lastError.code=no_quota",
		},
		"one attempt too many is failed without running": {
			before:  map[string]any{"attempts": 3, "lockToken": 3, "lastError": map[string]any{"code": "no_quota"}},
			analyze: never,
			code:    200, answer: "acquired=true, status=FAILED, error=*",
			after: "status=FAILED, lockToken=4, finishedBy=*, lastError.code=no_quota",
		},
		"it is READY already": {
			before: map[string]any{"status": "READY"}, analyze: never, code: 200,
			answer: "acquired=false, reason=already_finished, status=READY", after: "status=READY, lockToken=",
		},
		"it is FAILED already": {
			before: map[string]any{"status": "FAILED"}, analyze: never, code: 200,
			answer: "acquired=false, reason=already_finished, status=FAILED", after: "status=FAILED, lockToken=",
		},
		"its token is malformed": {
			before: map[string]any{"lockToken": "five"}, analyze: never,
			code: 500, answer: "acquired=false, reason=malformed, error=*", after: "lockToken=five",
		},
		"only the transport refuses its result": {
			before: map[string]any{"input": strings.Repeat("x", 600_000)},
			analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				return strings.Repeat("y", 600_000), nil
			},
			code: 200, answer: "status=FAILED, error=*", after: "status=FAILED, result=, lockOwner=",
		},
	} {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
				b.Put(t, "x", map[string]any{"status": "QUEUED"})
				b.Merge(t, "x", tc.before)
				start(t, b, tc.analyze).deliver(t, "x").check(t, tc.code, logged(tc.answer))
				checkDocument(t, b, tc.after)
			})
		})
	}

	each := func(name string, test func(t *testing.T, b *emulatortest.Backend)) {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
				b.Put(t, "x", map[string]any{"status": "QUEUED"})
				test(t, b)
			})
		})
	}
	each("another holds it", func(t *testing.T, b *emulatortest.Backend) {
		expires := iso8601.Format(time.Now().Add(12 * time.Hour))
		b.Put(t, "x", map[string]any{"lockOwner": "them", "lockExpiresAt": expires})
		answer := start(t, b, never).deliver(t, "x")
		answer.check(t, 409, logged("acquired=false, reason=locked, retry_at="+expires))
		if answer.RetryAfter != "600" { // bounded: the lock may be freed long before
			t.Errorf("Retry-After %s", answer.RetryAfter)
		}
	})
	each("the document has no space for a lock", func(t *testing.T, b *emulatortest.Backend) {
		full(t, b, "x", 0, nil, 0)
		start(t, b, never).deliver(t, "x").check(t, 500, logged("acquired=false, reason=malformed, error=*"))
	})
	each("its token is corrupted during the run", func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, doing(func() { b.Merge(t, "x", map[string]any{"lockToken": "?"}) }))
		w.deliver(t, "x").check(t, 500, logged("acquired=true, reason=malformed, error=*"))
		checkDocument(t, b, "status=PROCESSING, result=")
	})
	each("not even its error fits", func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			b.Merge(t, "x", map[string]any{"theirs": strings.Repeat("x", 1<<20-1500)})
			return nil, &orchestrator.PermanentError{Code: "c", Message: strings.Repeat("y", 4000)}
		})
		w.deliver(t, "x").check(t, 500, logged("reason=retry"))
		reply{Body: w.entry(t, "delivery")}.check(t, 0, logged("code=unrecordable"))
		checkDocument(t, b, "status=QUEUED, lockOwner=, attempts=1, lockToken=1, error=, finishedBy=")
	})
	each("a verdict during a stop is recorded", func(t *testing.T, b *emulatortest.Backend) {
		var w *process
		w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			w.stop(delivery.ErrStopping)
			<-ctx.Done()
			return nil, &orchestrator.PermanentError{Code: "invalid_input", Message: strings.Repeat("é", 4000)}
		})
		w.deliver(t, "x").check(t, 200, logged("acquired=true, status=FAILED, error="+strings.Repeat("é", 2048)))
		checkDocument(t, b, "status=FAILED, lockOwner=, attempts=1")
	})
	each("it is stopped after its deadline", func(t *testing.T, b *emulatortest.Backend) {
		var w *process
		w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			<-ctx.Done()
			w.stop(delivery.ErrStopping)
			return nil, ctx.Err()
		})
		w.runner.RunTimeout = ttl(b) / 2
		w.deliver(t, "x").check(t, 500, logged("acquired=true, reason=retry"))
		checkDocument(t, b, "status=QUEUED, lockOwner=, attempts=1")
	})
}

// timesIn returns the times in the fields of a document.
func timesIn(v any) (all []time.Time) {
	switch v := v.(type) {
	case map[string]any:
		for _, field := range v {
			all = append(all, timesIn(field)...)
		}
	case []any:
		for _, element := range v {
			all = append(all, timesIn(element)...)
		}
	case string:
		if at, ok := iso8601.Parse(v); ok {
			all = append(all, at)
		}
	}
	return all
}

// Firestore's clock is an hour ahead of the worker's. All times that a run writes are of Firestore's clock.
func TestDelivery_Clock(t *testing.T) {
	fails := func(err error) body { return func(context.Context, *process, Job) (any, error) { return nil, err } }
	for name, c := range map[string]struct {
		attempts, times int  // before, and at least so many are written
		run             body // nil: it sets the status
	}{
		"it ends":           {0, 5, fails(nil)},
		"it fails for good": {0, 5, fails(&orchestrator.PermanentError{Code: "c"})},
		"it fails for now":  {0, 6, fails(errors.New("flaky"))},
		"it fails at last":  {2, 5, fails(errors.New("flaky"))},
		"its status is set": {0, 5, nil},
		"the process stopped": {0, 6, func(ctx context.Context, w *process, _ Job) (any, error) {
			w.stop(delivery.ErrStopping)
			return until(ctx, nothing)
		}},
	} {
		Subtest(t, name, func(t *testing.T) {
			b := clocked(t, time.Hour)
			ahead := func() time.Time { return time.Now().Add(time.Hour) }
			b.Put(t, "x", map[string]any{
				"status": "QUEUED", "attempts": c.attempts, "createdAt": iso8601.Format(ahead().Add(-time.Minute)),
			})
			queued := func(w *process) { w.runner.Queue = &recordingQueue{} }
			w, _ := deliverX(t, b, queued, func(ctx context.Context, w *process, job Job) (any, error) {
				job.Report(0.5, "half")
				if _, err := Once(ctx, job, "act", func(context.Context) (int, error) { return 1, nil }); err != nil {
					t.Error(err)
				}
				if c.run == nil {
					b.Merge(t, "x", map[string]any{"status": "READY"})
					return nil, nil
				}
				return c.run(ctx, w, job)
			})
			written := timesIn(b.Fields(t, "x"))
			for _, at := range written {
				if off := at.Sub(ahead()); off < -2*time.Minute || off > time.Minute {
					t.Errorf("%v is %v off: %v", at, off, b.Fields(t, "x"))
				}
			}
			if len(written) < c.times {
				t.Errorf("%d times, want %d or more: %v", len(written), c.times, b.Fields(t, "x"))
			}
			if age, ok := w.entry(t, "delivery")["time_to_ready_ms"].(float64); ok && age < 60_000 {
				t.Errorf("READY after %v ms, want a minute", age)
			}
		})
	}
}

func TestDelivery_Unavailable(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, succeed)
		w.unavailable.Store(true)
		began := time.Now()
		w.deliver(t, "x").check(t, 503, logged("acquired=false, reason=unavailable"))
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it gave up after %v, want at most 20 s", took)
		}
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
		w.unavailable.Store(false)
		w = start(t, b, doing(func() { w.unavailable.Store(true) }))
		w.deliver(t, "x").check(t, 503, logged("acquired=true, reason=unavailable"))
		checkDocument(t, b, "status=PROCESSING, result=")
	})
}

// memory is a store in memory. A write that frees a lock takes the time release.
type memory struct {
	lease.Memory[analysislock.Analysis]
	release time.Duration
}

func (m *memory) Swap(ctx context.Context, key string, prev cell, next analysislock.Analysis) (cell, error) {
	if next.Lock.Owner == "" {
		select {
		case <-ctx.Done():
			return cell{}, ctx.Err()
		case <-time.After(m.release):
		}
	}
	return m.Memory.Swap(ctx, key, prev, next)
}

type (
	cell        = lease.Cell[analysislock.Analysis]
	inputReader = func(context.Context, cell) (analysislock.Work, error)
)

// locks returns the locks of m, whose only analysis is x, QUEUED.
func (m *memory) locks(t testing.TB, input inputReader) *analysislock.Locks {
	t.Helper()
	m.Put("x", analysislock.Analysis{ID: "x", Status: analysislock.Queued})
	return must.Get(analysislock.New(m, lease.Policy{}, 0, input))(t)
}

func TestDelivery_InputUnavailable(t *testing.T) {
	var m memory
	w := start(t, emulatortest.Embedded(t), succeed)
	w.runner.Locks = m.locks(t, func(context.Context, cell) (analysislock.Work, error) {
		return analysislock.Work{}, errors.New("the input is out of reach")
	})
	w.deliver(t, "x").check(t, 503, logged("acquired=true, reason=unavailable"))
	c, err := m.Load(t.Context(), "x", lease.OnlyLease)
	if err != nil || c.Doc.LastError == nil {
		t.Fatalf("%+v, %v", c.Doc, err)
	}
	got := fmt.Sprint(c.Doc.Status, c.Doc.Lock.Owner, c.Doc.Lock.Attempts, c.Doc.LastError.Code)
	if want := fmt.Sprint(analysislock.Queued, "", 1, "input_unavailable"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
