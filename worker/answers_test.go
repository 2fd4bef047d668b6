package worker

import (
	"testing"
	"time"

	"taskguard/internal/delivery"
)

// If it were rounded down, the retry would find the lock held.
func TestRetryAfterIsRoundedUpWithinBounds(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0: "1", time.Second: "1", time.Second + 1: "2", 10 * time.Minute: "600", 12 * time.Hour: "600",
	} {
		if got := retryAfter(409, delivery.Record{Outcome: delivery.Outcome{Case: delivery.Locked, RetryIn: wait}}); got != want {
			t.Errorf("%v: %s s, want %s", wait, got, want)
		}
	}
}
