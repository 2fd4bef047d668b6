package analysislock

import (
	"time"

	"taskguard/lease"
)

// The states of an analysis. Any other word is unfinished too.
const (
	Queued     = "QUEUED"
	Processing = "PROCESSING"
	Ready      = "READY"
	Failed     = "FAILED"
)

// Analysis is a document of the collection. Its JSON form is the public one:
// without the lock (G4).
type Analysis struct {
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	Input     any       `json:"input,omitempty"`  // as the store decodes it; only where one analysis is read in full
	Result    any       `json:"result,omitempty"` // likewise
	Error     *Error    `json:"error,omitempty"`
	LastError *Error    `json:"last_error,omitempty"` // of the last attempt that ended for now; gone when finished
	Attempts  int       `json:"attempts"`             // mirror of Lock.Attempts
	CreatedAt time.Time `json:"created_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`

	Lock lease.Lease `json:"-"`
	// Malformed is set by what reads several, and by Unlock, where nothing can be done
	// with the lock or by the id.
	Malformed error `json:"-"`
	// ReadAt is Firestore's time of the reading, by which Lock is judged.
	ReadAt time.Time `json:"-"`

	// Stored is what the store keeps of its reading; it is opaque to others.
	Stored any `json:"-"`
}

// Error is why an analysis, or an attempt at it, failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// maxID is Firestore's limit, in bytes.
const maxID = 1500

// CheckID refuses, with lease.ErrInvalidKey, an id that Firestore cannot hold or that
// would name another path: `a/b/c` would be a nested document.
func CheckID(id string) error { return lease.CheckKey("analysis", id, maxID) }

// Finished reports whether an analysis of that status is finished.
func Finished(status string) bool { return status == Ready || status == Failed }
