package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

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

type inputReader = func(context.Context, analysislock.Analysis) (analysislock.Work, error)

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
	w.guard.Locks = m.locks(t, func(context.Context, analysislock.Analysis) (analysislock.Work, error) {
		return analysislock.Work{}, errors.New("the input is out of reach")
	})
	w.deliver(t, "x").check(t, 503, map[string]any{"acquired": true, "reason": "unavailable"})
	c, err := m.Load(t.Context(), "x")
	want := analysislock.Error{Code: "input_unavailable", Message: "the input could not be read"}
	if d := c.Doc; err != nil || d.Status != analysislock.Queued || d.Lock.Owner != "" || d.Lock.Attempts != 1 || d.LastError == nil || *d.LastError != want {
		t.Errorf("%+v, %v", d, err)
	}
}
