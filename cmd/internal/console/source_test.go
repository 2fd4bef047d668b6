package console_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
	"taskguard/worker"
)

var (
	errOdd         = errors.New("odd")
	errUnavailable = fmt.Errorf("no connection: %w", lease.ErrUnavailable)
)

// memorySource has the documents in memory. Its clock is a day ahead of this machine's, so that the
// use of the wrong one is noticed.
type memorySource struct {
	worker.Documents // nil: no page calls the other methods

	mu          sync.Mutex
	all         map[string]analysislock.Analysis
	unavailable bool
	asked       map[string]int   // calls by method
	errs        map[string]error // of a method
	delay       time.Duration    // of each call of Page, Failures, Get and Summary
	pages       []repo.Filter    // of each Page, which compares its Code alone
	failures    []repo.Failure
	left        int   // groups of failures that are not in failures
	failed      int64 // more that are counted
	codes       []string
	backlog     repo.Backlog
}

func storeNow() time.Time { return time.Now().Add(24 * time.Hour) }

func newSource(all ...analysislock.Analysis) *memorySource {
	s := &memorySource{all: map[string]analysislock.Analysis{}, asked: map[string]int{}, errs: map[string]error{}}
	s.put(all...)
	return s
}

// change calls do with s locked.
func (s *memorySource) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *memorySource) put(all ...analysislock.Analysis) {
	s.change(func() {
		for i := range all {
			s.all[all[i].ID] = all[i]
		}
	})
}

// breaks makes the store fail, or work again.
func (s *memorySource) breaks(unavailable bool) { s.change(func() { s.unavailable = unavailable }) }

// takes makes each call take so long.
func (s *memorySource) takes(delay time.Duration) { s.change(func() { s.delay = delay }) }

// calls returns how often a method was called.
func (s *memorySource) calls(method string) (n int) {
	s.change(func() { n = s.asked[method] })
	return n
}

// read returns the analyses to keep, as they are now, the last updated first.
func (s *memorySource) read(method string, keep func(*analysislock.Analysis) bool) (
	found []analysislock.Analysis, err error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[method]++
	if s.unavailable {
		return nil, errUnavailable
	}
	for id := range s.all {
		a := s.all[id]
		if a.ReadAt = storeNow(); keep == nil || keep(&a) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b analysislock.Analysis) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.ID, b.ID))
	})
	return found, s.errs[method]
}

// wait takes as long as the store does, or until ctx ends.
func (s *memorySource) wait(ctx context.Context) error {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	if delay == 0 { // a timer of no time crashed Go's runtime once, in virtual time with the race detector
		return nil
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return errUnavailable
	}
}

func (s *memorySource) ActKey(id, act string) string { return orchestrator.ActKey("s", id, act) }

func (s *memorySource) Now(context.Context) (time.Time, error) {
	_, err := s.read("Now", nil)
	return storeNow(), err
}

func (s *memorySource) Backlog(_ context.Context, stuck int) (repo.Backlog, error) {
	_, err := s.read("Backlog", nil)
	b := s.backlog
	b.At, b.Stuck = storeNow(), max(b.Stuck, int64(stuck))
	return b, err
}

func (s *memorySource) Page(ctx context.Context, f repo.Filter, after string, limit int) (
	found []analysislock.Analysis, next string, at time.Time, err error,
) {
	if err := s.wait(ctx); err != nil {
		return nil, "", at, err
	}
	found, err = s.read("Page", func(a *analysislock.Analysis) bool { return f.Code == "" || a.HasCode(f.Code) })
	s.change(func() { s.pages = append(s.pages, f) })
	from, _ := strconv.Atoi(after)
	found = found[min(from, len(found)):]
	if len(found) > limit {
		found, next = found[:limit], strconv.Itoa(from+limit)
	}
	return found, next, storeNow(), err
}

// unfinished reports whether a worker has still to finish a.
func unfinished(a *analysislock.Analysis) bool {
	return a.Status == "QUEUED" || a.Status == "PROCESSING"
}

// Active lists an analysis as running and as waiting, if it is both.
func (s *memorySource) Active(_ context.Context, limit int) (
	running, waiting, stuck []analysislock.Analysis, at time.Time, err error,
) {
	all, err := s.read("Active", nil)
	for i := range all {
		a := all[i]
		held, waits := lease.Held(a.Lock, a.ReadAt), a.NextAttemptAt.After(a.ReadAt)
		if held {
			running = append(running, a)
		}
		if waits {
			waiting = slices.Insert(waiting, 0, a)
		}
		lost := unfinished(&a) && a.Malformed == nil && !held && !waits
		if lost && a.ReadAt.Sub(a.UpdatedAt) > 12*time.Minute {
			stuck = slices.Insert(stuck, 0, a)
		}
	}
	first := func(list []analysislock.Analysis) []analysislock.Analysis { return list[:min(limit, len(list))] }
	return first(running), first(waiting), first(stuck), storeNow(), err
}

func (s *memorySource) OldestUnfinished(context.Context) (oldest analysislock.Analysis, found bool, err error) {
	all, err := s.read("Oldest", unfinished)
	if len(all) == 0 {
		return oldest, false, err
	}
	created := func(a, b analysislock.Analysis) int { return a.CreatedAt.Compare(b.CreatedAt) }
	return slices.MinFunc(all, created), true, err
}

func (s *memorySource) Failures(ctx context.Context, limit int) ([]repo.Failure, int, error) {
	if err := s.wait(ctx); err != nil || limit != 50 {
		return nil, 0, errUnavailable
	}
	_, err := s.read("Failures", nil)
	return s.failures, s.left, err
}

func (s *memorySource) Uncertain(_ context.Context, limit int) ([]analysislock.Analysis, error) {
	found, err := s.read("Uncertain", func(a *analysislock.Analysis) bool {
		return a.OpenActs > 0 && !lease.Held(a.Lock, a.ReadAt)
	})
	return found[:min(limit, len(found))], err
}

func (s *memorySource) Codes(_ context.Context, limit int) (codes []string, err error) {
	_, err = s.read("Codes", nil)
	return s.codes[:min(limit, len(s.codes))], err
}

func (s *memorySource) Count(_ context.Context, f repo.Filter) (int64, error) {
	counted, err := s.read("Count", func(a *analysislock.Analysis) bool {
		return f.Status == "" || a.Status == f.Status
	})
	if f.Status == "FAILED" {
		return int64(len(counted)) + s.failed, err
	}
	return int64(len(counted)), err
}

// KeyState is of a key with three slots, of which one is taken.
func (s *memorySource) KeyState(_ context.Context, a *analysislock.Analysis, count bool) (repo.KeyState, error) {
	_, err := s.read("KeyState", nil)
	state := repo.KeyState{Key: "<acme>", Limit: 3, Running: []string{"r"}, Parked: !a.ParkedAt.IsZero()}
	if count {
		state.Before = new(int64(5))
	}
	return state, err
}

func (s *memorySource) Summary(ctx context.Context, id string) (analysislock.Analysis, error) {
	a, err := s.Get(ctx, id)
	a.Input, a.Result = nil, nil
	if errors.Is(err, lease.ErrMalformed) {
		err = nil
	}
	return a, err
}

func (s *memorySource) Get(ctx context.Context, id string) (none analysislock.Analysis, err error) {
	if err := s.wait(ctx); err != nil {
		return none, err
	}
	found, err := s.read("Get", func(a *analysislock.Analysis) bool { return a.ID == id })
	switch {
	case err != nil:
		return none, err
	case id == "a/b" || id == "":
		return none, lease.ErrInvalidKey
	case len(found) == 0:
		return none, lease.ErrNotFound
	case found[0].Malformed != nil:
		return found[0], lease.ErrMalformed
	}
	return found[0], nil
}
