package lease

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Lease is the value inside a document that records its holder and expiry. It is
// plain data: the rules in rules.go turn one Lease into the next. The zero Lease
// was never held.
type Lease struct {
	Owner       string    // the holder; empty: free
	FinishedBy  string    // the owner that finished the record; never cleared
	Token       int64     // fencing token: +1 with each acquisition, survives release, never reset
	Attempts    int       // acquisitions since the record was opened
	Finished    bool      // terminal; decoded by the store
	HeartbeatAt time.Time // of the acquisition or the last renewal, by the store's clock
	ExpiresAt   time.Time // by the store's clock; zero: expired
}

// Grant names one acquisition. Every write of a holder is conditional on it.
type Grant struct {
	Owner string // new for each acquisition
	Token int64  // the fencing token
}

// Grant returns the acquisition that l records.
func (l Lease) Grant() Grant { return Grant{Owner: l.Owner, Token: l.Token} }

// HeldBy reports whether l still records the acquisition g, expired or not.
func (l Lease) HeldBy(g Grant) bool {
	return !l.Finished && l.Owner != "" && l.Grant() == g
}

// DefaultTTL is the TTL of a Policy whose TTL is zero. (SEEDS G7)
const DefaultTTL = 300 * time.Second

const (
	maxTTL = 12 * time.Hour
	// grace is how long a run that ignores cancellation may continue after it.
	grace = 5 * time.Second
)

// Policy configures how long a lease lives and how often it is renewed. The zero
// Policy is 300 s, renewed every 100 s, without a limit of attempts.
type Policy struct {
	TTL         time.Duration // zero: DefaultTTL
	Heartbeat   time.Duration // zero: a third of the TTL
	MaxAttempts int           // zero: no limit
}

// Check returns an error for a Policy under which a lease could expire although
// each heartbeat is on time: it requires TTL ≥ 2 × heartbeat + margin, and a TTL
// from 1 s to 12 h.
func (p Policy) Check() error {
	p = p.filled()
	switch {
	case p.TTL < 0 || p.Heartbeat < 0 || p.MaxAttempts < 0:
		return fmt.Errorf("lease: negative policy: %+v", p)
	case p.TTL > maxTTL: // see MaxAhead
		return fmt.Errorf("lease: TTL %v is over %v", p.TTL, maxTTL)
	case p.TTL < time.Second:
		return fmt.Errorf("lease: TTL %v is under 1s", p.TTL)
	case p.Heartbeat > (p.TTL-p.Margin())/2: // in this form it cannot overflow
		return fmt.Errorf("lease: TTL %v is under 2 × heartbeat %v + margin %v", p.TTL, p.Heartbeat, p.Margin())
	}
	return nil
}

// Margin returns the last part of the TTL, a tenth, in which a holder no longer
// trusts its lease although the store still shows it as held.
func (p Policy) Margin() time.Duration { return p.filled().TTL / 10 }

// Silence returns how long a holder that lives, and whose store answers, can be without a heartbeat: one
// heartbeat, and a margin for its delays. Within it such a holder notices that its lease was taken.
func (p Policy) Silence() time.Duration { return p.filled().Heartbeat + p.Margin() }

// KillAfter returns how long after a loss a run that ignores its cancellation may
// continue, so that it ends before another can take over.
func (p Policy) KillAfter() time.Duration { return min(grace, p.Margin()/2) }

// Last reports whether l's attempt is the last that p allows.
func (p Policy) Last(l Lease) bool { return p.MaxAttempts > 0 && l.Attempts >= p.MaxAttempts }

func (p Policy) filled() Policy {
	p.TTL = cmp.Or(p.TTL, DefaultTTL)
	p.Heartbeat = cmp.Or(p.Heartbeat, p.TTL/3)
	return p
}

// The results of decisions. They are not failures.
var (
	ErrNotFound  = errors.New("lease: no such record")
	ErrFinished  = errors.New("lease: already finished")
	ErrExhausted = errors.New("lease: attempts exhausted")
	ErrLost      = errors.New("lease: lost")
)

// Failures of a caller, a record or a store.
var (
	// ErrInvalidKey reports a key that no record of the Store can have.
	ErrInvalidKey = errors.New("lease: invalid key")
	// ErrMalformed reports a record whose lease cannot be decoded.
	ErrMalformed = errors.New("lease: malformed record")
	// ErrConflict reports that another writer has changed, or may have changed, the
	// record since it was read.
	ErrConflict = errors.New("lease: conflict")
	// ErrUnwritten is an ErrConflict of a call that has certainly written nothing.
	ErrUnwritten = fmt.Errorf("%w: nothing was written", ErrConflict)
	// ErrRefused reports that no later try can succeed.
	ErrRefused = errors.New("lease: refused by the store")
	// ErrUnavailable reports that the outcome of an operation could not be determined
	// in time.
	ErrUnavailable = errors.New("lease: store unavailable")
	// ErrMayBeWritten is an ErrUnavailable of a change that a try may have written. Without it none has.
	ErrMayBeWritten = fmt.Errorf("%w: the change may have been written", ErrUnavailable)
)

// HeldError reports that another owner holds the lease. ExpiresAt is a time of the
// store's clock.
type HeldError struct {
	Owner     string // the holder
	Token     int64  // of its acquisition
	ExpiresAt time.Time
	Remaining time.Duration // from the store's time of the reading until ExpiresAt
}

func (e *HeldError) Error() string {
	return "lease: held by another until " + e.ExpiresAt.UTC().Format(time.RFC3339Nano)
}

// The reasons of a LostError.
const (
	Taken     = "taken"       // another owner or token, or an operator's unlock
	Finished  = "finished"    // another owner or program finished the record
	Deleted   = "deleted"     // the record is gone
	OutOfTime = "out of time" // it was not renewed in time
)

// LostError is the cause of a run's context when its holder can no longer prove
// that it holds the lease. It matches ErrLost.
type LostError struct {
	Reason string        // Taken, Finished, Deleted or OutOfTime
	Grace  time.Duration // see KillAfter; zero outside a run
	// Unknown reports that the lost change may have been written: the store did not answer a try.
	Unknown bool
}

func (e *LostError) Error() string { return "lease: lost: " + e.Reason }

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// KillAfter returns how long a run that ignores its cancellation may continue.
func (e *LostError) KillAfter() time.Duration { return e.Grace }
