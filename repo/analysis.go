package repo

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
	Input     any       `json:"input,omitempty"`  // read by Get alone; see Plain
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

	updatedAsTimestamp bool     // the document's updatedAt is no string, and stays so
	tokenAssumed       bool     // its lockToken is unusable: Lock.Token stands for it
	asked              *request // for its input, by the acquisition; see Analyses.input
}

// Error is why an analysis, or an attempt at it, failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func finishedStatus(status string) bool { return status == Ready || status == Failed }
