package explore

import (
	"context"
	"time"

	"taskguard/lease/analysislock"
)

// tagged gives each delivery a store of its own, which knows whose calls it gets.
type tagged struct{ host *host }

func (t tagged) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (analysislock.Acquisition, error) {
	p := t.host.arriving
	p.owner = owner
	return locks(front{p.host.world, p}).AcquireAnalysisLock(ctx, id, owner, ttl)
}

func locks(f front) *analysislock.Locks {
	l, err := analysislock.New(f, policy, nil)
	if err != nil {
		panic(err)
	}
	return l
}
