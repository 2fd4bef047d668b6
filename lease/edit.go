package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Write is one change of a record: what it does, and how a later reading shows that it was done.
// Its functions are called again for each try, and change nothing else; but Decide may note what Landed
// compares.
type Write[D any] struct {
	// Decide returns the record that replaces the one in c, or the error that ends the Edit. It
	// judges expiry at c.At.
	Decide func(c Cell[D]) (D, error)
	// Landed reports whether c shows this write. Edit asks it after each try that failed.
	Landed func(c Cell[D]) bool
	// Unmarked says that the record does not show who made the write: Edit asks Landed only after a
	// try that may have written.
	Unmarked bool

	From *Cell[D] // the reading to begin with; nil: Edit loads one
	Want Want     // what each Load brings
}

// Edit is the only loop over a Store: decide, then swap. After a conflict or an unknown outcome
// it loads the record and decides again, unless the record shows that the write has landed.
//
// Edit returns the record as last read or written, and an error of Decide unchanged. It tries
// until the store refuses, or until ctx ends: then the error is ErrUnavailable, or ErrMayBeWritten.
func Edit[D any](ctx context.Context, s Store[D], key string, w Write[D]) (Cell[D], error) {
	e := edit[D]{Write: w, store: s, key: key}
	if w.From != nil {
		e.cell, e.fresh = *w.From, true
	}

	for tries := 0; ; tries++ {
		done, err := e.try(ctx)
		if done {
			return e.cell, err
		}
		if !pause(ctx, tries, errors.Is(err, ErrConflict)) {
			return e.cell, e.unavailable(err, context.Cause(ctx))
		}
	}
}

// Read loads the record, and tries again as Edit does.
func Read[D any](ctx context.Context, s Store[D], key string) (Cell[D], error) {
	c, err := Edit(ctx, s, key, Write[D]{Decide: func(c Cell[D]) (D, error) { return c.Doc, errRead }})
	if errors.Is(err, errRead) {
		err = nil
	}
	return c, err
}

// errRead ends an Edit that only reads, and errLanded a decision whose write has landed.
var (
	errRead   = errors.New("lease: read")
	errLanded = errors.New("lease: landed")
)

// optimistic is the number of conflicts after which Edit decides in Exclude.
const optimistic = 2

// edit is an Edit in progress.
type edit[D any] struct {
	Write[D]

	store Store[D]
	key   string

	cell      Cell[D]
	fresh     bool  // nobody has swapped cell yet
	mayShow   bool  // a reading may show the write: ask Landed
	unknown   bool  // a try may have written
	refused   error // by a Swap: final, unless the next Load shows that an earlier try has written
	conflicts int
}

// try makes one try: at most a Load and a Swap, or one Exclude. done means that the Edit has its
// outcome; otherwise err is the failure of this try.
func (e *edit[D]) try(ctx context.Context) (done bool, err error) {
	if x, ok := e.store.(Excluder[D]); ok && e.conflicts >= optimistic {
		return e.exclude(ctx, x)
	}

	if !e.fresh {
		c, err := e.store.Load(ctx, e.key, e.Want)
		if err != nil {
			return errors.Is(err, ErrRefused) || permanent(err), err
		}
		e.cell, e.fresh = c, true
		if e.mayShow && e.Landed(c) {
			return true, nil
		}
		if e.refused != nil {
			return true, e.refused
		}
	}

	next, err := e.Decide(e.cell)
	if err != nil {
		return true, e.doubt(err)
	}
	c, err := e.store.Swap(ctx, e.key, e.cell, next)
	return e.wrote(c, err)
}

// exclude makes the decision while other writers wait. A refusal there proves nothing, since the
// store may have got the write twice: a Swap has to confirm it.
func (e *edit[D]) exclude(ctx context.Context, x Excluder[D]) (done bool, err error) {
	var verdict error
	c, err := x.Exclude(ctx, e.key, e.Want, func(c Cell[D]) (next D, _ error) {
		e.cell, verdict = c, errLanded
		if !e.mayShow || !e.Landed(c) {
			next, verdict = e.Decide(c)
		}
		return next, verdict
	})
	switch {
	case errors.Is(verdict, errLanded):
		return true, nil
	case verdict != nil:
		return true, e.doubt(verdict)
	}

	done, err = e.wrote(c, err)
	if e.refused != nil {
		e.refused, e.unknown, e.conflicts = nil, true, optimistic-1
	}
	return done, err
}

// wrote handles the reply c, err to a write.
func (e *edit[D]) wrote(c Cell[D], err error) (done bool, _ error) {
	if err == nil {
		e.cell = c
		return true, nil
	}
	e.fresh = false
	e.mayShow = e.mayShow || !e.Unmarked || !errors.Is(err, ErrUnwritten)
	e.unknown = e.unknown || !errors.Is(err, ErrUnwritten) && !errors.Is(err, ErrRefused)

	switch {
	case permanent(err):
		return true, err
	case errors.Is(err, ErrConflict):
		e.conflicts++
	case errors.Is(err, ErrRefused):
		e.refused = err
	}
	return false, err
}

// doubt returns an error of Decide. A loss is Unknown if an earlier try may have written: others
// would have overwritten that since.
func (e *edit[D]) doubt(err error) error {
	if lost := (*LostError)(nil); e.unknown && errors.As(err, &lost) {
		lost.Unknown = true
	}
	return err
}

// permanent reports whether no later call can succeed until the key or the record is fixed.
func permanent(err error) bool {
	return errors.Is(err, ErrMalformed) || errors.Is(err, ErrInvalidKey)
}

// unavailable wraps the last error, and the cause of the end unless that error contains it.
func (e *edit[D]) unavailable(last, cause error) error {
	err := ErrUnavailable
	if e.unknown {
		err = ErrMayBeWritten
	}
	if strings.Contains(last.Error(), cause.Error()) {
		return fmt.Errorf("%w: %w", err, last)
	}
	return fmt.Errorf("%w: %w (%w)", err, last, cause)
}

// pause waits a moment, with full jitter: milliseconds after a conflict, up to two seconds after a
// failure. It reports false when ctx has ended.
func pause(ctx context.Context, tries int, conflict bool) bool {
	limit := min(100*time.Millisecond<<min(tries, 5), 2*time.Second)
	if conflict {
		limit = min(4*time.Millisecond<<min(tries, 6), 250*time.Millisecond)
	}
	return sleep(ctx, jitter(rand.NewPCG(uint64(time.Now().UnixNano()), 0), limit))
}

// jitter returns a random part of limit. A source that is seeded with the time differs between
// machines, and lets a simulation in virtual time be repeated.
func jitter(source rand.Source, limit time.Duration) time.Duration {
	return time.Duration(rand.New(source).Int64N(int64(limit)))
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}
