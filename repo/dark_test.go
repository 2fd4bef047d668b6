package repo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// A dark Firestore is said to be out of reach, in the time that each method has.
func TestADarkFirestoreIsUnavailableInTime(t *testing.T) {
	cases := map[string]struct {
		within time.Duration
		do     func(ctx context.Context, a *Analyses) error
	}{
		"Get":        {5 * time.Second, func(ctx context.Context, a *Analyses) error { _, err := a.Get(ctx, "x"); return err }},
		"Ping":       {5 * time.Second, func(ctx context.Context, a *Analyses) error { return a.Ping(ctx) }},
		"List":       {15 * time.Second, func(ctx context.Context, a *Analyses) error { _, err := a.List(ctx, 10); return err }},
		"Unfinished": {15 * time.Second, func(ctx context.Context, a *Analyses) error { _, err := a.Unfinished(ctx, 10); return err }},
		"Create":     {15 * time.Second, func(ctx context.Context, a *Analyses) error { return a.Create(ctx, "y", nil) }},
		"Unlock":     {15 * time.Second, func(ctx context.Context, a *Analyses) error { _, err := a.Unlock(ctx, "x", nil); return err }},
		"AcquireAnalysisLock": {20 * time.Second, func(ctx context.Context, a *Analyses) error {
			_, err := a.AcquireAnalysisLock(ctx, "x", "w/2", 0)
			return err
		}},
		"RefreshAnalysisLock": {15 * time.Second, func(ctx context.Context, a *Analyses) error {
			return a.RefreshAnalysisLock(ctx, "held", "w/1", 0)
		}},
		"ReleaseAnalysisLock": {2 * time.Second, func(ctx context.Context, a *Analyses) error {
			return a.ReleaseAnalysisLock(ctx, "held", "w/1", false)
		}},
		"Complete": {60 * time.Second, func(ctx context.Context, a *Analyses) error {
			return a.Complete(ctx, "held", "w/1", "result")
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				l := &line{}
				a := open(t, b, l.options()...)
				b.Put(t, "x", map[string]any{"status": analysislock.Queued})
				b.Put(t, "held", map[string]any{"status": analysislock.Queued})
				mustAcquire(t, a, "held", "w/1")
				l.darken()
				began := time.Now()
				err := tc.do(t.Context(), a)
				if took := time.Since(began); !errors.Is(err, lease.ErrUnavailable) || took > tc.within {
					t.Errorf("%v after %v, want ErrUnavailable after at most %v", err, took, tc.within)
				}
			})
		})
	}
}

// From within its transaction on, nothing is answered any more.
func TestAnAcquisitionThatGoesDarkInItsTransactionIsUnavailableInTime(t *testing.T) {
	for _, from := range []string{exclusiveRead, exclusiveCommit} {
		t.Run(from, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				l := &line{}
				a := open(t, b, l.options()...)
				b.Put(t, "x", map[string]any{"status": analysislock.Queued})
				l.befall(exclusively(t, b, map[string][]fault{from: {func(ctx context.Context, do func() error) error {
					l.darken()
					return dark(ctx, do)
				}}}))
				began := time.Now()
				_, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0)
				if took := time.Since(began); !errors.Is(err, lease.ErrUnavailable) || took > 20*time.Second {
					t.Errorf("%v after %v, want ErrUnavailable after at most 20 s", err, took)
				}
				l.wantAllMet(t)
			})
		})
	}
}

// One call that is never answered takes its own time, not the operation's: it is
// given up, and the operation succeeds. A release has no time for another.
func TestOneCallThatIsNeverAnsweredIsGivenUpInTime(t *testing.T) {
	for _, verb := range []string{"acquire", "heartbeat", "finish"} {
		op := operations[verb]
		for _, exclusive := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/exclusive=%v", verb, exclusive), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) { op.meets(t, b, dark, exclusive, false) })
			})
		}
	}
}
