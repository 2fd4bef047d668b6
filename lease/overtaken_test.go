package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
)

// overtaken loses the reply to its first Swap, after which it lets others act.
type overtaken struct {
	*lease.Memory[job]
	others func()
}

func (o *overtaken) Swap(ctx context.Context, key string, prev lease.Cell[job], next job) (lease.Cell[job], error) {
	c, err := o.Memory.Swap(ctx, key, prev, next)
	if others := o.others; err == nil && others != nil {
		o.others = nil
		others()
		return c, errors.New("reply lost")
	}
	return c, err
}

// Who has given a record up, and has not heard of it, must not take for its own
// what another has acquired since an operator opened it again.
func TestAGivingUpThatWasOvertakenIsNoAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &overtaken{Memory: &lease.Memory[job]{}}
		store.Put("a", job{Lease: lease.Lease{Token: 4, Attempts: 2}})
		lessor, err := lease.NewLessor(store, of, lease.Policy{MaxAttempts: 2})
		if err != nil {
			t.Fatal(err)
		}
		store.others = func() {
			store.Put("a", job{Lease: lease.Lease{Owner: "w/2", Token: 6, Attempts: 1, FinishedBy: "w/1", ExpiresAt: time.Now().Add(time.Minute)}})
		}
		h, _, err := lessor.Acquire(t.Context(), "a", "w/1", nil)
		var held *lease.HeldError
		if !errors.As(err, &held) || held.Owner != "w/2" || held.Token != 6 {
			t.Errorf("acquired %v, %v; want it held by w/2", h, err)
		}
	})
}
