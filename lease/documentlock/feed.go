package documentlock

import (
	"context"
	"time"

	"taskguard/lease"
)

// Watcher is a store's change stream.
type Watcher interface {
	// Watch calls each with the records there are, Snapshot.All, and then with
	// every change, in the order of the store's clock and after its commit, until
	// ctx ends or the stream fails, and answers why it ended. each does not block.
	Watch(ctx context.Context, each func(Snapshot)) error
	// Current reads the records there are.
	Current(ctx context.Context) (Snapshot, error)
}

// Snapshot is what has changed by At.
type Snapshot struct {
	At      time.Time // the store's
	Asked   time.Time // the local start of that reading, or when it arrived from a stream
	All     bool      // a room that Changes does not name has no record
	Changes []Change
}

// Change is a record as it is now; one with Exists false was deleted.
type Change struct {
	Room string
	Cell lease.Cell[Lock]
}
