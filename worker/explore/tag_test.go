package explore

import (
	"context"
	"encoding/json"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

type (
	partyKey struct{}
	peekKey  struct{}
)

func partyOf(ctx context.Context) *party {
	p, ok := ctx.Value(partyKey{}).(*party)
	if !ok {
		panic("explore: a call of nobody's")
	}
	return p
}

// tagged is the Ledger, told whose calls are whose; it adds nothing else.
type tagged struct {
	ledger *analysislock.Locks
	host   *host
}

func (t tagged) tag(ctx context.Context, owner string) context.Context {
	for _, p := range t.host.parties {
		if p.owner == owner {
			return context.WithValue(ctx, partyKey{}, p)
		}
	}
	panic("explore: an owner that has acquired nothing")
}

func (t tagged) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (analysislock.Acquisition, error) {
	t.host.arriving.owner = owner
	return t.ledger.AcquireAnalysisLock(t.tag(ctx, owner), id, owner, ttl)
}

func (t tagged) HoldAnalysisLock(ctx context.Context, id, owner string, body func(ctx context.Context, input json.RawMessage) error, renewed ...lease.Renewed) error {
	return t.ledger.HoldAnalysisLock(t.tag(ctx, owner), id, owner, body, renewed...)
}

func (t tagged) ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error {
	return t.ledger.ReleaseAnalysisLock(t.tag(ctx, owner), id, owner, refund)
}

func (t tagged) PeekAnalysisLock(ctx context.Context, id string) (analysislock.Acquisition, error) {
	ctx = context.WithValue(context.WithValue(ctx, partyKey{}, t.host.arriving), peekKey{}, true)
	return t.ledger.PeekAnalysisLock(ctx, id)
}

func (t tagged) Complete(ctx context.Context, id, owner string, result any) error {
	return t.ledger.Complete(t.tag(ctx, owner), id, owner, result)
}

func (t tagged) Fail(ctx context.Context, id, owner, code, message string) error {
	return t.ledger.Fail(t.tag(ctx, owner), id, owner, code, message)
}

func (t tagged) Retry(ctx context.Context, id, owner, code, message string) error {
	return t.ledger.Retry(t.tag(ctx, owner), id, owner, code, message)
}
