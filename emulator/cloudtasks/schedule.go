package cloudtasks

import (
	"container/heap"
	"time"
)

// dispatch is one entry of a queue's schedule: the next attempt of a task, or,
// with repeat set, one more delivery of an earlier attempt.
type dispatch struct {
	task   *task
	repeat *attempt
	due    time.Time
	seq    uint64 // breaks ties: first come, first served
}

// schedule is a heap of dispatches, the earliest first.
type schedule struct {
	entries entries
	seq     uint64
}

func (s *schedule) add(d *dispatch) {
	s.seq++
	d.seq = s.seq
	heap.Push(&s.entries, d)
}

// first returns the earliest dispatch, nil if there is none.
func (s *schedule) first() *dispatch {
	if len(s.entries) == 0 {
		return nil
	}
	return s.entries[0]
}

// remove drops the earliest dispatch.
func (s *schedule) remove() { heap.Pop(&s.entries) }

type entries []*dispatch

func (e entries) Len() int { return len(e) }

func (e entries) Less(i, j int) bool {
	if e[i].due.Equal(e[j].due) {
		return e[i].seq < e[j].seq
	}
	return e[i].due.Before(e[j].due)
}

func (e entries) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

func (e *entries) Push(x any) { *e = append(*e, x.(*dispatch)) }

func (e *entries) Pop() any {
	last := len(*e) - 1
	d := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return d
}

// pace is a token bucket kept as one instant: the time at which the bucket will
// be full again. Whole nanoseconds make it exact, where a fractional count of
// tokens drifts.
type pace struct {
	interval time.Duration // one token's time
	burst    int           // the bucket's size
	full     time.Time
}

func newPace(perSecond float64, burst int) pace {
	return pace{interval: time.Duration(float64(time.Second) / perSecond), burst: burst}
}

// earliest returns the first instant at which the bucket has a token.
func (p *pace) earliest() time.Time {
	return p.full.Add(-time.Duration(p.burst-1) * p.interval)
}

// take removes the token that the bucket has at now.
func (p *pace) take(now time.Time) {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(p.interval)
}
