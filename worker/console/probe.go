package console

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errSilent ends an attempt in which the store has ceased to answer, which the
// stream itself does not tell.
var errSilent = errors.New("console: the store does not answer")

// errUntold ends an attempt in which the store answers, and the stream does not tell
// what it should: a client may open one that is refused again and again, in silence.
var errUntold = errors.New("console: the store answers, but its stream of changes does not tell of them")

// attempt follows the source until it breaks, or has told nothing for patience.
func (f *feed) attempt(ctx context.Context, patience time.Duration) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	f.mu.Lock()
	f.told = time.Time{}
	f.mu.Unlock()
	var probing sync.WaitGroup
	probing.Go(func() { end(f.probe(ctx, patience)) })
	err := f.source.Follow(ctx, f.limit, f.hear)
	end(err)
	probing.Wait()
	return context.Cause(ctx)
}

// probe asks from time to time whether the store answers, and whether what was
// updated last has been told; until it does not or has not twice, or ctx ends.
func (f *feed) probe(ctx context.Context, patience time.Duration) error {
	began, failures, wait := time.Now(), 0, time.Duration(0)
	for late := (time.Time{}); ; { // the last news, where there should have been more
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		n, err := f.source.Newest(ctx)
		if err != nil {
			if failures++; failures > 1 {
				return errors.Join(errSilent, err)
			}
			wait = f.pace.Retry
			continue
		}
		failures = 0
		told := f.lastTold()
		left := patience - time.Since(began)
		behind := told.Before(n.Written)
		switch {
		case told.IsZero() && left > 0:
			wait = min(left, f.pace.Probe)
		case told.IsZero(), behind && told.Equal(late):
			return errUntold
		case behind: // the news may be on their way
			wait, late = f.pace.Patience, told
		default:
			f.anchor(n)
			wait, late = f.pace.Probe, time.Time{}
		}
	}
}

func (f *feed) lastTold() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told
}

// anchor takes in that at n nothing else was to be told. The clock by which time
// counts on stands still while a laptop sleeps: pages count from anew then.
func (f *feed) anchor(n Newest) {
	f.publish(func(s *state) state {
		f.answer = time.Now()
		next := *s
		if !n.At.After(s.at) {
			return next
		}
		next.at, next.asked = n.At, n.Asked
		if next.now().Sub(s.now()).Abs() < time.Second {
			return next
		}
		f.heard++
		return next.versioned(f.heard).arranged()
	})
}
