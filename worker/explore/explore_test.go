package explore

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// number is an environment variable's value, or what it is without.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is no number", name, s)
	}
	return n
}

func allowed(t *testing.T) budget {
	t.Helper()
	return budget{
		deliveries: number(t, "EXPLORE_DELIVERIES", 4), faults: number(t, "EXPLORE_FAULTS", 2),
		crashes: 1, ticks: 3, unlocks: 1, stops: 1, failures: 1, hasty: 1, recovers: 1,
	}
}

// Two searches: every sequence of a few steps; and every sequence of many of
// which all but a few are what goes well.
func TestNoInterleavingRunsTwiceOrLosesTheAnalysis(t *testing.T) {
	if replay := os.Getenv("EXPLORE_REPLAY"); replay != "" {
		choices, err := readChoices(replay)
		if err != nil {
			t.Fatal(err)
		}
		(&search{budget: allowed(t)}).replay(t, choices)
		return
	}
	breadth, strays := number(t, "EXPLORE_DEPTH", 4), number(t, "EXPLORE_STRAYS", 2)
	var all stats
	for _, s := range []*search{
		{budget: allowed(t), depth: breadth, stray: breadth},
		{budget: allowed(t), depth: number(t, "EXPLORE_REACH", 30), stray: strays},
	} {
		began := time.Now()
		s.run(t)
		took := time.Since(began)
		t.Logf("%d steps, %d of them stray, %+v: %d executions of %d steps in %v (%.0f executions/s); %d states, %d executions ended in a known one, %d were brought to their end, the longest after %d steps",
			s.depth, s.stray, s.budget, s.stats.executions, s.stats.steps, took.Round(time.Millisecond), float64(s.stats.executions)/took.Seconds(),
			s.stats.states, s.stats.pruned, s.stats.drained, s.stats.deepest)
		if s.bad != "" {
			s.replay(t, s.failed)
			t.Fatalf("EXPLORE_REPLAY=%s repeats it, EXPLORE_DELIVERIES and EXPLORE_FAULTS being the same", written(s.failed))
		}
		all.add(&s.stats, 0)
	}
	for name, n := range all.named() {
		t.Logf("%s: %d", name, n)
		if n == 0 {
			t.Errorf("no %s: the search has shown nothing about them", name)
		}
	}
}

// The search is worth something: over a store that does not compare, it fails.
func TestASearchOverAStoreThatDoesNotCompareFails(t *testing.T) {
	s := &search{budget: allowed(t), depth: 4, stray: 4, lax: true}
	s.run(t)
	if s.bad == "" {
		t.Errorf("%d executions, and no violation", s.stats.executions)
	}
}

// replay makes one execution and prints it.
func (s *search) replay(t *testing.T, choices []int) {
	t.Helper()
	s.depth, s.stray = len(choices), len(choices)
	_, w := s.execute(t, choices, s.depth, true)
	t.Logf("%s", strings.Join(w.trace, "\n"))
	if w.bad != "" {
		t.Errorf("%s", w.bad)
	}
}
