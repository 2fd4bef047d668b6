package explore

import (
	"context"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/worker/taskqueue"
)

// task is one task of the queue, for the one analysis.
type task struct {
	name   string
	key    uint64    // its name's digest, the same in each execution
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

// Orphaned implements worker.Backlog.
func (w *world) Orphaned(_ context.Context, _ int, each func(id string, token int64, at time.Time)) error {
	if at := w.now(); w.orphaned() {
		each(analysis, w.doc.Lock.Token, at)
	}
	return nil
}

// orphaned is written out: what the product says of it is on trial.
func (w *world) orphaned() bool {
	at, d := w.now(), w.doc
	finished := d.Status == analysislock.Ready || d.Status == analysislock.Failed
	held := d.Lock.Owner != "" && at.Before(d.Lock.ExpiresAt)
	return !finished && !held && at.Sub(w.updated) >= ttl
}
