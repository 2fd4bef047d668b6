package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// locks is an analysislock.Locks that tells the store who calls, and the history what they
// were told.
type locks struct {
	*analysislock.Locks
	i *instance
}

func (l locks) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (analysislock.Acquisition, error) {
	w := l.i.w
	w.mu.Lock()
	l.i.acquired[id]++
	t := &tag{by: fmt.Sprintf("%s/%s/%d", l.i.name, id, l.i.acquired[id]), from: l.i, id: id, owner: owner}
	w.tags[owner], w.owners[owner] = t, t.by
	w.mu.Unlock()
	began := w.now()
	acq, err := l.Locks.AcquireAnalysisLock(tagged(ctx, t), id, owner, ttl)
	w.mu.Lock()
	defer w.mu.Unlock()
	if acq.Acquired {
		t.token = acq.Grant.Token
	}
	if acq.Reason == analysislock.Locked && acq.Grant.Owner == owner {
		w.fail("%s: %s was refused because of itself", id, t.by)
	}
	op := acquisition(t, acq, err)
	if op.answer == remembered {
		l.fromMemory(id, t, op)
	}
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

func (l locks) tagged(ctx context.Context, owner string) (context.Context, *tag) {
	l.i.w.mu.Lock()
	defer l.i.w.mu.Unlock()
	t := l.i.w.tags[owner]
	return tagged(ctx, t), t
}

func (l locks) HoldAnalysisLock(ctx context.Context, id, owner string, body func(context.Context, json.RawMessage) error, renewed ...lease.Renewed) error {
	w := l.i.w
	ctx, t := l.tagged(ctx, owner)
	err := l.Locks.HoldAnalysisLock(ctx, id, owner, func(ctx context.Context, input json.RawMessage) error {
		l.run(t, true)
		defer l.run(t, false)
		return body(ctx, input)
	}, renewed...)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case errors.Is(err, lease.ErrLost):
		w.figures["losses"]++
	case err != nil:
		w.figures["failures for now"]++
		t.refund = l.stopped(t)
	}
	w.tell("%s: ran: %v", t.by, err)
	return err
}

// stopped reports whether the stop is what ended a run: the process was told to
// before the run had come to anything of its own. The mutex is held.
func (l locks) stopped(t *tag) bool {
	if l.i.stopping < 0 {
		return false
	}
	for _, b := range l.i.w.bodies {
		if b.token == t.token && b.on == l.i && b.id == t.id && b.end >= 0 {
			return b.end >= l.i.stopping
		}
	}
	return true
}

func (l locks) end(mark *bool) {
	l.i.w.mu.Lock()
	defer l.i.w.mu.Unlock()
	*mark = true
}

// fromMemory checks what was answered without the store: that this very process
// holds that lock, and may still trust it. It may also be about to let it go,
// and not know yet that it has, or that an operator did. The mutex is held.
func (l locks) fromMemory(id string, t *tag, op operation) {
	w := l.i.w
	w.figures["answers from memory"]++
	holder := w.tags[op.owner]
	if holder == nil || holder.from != l.i || holder.token != op.token || holder.ended {
		w.fail("%s: %s was told from memory of token %d, which this process does not hold", id, t.by, op.token)
		return
	}
	now := w.store.now()
	if until := time.Unix(0, op.expires).Add(-w.p.policy.Margin()); !now.Before(until) {
		w.fail("%s: %s was told from memory of token %d, whose trust has ended at %v", id, t.by, op.token, until)
	}
	r := w.store.records[id]
	if r.doc.Lock.HeldBy(lease.Grant{Owner: op.owner, Token: op.token}) && now.Before(r.doc.Lock.ExpiresAt) || holder.ending {
		return
	}
	for _, b := range r.broken {
		if b.token == op.token && b.has(w.now()) {
			w.figures["answers from memory of a broken lock"]++
			return
		}
	}
	w.fail("%s: %s was told from memory of token %d, which the store does not have: %+v", id, t.by, op.token, r.doc.Lock)
}

func (l locks) run(t *tag, running bool) {
	l.i.w.mu.Lock()
	defer l.i.w.mu.Unlock()
	t.running = running
}

func (l locks) ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, release, func() error { return l.Locks.ReleaseAnalysisLock(ctx, id, owner, refund) })
}

func (l locks) PeekAnalysisLock(ctx context.Context, id string) (analysislock.Acquisition, error) {
	l.i.w.mu.Lock()
	l.i.acquired[id]++
	t := &tag{by: fmt.Sprintf("%s/%s/%d", l.i.name, id, l.i.acquired[id]), from: l.i}
	l.i.w.mu.Unlock()
	return l.Locks.PeekAnalysisLock(tagged(ctx, t), id)
}

func (l locks) Retry(ctx context.Context, id, owner, code, message string) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, release, func() error { return l.Locks.Retry(ctx, id, owner, code, message) })
}

func (l locks) Complete(ctx context.Context, id, owner string, result any) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, finish, func() error { return l.Locks.Complete(ctx, id, owner, result) })
}

func (l locks) Fail(ctx context.Context, id, owner, code, message string) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, finish, func() error { return l.Locks.Fail(ctx, id, owner, code, message) })
}

// recorded is one act of a holder in the history.
func (l locks) recorded(id string, t *tag, kind string, do func() error) error {
	w := l.i.w
	began := w.now()
	l.end(&t.ending)
	err := do()
	l.end(&t.ended)
	w.mu.Lock()
	defer w.mu.Unlock()
	op := operation{kind: kind, owner: t.owner, token: t.token, answer: outcome(err)}
	r := w.store.records[id]
	did, still := r.finished[t.owner], r.doc.Lock.FinishedBy == t.owner
	switch {
	case kind != finish:
	case op.answer == ok && !did, op.answer == refused && still:
		w.fail("%s: %s was told %v of its finish", id, t.by, err)
	case op.answer == refused && did: // its reply was lost, and a requeue has overtaken it
		op.answer = ok
	}
	w.record(id, began, op)
	w.tell("%s: %s: %v", t.by, kind, err)
	return err
}
