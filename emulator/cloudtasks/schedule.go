package cloudtasks

import (
	"slices"
	"time"
)

// dispatch is one entry of a queue's schedule: the next attempt of a task, or,
// with repeat set, one more delivery of an earlier attempt.
type dispatch struct {
	task   *task
	repeat *attempt
	due    time.Time
}

// schedule holds dispatches, the earliest first. Those due at the same time are in
// the order in which they were added.
type schedule []*dispatch

func (s *schedule) add(d *dispatch) {
	at, _ := slices.BinarySearchFunc(*s, d.due, func(e *dispatch, due time.Time) int {
		if e.due.After(due) {
			return 1
		}
		return -1
	})
	*s = slices.Insert(*s, at, d)
}

// remove drops the earliest dispatch.
func (s *schedule) remove() { *s = slices.Delete(*s, 0, 1) }
