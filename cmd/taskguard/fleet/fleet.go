package fleet

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Fleet is the workers of one command, numbered from 1 in the order in which
// they were asked for. It is safe for concurrent use.
type Fleet struct {
	Command Command
	Observe func(Run) // called concurrently for different workers

	mu      sync.Mutex
	workers []*Worker
	count   int
}

// Add starts one worker and waits until it serves.
func (f *Fleet) Add(ctx context.Context) (*Worker, error) { return f.add(ctx, f.number()) }

func (f *Fleet) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	return f.count
}

func (f *Fleet) add(ctx context.Context, number int) (*Worker, error) {
	w, err := Start(ctx, number, f.Command, f.Observe)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers = append(f.workers, w)
	return w, nil
}

// AddAll starts n workers at once. On an error those that did start are in the
// fleet, for Stop.
func (f *Fleet) AddAll(ctx context.Context, n int) ([]*Worker, error) {
	workers, errs := make([]*Worker, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		number := f.number()
		starting.Go(func() { workers[i], errs[i] = f.add(ctx, number) })
	}
	starting.Wait()
	return workers, errors.Join(errs...)
}

// Stop stops all workers and waits until they are gone, as Worker.Stop does. No
// Add may be under way.
func (f *Fleet) Stop(grace time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var stopping sync.WaitGroup
	for _, w := range f.workers {
		stopping.Go(func() { w.Stop(grace) })
	}
	stopping.Wait()
}
