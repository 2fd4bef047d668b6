package documentlock

import (
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease/leasetest"
)

// An acquirer reads that there is no record, and another takes and frees the
// room before its commit arrives: its token must be the larger all the same.
func TestATokenIsLargerThanThatOfARecordMadeAndDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, quick := open(t)
		late := leasetest.NewFaulty(s, leasetest.On(leasetest.Swap, leasetest.SlowRequest))
		var slow State
		done := make(chan struct{})
		go func() {
			defer close(done)
			slow = acquire(t, on(t, late), "r", "slow")
		}()
		synctest.Wait() // it has read
		time.Sleep(time.Millisecond)
		between := acquire(t, quick, "r", "quick")
		if freed, err := quick.Release(t.Context(), "r", "quick"); err != nil || !freed {
			t.Fatal(freed, err)
		}
		<-done
		if slow.Lock.Token <= between.Lock.Token {
			t.Errorf("token %d after %d", slow.Lock.Token, between.Lock.Token)
		}
	})
}
