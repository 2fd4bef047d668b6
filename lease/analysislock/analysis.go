package analysislock

import (
	"strings"
	"time"

	"taskguard/lease"
)

// The states of an analysis. Any other status is unfinished too.
const (
	Queued     = "QUEUED"
	Processing = "PROCESSING"
	Ready      = "READY"
	Failed     = "FAILED"
)

// Finished reports whether an analysis of that status is finished.
func Finished(status string) bool { return status == Ready || status == Failed }

// Analysis is a document of the collection. Its JSON form is the public one: without
// the lock (G4).
type Analysis struct {
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	Input     any       `json:"input,omitempty"`  // only where the whole document is read
	Result    any       `json:"result,omitempty"` // likewise
	Error     *Error    `json:"error,omitempty"`
	LastError *Error    `json:"last_error,omitempty"` // of the last attempt that failed temporarily
	Attempts  int       `json:"attempts"`             // mirror of Lock.Attempts
	CreatedAt time.Time `json:"created_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`

	Lock lease.Lease `json:"-"`
	// Malformed is why nothing can be done with the lock or by the id. It is set where
	// several analyses are read, and by Unlock.
	Malformed error `json:"-"`
	// ReadAt is the store's time of the reading, by which Lock is judged.
	ReadAt time.Time `json:"-"`
	// Stored is what the store keeps of its reading; it is opaque to others.
	Stored any `json:"-"`
}

// Error is why an analysis, or an attempt at it, failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// fail makes the analysis FAILED.
func (d *Analysis) fail(code, message string) {
	d.Status, d.Error, d.LastError = Failed, &Error{Code: code, Message: bounded(message)}, nil
}

// queue puts PROCESSING back to QUEUED; another status belongs to its author.
func (d *Analysis) queue() {
	if d.Status == Processing {
		d.Status = Queued
	}
}

// maxMessage bounds an error's message, in bytes: it must fit beside the input.
const maxMessage = 4096

func bounded(message string) string {
	return strings.ToValidUTF8(message[:min(maxMessage, len(message))], "")
}

// maxID is Firestore's limit, in bytes.
const maxID = 1500

// CheckID refuses, with lease.ErrInvalidKey, an id that Firestore cannot hold or that
// would name another path: `a/b/c` would be a nested document.
func CheckID(id string) error { return lease.CheckKey("analysis", id, maxID) }
