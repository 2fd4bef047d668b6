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
	Database   string        // "" is (default)
	Collection string        // "" is analyses, of OpenRooms documentLocks
	Emulator   string        // host:port of an emulator; FIRESTORE_EMULATOR_HOST takes precedence
	Policy     lease.Policy  // of the locks
	MaxRunTime time.Duration // see analysislock.New; zero: not limited
	Log        *slog.Logger  // nil: silent
	// Fields is the vocabulary of the documents. The methods of Analyses take and return
	// the statuses of analyses, whatever the words of the documents are.
	Fields Fields
	// Keep sets when a finished document may be deleted: the commit that finishes it sets
	// expireAt, a Timestamp, to Keep from then, and the commit that opens it again deletes
	// expireAt. The collection needs a TTL policy on that field. The tokens of a document begin
	// at the time of its creation, so that they are larger than those of a deleted one with its
	// id. Zero: finishing does not set expireAt, and tokens begin at 1.
	Keep time.Duration
	// KeepAll makes every commit, also those of Create, set expireAt. Keep must then be
	// longer than the lock's TTL.
	KeepAll bool
	// Noun names a document of Analyses in errors; empty: analysis.
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
