package worker

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// Every row of the contract's table.
func TestDelivery(t *testing.T) {
	queued := map[string]any{"status": "QUEUED"}
	cases := map[string]func(t *testing.T, b *emulatortest.Backend){
		"RanToTheEnd": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": map[string]any{"n": 1}, "lockToken": 4, "bookedTask": "own"})
			w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if job.AnalysisID != "x" || job.LockToken != 5 || job.Attempt != 1 || string(job.Input) != `{"n":1}` {
					t.Errorf("job = %+v", job)
				}
				return map[string]int{"sum": 3}, nil
			})
			w.deliver(t, "x").check(t, 200, map[string]any{"analysis_id": "x", "acquired": true, "status": "READY", "lock_token": 5.0, "reason": nil})
			checkFields(t, b, "x", map[string]any{"status": "READY", "finishedBy": "*", "lockOwner": nil, "lockExpiresAt": nil, "lockHeartbeatAt": nil, "lockToken": int64(5), "bookedTask": nil})
		},
		"FailedForGood": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", queued)
			w := start(t, b, failing(&orchestrator.PermanentError{Code: "invalid_input", Message: "no text"}))
			w.deliver(t, "x").check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": "no text", "lock_token": nil, "reason": nil})
			checkFields(t, b, "x", map[string]any{"status": "FAILED", "finishedBy": "*", "lockOwner": nil})
			if e, _ := b.Fields(t, "x")["error"].(map[string]any); e["code"] != "invalid_input" || e["message"] != "no text" {
				t.Errorf("error = %v", e)
			}
		},
		"AResultThatOnlyTheTransportRefusesFailsForGood": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 600_000)})
			w := start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				return strings.Repeat("y", 600_000), nil
			})
			a := w.deliver(t, "x")
			a.check(t, 200, map[string]any{"status": "FAILED"})
			if msg, _ := a.Body["error"].(string); !strings.HasPrefix(msg, "result: ") {
				t.Errorf("error = %q, want the path", msg)
			}
			checkFields(t, b, "x", map[string]any{"status": "FAILED", "result": nil, "lockOwner": nil})
		},
		"ADocumentWithoutSpaceForALockIsReported": func(t *testing.T, b *emulatortest.Backend) {
			full(t, b, "x", 0, nil, 0)
			start(t, b, succeed).deliver(t, "x").check(t, 500, map[string]any{"acquired": false, "reason": "malformed", "error": "*"})
		},
		"TheLastAttemptsFailureIsForGood": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"attempts": 2})
			w := start(t, b, failing(&orchestrator.FailureError{Code: "no_quota", Reason: "flaky"}))
			w.deliver(t, "x").check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": "*"})
			e, _ := b.Fields(t, "x")["error"].(map[string]any)
			if last, _ := b.Fields(t, "x")["lastError"].(map[string]any); e["code"] != "attempts_exhausted" || last["code"] != "no_quota" {
				t.Errorf("error = %v, lastError = %v, want the code of the analyzer in the latter", e, last)
			}
		},
		"OneAttemptTooManyIsFailedWithoutRunning": func(t *testing.T, b *emulatortest.Backend) {
			lastError := map[string]any{"code": "no_quota", "message": "m"}
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": 3, "lockToken": 3, "lastError": lastError})
			w := start(t, b, doing(func() { t.Error("it ran") }))
			w.deliver(t, "x").check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": "*"})
			if got := b.Fields(t, "x")["lastError"]; !reflect.DeepEqual(got, lastError) {
				t.Errorf("lastError = %v", got)
			}
			checkFields(t, b, "x", map[string]any{"status": "FAILED", "lockToken": int64(4), "finishedBy": "*"})
		},
		"FinishedAlready": func(t *testing.T, b *emulatortest.Backend) {
			for _, status := range []string{"READY", "FAILED"} {
				b.Put(t, status, map[string]any{"status": status})
				start(t, b, succeed).deliver(t, status).check(t, 200, map[string]any{"acquired": false, "reason": "already_finished", "status": status})
				checkFields(t, b, status, map[string]any{"status": status, "lockToken": nil})
			}
		},
		"HeldByAnother": func(t *testing.T, b *emulatortest.Backend) {
			expires := iso8601.Format(time.Now().Add(12 * time.Hour))
			b.Put(t, "x", map[string]any{"lockOwner": "them", "lockExpiresAt": expires})
			// Retry-After is bounded: the lock may be freed long before.
			start(t, b, succeed).deliver(t, "x").check(t, 409, map[string]any{"acquired": false, "reason": "locked", "retry_at": expires, "Retry-After": "600"})
		},
		"AMalformedTokenIsReported": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"lockToken": "five"})
			a := start(t, b, succeed).deliver(t, "x")
			a.check(t, 500, map[string]any{"acquired": false, "reason": "malformed"})
			if msg, _ := a.Body["error"].(string); !strings.Contains(msg, "lockToken is a string") {
				t.Errorf("error = %q", msg)
			}
		},
		"TheTokenIsCorruptedMidRun": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", queued)
			w := start(t, b, doing(func() { b.Merge(t, "x", map[string]any{"lockToken": "?"}) }))
			w.deliver(t, "x").check(t, 500, map[string]any{"acquired": true, "reason": "malformed", "error": "*"})
			checkFields(t, b, "x", map[string]any{"status": "PROCESSING", "result": nil})
		},
		"NotEvenAnErrorFits": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", queued)
			w := start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				b.Merge(t, "x", map[string]any{"theirs": strings.Repeat("x", 1<<20-1500)})
				return nil, &orchestrator.PermanentError{Code: "c", Message: strings.Repeat("y", 4000)}
			})
			if o := w.runner.Deliver(t.Context(), delivery.Delivery{AnalysisID: "x", Analyzer: w.analyze}); o.Reason != delivery.Retry || o.Code != "unrecordable" {
				t.Errorf("outcome %v, code %q, %v", o.Reason, o.Code, o.Err)
			}
			checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "attempts": int64(1), "lockToken": int64(1), "error": nil, "finishedBy": nil})
		},
		"AVerdictDuringAStopIsRecorded": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", queued)
			var w *process
			w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
				w.stop(delivery.ErrStopping)
				<-ctx.Done()
				return nil, &orchestrator.PermanentError{Code: "invalid_input", Message: strings.Repeat("é", 4000)}
			})
			w.deliver(t, "x").check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": strings.Repeat("é", 2048)})
			checkFields(t, b, "x", map[string]any{"status": "FAILED", "lockOwner": nil, "attempts": int64(1)})
		},
		"StoppedAfterItsDeadline": func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", queued)
			var w *process
			w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
				<-ctx.Done()
				w.stop(delivery.ErrStopping)
				return nil, ctx.Err()
			})
			w.runner.RunTimeout = ttl(b) / 2
			w.deliver(t, "x").check(t, 500, map[string]any{"acquired": true, "reason": "retry"})
			checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "attempts": int64(1)})
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, test)
		})
	}
}

func TestWithoutFirestoreTheAnswerIs503(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, succeed)
		w.unavailable.Store(true)
		began := time.Now()
		w.deliver(t, "x").check(t, 503, map[string]any{"acquired": false, "reason": "unavailable"})
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it gave up after %v, want at most 20 s", took)
		}
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
		w.unavailable.Store(false)
		w = start(t, b, doing(func() { w.unavailable.Store(true) }))
		w.deliver(t, "x").check(t, 503, map[string]any{"acquired": true, "reason": "unavailable"})
		checkFields(t, b, "x", map[string]any{"status": "PROCESSING", "result": nil})
	})
}

// memory is a store in memory. A write that frees a lock takes the time release.
type memory struct {
	lease.Memory[analysislock.Analysis]
	release time.Duration
}

func (m *memory) Swap(ctx context.Context, key string, prev lease.Cell[analysislock.Analysis], next analysislock.Analysis) (lease.Cell[analysislock.Analysis], error) {
	if next.Lock.Owner == "" {
		select {
		case <-ctx.Done():
			return lease.Cell[analysislock.Analysis]{}, ctx.Err()
		case <-time.After(m.release):
		}
	}
	return m.Memory.Swap(ctx, key, prev, next)
}

type inputReader = func(context.Context, lease.Cell[analysislock.Analysis]) (analysislock.Work, error)

// locks returns the locks of m, whose only analysis is x, QUEUED.
func (m *memory) locks(t testing.TB, input inputReader) *analysislock.Locks {
	t.Helper()
	m.Put("x", analysislock.Analysis{ID: "x", Status: analysislock.Queued})
	l, err := analysislock.New(m, lease.Policy{}, 0, input)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAnInputThatCannotBeReadIsTheAttemptsLastError(t *testing.T) {
	var m memory
	w := start(t, emulatortest.Embedded(t), succeed)
	w.runner.Locks = m.locks(t, func(context.Context, lease.Cell[analysislock.Analysis]) (analysislock.Work, error) {
		return analysislock.Work{}, errors.New("the input is out of reach")
	})
	w.deliver(t, "x").check(t, 503, map[string]any{"acquired": true, "reason": "unavailable"})
	c, err := m.Load(t.Context(), "x", lease.OnlyLease)
	want := analysislock.Error{Code: "input_unavailable", Message: "the input could not be read"}
	if d := c.Doc; err != nil || d.Status != analysislock.Queued || d.Lock.Owner != "" || d.Lock.Attempts != 1 || d.LastError == nil || *d.LastError != want {
		t.Errorf("%+v, %v", d, err)
	}
}
