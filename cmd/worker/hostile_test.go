package main

import (
	"net/http"
	"testing"

	"taskguard/lease/analysislock"
)

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
