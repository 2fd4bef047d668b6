package explore

import (
	"time"

	"taskguard/worker/taskqueue"
)

// task is one task of the queue, for the one analysis.
type task struct {
	name   string
	at     time.Time // by the store's clock
	flying int       // dispatches that have not been answered
	gone   bool      // by a 2xx
	tried  time.Time // by the drain
}

// queue keeps tasks until a 2xx; their names stay taken.
type queue struct{ tasks []*task }

func (q *queue) book(t taskqueue.Task) (already bool) {
	for _, old := range q.tasks {
		if old.name == t.Name {
			return true
		}
	}
	q.tasks = append(q.tasks, &task{name: t.Name, at: t.At})
	return false
}

// left reports whether a task is to be delivered, or delivered again.
func (q *queue) left() bool {
	for _, t := range q.tasks {
		if !t.gone {
			return true
		}
	}
	return false
}
