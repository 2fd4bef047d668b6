package console

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// feed follows the source once for all pages, while anybody looks.
type feed struct {
	source Source
	limit  int
	pace   Pace
	log    *slog.Logger
	wanted chan struct{} // somebody looks again

	mu      sync.Mutex
	heard   int64     // news, ever
	answer  time.Time // when the store last answered all there was to tell, locally
	told    time.Time // the store's time of the last news of this attempt; zero: there were none
	looking int       // pages that are open
	looks   int       // pages that were loaded, ever
	state   *state
	changed chan struct{} // is closed when there is another state
}

func newFeed(source Source, limit int, pace Pace, log *slog.Logger) *feed {
	return &feed{
		source: source, limit: limit, pace: pace, log: log, wanted: make(chan struct{}, 1),
		state: &state{}, changed: make(chan struct{}),
	}
}

// current is the present state, and what is closed when there is another.
func (f *feed) current() (*state, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.changed
}

// look keeps the source followed until the function that it returns is called, and
// a while longer.
func (f *feed) look() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looking++
	f.looks++
	select {
	case f.wanted <- struct{}{}:
	default:
	}
	return func() {
		f.mu.Lock()
		f.looking--
		f.mu.Unlock()
	}
}

// first waits until something is known, or until ctx ends.
func (f *feed) first(ctx context.Context) *state {
	for {
		s, changed := f.current()
		if s.loaded && s.sought || !s.dark.IsZero() {
			return s
		}
		select {
		case <-ctx.Done():
			return s
		case <-changed:
		}
	}
}

// run follows the source whenever it is wanted, until ctx ends.
func (f *feed) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wanted:
		}
		following, end := context.WithCancel(ctx)
		var both sync.WaitGroup
		both.Go(func() { f.follow(following) })
		both.Go(func() { f.seek(following) })
		f.untilNobodyLooks(ctx)
		end()
		both.Wait()
		f.publish(func(*state) state { // it would grow old
			f.answer = time.Time{}
			return state{}
		})
		debug.FreeOSMemory() // of whole documents, which nobody may want for days
	}
}

// untilNobodyLooks returns when nobody has looked for a while.
func (f *feed) untilNobodyLooks(ctx context.Context) {
	tick := time.NewTicker(f.pace.Linger)
	defer tick.Stop()
	for seen := -1; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f.unwatched(seen) {
			return
		}
		seen = f.looksSoFar()
	}
}

// unwatched says whether nobody looks, nor has looked since there were seen looks;
// who looks from then on is wanted anew.
func (f *feed) unwatched(seen int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looking > 0 || f.looks != seen {
		return false
	}
	select {
	case <-f.wanted: // by those who have left
	default:
	}
	return true
}

func (f *feed) looksSoFar() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

// follow follows the source again each time that it breaks, as soon as the store
// answers; later and later where that is of no use.
func (f *feed) follow(ctx context.Context) {
	patience := f.pace.Patience
	for wait := f.pace.Retry; ; {
		err := f.attempt(ctx, patience)
		if ctx.Err() != nil {
			return
		}
		if f.darkened(ctx, err) {
			wait, patience = f.pace.Retry, f.pace.Patience
		}
		patience = min(2*patience, 8*f.pace.Patience) // all there is may be much for a slow line
		for answers := false; !answers; wait = min(2*wait, 16*f.pace.Retry) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			_, err := f.source.Newest(ctx)
			answers = err == nil
		}
	}
}

// darkened says that the store does not answer, and reports whether that is new.
func (f *feed) darkened(ctx context.Context, err error) (fresh bool) {
	f.publish(func(s *state) state {
		next := *s
		next.cause = err
		if fresh = s.dark.IsZero(); fresh {
			next.dark = time.Now()
			if !f.answer.IsZero() {
				next.dark = f.answer
			}
			f.log.WarnContext(ctx, "the analyses cannot be followed", "error", err)
		}
		return next
	})
	return fresh
}

// hear takes news in.
func (f *feed) hear(n News) {
	f.publish(func(s *state) state {
		next := state{at: n.At, asked: n.Asked, loaded: true, overdue: s.overdue, sought: s.sought}
		if s.dark.IsZero() { // else it was for the dark's sake
			next.missing = s.missing
		}
		if !n.All {
			next.followed = slices.DeleteFunc(slices.Clone(s.followed), func(e entry) bool {
				return slices.Contains(n.Gone, e.ID) || slices.ContainsFunc(n.Changed, func(a Analysis) bool { return a.ID == e.ID })
			})
		}
		f.heard++ // under f.mu, as all of this
		f.answer, f.told = time.Now(), n.At
		for i := range n.Changed {
			next.followed = append(next.followed, entry{Analysis: n.Changed[i], key: key(n.Changed[i].ID), version: f.heard})
		}
		slices.SortFunc(next.followed, newestFirst)
		return next.arranged()
	})
}

// maxOverdue is how many of those overdue are listed.
const maxOverdue = 50

// seek reads those overdue, at once and from time to time, until ctx ends. An
// analysis that is stuck is not among those that were updated last.
func (f *feed) seek(ctx context.Context) {
	for {
		found, err := f.source.Overdue(ctx, maxOverdue)
		if ctx.Err() != nil {
			return
		}
		f.publish(func(s *state) state {
			if err != nil && s.missing == nil {
				f.log.WarnContext(ctx, "the overdue analyses cannot be read", "error", err)
			}
			next := *s
			next.sought, next.missing = true, err
			if err != nil {
				return next
			}
			f.heard++
			next.overdue = nil
			for i := range found {
				next.overdue = append(next.overdue, kept(s.overdue, found[i], f.heard))
			}
			return next.arranged()
		})
		select {
		case <-ctx.Done():
			return
		case <-time.After(f.pace.Probe * 2):
		}
	}
}

func (f *feed) publish(next func(*state) state) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := next(f.state)
	f.state = &s
	close(f.changed)
	f.changed = make(chan struct{})
}
