package lease

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Cell is one reading of a record, with its time by both clocks.
type Cell[D any] struct {
	Doc    D         // zero if the record does not exist
	Exists bool      // false: no such record
	Rev    any       // the store's identifier of this version
	At     time.Time // the store's time of the reading or of the write
	Asked  time.Time // the local start of that call, with its monotonic reading
}

// Now estimates the store's present time: At, continued by the local monotonic
// clock. It is ahead by at most the round trip of the reading. It serves to choose a
// new expiry, never to judge one.
func (c Cell[D]) Now() time.Time { return c.At.Add(time.Since(c.Asked)) }

// Want is what a Load brings beside the fields that a decision needs.
type Want int

const (
	// OnlyLease asks for nothing more.
	OnlyLease Want = iota
	// LeaseAndWork also asks for the work of the record, if it is small. A Store without such a
	// notion ignores it. The work stays in Cell.Rev until an acquisition has been committed.
	LeaseAndWork
	// EvenMalformed asks for a record whose lease cannot be decoded too, with a lease that is safe to
	// assume in its place. A Swap of that Cell repairs the record.
	EvenMalformed
)

// Store keeps records, changes them one at a time by compare-and-swap, and has its own
// clock. Implementations contain no rules. They are safe for concurrent use, bound
// each call by a deadline of their own, and pass leasetest.
type Store[D any] interface {
	// Load reads the record, and what want asks for beside it. A missing record is a Cell with
	// Exists false, not an error; a record whose lease cannot be decoded is ErrMalformed. At is
	// never before the At of an earlier reply about that record.
	Load(ctx context.Context, key string, want Want) (Cell[D], error)
	// Swap writes next if the record is still prev, and returns the Cell as
	// written, with the Rev, At and Asked of this write. It writes only the
	// differences between prev.Doc and next. It returns ErrConflict if the record has
	// changed, perhaps by this very call; ErrUnwritten if another writer has changed
	// it; and ErrRefused if no later try can succeed. Any other error leaves the
	// outcome unknown.
	Swap(ctx context.Context, key string, prev Cell[D], next D) (Cell[D], error)
}

// Excluder is a Store that can also make other writers wait while it loads,
// decides and swaps once. It is for records whose other fields are written more
// often than Edit can read and swap them.
type Excluder[D any] interface {
	Store[D]
	// Exclude returns an error of decide unchanged. decide may be called more
	// than once; only its last result counts.
	Exclude(ctx context.Context, key string, want Want, decide func(Cell[D]) (D, error)) (Cell[D], error)
}

// CheckKey returns ErrInvalidKey for a key of more than limit bytes, and for a key that
// is not a plain path segment: UTF-8 without slashes and control characters, and not
// reserved as __…__. Some stores cannot hold such a key, or read it as the path
// of another record. what is the key's kind in the error, which does not contain the key.
func CheckKey(what, key string, limit int) error {
	var problem string
	switch {
	case key == "":
		problem = "is empty"
	case len(key) > limit:
		problem = fmt.Sprintf("has %d bytes, at most %d are possible", len(key), limit)
	case !utf8.ValidString(key):
		problem = "is not UTF-8"
	case key == "." || key == "..":
		problem = "is a path"
	case strings.Contains(key, "/"):
		problem = "has a slash"
	case len(key) >= 4 && strings.HasPrefix(key, "__") && strings.HasSuffix(key, "__"):
		problem = "is reserved: __…__"
	case strings.ContainsRune(key, utf8.RuneError): // JSON decodes half a surrogate pair to it
		problem = "has a replacement character (U+FFFD)"
	case strings.ContainsFunc(key, unicode.IsControl):
		problem = "has a control character"
	default:
		return nil
	}
	return fmt.Errorf("%w: the %s id %s", ErrInvalidKey, what, problem)
}
