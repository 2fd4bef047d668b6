package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
)

// overtaken loses the reply to its first Swap, and then calls others.
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

// An acquirer that exhausted a record, and lost the reply, must not mistake a later
// acquisition by another, after an operator reopened the record, for its own.
func TestAnExhaustionThatWasOvertakenIsNoAcquisition(t *testing.T) {
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
