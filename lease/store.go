package lease

import (
	"context"
	"errors"
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
	Exclude(ctx context.Context, key string, decide func(Cell[D]) (D, error)) (Cell[D], error)
}

// optimistic is the number of conflicts after which Edit uses Exclude.
const optimistic = 2

// Edit is the only loop over a Store: decide, then swap. After a conflict or an
// unknown outcome it loads the record, asks landed whether the record shows the
// write of this call, and decides again. from is the Cell to begin with, or nil to begin
// with a Load. decide is pure and may be called many times. Its error ends the loop; Edit
// returns that error unchanged, and the Cell that decide was given. Edit tries until the
// store refuses. If ctx ends first, it returns ErrUnavailable.
func Edit[D any](ctx context.Context, s Store[D], key string, from *Cell[D],
	decide func(Cell[D]) (D, error), landed func(Cell[D]) bool,
) (Cell[D], error) {
	e := edit[D]{store: s, key: key, decide: decide, landed: landed}
	if from != nil {
		e.cell, e.fresh = *from, true
	}
	return e.run(ctx)
}

// EditUnmarked is like Edit, for a write after which the record does not show who made it:
// if all failures were ErrUnwritten, it does not ask landed.
func EditUnmarked[D any](ctx context.Context, s Store[D], key string,
	decide func(Cell[D]) (D, error), landed func(Cell[D]) bool,
) (Cell[D], error) {
	e := edit[D]{store: s, key: key, decide: decide, landed: landed, unmarked: true}
	return e.run(ctx)
}

func (e *edit[D]) run(ctx context.Context) (Cell[D], error) {
	for {
		done, err := e.step(ctx)
		if done {
			return e.cell, err
		}
		if !pause(ctx, e.tries, errors.Is(err, ErrConflict)) {
			return e.cell, unavailable(err, context.Cause(ctx))
		}
		e.tries++
	}
}

// unavailable wraps the last error, and the cause of the end unless that error
// contains it.
func unavailable(last, cause error) error {
	if strings.Contains(last.Error(), cause.Error()) {
		return fmt.Errorf("%w: %w", ErrUnavailable, last)
	}
	return fmt.Errorf("%w: %w (%w)", ErrUnavailable, last, cause)
}

// errRead ends an Edit that only reads.
var errRead = errors.New("lease: read")

// Read loads the record, and tries again as Edit does.
func Read[D any](ctx context.Context, s Store[D], key string) (Cell[D], error) {
	c, err := Edit(ctx, s, key, nil, func(c Cell[D]) (D, error) { return c.Doc, errRead }, nil)
	if errors.Is(err, errRead) {
		err = nil
	}
	return c, err
}

type edit[D any] struct {
	store  Store[D]
	key    string
	decide func(Cell[D]) (D, error)
	landed func(Cell[D]) bool

	want      Want
	unmarked  bool // see EditUnmarked
	cell      Cell[D]
	fresh     bool  // cell may be swapped
	uncertain bool  // a later reading may show a write of this call: ask landed
	unknown   bool  // a write of this call may have been made
	refused   error // the last refusal of a Swap: final unless that write has landed
	trySwap   bool  // Exclude was refused, and the next try is a Swap to confirm that
	tries     int
	conflicts int
}

// errLanded ends a decision inside Exclude if an earlier try has written it.
var errLanded = errors.New("lease: landed")

// step makes one try: at most a Load and a Swap, or one Exclude. done means that
// the operation has its outcome; else err is the failure of this try.
func (e *edit[D]) step(ctx context.Context) (done bool, err error) {
	x, ok := e.store.(Excluder[D])
	canExclude := ok && e.refused == nil && !e.trySwap
	if canExclude && e.conflicts >= optimistic {
		return e.exclude(ctx, x)
	}
	e.trySwap = false

	if !e.fresh {
		c, err := e.store.Load(ctx, e.key, e.want)
		if err != nil {
			return errors.Is(err, ErrRefused) || permanent(err), err
		}
		e.cell, e.fresh = c, true
		if e.uncertain && e.landed(c) {
			return true, nil
		}
		if e.refused != nil {
			return true, e.refused
		}
	}

	next, err := e.decide(e.cell)
	if err != nil {
		return true, e.doubted(err)
	}
	c, err := e.store.Swap(ctx, e.key, e.cell, next)
	return e.wrote(c, err)
}

// exclude makes the decision in the store's Exclude.
func (e *edit[D]) exclude(ctx context.Context, x Excluder[D]) (done bool, err error) {
	var verdict error
	c, err := x.Exclude(ctx, e.key, func(c Cell[D]) (next D, err error) {
		e.cell, verdict = c, nil
		if e.uncertain && e.landed(c) {
			verdict = errLanded
			return c.Doc, verdict
		}
		next, verdict = e.decide(c)
		return next, verdict
	})
	switch {
	case errors.Is(verdict, errLanded):
		return true, nil
	case verdict != nil:
		return true, e.doubted(verdict)
	}

	done, err = e.wrote(c, err)
	e.trySwap, e.refused = e.refused != nil, nil
	return done, err
}

// doubted returns the error of decide. A loss is Unknown if an earlier try may have written: its
// write would have been overwritten since.
func (e *edit[D]) doubted(err error) error {
	if lost := (*LostError)(nil); e.unknown && errors.As(err, &lost) {
		lost.Unknown = true
	}
	return err
}

// wrote handles the result of a write.
func (e *edit[D]) wrote(c Cell[D], err error) (done bool, _ error) {
	if err == nil {
		e.cell = c
		return true, nil
	}
	e.fresh = false
	e.uncertain = e.uncertain || !e.unmarked || !errors.Is(err, ErrUnwritten)
	e.unknown = e.unknown || !errors.Is(err, ErrUnwritten) && !errors.Is(err, ErrRefused)

	switch {
	case permanent(err):
		return true, err
	case errors.Is(err, ErrConflict):
		e.conflicts++
	case errors.Is(err, ErrRefused):
		e.refused = err // the next Load resolves it
	}
	return false, err
}

// permanent reports whether no later call can succeed until the key or the record is
// fixed.
func permanent(err error) bool {
	return errors.Is(err, ErrMalformed) || errors.Is(err, ErrInvalidKey)
}

// pause waits a moment, with full jitter: milliseconds after a conflict, up to
// two seconds after a failure. It reports false when ctx has ended.
func pause(ctx context.Context, tries int, conflict bool) bool {
	limit := min(100*time.Millisecond<<min(tries, 5), 2*time.Second)
	if conflict {
		limit = min(4*time.Millisecond<<min(tries, 6), 250*time.Millisecond)
	}
	return sleep(ctx, jitter(time.Now(), limit))
}

// jitter returns a part of limit that is computed from now's nanoseconds. It differs
// between machines. In virtual time the same events give the same result, so that a
// simulation can be repeated. The computation is the last step of SplitMix64.
func jitter(now time.Time, limit time.Duration) time.Duration {
	z := uint64(now.UnixNano())
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return time.Duration((z ^ z>>31) % uint64(limit))
}

// CheckKey returns ErrInvalidKey for a key of more than limit bytes, and for one that
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
