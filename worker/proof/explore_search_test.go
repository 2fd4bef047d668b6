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
	budget budget
	from   start // what each execution begins with
	lax    bool  // over a store that does not compare
	depth  int   // of steps beyond the start
	stray  int   // of which so many may be another than the first possible one: what goes well

	memo [64]shard

	mu                sync.Mutex
	todo              [][]int // prefixes, each for all executions that begin with it
	executions, steps int
	figures           figures
	failed            []int // the choices of the first execution with a violation
	wrong             string
}

// shard is a part of the states that have been seen.
type shard struct {
	mu   sync.Mutex
	left map[uint64][]room // with how much left: none of them more than another
}

// room is how much of an execution is left.
type room struct{ steps, strays int }

// enter reports whether a state is to be explored with so much left.
func (s *search) enter(d uint64, left room) bool {
	m := &s.memo[d%64]
	m.mu.Lock()
	defer m.mu.Unlock()
	var others []room
	for _, r := range m.left[d] {
		if r.steps >= left.steps && r.strays >= left.strays {
			return false
		}
		if r.steps > left.steps || r.strays > left.strays {
			others = append(others, r)
		}
	}
	m.left[d] = append(others, left)
	return true
}

// choice is the number of a step that was taken, of so many.
type choice struct{ chosen, of int }

func chosen(taken []choice) (numbers []int) {
	for _, c := range taken {
		numbers = append(numbers, c.chosen)
	}
	return numbers
}

// execute runs one execution: prefix, then the first of the possible steps each
// time, until the depth is reached, a state has been seen, or no step is
// possible.
func (s *search) execute(t *testing.T, prefix []int, depth int, traced bool) (taken []choice, x *execution) {
	synctest.Test(t, func(*testing.T) {
		x = newExecution(s.budget)
		x.traced, x.lax = traced, s.lax
		s.from.make(x)
		taken = s.follow(x, prefix, depth)
		x.close()
	})
	return taken, x
}

func (s *search) follow(x *execution, prefix []int, depth int) (taken []choice) {
	strays := s.stray
	for len(x.wrong) == 0 {
		all := x.steps()
		at := len(taken)
		x.repeats = at < len(prefix)-1
		if at >= depth || len(all) == 0 {
			if depth == s.depth || x.traced {
				x.drain()
			}
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
		if strays == 0 {
			c.of = 1
		}
		if c.chosen > 0 {
			strays--
		}
		taken = append(taken, c)
		x.note("%d/%d %s", c.chosen, len(all), all[c.chosen].name)
		all[c.chosen].do()
		last := !x.traced && depth == s.depth && len(taken) >= len(prefix)
		if len(x.wrong) == 0 && last && !s.enter(x.state(), room{depth - len(taken), strays}) {
			x.count("executions that ended in a known state")
			return taken
		}
	}
	return taken
}

// next is the execution after taken that begins with its first base choices.
func next(taken []choice, base int) (prefix []int, ok bool) {
	last := len(taken) - 1
	for ; last >= base && taken[last].chosen+1 >= taken[last].of; last-- {
	}
	if last < base {
		return nil, false
	}
	prefix = chosen(taken[:last+1])
	prefix[last]++
	return prefix, true
}

// below explores all that begins with base.
func (s *search) below(t *testing.T, base []int, depth int, each func(taken []choice)) {
	prefix := base
	for ok := true; ok; {
		taken, x := s.execute(t, prefix, depth, false)
		s.mu.Lock()
		s.figures.add(x.figures)
		s.executions++
		s.steps += len(taken)
		if len(x.wrong) > 0 && s.wrong == "" {
			s.wrong, s.failed = x.wrong[0], chosen(taken)
		}
		stop := s.wrong != ""
		s.mu.Unlock()
		if stop {
			return
		}
		if each != nil {
			each(taken)
		}
		prefix, ok = next(taken, len(base))
	}
}

// run explores everything, on two goroutines: first the beginnings, which are
// then shared out.
func (s *search) run(t *testing.T) {
	s.figures = figures{}
	for i := range s.memo {
		s.memo[i].left = map[uint64][]room{}
	}
	s.below(t, nil, min(4, s.depth-1), func(taken []choice) { s.todo = append(s.todo, chosen(taken)) })
	var pair sync.WaitGroup
	for range 2 {
		pair.Go(func() {
			for {
				s.mu.Lock()
				if len(s.todo) == 0 || s.wrong != "" {
					s.mu.Unlock()
					return
				}
				base := s.todo[0]
				s.todo = s.todo[1:]
				s.mu.Unlock()
				s.below(t, base, s.depth, nil)
			}
		})
	}
	pair.Wait()
	for i := range s.memo {
		s.figures["states"] += int64(len(s.memo[i].left))
	}
}

// replay makes one execution and prints it.
func (s *search) replay(t *testing.T, choices []int) {
	t.Helper()
	s.depth, s.stray = len(choices), len(choices)
	_, x := s.execute(t, choices, s.depth, true)
	for _, l := range x.trace {
		t.Logf("%9.3fs  %s", l.at.Seconds(), l.text)
	}
	for _, wrong := range x.wrong {
		t.Error(wrong)
	}
}

// searches are all searches, in order. EXPLORE_SEARCH is a number among them.
func searches(t *testing.T) []*search {
	t.Helper()
	all := budget{
		deliveries: number(t, "EXPLORE_DELIVERIES", 4), faults: number(t, "EXPLORE_FAULTS", 2),
		crashes: 1, ticks: 3, unlocks: 1, stops: 1, failures: 1, hasty: 1, recovers: 1,
	}
	depth, reach := number(t, "EXPLORE_DEPTH", 4), number(t, "EXPLORE_REACH", 30)
	of := []*search{
		{budget: all, depth: depth, stray: depth},
		{budget: all, depth: reach, stray: number(t, "EXPLORE_STRAYS", 2)},
	}
	onward := number(t, "EXPLORE_ONWARD", longOrShort(3, 2))
	calm := budget{deliveries: 3, ticks: 2, unlocks: 1, stops: 1, hasty: 1}
	rough := calm
	rough.faults, rough.crashes = 1, 1
	for _, from := range starts {
		strays := max(2, onward-from.fewer)
		of = append(of,
			&search{budget: calm, from: from, depth: reach, stray: strays},
			&search{budget: rough, from: from, depth: reach, stray: strays - 1})
	}
	return of
}

// expectedSteps are the figures without which the searches have proved nothing.
var expectedSteps = []string{
	"steals", "conflicts", "superseded writes refused", "replies lost", "writes delayed", "crashes", "a heartbeat is due",
	"trust ends", "the lock expires", "late wake-ups", "heartbeat", "unlock", "SIGTERMs", "stopped runs refunded",
	"deliveries booked", "recoveries", "answered 200 READY", "answered 200 locked", "answered 409 locked", "answered 500 retry",
}

// Every sequence of a few steps; every sequence of many steps of which all but a
// few are what goes well; and such from each of the starts, with smaller
// budgets, so that more of them may be strays.
func TestNoInterleavingRunsTwiceOrLosesTheAnalysis(t *testing.T) {
	all := searches(t)
	if replay := os.Getenv("EXPLORE_REPLAY"); replay != "" {
		var choices []int
		for word := range strings.SplitSeq(replay, ".") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 0 {
				t.Fatalf("EXPLORE_REPLAY: %q is not a choice", word)
			}
			choices = append(choices, n)
		}
		all[number(t, "EXPLORE_SEARCH", 0)].replay(t, choices)
		return
	}
	sum := figures{}
	for i, s := range all {
		began := time.Now()
		s.run(t)
		t.Logf("%s: %d steps, %d of them stray, %+v: %d executions of %d steps in %v", s.from, s.depth, s.stray, s.budget,
			s.executions, s.steps, time.Since(began).Round(time.Millisecond))
		if s.wrong != "" {
			s.replay(t, s.failed)
			t.Fatalf("EXPLORE_SEARCH=%d EXPLORE_REPLAY=%s repeats it, EXPLORE_DELIVERIES and EXPLORE_FAULTS being the same",
				i, strings.Trim(strings.ReplaceAll(fmt.Sprint(s.failed), " ", "."), "[]"))
		}
		sum.add(s.figures)
	}
	t.Logf("\n%s", sum)
	if names := sum.missing(expectedSteps); names != nil {
		t.Errorf("never happened, so nothing is proved: %q", names)
	}
}

func TestASearchOverAStoreThatDoesNotCompareFails(t *testing.T) {
	s := searches(t)[0]
	s.depth, s.stray, s.lax = 4, 4, true
	s.run(t)
	if s.wrong == "" {
		t.Errorf("%d executions, and no violation", s.executions)
	}
}
