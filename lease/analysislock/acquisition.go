package analysislock

import (
	"time"

	"taskguard/lease"
)

// Acquisition is what an attempt to acquire came to. Not to acquire is a skip
// and no error (G6, G9).
type Acquisition struct {
	Acquired  bool
	Reason    string // if not acquired: AlreadyFinished, Locked or AttemptsExhausted
	Status    string // the record's own word for its state, where it was read
	Grant     lease.Grant
	Attempt   int           // number of this acquisition
	Last      bool          // no further attempt is left
	Stolen    bool          // it was another's until it had expired
	ExpiresAt time.Time     // by the store's clock: of this lease, or of the one that is in the way
	Remaining time.Duration // from the store's time of the reading until ExpiresAt
	Own       bool          // it is this process that holds it, as it knows without having asked
}

// Why an attempt to acquire was a skip.
const (
	AlreadyFinished   = "already_finished"
	Locked            = "locked"
	AttemptsExhausted = "attempts_exhausted" // and now recorded as such
)
