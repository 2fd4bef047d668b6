package console

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// poll reads a value for all open pages together: only when a page asks, and at most
// once in every.
type poll[T any] struct {
	what   string // in the log
	every  time.Duration
	read   func(context.Context) (T, error)
	log    *slog.Logger
	wanted chan struct{}

	mu      sync.Mutex
	last    reading[T]
	changed chan struct{} // closed when last changes
}

// reading is what a poll knows.
type reading[T any] struct {
	value T
	asked time.Time // local time at which value was asked for; zero: there is none yet
	ended time.Time // local time at which the last attempt ended
	err   error     // of the last attempt
}

func newPoll[T any](what string, every time.Duration, log *slog.Logger, read func(context.Context) (T, error)) *poll[T] {
	return &poll[T]{what: what, every: every, read: read, log: log, wanted: make(chan struct{}, 1), changed: make(chan struct{})}
}

// run reads whenever want asks for it, until ctx ends.
func (p *poll[T]) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wanted:
		}
		last, _ := p.current()
		if time.Since(last.ended) < p.every {
			continue
		}
		asked := time.Now()
		value, err := p.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			last.value, last.asked = value, asked
		} else if last.err == nil {
			p.log.WarnContext(ctx, "console cannot read Firestore", "what", p.what, "error", err)
		}
		last.err, last.ended = err, time.Now()
		p.mu.Lock()
		p.last = last
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *poll[T]) current() (reading[T], <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.changed
}

// want starts the next attempt where it is due.
func (p *poll[T]) want() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

// get returns the last reading. Where the next attempt has been due for late, it waits
// for that attempt, or until ctx ends.
func (p *poll[T]) get(ctx context.Context, late time.Duration) reading[T] {
	last, changed := p.current()
	if time.Since(last.ended) < p.every || time.Since(last.asked) < p.every+late {
		return last
	}
	p.want()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	last, _ = p.current()
	return last
}

// fresh reports whether r's value counts as current: one attempt may fail.
func (p *poll[T]) fresh(r reading[T]) bool { return time.Since(r.asked) < 2*p.every+5*time.Second }
