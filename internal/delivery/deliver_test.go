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

// bookings is a queue that has the ids of what is booked.
type bookings struct {
	Queue
	mu  sync.Mutex
	ids []string
}

func (q *bookings) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ctx.Err() == nil {
		q.ids = append(q.ids, t.AnalysisID)
	}
	return false, ctx.Err()
}

// What a delivery without the lock answers and books. The process stops at the acquisition, which changes nothing.
func TestDeliver_Skip(t *testing.T) {
	// A suspect whose slot was taken does not wait for it.
	suspect := analysislock.Acquisition{Reason: analysislock.Suspect, Slot: &analysislock.Slot{}}
	reason := func(r string) analysislock.Acquisition { return analysislock.Acquisition{Reason: r, Message: "m"} }
	parked := analysislock.Acquisition{Reason: analysislock.KeyBusy, Parked: true}
	for name, c := range map[string]struct {
		acq          analysislock.Acquisition
		err, delayed error
		want         string // the result, its code, whether it is acknowledged, and how many are booked
		wraps        error  // what the result's error is
	}{
		"parked":          {acq: parked, want: "key_busy true 0"},
		"parked, perhaps": {acq: reason(analysislock.KeyBusy), want: "key_busy false 0"},
		"not due":         {acq: reason(analysislock.Waiting), want: "waiting true 1"},
		"locked":          {acq: reason(analysislock.Locked), want: "locked true 1"},
		"no attempt is left": {
			acq: reason("attempts_exhausted"), want: "failed attempts_exhausted true 0", wraps: lease.ErrExhausted,
		},
		"no run time is left": {
			acq: reason("run_time_exhausted"), want: "failed run_time_exhausted true 0", wraps: errRunTime,
		},
		"it kills":                 {acq: reason("crashed"), want: "failed crashed true 0"},
		"it is full":               {err: &analysislock.UnrecordableError{}, want: "failed unrecordable true 0"},
		"it is full, with FAILED":  {err: lease.ErrRefused, want: "malformed false 0", wraps: lease.ErrRefused},
		"delayed":                  {acq: suspect, want: "suspect true 1"},
		"changed before the delay": {acq: suspect, delayed: lease.ErrConflict, want: "suspect false 0"},
		"not delayed":              {acq: suspect, delayed: lease.ErrUnavailable, want: "unavailable false 0"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			q := &bookings{}
			r := (&Runner{
				Queue: q, Log: slog.New(slog.DiscardHandler), Locks: skipping{nil, c.acq, c.err, c.delayed, stop},
			}).Deliver(ctx, Delivery{AnalysisID: "x", Analyzer: orchestrator.AnalyzerFunc(nil)})
			code := ""
			if r.Code != "" {
				code = r.Code + " "
			}
			got := fmt.Sprintf("%s %s%t %d", r.Reason, code, r.Ack, len(q.ids))
			if wraps := c.wraps == nil || errors.Is(r.Err, c.wraps); got != c.want || !wraps {
				t.Errorf("%s, %v; want %s, %v", got, r.Err, c.want, c.wraps)
			}
			if r.Code == analysislock.Crashed && fmt.Sprint(r.Err) != "m" {
				t.Errorf("%v, want the message of the analysis", r.Err)
			}
			if r.Reason != Suspect {
				return
			}
			booked := len(q.ids) > 0
			if r.RetryIn <= leastDelay || r.RetryAt.IsZero() == booked {
				t.Errorf("in %v, at %v, booked %t", r.RetryIn, r.RetryAt, booked)
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
	for name, c := range map[string]struct {
		reason string
		task   string
		hold   bool // HoldKeys
		slot   bool // it has taken one
		calls  string
		booked string
	}{
		"nothing is kept":    {reason: finished},
		"kept, and finished": {reason: finished, hold: true, calls: "wake k x true", booked: "y z"},
		"kept, and failed":   {reason: exhausted, hold: true, calls: "wake k x true", booked: "y z"},
		"kept, and locked":   {reason: analysislock.Locked, hold: true, booked: "x"},
		"booked for a slot":  {reason: finished, task: "t-slot", calls: "wake k x true", booked: "y z"},
		"booked for a slot, and locked": {
			reason: analysislock.Locked, task: "t-slot", calls: "wake k x false", booked: "x y z",
		},
		"booked for a slot, none free": {reason: analysislock.KeyBusy, task: "t-slot", booked: "n"},
		"others come first":            {reason: analysislock.KeyBusy, booked: "n"},
		"it has taken one":             {reason: finished, slot: true, calls: "leave true", booked: "y z"},
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
			(&Runner{
				Queue: q, Log: slog.New(slog.DiscardHandler), Locks: skipping{acq: acq, stop: stop},
				Keys: keys, HoldKeys: c.hold,
			}).Deliver(ctx, Delivery{AnalysisID: "x", Task: c.task, Analyzer: orchestrator.AnalyzerFunc(nil)})
			slices.Sort(q.ids)
			calls, ids := strings.Join(keys.calls, ", "), strings.Join(q.ids, " ")
			if calls != c.calls || ids != c.booked {
				t.Errorf("%q, and booked %q; want %q and %q", calls, ids, c.calls, c.booked)
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
