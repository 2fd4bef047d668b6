package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

func TestAFailureForNowIsReleasedThenBookedThenAcknowledged(t *testing.T) {
	for name, tc := range map[string]struct {
		queue, bookingFails, releaseFails bool
		code, booked                      int
	}{
		"booked":                      {queue: true, code: 200, booked: 1},
		"without a queue":             {code: 500},
		"the booking fails":           {queue: true, bookingFails: true, code: 500},
		"the lock cannot be released": {queue: true, releaseFails: true, code: 500},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "lockToken": 4, "nextAttemptAt": iso8601.Format(time.Now()), "bookedTask": "own"})
			var w *process
			w = start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil, "bookedTask": nil})
				w.unavailable.Store(tc.releaseFails)
				return nil, errors.New("flaky")
			})
			w.runner.RetryMin, w.runner.RetryMax = 30*time.Second, time.Minute
			q := &slow{during: func() {
				if b.Fields(t, "x")["nextAttemptAt"] == nil {
					t.Error("it is booked before the commit that releases the lock")
				}
			}}
			if tc.bookingFails {
				q.by = time.Hour
			}
			if tc.queue {
				w.runner.Queue = q
			}
			failed := time.Now()
			a := w.deliver(t, "x")
			a.check(t, tc.code, map[string]any{"acquired": true, "reason": "retry", "error": "flaky"})
			if took := time.Since(failed); took > 2*time.Second && !tc.releaseFails {
				t.Errorf("it tried to book for %v, want 2 s at most", took)
			}
			if len(q.tasks) != tc.booked {
				t.Errorf("booked %+v, want %d", q.tasks, tc.booked)
			}
			next, _ := b.Fields(t, "x")["nextAttemptAt"].(string)
			switch {
			case tc.releaseFails:
				checkFields(t, b, "x", map[string]any{"status": "PROCESSING", "lockOwner": "*", "nextAttemptAt": nil})
				return
			case !tc.queue: // nobody keeps to it
				checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "lastError": "*", "nextAttemptAt": nil})
				w.deliver(t, "x").check(t, 500, map[string]any{"reason": "retry"})
				return
			}
			checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "lastError": "*", "attempts": int64(1)})
			at, err := time.Parse(time.RFC3339, next)
			if wait := at.Sub(failed); err != nil || wait <= 30*time.Second || wait > 37500*time.Millisecond {
				t.Errorf("the next attempt is at %q, want more than 30 s to 37.5 s after the failure", next)
			}
			if tc.bookingFails { // or the process died before it; the task is redelivered
				q.by = 0
				a = w.deliver(t, "x")
				a.check(t, 200, map[string]any{"acquired": false, "reason": "waiting"})
			}
			a.check(t, 200, map[string]any{"retry_at": next})
			if len(q.tasks) != 1 || !q.tasks[0].At.Equal(at) || q.tasks[0].Name != taskqueue.Name("next", "x", "5", next) || b.Fields(t, "x")["bookedTask"] != q.tasks[0].Name || q.tasks[0].Deadline != 26*time.Minute {
				t.Errorf("booked %+v, want the next attempt at %s", q.tasks, next)
			}
		})
	}
}

func TestADeliveryKeepsToTheNextAttempt(t *testing.T) {
	const runs, waits = "READY", "waiting"
	for name, tc := range map[string]struct {
		early        time.Duration
		fields       map[string]any
		itself       bool // the delivery is the booked task
		withoutQueue bool
		bookingFails bool
		code         int
		want         string // the status or the reason
	}{
		"a duplicate":                      {early: time.Minute, code: 200, want: waits},
		"a duplicate that books nothing":   {early: time.Minute, bookingFails: true, code: 409, want: waits},
		"2 s early":                        {early: 2 * time.Second, code: 200, want: runs},
		"1 ms earlier than that":           {early: 2*time.Second + time.Millisecond, code: 200, want: waits},
		"late":                             {early: -time.Hour, code: 200, want: runs},
		"the booked task itself":           {early: time.Minute, itself: true, code: 200, want: runs},
		"without a queue":                  {early: time.Minute, withoutQueue: true, code: 200, want: runs},
		"a time that is not credible":      {early: 25 * time.Hour, code: 200, want: runs},
		"the lock is another's":            {early: time.Minute, fields: map[string]any{"lockOwner": "them", "lockExpiresAt": "2000-01-01T00:10:00.000Z"}, code: 200, want: "locked"},
		"finished":                         {early: time.Minute, fields: map[string]any{"status": "FAILED"}, code: 200, want: "already_finished"},
		"no attempt is left":               {early: time.Minute, fields: map[string]any{"attempts": 3}, code: 200, want: "FAILED"},
		"the expired lock of a dead owner": {early: -time.Minute, fields: map[string]any{"lockOwner": "them", "lockExpiresAt": "1999-01-01T00:10:00.000Z"}, code: 200, want: runs},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			next := iso8601.Format(time.Now().Add(tc.early))
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": 1, "lockToken": 4, "nextAttemptAt": next})
			b.Merge(t, "x", tc.fields)
			w, q := start(t, b, succeed), &recordingQueue{}
			if !tc.withoutQueue {
				w.runner.Queue = q
			}
			if tc.bookingFails {
				w.runner.Queue = refusing{}
			}
			booked, task := taskqueue.Name("next", "x", "4", next), "another"
			if tc.itself {
				task = booked
			}
			a := w.asTask(t, task)
			a.check(t, tc.code, nil)
			if a.Body["status"] != tc.want && a.Body["reason"] != tc.want {
				t.Errorf("answered %v, want %s", a.Body, tc.want)
			}
			switch tc.want {
			case waits:
				a.check(t, tc.code, map[string]any{"acquired": false, "retry_at": next})
				if tc.bookingFails && a.RetryAfter != "60" || !tc.bookingFails && (len(q.tasks) != 1 || q.tasks[0].Name != booked) {
					t.Errorf("Retry-After %q, booked %+v", a.RetryAfter, q.tasks)
				}
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": next, "attempts": int64(1), "status": "QUEUED"})
			case runs, "FAILED":
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil})
			}
		})
	}
}

func TestALostLockIsFollowedUp(t *testing.T) {
	taken := func(t *testing.T, b *emulatortest.Backend, _ *process) {
		b.Merge(t, "x", map[string]any{"lockOwner": "them", "lockToken": 7, "lockExpiresAt": "2000-01-01T00:20:00.000Z"})
	}
	for name, tc := range map[string]struct {
		lose    func(t *testing.T, b *emulatortest.Backend, w *process)
		itself  bool          // the delivery is that follow-up
		unseen  error         // with which the run fails before its worker has noticed the loss
		limit   time.Duration // RUN_TIMEOUT, at which the run reports a checkpoint; zero: the loss is noticed before
		fails   bool
		code    int
		token   string
		expires string // of the lock that is followed up; empty: nobody holds it, and the delivery is for now
	}{
		"unlocked": {lose: func(t *testing.T, b *emulatortest.Backend, _ *process) {
			b.Merge(t, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil})
		}, code: 200, token: "1"},
		"taken":                  {lose: taken, code: 200, token: "7", expires: "2000-01-01T00:20:00.000Z"},
		"taken, and it fails":    {lose: taken, unseen: errors.New("no use"), code: 200, token: "7", expires: "2000-01-01T00:20:00.000Z"},
		"taken, fails for good":  {lose: taken, unseen: &orchestrator.PermanentError{Code: "c"}, code: 200, token: "7", expires: "2000-01-01T00:20:00.000Z"},
		"taken, at its deadline": {lose: taken, limit: time.Minute, code: 200, token: "7", expires: "2000-01-01T00:20:00.000Z"},
		"not booked":             {lose: taken, fails: true, code: 409},
		"by this very task":      {lose: taken, itself: true, code: 409},
		"out of time":            {lose: func(_ *testing.T, _ *emulatortest.Backend, w *process) { w.unavailable.Store(true) }, code: 200, token: "1", expires: "2000-01-01T00:05:00.000Z"},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if tc.lose(t, b, w); tc.unseen != nil {
					return nil, tc.unseen
				}
				return until(ctx, func() {
					if tc.limit > 0 {
						report(job, int64(8))
					}
				})
			})
			q, task := &recordingQueue{}, "another"
			w.runner.Queue, w.runner.RunTimeout = q, cmp.Or(tc.limit, w.runner.RunTimeout)
			if tc.fails {
				w.runner.Queue = refusing{}
			}
			if tc.itself {
				task = taskqueue.Name("follow", "x", "7", "2000-01-01T00:20:00Z") + "-follow-up"
			}
			w.asTask(t, task).check(t, tc.code, map[string]any{"acquired": true, "reason": "lock_lost", "status": nil})
			if got := w.counts(t, "taskguard.lock.losses"); !strings.HasSuffix(got, " :1") {
				t.Errorf("losses %q, want one", got)
			}
			if tc.code != 200 {
				if len(q.tasks) != 0 {
					t.Errorf("booked %+v", q.tasks)
				}
				return
			}
			var at, due time.Time
			if tc.expires != "" {
				var err error
				if at, err = time.Parse(time.RFC3339, tc.expires); err != nil {
					t.Fatal(err)
				}
				due = at.Add(2 * time.Second)
			}
			if name := taskqueue.Name("follow", "x", tc.token, at.Format(time.RFC3339Nano)) + "-follow-up"; len(q.tasks) != 1 || q.tasks[0].Name != name || !q.tasks[0].At.Equal(due) {
				t.Errorf("booked %+v, want the follow-up of the lock until %s", q.tasks, tc.expires)
			}
		})
	}
}

func TestATaskThatCanNeverSucceedIsRejected(t *testing.T) {
	large := `{"analysis_id":"x","pad":"` + strings.Repeat("x", 1<<20) + `"}`
	for name, tc := range map[string]struct {
		body, task, retries string
		code                int // of the plain answer
		rejected            bool
		down                bool // Firestore does not answer
	}{
		"a bad request":                    {body: "{", task: "t", retries: "0", code: 400, rejected: true},
		"of an unknown try":                {body: "{", task: "t", code: 400, rejected: true},
		"of a caller without a task":       {body: "{", retries: "9", code: 400},
		"of a caller with an invalid task": {body: "{", task: "a b", code: 400},
		"too large":                        {body: large, task: "t", code: 413, rejected: true},
		"missing, at the fifth try":        {body: `{"analysis_id":"none"}`, task: "t", retries: "4", code: 404},
		"missing, at the sixth":            {body: `{"analysis_id":"none"}`, task: "t", retries: "5", code: 404, rejected: true},
		"missing, at an unknown try":       {body: `{"analysis_id":"none"}`, task: "t", code: 404},
		"missing, without a task":          {body: `{"analysis_id":"none"}`, retries: "9", code: 404},
		"malformed, at the fifth":          {body: `{"analysis_id":"x"}`, task: "t", retries: "4", code: 500},
		"malformed, at the sixth":          {body: `{"analysis_id":"x"}`, task: "t", retries: "5", code: 500, rejected: true},
		"malformed during the run":         {body: `{"analysis_id":"queued"}`, task: "t", retries: "5", code: 500, rejected: true},
		"locked, at the 100th":             {body: `{"analysis_id":"held"}`, task: "t", retries: "99", code: 409},
		"unavailable, at the 100th":        {body: `{"analysis_id":"x"}`, task: "t", retries: "99", code: 503, down: true},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"lockToken": "five"})
			b.Put(t, "queued", map[string]any{"status": "QUEUED"})
			held(t, b, "held", time.Hour)
			w := start(t, b, doing(func() { b.Merge(t, "queued", map[string]any{"lockToken": "?"}) }))
			w.unavailable.Store(tc.down)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, strings.NewReader(tc.body))
			r.Header.Set("X-CloudTasks-TaskName", tc.task)
			r.Header.Set("X-CloudTasks-TaskRetryCount", tc.retries)
			reason := map[int]string{400: "bad_request", 404: "not_found", 409: "locked", 413: "too_large", 500: "malformed", 503: "unavailable"}[tc.code]
			message, level, code, rejected, metric := "delivery", map[bool]string{true: "INFO", false: "WARN"}[tc.code == 409], tc.code, any(nil), ""
			if tc.rejected {
				message, level, code, rejected, metric = "rejected", "ERROR", 200, true, reason+" :1"
			}
			w.send(t, r).check(t, code, map[string]any{"reason": reason, "rejected": rejected})
			reply{Body: w.entry(t, message)}.check(t, 0, map[string]any{"level": level, "outcome": reason, "status": float64(code)})
			if n := strings.Count(w.log.String(), "\n"); n != 1 {
				t.Errorf("%d lines, want 1", n)
			}
			w.checkCounts(t, "taskguard.rejections", metric)
		})
	}
}

func TestAFailureSaysWhenToComeAgain(t *testing.T) {
	in := func(d time.Duration) error { return fmt.Errorf("quota: %w", RetryAfter(errors.New("429"), d)) }
	for name, tc := range map[string]struct {
		err          error
		attempts     int // before
		uncounted    int // attempts before, in a row
		withoutQueue bool
		want         time.Duration // zero: the usual wait
		after        int64         // attempts
		retryAfter   string
	}{
		"in 7 s":                          {err: in(7 * time.Second), want: 7 * time.Second, after: 0},
		"in 1 s":                          {err: in(time.Second), want: time.Second, after: 0},
		"in 1 ms":                         {err: in(time.Millisecond), want: time.Second, after: 0},
		"for the 100th time":              {err: in(time.Hour), attempts: 2, uncounted: 99, want: time.Hour, after: 2},
		"for the 101st":                   {err: in(time.Hour), attempts: 1, uncounted: 100, want: time.Hour, after: 2},
		"for the 101st at last":           {err: in(time.Hour), attempts: 2, uncounted: 100, after: 3},
		"101 without a queue":             {err: in(time.Hour), uncounted: 100, withoutQueue: true, after: 1, retryAfter: "3600"},
		"longer than RETRY_MAX":           {err: in(time.Hour), want: time.Hour, after: 0},
		"at the last attempt":             {err: in(time.Hour), attempts: 2, want: time.Hour, after: 2},
		"in 12 h":                         {err: in(12 * time.Hour), want: 12 * time.Hour, after: 0},
		"later":                           {err: in(12*time.Hour + time.Second), want: 12 * time.Hour, after: 0},
		"zero":                            {err: in(0), after: 1},
		"negative":                        {err: in(-time.Hour), after: 1},
		"without a queue":                 {err: in(time.Hour), attempts: 2, withoutQueue: true, after: 2, retryAfter: "3600"},
		"an ordinary one without a queue": {err: errors.New("x"), withoutQueue: true, after: 1},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": tc.attempts, "lockToken": 4})
			b.Merge(t, "x", map[string]any{"history": []any{map[string]any{"token": 4, "outcome": "retry", "uncounted": tc.uncounted}}})
			w := start(t, b, failing(tc.err))
			w.runner.RetryMin, w.runner.RetryMax = 30*time.Second, time.Minute
			q, code := &recordingQueue{}, 500
			if !tc.withoutQueue {
				w.runner.Queue, code = q, 200
			}

			failed := time.Now()
			a := w.deliver(t, "x")
			checkFields(t, b, "x", map[string]any{"attempts": tc.after, "lockOwner": nil})
			if tc.after == 3 {
				checkFields(t, b, "x", map[string]any{"status": "FAILED"})
				return
			}
			a.check(t, code, map[string]any{"acquired": true, "reason": "retry"})
			history, _ := b.Fields(t, "x")["history"].([]any)
			row := any(nil)
			if tc.after == int64(tc.attempts) {
				row = int64(tc.uncounted + 1)
			}
			if last, _ := history[len(history)-1].(map[string]any); last["outcome"] != "retry" || last["uncounted"] != row {
				t.Errorf("the history ends with %v, want %v uncounted", last, row)
			}
			if a.RetryAfter != tc.retryAfter {
				t.Errorf("Retry-After %q, want %q", a.RetryAfter, tc.retryAfter)
			}

			switch {
			case tc.withoutQueue:
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil})
			case tc.want > 0:
				next := iso8601.Format(failed.Add(tc.want))
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": next})
				if len(q.tasks) != 1 || iso8601.Format(q.tasks[0].At) != next {
					t.Errorf("booked %+v, want a task at %s", q.tasks, next)
				}
			case len(q.tasks) != 1 || q.tasks[0].At.Sub(failed) < 30*time.Second:
				t.Errorf("booked %+v, want the usual wait", q.tasks)
			}
		})
	}
}

func TestAWaitDoesNotOutweighAPermanentErrorOrALimitOfTime(t *testing.T) {
	permanent := RetryAfter(&orchestrator.PermanentError{Code: "no", Message: "never"}, time.Hour)
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "permanent", map[string]any{"status": "QUEUED"})
		b.Put(t, "slow", map[string]any{"status": "QUEUED"})
		b.Put(t, "waiting", map[string]any{"status": "QUEUED"})
		w := startWith(t, b, 3, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			switch job.AnalysisID {
			case "permanent":
				return nil, permanent
			case "slow":
				<-ctx.Done()
			}
			return nil, RetryAfter(nil, 100*time.Hour)
		}, grpc.WithIdleTimeout(0)) // grpc's own idle mode has a race, and begins after 30 min
		w.runner.Queue, w.runner.RetryMin, w.runner.RetryMax = &recordingQueue{}, 30*time.Second, time.Minute

		w.deliver(t, "permanent").check(t, 200, map[string]any{"status": "FAILED"})
		w.deliver(t, "slow").check(t, 200, map[string]any{"reason": "retry"})
		checkFields(t, b, "slow", map[string]any{"attempts": int64(1)})
		for range 2 { // 12 h each
			w.deliver(t, "waiting").check(t, 200, map[string]any{"reason": "retry"})
			time.Sleep(12 * time.Hour)
		}
		w.deliver(t, "waiting").check(t, 200, map[string]any{"status": "FAILED"})
		if e, _ := b.Fields(t, "waiting")["error"].(map[string]any); e["code"] != "run_time_exhausted" {
			t.Errorf("FAILED with %v, want run_time_exhausted", e)
		}
	})
}
