package project

import (
	"cmp"
	"fmt"
	"time"

	"taskguard/lease"
)

// Strategy is a way to hold the lock, by its name in events.
type Strategy string

// The strategies.
const (
	WebLock  Strategy = "web-lock"  // a lease in a remote store
	FileLock Strategy = "file-lock" // project/.lock
)

// The defaults (SEEDS P3).
const (
	WebLockTTL     = 25 * time.Second
	FileLockTTL    = 30 * time.Second
	Heartbeat      = 10 * time.Second
	Margin         = 5 * time.Second // a heartbeat is due at least so long before the expiry
	Attempts       = 3
	Backoff        = 500 * time.Millisecond // before the second attempt, twice that before the third, and so on
	maxBackoff     = 4 * time.Second
	attemptTimeout = 3 * time.Second
	missedLimit    = 2 // heartbeats in a row, each with all its attempts
)

// AcquireOptions configure an acquisition and its heartbeats. The context
// replaces the seeds' abort signal. The zero value is the default.
type AcquireOptions struct {
	// OwnerID is recorded in front of the lease's ID, for people who read the store.
	OwnerID string
	// Preferred is the first strategy: WebLock if empty. FileLock has no fallback.
	Preferred Strategy
	// TTL is the time from the last heartbeat to the expiry: WebLockTTL or FileLockTTL
	// if zero.
	TTL time.Duration
	// HeartbeatInterval is Heartbeat if zero, or two fifths of a TTL below 25 s.
	HeartbeatInterval time.Duration
	// RetryLimit is the number of attempts to acquire with one strategy, of one
	// heartbeat, and to release: Attempts if zero.
	RetryLimit int
	// Backoff is the wait before the second attempt: 500 ms if zero. Each further wait
	// is twice the one before, but at most 4 s, or Backoff if that is longer.
	Backoff time.Duration
	// Wait is how long an acquisition continues beyond RetryLimit while another holds
	// the lock.
	Wait time.Duration
	// OnReadonly is called once, and at once, when the lock degrades to read-only:
	// the caller stops writing (SEEDS P9). It must not block.
	OnReadonly func(ReadonlyInfo)
	// KeepOnError makes WithProjectLock leave the release to its caller if fn
	// fails: releaseOnError=false (SEEDS P11).
	KeepOnError bool
}

// ReleaseOptions configure a release.
type ReleaseOptions struct {
	// Force frees the lease in one attempt, also while read-only, and removes
	// project/.lock unless another holds it (SEEDS P12).
	Force bool
}

// ReadonlyInfo is the reason why writes must stop.
type ReadonlyInfo struct {
	Reason    Code   // LeaseStale, RenewFailed, …
	LastError *Error // the failure itself
}

// check refuses options that cannot work.
func (o AcquireOptions) check() error {
	if o.Preferred != "" && o.Preferred != WebLock && o.Preferred != FileLock {
		return fmt.Errorf("project: no strategy %q", o.Preferred)
	}
	for _, s := range []Strategy{WebLock, FileLock} {
		if err := o.policy(s).Check(); err != nil {
			return err
		}
	}
	return nil
}

// filled returns o with the defaults that do not depend on the strategy.
func (o AcquireOptions) filled() AcquireOptions {
	o.Preferred = cmp.Or(o.Preferred, WebLock)
	o.RetryLimit, o.Backoff = cmp.Or(o.RetryLimit, Attempts), cmp.Or(o.Backoff, Backoff)
	return o
}

// policy returns the TTL and the heartbeat of a lease by s.
func (o AcquireOptions) policy(s Strategy) lease.Policy {
	ttl := cmp.Or(o.TTL, WebLockTTL)
	if s == FileLock {
		ttl = cmp.Or(o.TTL, FileLockTTL)
	}
	return lease.Policy{TTL: ttl, Heartbeat: cmp.Or(o.HeartbeatInterval, min(Heartbeat, ttl*2/5))}
}

// backoff returns the wait after the attempt numbered retry, from 0.
func (o AcquireOptions) backoff(retry int) time.Duration {
	return min(o.Backoff<<min(retry, 10), max(maxBackoff, o.Backoff))
}

// nextHeartbeat returns when the next heartbeat of p is due, by the local clock, for
// a lease that ends at expires. It may have passed: the heartbeat is due at once.
func nextHeartbeat(p lease.Policy, now, expires time.Time) time.Time {
	due := now.Add(p.Heartbeat)
	if latest := expires.Add(-min(Margin, p.TTL/5)); latest.Before(due) {
		return latest
	}
	return due
}
