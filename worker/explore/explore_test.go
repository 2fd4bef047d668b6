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

// Three kinds of search: every sequence of a few steps; every sequence of many
// of which all but a few are what goes well; and such from each of the starts,
// with smaller budgets, so that more of them may be strays.
func TestNoInterleavingRunsTwiceOrLosesTheAnalysis(t *testing.T) {
	if replay := os.Getenv("EXPLORE_REPLAY"); replay != "" {
		choices, err := readChoices(replay)
		if err != nil {
			t.Fatal(err)
		}
		again(t).replay(t, choices)
		return
	}
	var all stats
	for i, s := range searches(t) {
		began := time.Now()
		s.run(t)
		took := time.Since(began)
		t.Logf("%s: %d steps, %d of them stray, %+v: %d executions of %d steps in %v (%.0f executions/s); %d states, %d executions ended in a known one, %d were brought to their end, the longest after %d steps",
			s.from, s.depth, s.stray, s.budget, s.stats.executions, s.stats.steps, took.Round(time.Millisecond), float64(s.stats.executions)/took.Seconds(),
			s.stats.states, s.stats.pruned, s.stats.drained, s.stats.deepest)
		if s.bad != "" {
			s.replay(t, s.failed)
			t.Fatalf("EXPLORE_SEARCH=%d EXPLORE_REPLAY=%s repeats it, EXPLORE_DELIVERIES and EXPLORE_FAULTS being the same", i, written(s.failed))
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

// again is the search that EXPLORE_SEARCH numbers.
func again(t *testing.T) *search {
	t.Helper()
	all := searches(t)
	i := number(t, "EXPLORE_SEARCH", 0)
	if i >= len(all) {
		t.Fatalf("EXPLORE_SEARCH=%d of %d", i, len(all))
	}
	return all[i]
}

func searches(t *testing.T) []*search {
	t.Helper()
	depth, reach := number(t, "EXPLORE_DEPTH", 4), number(t, "EXPLORE_REACH", 30)
	all := []*search{
		{budget: allowed(t), depth: depth, stray: depth},
		{budget: allowed(t), depth: reach, stray: number(t, "EXPLORE_STRAYS", 2)},
	}
	onward := number(t, "EXPLORE_ONWARD", 3)
	calm := budget{deliveries: 3, ticks: 2, unlocks: 1, stops: 1, hasty: 1}
	rough := calm
	rough.faults, rough.crashes = 1, 1
	for _, from := range starts {
		strays := max(2, onward-from.fewer)
		all = append(all,
			&search{budget: calm, from: from, depth: reach, stray: strays},
			&search{budget: rough, from: from, depth: reach, stray: strays - 1})
	}
	return all
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
