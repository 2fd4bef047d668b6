package projectlock

import (
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

// The defaults (P1, P3, R3, R5).
const (
	WebLockTTL     = 25 * time.Second
	FileLockTTL    = 30 * time.Second
	Heartbeat      = 10 * time.Second
	Margin         = 5 * time.Second // a heartbeat comes at least so long before the expiry
	Attempts       = 3
	Backoff        = 500 * time.Millisecond // before the second attempt, twice that before the third, and so on
	maxBackoff     = 4 * time.Second
	attemptTimeout = 3 * time.Second
	missedLimit    = 2 // heartbeats in a row, each with all its attempts
)

// AcquireOptions are those of an acquisition and of its heartbeats (P3). The
// abort signal is the context. The zero value is the default.
type AcquireOptions struct {
	// OwnerID is recorded in front of the lease's id, for who looks at the store.
	OwnerID string
	// Preferred is the first strategy: WebLock if empty. There is no falling back
	// from FileLock.
	Preferred Strategy
	// TTL is how long the lease lives after its last heartbeat: WebLockTTL or
	// FileLockTTL if zero.
	TTL time.Duration
	// HeartbeatInterval is Heartbeat if zero, or two fifths of a TTL below 25 s.
	HeartbeatInterval time.Duration
	// RetryLimit is the number of attempts with a strategy, and within one
	// heartbeat: Attempts if zero.
	RetryLimit int
	// Backoff is the wait before the second attempt, doubled with each further one
	// up to 4 s: Backoff if zero.
	Backoff time.Duration
	// Wait lets an acquisition that finds the lock held go on for so long, beyond
	// RetryLimit.
	Wait time.Duration
	// OnReadonly is called once when the lock degrades to read-only, before the
	// event is told: the caller stops writing (P9). It must not block.
	OnReadonly func(ReadonlyInfo)
	// KeepOnError lets WithProjectLock leave the release to its caller where fn
	// has failed: releaseOnError=false (P11).
	KeepOnError bool
}

// RenewOptions are those of one heartbeat. Zero fields are as the acquisition
// had them.
type RenewOptions struct {
	RetryLimit int
	Backoff    time.Duration
}

// ReleaseOptions are those of a release. Zero fields are as the acquisition had
// them.
type ReleaseOptions struct {
	// Force frees the lease in one attempt, also while read-only, and removes
	// project/.lock unless another holds it (P12).
	Force      bool
	RetryLimit int
	Backoff    time.Duration
}

// ReadonlyInfo says why writes must stop.
type ReadonlyInfo struct {
	Reason    Code
	LastError *Error
}

// check refuses what cannot work.
func (o AcquireOptions) check() error {
	switch {
	case o.Preferred != "" && o.Preferred != WebLock && o.Preferred != FileLock:
		return fmt.Errorf("projectlock: no strategy %q", o.Preferred)
	case o.RetryLimit < 0 || o.Backoff < 0 || o.Wait < 0:
		return fmt.Errorf("projectlock: negative options: %d attempts, backoff %v, wait %v", o.RetryLimit, o.Backoff, o.Wait)
	}
	for _, s := range []Strategy{WebLock, FileLock} {
		if err := o.timing(s).policy().Check(); err != nil {
			return err
		}
	}
	return nil
}

// timing are the durations of a lease.
type timing struct {
	ttl, heartbeat, margin time.Duration
}

func (o AcquireOptions) timing(s Strategy) timing {
	t := timing{ttl: o.TTL, heartbeat: o.HeartbeatInterval}
	if t.ttl == 0 {
		t.ttl = WebLockTTL
		if s == FileLock {
			t.ttl = FileLockTTL
		}
	}
	if t.heartbeat == 0 {
		t.heartbeat = min(Heartbeat, t.ttl*2/5)
	}
	t.margin = min(Margin, t.ttl/5)
	return t
}

func (t timing) policy() lease.Policy { return lease.Policy{TTL: t.ttl, Heartbeat: t.heartbeat} }

// nextHeartbeat is when the next heartbeat is due, by the local clock, where the
// lease ends at expires (R3): at once, if that has passed.
func (t timing) nextHeartbeat(now, expires time.Time) time.Time {
	due := now.Add(t.heartbeat)
	if latest := expires.Add(-t.margin); latest.Before(due) {
		return latest
	}
	return due
}

// retries are the attempts of one operation.
type retries struct {
	limit   int
	backoff time.Duration
}

// or fills what is zero from d.
func (r retries) or(d retries) retries {
	if r.limit <= 0 {
		r.limit = d.limit
	}
	if r.backoff <= 0 {
		r.backoff = d.backoff
	}
	return r
}

func (o AcquireOptions) retries() retries {
	return retries{o.RetryLimit, o.Backoff}.or(retries{Attempts, Backoff})
}

// wait is how long to wait after the attempt numbered retry, from 0 (R5).
func (r retries) wait(retry int) time.Duration {
	return min(r.backoff<<min(retry, 10), max(maxBackoff, r.backoff))
}
