package operatorpool_test

import (
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"taskguard/lease"
	"taskguard/lease/operatorpool"
)

// What another session does between the reading and the writing is decided upon.
func TestCheckAndAssignmentAreOneStep(t *testing.T) { // X
	w := newFixture(t)
	w.assign("B", "dia")
	s := w.over(&between{w.file(), func() { w.assign("A", "kana") }}, "B")
	_, err := w.poolOver(s).Assign(t.Context(), "kana")
	if !errors.As(err, new(*operatorpool.BusyError)) {
		t.Errorf("err = %v; want it busy", err)
	}
	w.wantWritten("A=kana", "B=dia")
}

// The file is never absent, so that no program can take it for the first time's.
func TestTheFileIsReplacedAndNeverRemoved(t *testing.T) { // X
	w := newFixture(t)
	w.assign("A", "kana")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := os.Stat(w.path); err != nil {
					t.Errorf("absent: %v", err)
					return
				}
			}
		}
	})
	for range 20 {
		w.assign("A", "")
	}
	close(stop)
	wg.Wait()
}

func TestOfTwoSessionsThatAssignOneOperatorOneGetsIt(t *testing.T) { // X
	synctest.Test(t, func(t *testing.T) {
		w, memory := newFixture(t), &lease.Memory[operatorpool.State[string]]{}
		pools := []*operatorpool.Pool{w.poolOver(w.over(memory, "A")), w.poolOver(w.over(memory, "B"))}
		for round := range 200 {
			won := 0
			for i, err := range atOnce(t, pools, "kana") {
				switch {
				case err == nil:
					won++
					if _, ok, err := pools[i].Release(t.Context()); !ok || err != nil {
						t.Fatalf("round %d: release: %v, %v", round, ok, err)
					}
				case !errors.As(err, new(*operatorpool.BusyError)):
					t.Fatalf("round %d: %v", round, err)
				}
			}
			if won != 1 {
				t.Fatalf("round %d: %d got it", round, won)
			}
		}
	})
}

// atOnce lets each of the pools assign id.
func atOnce(t *testing.T, pools []*operatorpool.Pool, id string) []error {
	t.Helper()
	errs := make([]error, len(pools))
	var wg sync.WaitGroup
	for i, p := range pools {
		wg.Go(func() { _, errs[i] = p.Assign(t.Context(), id) })
	}
	wg.Wait()
	return errs
}
