package delivery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Places are the places for runs in one process. They are safe for concurrent use.
type Places struct {
	count   int64
	free    *semaphore.Weighted
	suspect atomic.Bool // one suspect waits for all places, or has them

	mu      sync.Mutex
	running map[*Place]string // ids of the analyses that run
}

// NewPlaces returns count free places.
func NewPlaces(count int) *Places {
	return &Places{count: int64(count), free: semaphore.NewWeighted(int64(count)), running: map[*Place]string{}}
}

// Place is where one delivery runs. Only its goroutine uses it.
type Place struct {
	all   *Places
	taken int64
	alone bool // it is the suspect
}

// Enter takes a place until Leave. ok is false if none is free, or a suspect needs all of them.
func (p *Places) Enter() (place *Place, ok bool) {
	if !p.free.TryAcquire(1) {
		return nil, false
	}
	return &Place{all: p, taken: 1}, true
}

// Only reports that p is the only place of its process.
func (p *Place) Only() bool { return p.all.count == 1 }

// Suspect reports whether Enter refuses because a suspect waits for all places, or has them.
func (p *Places) Suspect() bool { return p.suspect.Load() }

// Alone takes all places. It waits for the end of the other runs for up to wait, and reports false if they
// have not ended, if ctx has, or at once if another suspect does the same. Meanwhile no run enters.
func (p *Place) Alone(ctx context.Context, wait time.Duration) bool {
	if !p.all.suspect.CompareAndSwap(false, true) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if p.all.free.Acquire(ctx, p.all.count-1) != nil {
		p.all.suspect.Store(false)
		return false
	}
	p.taken, p.alone = p.all.count, true
	return true
}

// Begin notes that the analysis id runs in the place until Leave. It returns the analyses that run in the other
// places. A nil Place has none.
func (p *Place) Begin(id string) (beside []string) {
	if p == nil {
		return nil
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	beside = slices.Sorted(maps.Values(p.all.running))
	p.all.running[p] = id
	return beside
}

// Leave frees what the place has taken.
func (p *Place) Leave() {
	p.all.mu.Lock()
	delete(p.all.running, p)
	p.all.mu.Unlock()
	p.all.free.Release(p.taken)
	if p.alone {
		p.all.suspect.Store(false)
	}
}
