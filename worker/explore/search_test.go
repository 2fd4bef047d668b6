package explore

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// search is one exploration: depth first, each execution from the start.
type search struct {
	budget budget
	from   start // what each execution begins with
	lax    bool  // over a store that does not compare
	depth  int   // of steps beyond it
	stray  int   // of which so many may be another than the first: what goes well

	memo [64]shard

	mu     sync.Mutex
	todo   [][]int // prefixes, each with all that begins so
	stats  stats
	failed []int
	bad    string
}

// shard is a part of the states that have been seen.
type shard struct {
	mu   sync.Mutex
	left map[digest][]room // with how much left: none of them more than another
}

// room is how much of an execution is left.
type room struct{ steps, strays int }

// enter reports whether a state is to be explored with so much left.
func (s *search) enter(d digest, left room) bool {
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

// node is a choice that was made, of so many.
type node struct{ chosen, of int }

// execute runs one execution: prefix, then the first of each choice, until the
// depth is reached, a state has been seen, or nothing is left to do.
func (s *search) execute(t *testing.T, prefix []int, depth int, traced bool) (path []node, w *world) {
	synctest.Test(t, func(*testing.T) {
		w = newWorld(s.budget)
		w.traced, w.lax = traced, s.lax
		s.from.make(w)
		path = s.follow(w, prefix, depth)
		w.close()
	})
	return path, w
}

func (s *search) follow(w *world, prefix []int, depth int) (path []node) {
	strays := s.stray
	for w.bad == "" {
		all := w.actions()
		at := len(path)
		w.fresh = at >= len(prefix)-1
		if at >= depth || len(all) == 0 {
			if depth == s.depth || w.traced {
				w.note("-- no fault from here on --")
				w.drain()
				w.stats.drained++
			}
			return path
		}
		n := node{of: len(all)}
		if at < len(prefix) {
			n.chosen = prefix[at]
		}
		if n.chosen >= n.of {
			w.violated("choice %d of %d: the sequence is another search's, or executions do not repeat", n.chosen, n.of)
			return path
		}
		if strays == 0 {
			n.of = 1
		}
		if n.chosen > 0 {
			strays--
		}
		path = append(path, n)
		w.note("%d/%d %s", n.chosen, len(all), all[n.chosen].name)
		all[n.chosen].do()
		w.stats.steps++
		if w.bad == "" && !w.traced && depth == s.depth && len(path) >= len(prefix) && !s.enter(w.state(), room{depth - len(path), strays}) {
			w.stats.pruned++
			return path
		}
	}
	return path
}

// next is the execution after path that begins with its first base choices.
func next(path []node, base int) (prefix []int, ok bool) {
	last := len(path) - 1
	for ; last >= base && path[last].chosen+1 >= path[last].of; last-- {
	}
	if last < base {
		return nil, false
	}
	for _, n := range path[:last+1] {
		prefix = append(prefix, n.chosen)
	}
	prefix[last]++
	return prefix, true
}

// below explores all that begins with base.
func (s *search) below(t *testing.T, base []int, depth int, each func(path []node)) {
	prefix := base
	for ok := true; ok; {
		path, w := s.execute(t, prefix, depth, false)
		s.mu.Lock()
		s.stats.add(&w.stats, len(path))
		if w.bad != "" && s.bad == "" {
			s.bad = w.bad
			s.failed = nil
			for _, n := range path {
				s.failed = append(s.failed, n.chosen)
			}
		}
		stop := s.bad != ""
		s.mu.Unlock()
		if stop {
			return
		}
		if each != nil {
			each(path)
		}
		prefix, ok = next(path, len(base))
	}
}

// run explores everything, on two goroutines: first the beginnings, which are
// then shared out.
func (s *search) run(t *testing.T) {
	for i := range s.memo {
		s.memo[i].left = map[digest][]room{}
	}
	s.below(t, nil, min(4, s.depth-1), func(path []node) {
		var p []int
		for _, n := range path {
			p = append(p, n.chosen)
		}
		s.todo = append(s.todo, p)
	})
	var pair sync.WaitGroup
	for range 2 {
		pair.Go(func() {
			for {
				s.mu.Lock()
				if len(s.todo) == 0 || s.bad != "" {
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
		s.stats.states += len(s.memo[i].left)
	}
}

// written is a choice sequence as EXPLORE_REPLAY takes it.
func written(choices []int) string {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = strconv.Itoa(c)
	}
	return strings.Join(words, ".")
}

func readChoices(s string) (choices []int, err error) {
	for word := range strings.SplitSeq(s, ".") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("EXPLORE_REPLAY: %q is no choice", word)
		}
		choices = append(choices, n)
	}
	return choices, nil
}
