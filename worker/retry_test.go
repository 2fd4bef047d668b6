package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// A failure for now is released, then booked, then acknowledged.
func TestRetry(t *testing.T) {
	// flaky delivers x, whose run fails, perhaps at the beginning of an outage of Firestore.
	flaky := func(t *testing.T, b *emulatortest.Backend, q delivery.Queue, code int, outage bool) (*process, reply) {
		t.Helper()
		b.Put(t, "x", map[string]any{
			"status": "QUEUED", "lockToken": 2, "nextAttemptAt": iso8601.Format(time.Now()), "bookedTask": "own",
		})
		var w *process
		w = startOn(t, b, q, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil, "bookedTask": nil})
			w.unavailable.Store(outage)
			return nil, errors.New("flaky")
		})
		w.runner.RetryMin, w.runner.RetryMax = 30*time.Second, time.Minute
		a := w.deliver(t, "x")
		a.check(t, code, map[string]any{"acquired": true, "reason": "retry", "error": "flaky"})
		return w, a
	}
	for name, c := range map[string]struct {
		by   time.Duration // that the booking takes
		code int
	}{
		"booked":                              {0, 200},
		"booked by the delivery's next tries": {time.Hour, 500}, // or the process died before it could
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q := &recordingQueue{by: c.by, during: func() {
				if b.Fields(t, "x")["nextAttemptAt"] == nil {
					t.Error("it is booked before the commit that releases the lock")
				}
			}}
			failed := time.Now()
			w, a := flaky(t, b, q, c.code, false)
			if took := time.Since(failed); took > 2*time.Second {
				t.Errorf("it tried to book for %v, want 2 s at most", took)
			}
			checkFields(t, b, "x", map[string]any{
				"status": "QUEUED", "lockOwner": nil, "lastError": "*", "attempts": int64(1),
			})
			if c.by > 0 {
				q.by = 0
				a = w.deliver(t, "x")
				a.check(t, 200, map[string]any{"acquired": false, "reason": "waiting"})
			}

			task := q.only(t)
			next := iso8601.Format(task.At)
			if wait := task.At.Sub(failed); wait <= 30*time.Second || wait > 37500*time.Millisecond {
				t.Errorf("booked in %v, want 30 s and up to a quarter more", wait)
			}
			if task.Name != taskqueue.Name("next", "x", "3", next) || task.Deadline != 26*time.Minute {
				t.Errorf("booked %+v, want the attempt after token 3, with a minute more than RUN_TIMEOUT", task)
			}
			a.check(t, 200, map[string]any{"retry_at": next})
			checkFields(t, b, "x", map[string]any{"nextAttemptAt": next, "bookedTask": task.Name})
		})
	}
	forKinds(t, "the second wait is twice as long", func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": 1})
		q, failed := &recordingQueue{}, time.Now()
		w := startOn(t, b, q, failing(errors.New("flaky")))
		w.runner.RetryMin, w.runner.RetryMax = 30*time.Second, 2*time.Minute
		w.deliver(t, "x").check(t, 200, map[string]any{"reason": "retry"})
		if wait := q.only(t).At.Sub(failed); wait < 59*time.Second || wait > 76*time.Second {
			t.Errorf("booked in %v, want a minute and up to a quarter more", wait)
		}
	})
	forKinds(t, "without a queue nothing waits", func(t *testing.T, b *emulatortest.Backend) {
		w, _ := flaky(t, b, nil, 500, false)
		checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lastError": "*", "nextAttemptAt": nil})
		w.deliver(t, "x").check(t, 500, map[string]any{"reason": "retry"})
	})
	forKinds(t, "a lock that cannot be released is kept", func(t *testing.T, b *emulatortest.Backend) {
		q := &recordingQueue{}
		flaky(t, b, q, 500, true)
		checkFields(t, b, "x", map[string]any{"status": "PROCESSING", "lockOwner": "*", "nextAttemptAt": nil})
		if len(q.tasks) > 0 {
			t.Errorf("booked %+v, want nothing", q.tasks)
		}
	})
}

func TestNextAttempt(t *testing.T) {
	const expired, expires = "1999-01-01T00:10:00.000Z", "2000-01-01T00:10:00.000Z"
	failed := map[string]any{"status": "FAILED"}
	lockedUntil := func(at string) map[string]any { return map[string]any{"lockOwner": "them", "lockExpiresAt": at} }
	for name, c := range map[string]struct {
		early    time.Duration
		fields   map[string]any
		itself   bool   // the delivery is the booked task
		unqueued bool   // there is no queue
		want     string // the status or the reason
	}{
		"a duplicate waits":                {early: time.Minute, want: "waiting"},
		"2 s early":                        {early: 2 * time.Second, want: "READY"},
		"1 ms earlier than that":           {early: 2*time.Second + time.Millisecond, want: "waiting"},
		"late":                             {early: -time.Hour, want: "READY"},
		"the booked task itself":           {early: time.Minute, itself: true, want: "READY"},
		"without a queue":                  {early: time.Minute, unqueued: true, want: "READY"},
		"a time that is not credible":      {early: 25 * time.Hour, want: "READY"},
		"the lock is another's":            {early: time.Minute, fields: lockedUntil(expires), want: "locked"},
		"finished":                         {early: time.Minute, fields: failed, want: "already_finished"},
		"no attempt is left":               {early: time.Minute, fields: map[string]any{"attempts": 3}, want: "FAILED"},
		"the expired lock of a dead owner": {early: -time.Minute, fields: lockedUntil(expired), want: "READY"},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			// A worker of an earlier version has run the task that the document names.
			fields := map[string]any{"status": "QUEUED", "attempts": 1, "lockToken": 4, "bookedTask": "old"}
			next := iso8601.Format(time.Now().Add(c.early))
			fields["nextAttemptAt"] = next
			b.Put(t, "x", fields)
			b.Merge(t, "x", c.fields)
			w, q := start(t, b, succeed), &recordingQueue{}
			if !c.unqueued {
				w.runner.Queue = q
			}
			booked, task := taskqueue.Name("next", "x", "4", next), "old"
			if c.itself {
				task = booked
			}
			a := w.asTask(t, task)
			if got := cmp.Or(a.Body["reason"], a.Body["status"]); got != c.want || a.Code != 200 {
				t.Errorf("answered %d %v, want %s", a.Code, a.Body, c.want)
			}
			switch c.want {
			case "waiting":
				a.check(t, 200, map[string]any{"acquired": false, "retry_at": next})
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": next, "attempts": int64(1), "status": "QUEUED"})
				if got := q.only(t).Name; got != booked {
					t.Errorf("booked %s, want the task of that time", got)
				}
			case "READY", "FAILED":
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil})
			}
		})
	}
	forKinds(t, "a duplicate that cannot book is not acknowledged", func(t *testing.T, b *emulatortest.Backend) {
		next := iso8601.Format(time.Now().Add(time.Minute))
		b.Put(t, "x", map[string]any{"status": "QUEUED", "nextAttemptAt": next})
		w := startOn(t, b, refusing{}, succeed)
		w.deliver(t, "x").check(t, 409, map[string]any{
			"acquired": false, "reason": "waiting", "retry_at": next, "Retry-After": "60",
		})
	})
}

func TestLockLost_FollowUp(t *testing.T) {
	const theirs, ours = "2000-01-01T00:20:00.000Z", "2000-01-01T00:05:00.000Z" // expiries
	taken := func(t *testing.T, b *emulatortest.Backend, _ *process) {
		b.Merge(t, "x", map[string]any{"lockOwner": "them", "lockToken": 7, "lockExpiresAt": theirs})
	}
	unlocked := func(t *testing.T, b *emulatortest.Backend, _ *process) {
		b.Merge(t, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil})
	}
	outage := func(_ *testing.T, _ *emulatortest.Backend, w *process) { w.unavailable.Store(true) }
	permanent := &orchestrator.PermanentError{Code: "c"}
	itself := taskqueue.Name("follow", "x", "7", "2000-01-01T00:20:00Z") + "-follow-up"
	for name, c := range map[string]struct {
		lose    func(t *testing.T, b *emulatortest.Backend, w *process)
		unseen  error         // with which the run fails before its worker has noticed the loss
		limit   time.Duration // RUN_TIMEOUT, at which the run reports a checkpoint; zero: the loss is noticed before
		token   string        // of the lock that is followed up; empty: the delivery is not acknowledged
		expires string        // of that lock; empty: nobody holds it, and the delivery is for now
		task    string        // of this delivery
		queue   delivery.Queue
	}{
		"unlocked":               {lose: unlocked, token: "1"},
		"taken":                  {lose: taken, token: "7", expires: theirs},
		"taken, and it fails":    {lose: taken, unseen: errors.New("no use"), token: "7", expires: theirs},
		"taken, fails for good":  {lose: taken, unseen: permanent, token: "7", expires: theirs},
		"taken, at its deadline": {lose: taken, limit: time.Minute, token: "7", expires: theirs},
		"out of time":            {lose: outage, token: "1", expires: ours},
		"not booked":             {lose: taken, queue: refusing{}},
		"by this very task":      {lose: taken, task: itself},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			q := &recordingQueue{}
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				c.lose(t, b, w)
				switch {
				case c.unseen != nil:
					return nil, c.unseen
				case c.limit > 0:
					return reportsLate(ctx, job)
				}
				return endless(ctx, job)
			})
			w.runner.RunTimeout = cmp.Or(c.limit, w.runner.RunTimeout)
			w.runner.Queue = cmp.Or[delivery.Queue](c.queue, q)
			code := map[bool]int{true: 409, false: 200}[c.token == ""]
			w.asTask(t, c.task).check(t, code, map[string]any{"acquired": true, "reason": "lock_lost", "status": nil})
			if got := w.counts(t, "taskguard.lock.losses"); !strings.HasSuffix(got, " :1") {
				t.Errorf("losses %q, want one", got)
			}
			if c.token == "" {
				if len(q.tasks) > 0 {
					t.Errorf("booked %+v", q.tasks)
				}
				return
			}

			var at, due time.Time
			if c.expires != "" {
				at, _ = iso8601.Parse(c.expires)
				due = at.Add(2 * time.Second)
			}
			name := taskqueue.Name("follow", "x", c.token, at.Format(time.RFC3339Nano)) + "-follow-up"
			if task := q.only(t); task.Name != name || !task.At.Equal(due) {
				t.Errorf("booked %+v, want the follow-up of the lock until %q", task, c.expires)
			}
		})
	}
}

// A task that can never succeed is acknowledged, and logged as an error. A sender that is no queue gets the plain
// answer. The tries of each reason are in internal/delivery.
func TestRejected(t *testing.T) {
	const missing = `{"analysis_id":"none"}`
	codes := map[string]int{"bad_request": 400, "not_found": 404, "too_large": 413}
	large := `{"analysis_id":"x","pad":"` + strings.Repeat("x", 1<<20) + `"}`
	for name, c := range map[string]struct {
		body, task, retries string
		reason              string
		rejected            bool
	}{
		"a bad request":               {body: "{", task: "t", retries: "0", reason: "bad_request", rejected: true},
		"of an unknown try":           {body: "{", task: "t", reason: "bad_request", rejected: true},
		"of a caller without a task":  {body: "{", retries: "9", reason: "bad_request"},
		"of a caller with a bad task": {body: "{", task: "a b", reason: "bad_request"},
		"too large":                   {body: large, task: "t", reason: "too_large", rejected: true},
		"missing, at the fifth try":   {body: missing, task: "t", retries: "4", reason: "not_found"},
		"missing, at the sixth":       {body: missing, task: "t", retries: "5", reason: "not_found", rejected: true},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			code, message, level, rejected, metric := codes[c.reason], "delivery", "WARN", any(nil), ""
			if c.rejected {
				code, message, level, rejected, metric = 200, "rejected", "ERROR", true, c.reason+" :1"
			}
			w := start(t, b, succeed)
			r := taskOf(t, c.body, c.task, c.retries)
			w.send(t, r).check(t, code, map[string]any{"reason": c.reason, "rejected": rejected})
			line := reply{Body: w.entry(t, message)}
			line.check(t, 0, map[string]any{"level": level, "outcome": c.reason, "status": float64(code)})
			if n := strings.Count(w.log.String(), "\n"); n != 1 {
				t.Errorf("%d lines, want 1", n)
			}
			w.checkCounts(t, "taskguard.rejections", metric)
		})
	}
}

// An attempt that asks for a wait is not counted, up to 100 in a row.
func TestRetry_After(t *testing.T) {
	in := func(d time.Duration) error { return fmt.Errorf("quota: %w", RetryAfter(errors.New("429"), d)) }
	fail := func(t *testing.T, b *emulatortest.Backend, q delivery.Queue, err error, attempts, uncounted int) reply {
		t.Helper()
		b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": attempts, "lockToken": 4})
		b.Merge(t, "x", map[string]any{
			"history": []any{map[string]any{"token": 4, "outcome": "retry", "uncounted": uncounted}},
		})
		w := startOn(t, b, q, failing(err))
		w.runner.RetryMin, w.runner.RetryMax = 30*time.Second, time.Minute
		return w.deliver(t, "x")
	}
	// checkCounted checks the attempts, and that the last one is counted, or is the n-th that is not.
	checkCounted := func(t *testing.T, b *emulatortest.Backend, attempts int, uncounted any) {
		t.Helper()
		checkFields(t, b, "x", map[string]any{"attempts": int64(attempts), "lockOwner": nil})
		checkAttempt(t, b, map[string]any{"outcome": "retry", "uncounted": uncounted})
	}

	for name, c := range map[string]struct {
		wait                time.Duration
		attempts, uncounted int           // before
		want                time.Duration // zero: the usual wait
		counted             bool
	}{
		"in 7 s":              {wait: 7 * time.Second, want: 7 * time.Second},
		"in 1 ms":             {wait: time.Millisecond, want: time.Second},
		"in more than 12 h":   {wait: 12*time.Hour + time.Second, want: 12 * time.Hour},
		"zero":                {wait: 0, counted: true},
		"negative":            {wait: -time.Hour, counted: true},
		"at the last attempt": {wait: time.Hour, attempts: 2, want: time.Hour},
		"for the 100th time":  {wait: time.Hour, attempts: 2, uncounted: 99, want: time.Hour},
		"for the 101st":       {wait: time.Hour, attempts: 1, uncounted: 100, want: time.Hour, counted: true},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			q, failed := &recordingQueue{}, time.Now()
			a := fail(t, b, q, in(c.wait), c.attempts, c.uncounted)
			a.check(t, 200, map[string]any{"acquired": true, "reason": "retry"})
			if c.counted {
				checkCounted(t, b, c.attempts+1, nil)
			} else {
				checkCounted(t, b, c.attempts, int64(c.uncounted+1))
			}
			task := q.only(t)
			checkFields(t, b, "x", map[string]any{"nextAttemptAt": iso8601.Format(task.At)})
			switch wait := task.At.Sub(failed).Truncate(time.Millisecond); {
			case c.want == 0 && wait < 30*time.Second:
				t.Errorf("booked in %v, want the usual wait", wait)
			case c.want > 0 && wait != c.want:
				t.Errorf("booked in %v, want %v", wait, c.want)
			}
		})
	}
	forKinds(t, "for the 101st at last", func(t *testing.T, b *emulatortest.Backend) {
		fail(t, b, &recordingQueue{}, in(time.Hour), 2, 100).check(t, 200, map[string]any{"status": "FAILED"})
		checkFields(t, b, "x", map[string]any{"status": "FAILED", "attempts": int64(3), "lockOwner": nil})
	})
	forKinds(t, "without a queue the sender is told", func(t *testing.T, b *emulatortest.Backend) {
		told := map[string]any{"acquired": true, "reason": "retry", "Retry-After": "3600"}
		fail(t, b, nil, in(time.Hour), 2, 0).check(t, 500, told)
		checkCounted(t, b, 2, int64(1))
		checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil})
		fail(t, b, nil, in(time.Hour), 0, 100).check(t, 500, told)
		checkCounted(t, b, 1, nil)
		fail(t, b, nil, errors.New("x"), 0, 0).check(t, 500, map[string]any{"reason": "retry", "Retry-After": nil})
	})
}

// A wait does not outweigh a permanent error, RUN_TIMEOUT or MAX_RUN_TIME.
func TestRetry_Outweighed(t *testing.T) {
	permanent := RetryAfter(&orchestrator.PermanentError{Code: "no", Message: "never"}, time.Hour)
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		for _, id := range []string{"permanent", "slow", "waiting"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
		}
		w := startWith(t, b, 3, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			switch job.AnalysisID {
			case "permanent":
				return nil, permanent
			case "slow":
				<-ctx.Done()
			}
			return nil, RetryAfter(nil, 100*time.Hour)
		}, grpc.WithIdleTimeout(0)) // grpc's own idle mode has a race, and begins after 30 min
		w.runner.Queue = &recordingQueue{}

		w.deliver(t, "permanent").check(t, 200, map[string]any{"status": "FAILED"})
		w.deliver(t, "slow").check(t, 200, map[string]any{"reason": "retry"})
		checkFields(t, b, "slow", map[string]any{"attempts": int64(1)})
		for range 2 { // 12 h each
			w.deliver(t, "waiting").check(t, 200, map[string]any{"reason": "retry"})
			time.Sleep(12 * time.Hour)
		}
		w.deliver(t, "waiting").check(t, 200, map[string]any{"status": "FAILED"})
		checkCode(t, b, "waiting", "error", "run_time_exhausted")
	})
}
