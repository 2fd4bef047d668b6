package explore

import (
	"fmt"
	"time"
)

// stats are what was seen, counted where it happened first: the repetition of a
// prefix does not count again.
type stats struct {
	executions, steps, pruned, drained, deepest, states int

	steals, conflicts, superseded, lost, delayed, crashes, wakeups, extended, unlocks, stops, booked, recoveries int

	ticks   map[string]int
	answers map[int]int
}

func (w *world) count(add func(*stats)) {
	if w.fresh {
		add(&w.stats)
	}
}

func (s *stats) add(o *stats, deep int) {
	s.executions++
	s.steps += o.steps
	s.pruned += o.pruned
	s.drained += o.drained
	s.deepest = max(s.deepest, deep)
	s.steals += o.steals
	s.conflicts += o.conflicts
	s.superseded += o.superseded
	s.lost += o.lost
	s.delayed += o.delayed
	s.crashes += o.crashes
	s.wakeups += o.wakeups
	s.extended += o.extended
	s.unlocks += o.unlocks
	s.stops += o.stops
	s.booked += o.booked
	s.recoveries += o.recoveries
	if s.ticks == nil {
		s.ticks, s.answers = map[string]int{}, map[int]int{}
	}
	for k, n := range o.ticks {
		s.ticks[k] += n
	}
	for k, n := range o.answers {
		s.answers[k] += n
	}
}

// named are the counts of which each must be above zero.
func (s *stats) named() map[string]int {
	return map[string]int{
		"steals": s.steals, "conflicts": s.conflicts, "superseded writes refused": s.superseded,
		"replies lost": s.lost, "writes delayed": s.delayed, "crashes": s.crashes,
		"heartbeats due": s.ticks["a heartbeat is due"], "ends of trust": s.ticks["trust ends"], "expiries": s.ticks["the lock expires"],
		"late wake-ups": s.wakeups, "locks extended": s.extended, "unlocks": s.unlocks, "SIGTERMs": s.stops, "deliveries booked": s.booked, "recoveries": s.recoveries,
		"answers 200": s.answers[200], "answers 409": s.answers[409], "answers 500": s.answers[500],
	}
}

func (w *world) note(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf("%9.3fs  ", time.Since(w.start).Seconds())+fmt.Sprintf(format, args...))
	}
}
