package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

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
		"no attempt is left": {
			acq: reason("attempts_exhausted"), want: "failed attempts_exhausted true 0", wraps: lease.ErrExhausted,
		},
		"no run time is left": {
			acq: reason("run_time_exhausted"), want: "failed run_time_exhausted true 0", wraps: errRunTime,
		},
		"it kills":                 {acq: reason("crashed"), want: "failed crashed true 0"},
		"it is full":               {err: analysislock.ErrUnrecordable, want: "failed unrecordable true 0"},
		"it is full, with FAILED":  {err: lease.ErrRefused, want: "malformed false 0", wraps: lease.ErrRefused},
		"delayed":                  {acq: suspect, want: "suspect true 1"},
		"changed before the delay": {acq: suspect, delayed: lease.ErrConflict, want: "suspect false 0"},
		"not delayed":              {acq: suspect, delayed: lease.ErrUnavailable, want: "unavailable false 0"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			q := &forgetful{}
			r := (&Runner{
				Queue: q, Log: slog.New(slog.DiscardHandler), Locks: skipping{nil, c.acq, c.err, c.delayed, stop},
			}).Deliver(ctx, Delivery{AnalysisID: "x", Analyzer: orchestrator.AnalyzerFunc(nil)})
			code := ""
			if r.Code != "" {
				code = r.Code + " "
			}
			got := fmt.Sprintf("%s %s%t %d", r.Reason, code, r.Ack, len(q.booked))
			if got != c.want || c.wraps != nil && !errors.Is(r.Err, c.wraps) {
				t.Errorf("%s, %v; want %s, %v", got, r.Err, c.want, c.wraps)
			}
			if r.Code == analysislock.Crashed && fmt.Sprint(r.Err) != "m" {
				t.Errorf("%v, want the message of the analysis", r.Err)
			}
			if r.Reason == Suspect && (r.RetryIn <= leastDelay || r.RetryAt.IsZero() != (len(q.booked) == 0)) {
				t.Errorf("in %v, at %v", r.RetryIn, r.RetryAt)
			}
		})
	}
}
