package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/worker/taskqueue"
)

// operate is what an operator does at times: unlock and requeue, and book a
// delivery, whatever came of it.
func (w *world) operate() {
	for n, at := range w.p.operators {
		r := w.dice.of("operator", n)
		id, act := fmt.Sprintf("a%d", r.IntN(len(w.p.arrivals))), pick(r, unlock, requeue)
		if !w.pass(at - w.now()) {
			return
		}
		w.mu.Lock()
		there := w.store.records[id] != nil
		w.mu.Unlock()
		if there {
			w.act(id, act, n)
		}
	}
}

func (w *world) act(id, act string, n int) {
	t := &tag{by: fmt.Sprintf("operator/%d", n), act: act}
	ctx, locks := context.Background(), w.locks(client{w: w, by: t})
	w.mu.Lock()
	w.operating[id]++
	w.acting = true
	w.mu.Unlock()
	began := w.now()
	var err error
	if act == unlock {
		_, err = locks.Unlock(ctx, id, nil)
	} else {
		_, err = locks.Requeue(ctx, id, nil)
	}
	op := operation{kind: act, answer: outcome(err), at: t.at.UnixNano()}
	var held *lease.HeldError
	if errors.As(err, &held) {
		op.answer, op.owner, op.token, op.expires = heldBy, held.Owner, held.Token, held.ExpiresAt.UnixNano()
	}
	w.mu.Lock()
	t.told = true
	w.record(id, began, op)
	w.tell("%s: %s %s: %v", t.by, act, id, err)
	if err == nil {
		w.figures[act+"s"]++
	}
	w.mu.Unlock()
	book := taskqueue.Task{Name: fmt.Sprintf("operator-%d", n), AnalysisID: id, Deadline: w.p.deadline}
	if _, err := (booker{q: w.queue, name: t.by}).Book(context.Background(), book); err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acting = false
	w.operating[id]--
}

// excused reports whether no delivery need be in the queue when one that began
// then is acknowledged: an operator is at it and has yet to book one, or has
// opened the analysis behind that delivery's back, by a write that landed when
// the operator had given up. The mutex is held.
func (w *world) excused(id string, began time.Duration) bool {
	landed, late := w.landed[id]
	return w.operating[id] > 0 || late && began <= landed
}
