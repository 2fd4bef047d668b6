package project

import (
	"testing"
	"time"

	"taskguard/lease"
)

// R3.
func TestNextHeartbeat(t *testing.T) {
	now := time.Unix(1000, 0) // it is ten seconds away, or five before the expiry
	web, file := AcquireOptions{}.policy(WebLock), AcquireOptions{}.policy(FileLock)
	short := AcquireOptions{TTL: 5 * time.Second}.policy(WebLock)
	for name, c := range map[string]struct {
		policy     lease.Policy
		left, want time.Duration
	}{
		"web, fresh":              {web, 25 * time.Second, 10 * time.Second},
		"file, fresh":             {file, 30 * time.Second, 10 * time.Second},
		"the interval's last":     {web, 15 * time.Second, 10 * time.Second},
		"sooner, near the expiry": {web, 14 * time.Second, 9 * time.Second},
		"at once":                 {web, 4 * time.Second, -time.Second},
		"a short TTL":             {short, 5 * time.Second, 2 * time.Second},
	} {
		if got := nextHeartbeat(c.policy, now, now.Add(c.left)).Sub(now); got != c.want {
			t.Errorf("%s: in %v; want %v", name, got, c.want)
		}
	}
}

// R5, P3.
func TestOptions_Default(t *testing.T) {
	o := AcquireOptions{}.filled()
	if o.RetryLimit != 3 {
		t.Errorf("%d attempts; want 3", o.RetryLimit)
	}
	for retry, want := range []int{500, 1000, 2000, 4000, 4000} {
		if got := o.backoff(retry).Milliseconds(); got != int64(want) {
			t.Errorf("wait %d: %d ms; want %d", retry, got, want)
		}
	}
	if got := (AcquireOptions{Backoff: time.Minute}).backoff(3); got != time.Minute {
		t.Errorf("a backoff over the bound: %v; want as it is", got)
	}
}
