package repo

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Options configures Open and OpenRooms. The zero value is the contract's default.
type Options struct {
	Database   string        // default: "(default)"
	Collection string        // default: "analyses"; for OpenRooms "documentLocks"
	Emulator   string        // the emulator's host:port; FIRESTORE_EMULATOR_HOST takes precedence
	Policy     lease.Policy  // rules of the locks
	MaxRunTime time.Duration // limit of all attempts together, see analysislock.New; zero: none
	Log        *slog.Logger  // nil: no log
	// Fields is the vocabulary of the documents. The methods of Analyses take and return
	// QUEUED, PROCESSING, READY and FAILED, whatever the words of the documents are.
	Fields Fields
	// Keep is how long a finished document is kept: the commit that finishes it sets the Timestamp
	// expireAt, and the commit that opens it again deletes expireAt. The collection needs a TTL policy
	// on that field. Fencing tokens then begin at the document's creation time, so they are larger than
	// those of a deleted document with the same id. Zero: no expireAt, and tokens begin at 1.
	Keep time.Duration
	// KeepAll makes every commit set expireAt, Create's too. Keep must be longer than the lock's TTL.
	KeepAll bool
	// Noun names a document in the errors of Analyses; default: "analysis".
	Noun string
}

// fill sets the defaults of Collection and Log, and checks Collection.
func (o *Options) fill(collection string) error {
	o.Collection, o.Log = cmp.Or(o.Collection, collection), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := CheckCollection(o.Collection); err != nil {
		return fmt.Errorf("repo: %w", err)
	}
	return nil
}

// CheckCollection returns an error unless path is the path of a collection, such as analyses
// or tenants/a/analyses.
func CheckCollection(path string) error {
	segments := strings.Split(path, "/")
	refused := func(s string) bool { return analysislock.CheckID(s) != nil }
	if len(segments)%2 == 0 || slices.ContainsFunc(segments, refused) {
		return fmt.Errorf("%q is not the path of a collection", path)
	}
	return nil
}
