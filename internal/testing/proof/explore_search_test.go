package proof

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// search is one exploration: depth first, each execution from the start.
type search struct {
	budget        budget
	from          string        // the name of the start of each execution; empty: the beginning
	runTimeout    time.Duration // zero: a day
	skipRevisions bool          // the store does not compare revisions
	depth         int           // the number of steps after the start
	deviations    int           // how many of them may be another than the first possible step

	executions, steps int
	figures           figures
	failed            []int // the choices of the first execution with a violation
	wrong             string
}

// choice is the number of the step that was taken, and of how many possible steps.
type choice struct{ chosen, of int }

func chosen(taken []choice) (numbers []int) {
	for _, c := range taken {
		numbers = append(numbers, c.chosen)
	}
	return numbers
}

// execute runs one execution: prefix, then always the first possible step, until
// the depth is reached or no step is possible.
func (s *search) execute(t *testing.T, prefix []int, traced bool) (taken []choice, x *execution) {
	synctest.Test(t, func(*testing.T) {
		x = newExecution(s.budget, s.runTimeout)
		x.traced, x.skipRevisions = traced, s.skipRevisions
		x.begin(starts[s.from])
		taken = s.follow(x, prefix)
		x.close()
	})
	return taken, x
}

func (s *search) follow(x *execution, prefix []int) (taken []choice) {
	deviations := s.deviations
	for len(x.wrong) == 0 {
		all := x.steps()
		at := len(taken)
		x.repeats = at < len(prefix)-1
		if at >= s.depth || len(all) == 0 {
			x.drain()
			return taken
		}

		c := choice{of: len(all)}
		if at < len(prefix) {
			c.chosen = prefix[at]
		}
		if c.chosen >= c.of {
			x.fail("choice %d of %d: the sequence is another search's, or executions do not repeat", c.chosen, c.of)
			return taken
		}
		if deviations == 0 {
			c.of = 1
		}
		if c.chosen > 0 {
			deviations--
		}

		taken = append(taken, c)
		x.note("%d/%d %s", c.chosen, len(all), all[c.chosen].name)
		all[c.chosen].do()
	}
	return taken
}

// next returns the choices of the execution after taken.
func next(taken []choice) (prefix []int, ok bool) {
	last := len(taken) - 1
	for last >= 0 && taken[last].chosen+1 >= taken[last].of {
		last--
	}
	if last < 0 {
		return nil, false
	}
	prefix = chosen(taken[:last+1])
	prefix[last]++
	return prefix, true
}

// run explores everything, until the first violation.
func (s *search) run(t *testing.T) {
	s.figures = figures{}
	var prefix []int
	for ok := true; ok; {
		taken, x := s.execute(t, prefix, false)
		s.figures.add(x.figures)
		s.executions++
		s.steps += len(taken)
		if len(x.wrong) > 0 {
			s.wrong, s.failed = x.wrong[0], chosen(taken)
			return
		}
		prefix, ok = next(taken)
	}
}

// replay makes one execution and prints it.
func (s *search) replay(t *testing.T, choices []int) {
	t.Helper()
	s.depth, s.deviations = len(choices), len(choices)
	_, x := s.execute(t, choices, true)
	for _, l := range x.trace {
		t.Logf("%9.3fs  %s", l.at.Seconds(), l.text)
	}
	for _, wrong := range x.wrong {
		t.Error(wrong)
	}
}

// reach is the number of steps of a search with few deviations.
const reach = 30

// searches returns all searches. EXPLORE_SEARCH is an index of them.
func searches(t *testing.T) []*search {
	t.Helper()
	const deadline = 150 * time.Second
	depth, onward := number(t, "EXPLORE_DEPTH", 4), number(t, "EXPLORE_ONWARD", 2)
	further := max(2, onward-1)
	all := budget{deliveries: 4, faults: 2, crashes: 1, ticks: 3, unlocks: 1, stops: 1, failures: 1, early: 1, recovers: 1}
	calm := budget{deliveries: 3, ticks: 2, unlocks: 1, stops: 1, early: 1}
	rough := calm
	rough.faults, rough.crashes = 1, 1
	working := budget{deliveries: 3, ticks: 2, stops: 1, early: 1, reports: 2, cancels: 1, requeues: 1}
	faulty := working
	faulty.faults, faulty.crashes, faulty.failures, faulty.requeues = 1, 1, 1, 0
	after := budget{deliveries: 2, ticks: 1, early: 1, reports: 1, cancels: 1} // the run has ended
	reopened := budget{deliveries: 3, ticks: 1, reports: 1, requeues: 1}
	failing := budget{deliveries: 4, faults: 1, crashes: 1, ticks: 2, unlocks: 1, failures: 1, early: 1, recovers: 1}
	return []*search{
		{budget: all, depth: depth, deviations: depth},
		{budget: all, depth: reach, deviations: number(t, "EXPLORE_DEVIATIONS", 2)},
		{budget: calm, from: "booked", depth: reach, deviations: onward},
		{budget: rough, from: "booked", depth: reach, deviations: onward - 1},
		{budget: calm, from: "stopped", depth: reach, deviations: further},
		{budget: rough, from: "stopped", depth: reach, deviations: further - 1},
		{budget: calm, from: "overtaken", depth: reach, deviations: further},
		{budget: rough, from: "overtaken", depth: reach, deviations: further - 1},
		{budget: working, depth: reach, deviations: further},
		{budget: faulty, from: "reported", depth: reach, deviations: further},
		{budget: reopened, from: "cancelled", depth: reach, deviations: further},
		{budget: after, from: "releasing", depth: reach, deviations: further},
		{budget: faulty, from: "expired", runTimeout: deadline, depth: reach, deviations: further},
		{budget: after, from: "flushing", runTimeout: deadline, depth: reach, deviations: further},
		{budget: failing, from: "failed", depth: reach, deviations: further},
		{budget: failing, from: "recovering", depth: reach, deviations: further},
		{budget: failing, from: "marked", depth: reach, deviations: further},
		{budget: failing, from: "delayed", depth: reach, deviations: further},
	}
}

// expectedSteps are the figures that must not be zero: without them the searches
// prove nothing.
var expectedSteps = []string{
	"steals", "superseded writes refused", "replies lost", "writes delayed", "crashes", "a heartbeat is due",
	"trust ends", "the lock expires", "late wake-ups", "unlock", "cancel", "requeue", "stopped runs refunded",
	"a run reaches its deadline", "continued runs refunded", "ended cancelled cancelled", "ended retry run_timeout",
	"checkpoints committed", "checkpoints awaited", "checkpoints handed out", "recoveries", "settled locked",
	"unsettled locked", "settled retry", "unsettled retry", "settled waiting", "unsettled waiting",
	"marks of those that wait in the queue", "marks refused", "crashes between commit and booking",
	"booked again after a crash", "booked attempts delivered early",
}

// The searches: every sequence of a few steps; every sequence of many steps with a
// few deviations from the first possible step; and the same from each of the starts,
// with smaller budgets and more deviations.
func TestNoInterleavingRunsTwiceOrLosesTheAnalysis(t *testing.T) {
	all := searches(t)
	if replay := os.Getenv("EXPLORE_REPLAY"); replay != "" {
		var choices []int
		for word := range strings.SplitSeq(replay, ".") {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			choices = append(choices, n)
		}
		all[number(t, "EXPLORE_SEARCH", 0)].replay(t, choices)
		return
	}

	var running sync.WaitGroup
	for _, s := range all {
		running.Go(func() { s.run(t) })
	}
	running.Wait()

	sum := figures{}
	for i, s := range all {
		t.Logf("from %q, %d steps, at most %d deviations, %+v: %d executions of %d steps",
			s.from, s.depth, s.deviations, s.budget, s.executions, s.steps)
		if s.wrong != "" {
			s.replay(t, s.failed)
			t.Fatalf("EXPLORE_SEARCH=%d EXPLORE_REPLAY=%s repeats it", i, strings.Trim(strings.ReplaceAll(fmt.Sprint(s.failed), " ", "."), "[]"))
		}
		sum.add(s.figures)
	}
	t.Logf("\n%s", sum)
	if names := sum.missing(expectedSteps); names != nil {
		t.Errorf("never happened, so the searches prove nothing: %q", names)
	}
}

func TestASearchFindsAStoreThatDoesNotCompareRevisions(t *testing.T) {
	s := &search{depth: 4, deviations: 4, skipRevisions: true, budget: searches(t)[0].budget}
	if s.run(t); s.wrong == "" {
		t.Errorf("%d executions, and no violation", s.executions)
	}
}
