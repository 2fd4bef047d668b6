package main

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"taskguard/lease/analysislock"
)

// Four inputs, each of which takes a hundred times its size when it is decoded, run at
// once in a worker with little memory.
func TestHostileInputsAreRunWhereTheMemorySuffices(t *testing.T) {
	slowWithoutRace(t)
	w := newSmall(t)
	input := hostileInput(hostile)
	w.start(t, enough)
	var delivered sync.WaitGroup
	for i := range 4 {
		id := fmt.Sprint(i)
		if err := w.analyses.Create(t.Context(), id, input); err != nil {
			t.Fatal(err)
		}
		delivered.Go(func() {
			if code, body, err := w.worker.deliver(t.Context(), id); code != http.StatusOK {
				t.Errorf("%s: %d %s %v", id, code, body, err)
			}
		})
	}
	delivered.Wait()
	for i := range 4 {
		if a := w.get(t, fmt.Sprint(i)); a.Status != analysislock.Ready {
			t.Errorf("%d: %s after %d attempts, %v; want READY", i, a.Status, a.Attempts, a.Error)
		}
	}
	if w.killed.Load() {
		t.Errorf("a worker died of %d MiB", enough/mib)
	}
}

// Each crash that an input causes is counted before the input is decoded.
func TestEachDeathIsCountedBeforeTheInputIsDecoded(t *testing.T) {
	slowWithoutRace(t)
	w := newSmall(t)
	if err := w.analyses.Create(t.Context(), "x", hostileInput(hostile)); err != nil {
		t.Fatal(err)
	}
	for attempt := 1; attempt <= mostAttempts; attempt++ {
		w.start(t, tooLittle)
		code, _, _ := w.worker.deliver(t.Context(), "x")
		if code != 0 || !w.killed.Load() {
			t.Fatalf("attempt %d: the worker survives with %d MiB: %d", attempt, tooLittle/mib, code)
		}
		w.expire(t)
		if a := w.get(t, "x"); a.Attempts != attempt || a.Lock.Owner == "" || a.Status != analysislock.Processing {
			t.Fatalf("after death %d: %d attempts, owner %q, %s", attempt, a.Attempts, a.Lock.Owner, a.Status)
		}
	}
	w.start(t, tooLittle)
	if code, body, err := w.worker.deliver(t.Context(), "x"); code != http.StatusOK {
		t.Errorf("the delivery after the last attempt: %d %s %v", code, body, err)
	}
	if a := w.get(t, "x"); a.Status != analysislock.Failed || a.Error == nil || a.Error.Code != analysislock.AttemptsExhausted || a.Attempts != mostAttempts || a.Lock.Owner != "" {
		t.Errorf("%s after %d attempts, error %+v, owner %q; want FAILED after %d", a.Status, a.Attempts, a.Error, a.Lock.Owner, mostAttempts)
	}
}
