package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/repo"
)

// locks is a Ledger that tells the store who calls, and the history what they
// were told.
type locks struct {
	*repo.Ledger
	i *instance
}

func (l locks) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (lease.Acquisition, error) {
	w := l.i.w
	w.mu.Lock()
	l.i.acquired[id]++
	t := &tag{by: fmt.Sprintf("%s/%s/%d", l.i.name, id, l.i.acquired[id]), from: l.i, owner: owner}
	w.tags[owner], w.owners[owner] = t, t.by
	w.mu.Unlock()
	began := w.now()
	acq, err := l.Ledger.AcquireAnalysisLock(tagged(ctx, t), id, owner, ttl)
	w.mu.Lock()
	defer w.mu.Unlock()
	if acq.Acquired {
		t.token = acq.Grant.Token
	}
	if acq.Reason == lease.Locked && acq.Grant.Owner == owner {
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

func (l locks) tagged(ctx context.Context, owner string) (context.Context, *tag) {
	l.i.w.mu.Lock()
	defer l.i.w.mu.Unlock()
	t := l.i.w.tags[owner]
	return tagged(ctx, t), t
}

func (l locks) HoldAnalysisLock(ctx context.Context, id, owner string, body func(context.Context, json.RawMessage) error) error {
	w := l.i.w
	ctx, t := l.tagged(ctx, owner)
	err := l.Ledger.HoldAnalysisLock(ctx, id, owner, func(ctx context.Context, input json.RawMessage) error {
		l.run(t, true)
		defer l.run(t, false)
		return body(ctx, input)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case errors.Is(err, lease.ErrLost):
		w.figures["losses"]++
	case err != nil:
		w.figures["failures for now"]++
	}
	w.tell("%s: ran: %v", t.by, err)
	return err
}

func (l locks) run(t *tag, running bool) {
	l.i.w.mu.Lock()
	defer l.i.w.mu.Unlock()
	t.running = running
}

func (l locks) ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error {
	ctx, t := l.tagged(ctx, owner)
	l.i.w.mu.Lock()
	t.refund = refund
	l.i.w.mu.Unlock()
	return l.recorded(id, t, release, func() error { return l.Ledger.ReleaseAnalysisLock(ctx, id, owner, refund) })
}

func (l locks) PeekAnalysisLock(ctx context.Context, id string) (lease.Acquisition, error) {
	l.i.w.mu.Lock()
	l.i.acquired[id]++
	t := &tag{by: fmt.Sprintf("%s/%s/%d", l.i.name, id, l.i.acquired[id]), from: l.i}
	l.i.w.mu.Unlock()
	return l.Ledger.PeekAnalysisLock(tagged(ctx, t), id)
}

func (l locks) Retry(ctx context.Context, id, owner, code, message string) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, release, func() error { return l.Ledger.Retry(ctx, id, owner, code, message) })
}

func (l locks) Complete(ctx context.Context, id, owner string, result any) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, finish, func() error { return l.Ledger.Complete(ctx, id, owner, result) })
}

func (l locks) Fail(ctx context.Context, id, owner, code, message string) error {
	ctx, t := l.tagged(ctx, owner)
	return l.recorded(id, t, finish, func() error { return l.Ledger.Fail(ctx, id, owner, code, message) })
}

// recorded is one act of a holder in the history.
func (l locks) recorded(id string, t *tag, kind string, do func() error) error {
	w := l.i.w
	began := w.now()
	err := do()
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
