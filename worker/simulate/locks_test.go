package simulate

import (
	"context"
	"fmt"
	"time"

	"taskguard/lease/analysislock"
)

// locks gives each delivery a client of the store of its own, which knows whose calls
// it carries, and records in the history what each acquisition returned.
type locks struct{ i *instance }

func (l locks) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (analysislock.Acquisition, error) {
	w := l.i.w
	w.mu.Lock()
	l.i.acquired[id]++
	t := &tag{by: fmt.Sprintf("%s/%s/%d", l.i.name, id, l.i.acquired[id]), from: l.i, id: id, owner: owner}
	w.tags[owner], w.owners[owner] = t, t.by
	w.mu.Unlock()
	began := w.now()
	acq, err := w.locks(client{w, l.i, t}).AcquireAnalysisLock(ctx, id, owner, ttl)
	w.mu.Lock()
	defer w.mu.Unlock()
	if acq.Acquired {
		t.token = acq.Grant.Token
	}
	if acq.Reason == analysislock.Locked && acq.Grant.Owner == owner {
		w.fail("%s: %s was refused because of itself", id, t.by)
	}
	op := acquisition(t, acq, err)
	if op.answer != unknown {
		w.record(id, began, op)
	}
	if op.answer != ok || len(t.meant) > 1 {
		// Each write of this call may have landed, and been undone, before the answer.
		op.answer, op.owner = unknown, owner
		for _, meant := range t.meant {
			op.meant = []int64{meant}
			w.record(id, began, op)
		}
	}
	w.tell("%s: acquired %v %s %v", t.by, acq.Acquired, acq.Reason, err)
	return acq, err
}

// locks are the locks on the analyses of c's store.
func (w *world) locks(c client) *analysislock.Locks {
	l, err := analysislock.New(c, w.p.policy, nil)
	if err != nil {
		panic(err)
	}
	return l
}

// stopped reports whether the stop has ended the run of t: the process was told to
// stop before the run had a result of its own. The mutex is held.
func (i *instance) stopped(t *tag) bool {
	if i.stopping < 0 {
		return false
	}
	for _, b := range i.w.bodies {
		if b.token == t.token && b.on == i && b.id == t.id && b.end >= 0 {
			return b.end >= i.stopping
		}
	}
	return true
}
