package main

import (
	"fmt"
	"os"
	"sync"
	"taskguard/lease/analysislock"
	"testing"
	"time"
)

// populate makes six hostile documents, and three small ones beside them.
func (w *ward) populate(t *testing.T) (hostile, neighbours []string) {
	t.Helper()
	input := hostileInput()
	for i := range 6 {
		hostile = append(hostile, fmt.Sprint("hostile", i))
		if err := w.analyses.Create(t.Context(), hostile[i], input); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		neighbours = append(neighbours, fmt.Sprint("neighbour", i))
		w.create(t, neighbours[i])
	}
	return hostile, neighbours
}

// Six documents that each take a hundred times their size when they are decoded
// are run at once in a small container, beside others.
func TestHostileInputsAreRunWhereTheMemorySuffices(t *testing.T) {
	slowWithoutRace(t)
	w := newWard(t)
	hostile, neighbours := w.populate(t)
	w.deliverAll(t, enough, hostile, neighbours)
	if w.deaths > 0 {
		t.Errorf("%d workers died of %d MiB", w.deaths, enough/mib)
	}
	all := w.all(t)
	for _, id := range hostile {
		if a := all[id]; a.Status != analysislock.Ready {
			t.Errorf("%s: %s after %d attempts, %v; want READY", id, a.Status, a.Attempts, a.Error)
		}
	}
	w.checkNeighbours(t, neighbours)
	t.Logf("peak memory: %d MiB", peakMemory(t, w.worker.Load().cmd.Process.Pid)/mib)
}

// Where the memory does not suffice, each document is given up after the deaths
// that it may cause, and the others are run.
func TestHostileInputsAreGivenUpWhereTheMemoryDoesNotSuffice(t *testing.T) {
	slowWithoutRace(t)
	w := newWard(t)
	hostile, neighbours := w.populate(t)
	w.deliverAll(t, tooLittle, hostile, neighbours)
	if w.deaths == 0 || w.deaths > mostAttempts*len(hostile) {
		t.Errorf("%d deaths, want 1 to %d", w.deaths, mostAttempts*len(hostile))
	}
	all := w.all(t)
	for _, id := range hostile {
		checkGivenUp(t, id, all[id])
		if w.broken[id] < mostAttempts {
			t.Errorf("%s: %d deliveries were broken off, and %d attempts are counted", id, w.broken[id], all[id].Attempts)
		}
	}
	w.checkNeighbours(t, neighbours)
}

func checkGivenUp(t *testing.T, id string, a analysislock.Analysis) {
	t.Helper()
	if a.Status != analysislock.Failed || a.Error == nil || a.Error.Code != analysislock.AttemptsExhausted || a.Attempts != mostAttempts || a.Lock.Owner != "" {
		t.Errorf("%s: %s after %d attempts, error %+v, owner %q; want it given up after %d", id, a.Status, a.Attempts, a.Error, a.Lock.Owner, mostAttempts)
	}
}

// Each death that an input causes is counted, though the commit that counts it
// takes longer than the input's answer: nothing is decoded before it is answered.
func TestEachDeathIsCountedBeforeTheInputIsDecoded(t *testing.T) {
	slowWithoutRace(t)
	for _, transactions := range []string{"optimistic", "pessimistic"} {
		t.Run(transactions, func(t *testing.T) {
			w := newWard(t)
			if err := w.analyses.Create(t.Context(), "x", hostileInput()); err != nil {
				t.Fatal(err)
			}
			between := newBetween(t, w.host)
			between.before = func(c *call) {
				if c.method != "Commit" {
					return
				}
				for range 100 { // a second, in which an input could be decoded
					if w.worker.Load().killed.Load() {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			for attempt := 1; attempt <= mostAttempts; attempt++ {
				w.start(t, tooLittle, "FIRESTORE_EMULATOR_HOST="+between.host, "FIRESTORE_TRANSACTIONS="+transactions)
				w.deliver(t, []string{"x"})
				if !w.worker.Load().killed.Load() {
					t.Fatalf("attempt %d: the worker lives with %d MiB, which is to be too little", attempt, tooLittle/mib)
				}
				w.bury(t)
				if a := w.all(t)["x"]; a.Attempts != attempt || a.Lock.Owner == "" || a.Status != analysislock.Processing {
					t.Fatalf("after death %d: %d attempts, owner %q, %s", attempt, a.Attempts, a.Lock.Owner, a.Status)
				}
			}
			w.start(t, tooLittle, "FIRESTORE_TRANSACTIONS="+transactions)
			if left := w.deliver(t, []string{"x"}); len(left) > 0 {
				t.Error("the delivery after the last attempt was not acknowledged")
			}
			checkGivenUp(t, "x", w.all(t)["x"])
		})
	}
}

// A worker that dies while the input is on its way has counted the attempt, and
// the next one runs it.
func TestAWorkerKilledWhileItReadsTheInputHasCountedTheAttempt(t *testing.T) {
	for _, transactions := range []string{"optimistic", "pessimistic"} {
		t.Run(transactions, func(t *testing.T) {
			w := newWard(t)
			w.create(t, "x")
			between := newBetween(t, w.host)
			held := make(chan struct{})
			hold := sync.OnceFunc(func() { close(held) })
			between.after = func(c *call) {
				if c.reads("input") {
					hold()
					between.wait() // and the worker with it
				}
			}
			w.start(t, enough, "FIRESTORE_EMULATOR_HOST="+between.host, "FIRESTORE_TRANSACTIONS="+transactions)
			answer := w.worker.Load().delivered(t, "x")
			select {
			case <-held:
			case got := <-answer:
				t.Fatalf("answered %s, and no answer to a read of the input was held back", got)
			}
			for range 1000 { // its commit is on its way beside the read
				if w.all(t)["x"].Attempts > 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			w.worker.Load().signal(t, os.Kill)
			w.bury(t)
			if a := w.all(t)["x"]; a.Attempts != 1 || a.Lock.Owner == "" || a.Status != analysislock.Processing {
				t.Fatalf("%d attempts, owner %q, %s; want 1 and an owner", a.Attempts, a.Lock.Owner, a.Status)
			}
			w.start(t, enough, "FIRESTORE_TRANSACTIONS="+transactions)
			if left := w.deliver(t, []string{"x"}); len(left) > 0 {
				t.Error("the next delivery was not acknowledged")
			}
			if a := w.all(t)["x"]; a.Status != analysislock.Ready || a.Attempts != 2 {
				t.Errorf("%s after %d attempts, want READY after 2", a.Status, a.Attempts)
			}
		})
	}
}
