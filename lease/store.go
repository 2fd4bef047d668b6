package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Cell is one reading of a record: what it held, and when by both clocks.
type Cell[D any] struct {
	Doc    D
	Exists bool
	Rev    any       // the store's mark of this version, opaque to others
	At     time.Time // the store's time of the reading or of the write
	Asked  time.Time // the local start of that call, with its monotonic reading
}

// Now estimates the store's time at this moment: At, carried on by the local
// monotonic clock. It runs ahead by at most the round trip of the reading. It
// may choose an expiry to write; it decides nothing.
func (c Cell[D]) Now() time.Time { return c.At.Add(time.Since(c.Asked)) }

// Store holds records and compares-and-swaps them, one at a time, by its own
// clock. Implementations are dumb: they know no rule. They are safe for
// concurrent use, bound each call by a deadline of their own, and pass the
// whole of leasetest.
type Store[D any] interface {
	// Load reads the record. A missing one is a Cell with Exists false, not an
	// error; one whose lease cannot be made out is ErrMalformed. At is never
	// before the At of an earlier reply about that record.
	Load(ctx context.Context, key string) (Cell[D], error)
	// Swap writes next where the record is still prev, and answers the Cell as
	// written, Rev, At and Asked being this write's. Only what differs between
	// prev.Doc and next is written. ErrConflict: nothing was written, or it was
	// and the store could not tell; ErrRefused: it never will be; any other
	// error leaves the outcome unknown.
	Swap(ctx context.Context, key string, prev Cell[D], next D) (Cell[D], error)
}

// Excluder is a Store that can also keep other writers waiting while it loads,
// decides and swaps once, for records whose other fields are written more
// often than Edit can read and swap them.
type Excluder[D any] interface {
	Store[D]
	// Exclude answers what decide answered as an error, unchanged. decide may
	// be called more than once; only its last answer counts.
	Exclude(ctx context.Context, key string, decide func(Cell[D]) (D, error)) (Cell[D], error)
	// Exclusive reports whether every decision is to be made in Exclude. Else Edit
	// begins with Load and Swap.
	Exclusive() bool
}

// optimistic is how often Edit swaps what it has read before it asks an
// Excluder to keep the others out.
const optimistic = 2

// Edit is the only loop over a Store: decide, swap; on a conflict or a doubt
// load, ask whether the write has landed after all, decide again. from is a
// Cell already known, or nil to begin with a Load. decide is pure and may be
// called many times; its error ends the loop and is returned as it is,
// together with the Cell that it was given. landed tells whether the record
// shows an earlier write of this very call. Edit tries until ctx ends, and then
// answers ErrUnavailable, or until the store refuses.
func Edit[D any](ctx context.Context, s Store[D], key string, from *Cell[D],
	decide func(Cell[D]) (D, error), landed func(Cell[D]) bool,
) (Cell[D], error) {
	e := edit[D]{store: s, key: key, decide: decide, landed: landed}
	if from != nil {
		e.cell, e.fresh = *from, true
	}
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

// unavailable says what the last try came to and, if that does not say so, why
// there was no other.
func unavailable(last, cause error) error {
	if strings.Contains(last.Error(), cause.Error()) {
		return fmt.Errorf("%w: %w", ErrUnavailable, last)
	}
	return fmt.Errorf("%w: %w (%w)", ErrUnavailable, last, cause)
}

type edit[D any] struct {
	store  Store[D]
	key    string
	decide func(Cell[D]) (D, error)
	landed func(Cell[D]) bool

	cell      Cell[D]
	fresh     bool  // cell may be swapped
	doubt     bool  // a write was sent whose outcome is unknown
	refused   error // the store's last refusal, final once the doubt is gone
	plain     bool  // Exclude was refused, which a Swap is to confirm
	excluded  bool  // and that was done
	tries     int
	conflicts int
}

// errLanded ends an exclusive decision whose write is found in place.
var errLanded = errors.New("lease: landed")

// step makes one try: at most a Load and a Swap, or one Exclude. It is done
// when the operation has an outcome; else err says what went wrong.
func (e *edit[D]) step(ctx context.Context) (done bool, err error) {
	if x, ok := e.store.(Excluder[D]); ok && e.refused == nil && !e.plain && (e.conflicts >= optimistic || x.Exclusive()) {
		return e.exclude(ctx, x)
	}
	e.plain = false
	if !e.fresh {
		c, err := e.store.Load(ctx, e.key)
		if err != nil {
			return errors.Is(err, ErrRefused) || hopeless(err), err
		}
		e.cell, e.fresh = c, true
		if e.doubt && e.landed(c) {
			return true, nil
		}
		e.doubt = false
		if e.refused != nil {
			return true, e.refused
		}
	}
	next, err := e.decide(e.cell)
	if err != nil {
		return true, err
	}
	c, err := e.store.Swap(ctx, e.key, e.cell, next)
	return e.wrote(c, err)
}

// exclude makes the decision while the store keeps the others out.
func (e *edit[D]) exclude(ctx context.Context, x Excluder[D]) (done bool, err error) {
	var verdict error
	c, err := x.Exclude(ctx, e.key, func(c Cell[D]) (next D, err error) {
		e.cell, verdict = c, nil
		if e.doubt && e.landed(c) {
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
		return true, verdict
	}
	done, err = e.wrote(c, err)
	if e.refused != nil && !e.excluded {
		e.refused, e.plain, e.excluded = nil, true, true
	}
	return done, err
}

// wrote takes the answer to a write.
func (e *edit[D]) wrote(c Cell[D], err error) (done bool, _ error) {
	if err == nil {
		e.cell = c
		return true, nil
	}
	e.fresh, e.doubt = false, true
	switch {
	case hopeless(err):
		return true, err
	case errors.Is(err, ErrConflict):
		e.conflicts++
	case errors.Is(err, ErrRefused):
		e.refused = err // which a plain Load resolves
	}
	return false, err
}

// hopeless: no later call with this key can have another answer until somebody
// mends the key or the record.
func hopeless(err error) bool {
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

// jitter is a part of limit that now's nanoseconds decide: as good as chance
// between machines, and in virtual time the same for the same course of events,
// so that a simulation replays. It is the last step of SplitMix64.
func jitter(now time.Time, limit time.Duration) time.Duration {
	z := uint64(now.UnixNano())
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return time.Duration((z ^ z>>31) % uint64(limit))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
