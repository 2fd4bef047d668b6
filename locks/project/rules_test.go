package project

import (
	"testing"
	"time"

	"taskguard/lease"
)

// R3.
func TestTheNextHeartbeatIsTenSecondsAwayOrFiveBeforeTheExpiry(t *testing.T) {
	now := time.Unix(1000, 0)
	web, file := AcquireOptions{}.policy(WebLock), AcquireOptions{}.policy(FileLock)
	for name, c := range map[string]struct {
		policy lease.Policy
		left   time.Duration
		want   time.Duration
	}{
		"web, fresh":              {web, 25 * time.Second, 10 * time.Second},
		"file, fresh":             {file, 30 * time.Second, 10 * time.Second},
		"the interval's last":     {web, 15 * time.Second, 10 * time.Second},
		"sooner, near the expiry": {web, 14 * time.Second, 9 * time.Second},
		"at once":                 {web, 4 * time.Second, -time.Second},
		"a short TTL":             {AcquireOptions{TTL: 5 * time.Second}.policy(WebLock), 5 * time.Second, 2 * time.Second},
	} {
		if got := nextHeartbeat(c.policy, now, now.Add(c.left)).Sub(now); got != c.want {
			t.Errorf("%s: in %v; want %v", name, got, c.want)
		}
	}
}

// R5, P3.
func TestTheDefaultAttemptsAndWaits(t *testing.T) {
	o := AcquireOptions{}.filled()
	if o.RetryLimit != 3 {
		t.Errorf("%d attempts; want 3", o.RetryLimit)
	}
	for retry, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
		if got := o.backoff(retry); got != want {
			t.Errorf("wait %d: %v; want %v", retry, got, want)
		}
	}
	if got := (AcquireOptions{Backoff: time.Minute}).backoff(3); got != time.Minute {
		t.Errorf("a backoff over the bound: %v; want as it is", got)
	}
}
