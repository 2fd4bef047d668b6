package cloudtasks

import (
	"net/http"
	"strconv"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// retryPolicy is a RetryConfig with its defaults filled in.
type retryPolicy struct {
	maxAttempts            int           // including the first; -1 is unlimited
	maxDuration            time.Duration // since the first attempt; 0 is unlimited
	minBackoff, maxBackoff time.Duration
	maxDoublings           int
}

// policyOf reads a config that normalizeRetry has passed. Delays beyond the
// retention are all alike, and cutting them there keeps doublings from overflow.
func policyOf(c *cloudtaskspb.RetryConfig) retryPolicy {
	return retryPolicy{
		maxAttempts:  int(c.GetMaxAttempts()),
		maxDuration:  c.GetMaxRetryDuration().AsDuration(),
		minBackoff:   min(c.GetMinBackoff().AsDuration(), retention),
		maxBackoff:   min(c.GetMaxBackoff().AsDuration(), retention),
		maxDoublings: int(c.GetMaxDoublings()),
	}
}

// backoff returns the delay before the n-th retry, n from 1: minBackoff, doubled
// maxDoublings times, then growing by the last doubling's value, never above
// maxBackoff.
func (p retryPolicy) backoff(n int) time.Duration {
	delay := p.minBackoff
	doubled := 0
	for ; doubled < p.maxDoublings && doubled < n-1; doubled++ {
		if delay >= p.maxBackoff {
			return p.maxBackoff
		}
		delay *= 2
	}
	steps := n - doubled // 1 while doubling
	if delay >= p.maxBackoff || steps > int(p.maxBackoff/delay) {
		return p.maxBackoff
	}
	return time.Duration(steps) * delay
}

// exhausted reports whether a task that was dispatched attempts times since
// first may not be dispatched at next any more.
func (p retryPolicy) exhausted(attempts int, first, next time.Time) bool {
	if p.maxAttempts < 0 && p.maxDuration == 0 {
		return false
	}
	attemptsSpent := p.maxAttempts < 0 || attempts >= p.maxAttempts
	durationSpent := p.maxDuration == 0 || next.Sub(first) >= p.maxDuration
	return attemptsSpent && durationSpent
}

// retryAfter returns the time before which an answer's Retry-After, in seconds or
// as an HTTP date, forbids the next attempt; zero if it has none that is legible.
// No answer puts a task off beyond its retention.
func retryAfter(h http.Header, now time.Time) time.Time {
	v := h.Get("Retry-After")
	if v == "" {
		return time.Time{}
	}
	latest := now.Add(retention)
	if seconds, err := strconv.ParseUint(v, 10, 64); err == nil {
		if seconds >= uint64(retention/time.Second) {
			return latest
		}
		return now.Add(time.Duration(seconds) * time.Second)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return time.Time{}
	}
	if at.After(latest) {
		return latest
	}
	return at
}
