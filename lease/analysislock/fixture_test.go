package analysislock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

type (
	analysis = analysislock.Analysis
	ending   = analysislock.Ending
	failure  = analysislock.Error
	hold     = analysislock.Hold
	options  = analysislock.AcquireOptions
)

// ahead is how far the store's clock is ahead of the worker's, which decides nothing.
const ahead = 7 * time.Minute

// fixture is a store in memory with one analysis, x, in virtual time.
type fixture struct {
	*testing.T
	lease.Memory[analysis]
	locks *analysislock.Locks

	mu      sync.Mutex
	answers []string // to what was sent
}

func (w *fixture) Load(ctx context.Context, key string, _ lease.Want) (lease.Cell[analysis], error) {
	c, err := w.Memory.Load(ctx, key, lease.OnlyLease)
	c.Doc.ReadAt = c.At
	return c, err
}

// now returns the store's time.
func (w *fixture) now() time.Time { return time.Now().Add(ahead) }

// inBubble runs test in virtual time, as a subtest. x is QUEUED, and has three attempts.
func inBubble(t *testing.T, name string, test func(w *fixture)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &fixture{T: t}
			w.Now = w.now
			w.Put("x", analysis{ID: "x", Status: analysislock.Queued, Input: 7})
			w.serve(w, 3, 0)
			test(w)
		})
	})
}

// serve makes the fixture's locks anew.
func (w *fixture) serve(s lease.Store[analysis], attempts int, maxRun time.Duration) {
	w.Helper()
	locks, err := analysislock.New(s, lease.Policy{MaxAttempts: attempts}, maxRun, nil)
	if err != nil {
		w.Fatal(err)
	}
	w.locks = locks
}

// faulty replaces the fixture's store by a store that fails by its plan.
func (w *fixture) faulty() *leasetest.Faulty[analysis] {
	w.Helper()
	s := leasetest.NewFaulty[analysis](w, nil)
	w.serve(s, 0, 0)
	return s
}

// acquire tries to acquire x.
func (w *fixture) acquire(owner string, o ...options) analysislock.Acquisition {
	w.Helper()
	acq, err := w.locks.AcquireAnalysisLock(w.Context(), "x", owner, 0, append(o, options{})[0])
	if err != nil {
		w.Fatalf("acquire as %s: %v", owner, err)
	}
	if acq.Acquired != (acq.Hold != nil) || acq.Acquired != (acq.Reason == "") {
		w.Fatalf("acquire as %s: %+v", owner, acq)
	}
	return acq
}

// die lets the lock expire, as after the death of its worker.
func die() { time.Sleep(lease.DefaultTTL + time.Second) }

// end ends an acquisition.
func (w *fixture) end(h *hold, e ending) {
	w.Helper()
	w.check(h.End(w.Context(), e))
}

// retrying is the end of an attempt that is repeated at once.
func retrying(h *hold) ending {
	return analysislock.Retrying(h.Now(), "c", "m", time.Time{}, "", false)
}

// What an operator does, or a program if who is empty.

func (w *fixture) unlock(who string) error {
	_, err := w.locks.Unlock(w.Context(), "x", who, nil, "")
	return err
}

func (w *fixture) requeue(who string) error {
	_, err := w.locks.Requeue(w.Context(), "x", who, nil, false, "")
	return err
}

func (w *fixture) requeueFresh() error {
	_, err := w.locks.Requeue(w.Context(), "x", "", nil, true, "")
	return err
}

func (w *fixture) cancel(who string) error {
	_, err := w.locks.Cancel(w.Context(), "x", who, nil)
	return err
}

func (w *fixture) resolve(who string) error {
	_, err := w.locks.Resolve(w.Context(), "x", who, nil, "charge", analysislock.Answer{}, "")
	return err
}

// run runs body under the lock, and returns the loss, if any.
func (w *fixture) run(h *hold, body func()) error {
	return h.Run(w.Context(), func(context.Context) error { body(); return nil }, nil)
}

// answer collects the outcome of a change for wantAnswers: its name alone means that it was written.
func (w *fixture) answer(name string) func(error) {
	return func(err error) {
		switch {
		case errors.Is(err, lease.ErrRefused):
			name += " refused"
		case errors.Is(err, analysislock.ErrReused):
			name += " reused"
		case err != nil:
			name += " " + err.Error()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.answers = append(w.answers, name)
	}
}

// wantAnswers compares the outcomes since the last call.
func (w *fixture) wantAnswers(want ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.answers, want) {
		w.Errorf("answers %q; want %q", w.answers, want)
	}
	w.answers = nil
}

// cell and doc load the analysis.
func (w *fixture) cell() lease.Cell[analysis] {
	w.Helper()
	c, err := w.Load(w.Context(), "x", lease.OnlyLease)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func (w *fixture) doc() analysis { return w.cell().Doc }

// rewrite changes the analysis as another program does.
func (w *fixture) rewrite(change func(d *analysis)) {
	w.Helper()
	d := w.doc()
	change(&d)
	w.Put("x", d)
}

// outcomes returns the outcomes of the history, with a star for an attempt that was alone.
func (w *fixture) outcomes() string {
	var all []string
	history := w.doc().History
	for i := range history {
		outcome := history[i].Outcome
		if history[i].Alone {
			outcome += "*"
		}
		all = append(all, outcome)
	}
	return strings.Join(all, " ")
}

func (w *fixture) wantStatus(want string) {
	w.Helper()
	same(w, want, w.doc().Status)
}

func (w *fixture) check(err error) {
	w.Helper()
	if err != nil {
		w.Error(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("err = %v; want %v", err, want)
	}
}

// same compares two values.
func same(t testing.TB, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// interrupted loses the reply to the first Swap, after which other programs write.
type interrupted struct {
	*lease.Memory[analysis]
	others func(d *analysis)
}

func (s *interrupted) Swap(ctx context.Context, key string, prev lease.Cell[analysis], next analysis,
) (lease.Cell[analysis], error) {
	c, err := s.Memory.Swap(ctx, key, prev, next)
	if s.others == nil || err != nil {
		return c, err
	}
	s.others(&c.Doc)
	s.Put(key, c.Doc)
	s.others = nil
	return lease.Cell[analysis]{}, leasetest.ErrDropped
}

// interrupt makes the reply to the next commit be lost. Then others write.
func (w *fixture) interrupt(others func(d *analysis)) {
	w.Helper()
	w.serve(&interrupted{&w.Memory, others}, 0, 0)
}
