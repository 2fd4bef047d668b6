//go:build unix

package operatorpool_test

import (
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"taskguard/lease/operatorpool"
)

// What another session does between the reading and the writing is decided upon.
func TestCheckAndAssignmentAreOneStep(t *testing.T) { // X
	w := newWorld(t)
	w.assign("B", "dia")
	s := w.over(&between{w.file(), func() { w.assign("A", "kana") }}, "B")
	_, err := w.poolOver(s).Assign(t.Context(), "kana")
	if !errors.As(err, new(*operatorpool.BusyError)) {
		t.Errorf("err = %v; want it busy", err)
	}
	w.wantWritten("A=kana", "B=dia")
}

// And the other way round: what is refused on one reading may be free on the next.
func TestARefusalIsDecidedAgainToo(t *testing.T) { // X
	w := newWorld(t)
	w.assign("A", "kana")
	s := w.over(&between{w.file(), func() { w.put(`{"storage":{}}`) }}, "B")
	if a, err := w.poolOver(s).Assign(t.Context(), "kana"); err != nil || a.Operator.ID != "kana" {
		t.Errorf("%+v, %v", a, err)
	}
	w.wantWritten("B=kana")
}

// The file is never absent, so that no program can take it for the first time's.
func TestTheFileIsReplacedAndNeverRemoved(t *testing.T) { // X
	w := newWorld(t)
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
	for range 100 {
		w.assign("A", "")
	}
	close(stop)
	wg.Wait()
}

// In virtual time, so that no slow disk makes one of them give up.
func TestTwoSessionsAssigningOneOperatorAThousandTimesAlwaysOneGetsIt(t *testing.T) { // X
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		pools := []*operatorpool.Pool{w.pool("A"), w.pool("B")}
		for round := range 1000 {
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

// Six sessions that want any operator of six get one each.
func TestRandomChoicesAtOnceDoNotMeet(t *testing.T) { // X
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var pools []*operatorpool.Pool
		for _, session := range []string{"A", "B", "C", "D", "E", "F"} {
			pools = append(pools, w.pool(session))
		}
		if err := errors.Join(atOnce(t, pools, "")...); err != nil {
			t.Error(err)
		}
		seen := map[string]bool{}
		for _, id := range w.written() {
			seen[id] = true
		}
		if len(seen) != len(six) {
			t.Errorf("they have %v", w.written())
		}
	})
}
