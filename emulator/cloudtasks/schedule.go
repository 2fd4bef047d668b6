package cloudtasks

import (
	"container/heap"
	"time"
)

// dispatch is one entry of a queue's schedule: the next attempt of a task, or,
// with repeat set, one more delivery of an attempt that was made already.
type dispatch struct {
	task   *task
	repeat *attempt
	due    time.Time
	seq    uint64 // breaks ties: first come, first served
	index  int    // in the heap
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

func (s *schedule) remove(d *dispatch) { heap.Remove(&s.entries, d.index) }

// first returns the earliest dispatch, nil if there is none.
func (s *schedule) first() *dispatch {
	if len(s.entries) == 0 {
		return nil
	}
	return s.entries[0]
}

type entries []*dispatch

func (e entries) Len() int { return len(e) }

func (e entries) Less(i, j int) bool {
	if e[i].due.Equal(e[j].due) {
		return e[i].seq < e[j].seq
	}
	return e[i].due.Before(e[j].due)
}

func (e entries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

func (e *entries) Push(x any) {
	d := x.(*dispatch)
	d.index = len(*e)
	*e = append(*e, d)
}

func (e *entries) Pop() any {
	last := len(*e) - 1
	d := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return d
}
