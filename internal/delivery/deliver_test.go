package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// skipping are locks that nobody acquires.
type skipping struct {
	Locks
	acq          analysislock.Acquisition
	err, delayed error  // of the acquisition, and of a delay
	stop         func() // called by the acquisition
}

func (s skipping) AcquireAnalysisLock(context.Context, string, string, time.Duration, analysislock.AcquireOptions,
) (analysislock.Acquisition, error) {
	s.stop()
	return s.acq, s.err
}

func (s skipping) Delay(ctx context.Context, _ analysislock.Acquisition, wait time.Duration,
	_ func(next time.Time) string,
) (time.Time, error) {
	return time.Unix(0, 0).Add(wait), errors.Join(ctx.Err(), s.delayed)
}

// bookings is a queue that has what is booked.
type bookings struct {
	Queue
	mu    sync.Mutex
	tasks []taskqueue.Task
}

func (q *bookings) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ctx.Err() == nil {
		q.tasks = append(q.tasks, t)
	}
	return false, ctx.Err()
}

// describe returns in order the ids, the names as names calls them, and how long after due they are.
func (q *bookings) describe(names map[string]string, due time.Time) string {
	var all []string
	for _, t := range q.tasks {
		at := "now"
		if !t.At.IsZero() {
			at = t.At.Sub(due).String()
		}
		all = append(all, fmt.Sprintf("%s@%s %s", t.AnalysisID, at, names[t.Name]))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// What a delivery without the lock answers and books. The process stops at the acquisition, which changes nothing.
func TestDeliver_Skip(t *testing.T) {
	// A suspect whose slot was taken does not wait for it.
	suspect := analysislock.Acquisition{Reason: analysislock.Suspect, Slot: &analysislock.Slot{}}
	reason := func(r string) analysislock.Acquisition { return analysislock.Acquisition{Reason: r, Message: "m"} }
	expires, full := time.Unix(60, 0), &analysislock.UnrecordableError{}
	parked := analysislock.Acquisition{Reason: analysislock.KeyBusy, Parked: true}
	for name, c := range map[string]struct {
		acq          analysislock.Acquisition
		err, delayed error
		task         string // of this delivery
		want         string // the result, its code, whether it is acknowledged, and what is booked
		wraps        error  // what the result's error is
	}{
		"parked":          {acq: parked, want: "key_busy true"},
		"parked, perhaps": {acq: reason(analysislock.KeyBusy), want: "key_busy false"},
		"not due":         {acq: reason(analysislock.Waiting), want: "waiting true x@0s next"},
		"locked":          {acq: reason(analysislock.Locked), want: "locked true x@2s follow"},
		"locked, at the follow-up": {
			acq: reason(analysislock.Locked), task: (&Runner{}).followName("x", 7, expires), want: "locked false",
		},
		"no attempt is left": {
			acq: reason("attempts_exhausted"), want: "failed attempts_exhausted true", wraps: lease.ErrExhausted,
		},
		"no run time is left": {
			acq: reason("run_time_exhausted"), want: "failed run_time_exhausted true", wraps: errRunTime,
		},
		"it kills": {acq: reason("crashed"), want: "failed crashed true"},
		"it is full": {
			err: full, want: "failed unrecordable true", wraps: analysislock.ErrUnrecordable,
		},
		"it is full, with FAILED":  {err: lease.ErrRefused, want: "malformed false", wraps: lease.ErrRefused},
		"delayed":                  {acq: suspect, want: "suspect true x@0s next"},
		"changed before the delay": {acq: suspect, delayed: lease.ErrConflict, want: "suspect false"},
		"not delayed":              {acq: suspect, delayed: lease.ErrUnavailable, want: "unavailable false"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			q, acq := &bookings{}, c.acq
			acq.Grant.Token, acq.ExpiresAt = 7, expires
			runner := &Runner{
				Queue: q, Log: slog.New(slog.DiscardHandler), Locks: skipping{nil, acq, c.err, c.delayed, stop},
			}
			r := runner.Deliver(ctx, Delivery{AnalysisID: "x", Task: c.task, Analyzer: orchestrator.AnalyzerFunc(nil)})
			due := expires
			if r.Reason == Suspect {
				due = time.Unix(0, 0).Add(r.RetryIn)
			}
			names := map[string]string{
				runner.followName("x", 7, due): "follow", runner.nextName("x", 7, due): "next",
			}
			code := ""
			if r.Code != "" {
				code = r.Code + " "
			}
			got := strings.TrimSpace(fmt.Sprintf("%s %s%t %s", r.Reason, code, r.Ack, q.describe(names, due)))
			if wraps := c.wraps == nil || errors.Is(r.Err, c.wraps); got != c.want || !wraps {
				t.Errorf("%s, %v; want %s, %v", got, r.Err, c.want, c.wraps)
			}
			if r.Code == analysislock.Crashed && fmt.Sprint(r.Err) != "m" {
				t.Errorf("%v, want the message of the analysis", r.Err)
			}
			if r.Reason != Suspect {
				return
			}
			booked := len(q.tasks) > 0
			if jitter := r.RetryIn - leastDelay; jitter < 0 || jitter > delayRange {
				t.Errorf("in %v, want 15 s to 45 s", r.RetryIn)
			}
			if r.RetryAt.IsZero() == booked {
				t.Errorf("at %v, booked %t", r.RetryAt, booked)
			}
		})
	}
}

// freeing are the keys of which a slot is free for y and z.
type freeing struct {
	Keys
	calls []string
	err   error
}

func (k *freeing) free(ctx context.Context, call ...any) ([]analysislock.Analysis, error) {
	k.calls = append(k.calls, fmt.Sprint(call...))
	if err := errors.Join(ctx.Err(), k.err); err != nil {
		return nil, err
	}
	return []analysislock.Analysis{{ID: "y"}, {ID: "z"}}, nil
}

func (k *freeing) Leave(ctx context.Context, _ *analysislock.Slot, next time.Time) ([]analysislock.Analysis, error) {
	return k.free(ctx, "leave ", next.IsZero())
}

func (k *freeing) Wake(ctx context.Context, key, id string, finished bool) ([]analysislock.Analysis, error) {
	return k.free(ctx, "wake "+key+" "+id+" ", finished)
}

// A delivery that does not run passes on what was meant for it: the slot that it has taken, or for which it was booked,
// or the slot that is kept for an analysis that has ended. The process stops meanwhile.
func TestDeliver_LeaveKey(t *testing.T) {
	const finished, exhausted = analysislock.AlreadyFinished, analysislock.AttemptsExhausted
	const locked, freed = "x@now follow", "y@now slot, z@now slot"
	for name, c := range map[string]struct {
		reason string
		task   string
		hold   bool // HoldKeys
		slot   bool // it has taken one
		calls  string
		booked string
	}{
		"nothing is kept":    {reason: finished},
		"kept, and finished": {reason: finished, hold: true, calls: "wake k x true", booked: freed},
		"kept, and failed":   {reason: exhausted, hold: true, calls: "wake k x true", booked: freed},
		"kept, and locked":   {reason: analysislock.Locked, hold: true, booked: locked},
		"booked for a slot":  {reason: finished, task: "t-slot", calls: "wake k x true", booked: freed},
		"booked for a slot, and locked": {
			reason: analysislock.Locked, task: "t-slot", calls: "wake k x false", booked: locked + ", " + freed,
		},
		"booked for a slot, none free": {reason: analysislock.KeyBusy, task: "t-slot", booked: "n@now slot"},
		"others come first":            {reason: analysislock.KeyBusy, booked: "n@now slot"},
		"it has taken one":             {reason: finished, slot: true, calls: "leave true", booked: freed},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			acq := analysislock.Acquisition{Reason: c.reason, Key: "k"}
			if c.slot {
				acq.Slot = &analysislock.Slot{}
			}
			if c.reason == analysislock.KeyBusy {
				acq.Next = []analysislock.Analysis{{ID: "n"}}
			}
			q, keys := &bookings{}, &freeing{}
			runner := &Runner{
				Queue: q, Log: slog.New(slog.DiscardHandler), Locks: skipping{acq: acq, stop: stop},
				Keys: keys, HoldKeys: c.hold,
			}
			runner.Deliver(ctx, Delivery{AnalysisID: "x", Task: c.task, Analyzer: orchestrator.AnalyzerFunc(nil)})
			names := map[string]string{runner.followName("x", 0, time.Time{}): "follow"}
			for _, id := range []string{"n", "y", "z"} {
				names[runner.slotName(&analysislock.Analysis{ID: id})] = "slot"
			}
			calls, booked := strings.Join(keys.calls, ", "), q.describe(names, time.Time{})
			if calls != c.calls || booked != c.booked {
				t.Errorf("%q, and booked %q; want %q and %q", calls, booked, c.calls, c.booked)
			}
		})
	}
	t.Run("what cannot be freed is logged", func(t *testing.T) {
		var log strings.Builder
		acq := analysislock.Acquisition{Reason: finished, Key: "k", Slot: &analysislock.Slot{}}
		(&Runner{
			Log: slog.New(slog.NewTextHandler(&log, nil)), Locks: skipping{acq: acq, stop: func() {}},
			Keys: &freeing{err: lease.ErrUnavailable}, Queue: &bookings{},
		}).Deliver(t.Context(), Delivery{AnalysisID: "x", Analyzer: orchestrator.AnalyzerFunc(nil)})
		if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "analysis_id=x") {
			t.Errorf("logged %q", got)
		}
	})
}

func TestHoldUntil(t *testing.T) {
	at := time.Unix(1, 0)
	for name, c := range map[string]struct {
		reason Reason
		hold   bool // HoldKeys
		booked string
		kept   bool
	}{
		"failed":               {Retry, false, booked, false},
		"failed, and held":     {Retry, true, booked, true},
		"held, and not booked": {Retry, true, notBooked, false},
		"continued":            {Continued, false, booked, true},
		"stopped":              {ShuttingDown, false, booked, true},
		"READY":                {Completed, true, booked, false},
	} {
		a := &attempt{runner: &Runner{HoldKeys: c.hold}, next: Next{FollowUp: c.booked, RetryAt: at}}
		if until := a.holdUntil(Result{Reason: c.reason}); until.Equal(at) != c.kept {
			t.Errorf("%s: the slot is kept until %v, want until %v: %t", name, until, at, c.kept)
		}
	}
}

// The wait for other runs counts, but leaves half a minute.
func TestLimit(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		timeout, waited, left, want time.Duration // left of MAX_RUN_TIME
		cause                       error
	}{
		"alone":                   {timeout: 100 * s, want: 100 * s, cause: errDeadline},
		"after a wait":            {timeout: 100 * s, waited: 40 * s, want: 60 * s, cause: errDeadline},
		"after a long one":        {timeout: 100 * s, waited: 90 * s, want: 30 * s, cause: errDeadline},
		"after one, of short":     {timeout: 20 * s, waited: 10 * s, want: 20 * s, cause: errDeadline},
		"less run time is left":   {timeout: 100 * s, left: 99 * s, want: 99 * s, cause: errRunTime},
		"as much run time":        {timeout: 100 * s, left: 100 * s, want: 100 * s, cause: errRunTime},
		"more run time, no limit": {timeout: 100 * s, left: 101 * s, want: 100 * s, cause: errDeadline},
	} {
		a := &attempt{runner: &Runner{RunTimeout: c.timeout}, waited: c.waited}
		a.acq.RunTime = c.left
		if limit, cause := a.limit(); limit != c.want || !errors.Is(cause, c.cause) {
			t.Errorf("%s: %v, %v; want %v, %v", name, limit, cause, c.want, c.cause)
		}
	}
}

// A name that two bookings share books one task.
func TestNames(t *testing.T) {
	job, at := &Runner{Names: TaskNames{Kind: "job"}}, time.Unix(1, 0)
	parked := func(d time.Duration) *analysislock.Analysis {
		return &analysislock.Analysis{ID: "x", ParkedAt: at.Add(d)}
	}
	names := map[string]bool{}
	for _, runner := range []*Runner{{}, job} {
		for token := range int64(2) {
			for _, d := range []time.Duration{0, time.Millisecond} {
				names[runner.nextName("x", token, at.Add(d))] = true
				names[runner.followName("x", token, at.Add(d))] = true
			}
		}
		names[runner.slotName(parked(0))], names[runner.slotName(parked(time.Millisecond))] = true, true
	}
	if len(names) != 20 {
		t.Errorf("%d names of 20 bookings: %v", len(names), names)
	}
	elsewhere := at.In(time.FixedZone("", 60))
	if utc, local := job.followName("x", 1, at.UTC()), job.followName("x", 1, elsewhere); utc != local {
		t.Errorf("%s and %s for one time", utc, local)
	}
}
