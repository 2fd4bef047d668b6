package lease

import (
	"context"
	"sync"
	"time"
)

// Memory is a Store in memory, for tests and for programs of one process. Its
// clock is Now, or the machine's if Now is nil. The zero Memory is empty and
// ready. Only the value of a record is copied; do not change data that it points to.
type Memory[D any] struct {
	Now func() time.Time

	mu      sync.Mutex
	records map[string]memoryRecord[D]
	rev     int64
	clock   clock
}

type memoryRecord[D any] struct {
	doc D
	rev int64
}

// Load does not block.
func (m *Memory[D]) Load(ctx context.Context, key string) (Cell[D], error) {
	asked := time.Now()
	if err := ctx.Err(); err != nil {
		return Cell[D]{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[key]
	return Cell[D]{Doc: r.doc, Exists: ok, Rev: r.rev, At: m.clock.read(m.Now), Asked: asked}, nil
}

// Swap does not block. Swapping a Cell that did not exist creates the record.
func (m *Memory[D]) Swap(ctx context.Context, key string, prev Cell[D], next D) (Cell[D], error) {
	asked := time.Now()
	if err := ctx.Err(); err != nil {
		return Cell[D]{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[key]
	if ok != prev.Exists || (ok && r.rev != prev.Rev) {
		return Cell[D]{}, ErrConflict
	}
	return m.put(key, next, asked), nil
}

// Put writes a record unconditionally.
func (m *Memory[D]) Put(key string, doc D) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(key, doc, time.Now())
}

// Delete removes a record.
func (m *Memory[D]) Delete(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, key)
}

func (m *Memory[D]) put(key string, doc D, asked time.Time) Cell[D] {
	if m.records == nil {
		m.records = map[string]memoryRecord[D]{}
	}
	m.rev++
	m.records[key] = memoryRecord[D]{doc: doc, rev: m.rev}
	return Cell[D]{Doc: doc, Exists: true, Rev: m.rev, At: m.clock.read(m.Now), Asked: asked}
}

// clock is a store's clock. The zero clock is ready.
type clock struct {
	mu   sync.Mutex
	last time.Time // the latest time returned
}

// read returns the time of now, or of the machine if now is nil. It never runs
// backwards, even if that clock is set back.
func (c *clock) read(now func() time.Time) time.Time {
	if now == nil {
		now = time.Now
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = latest(c.last, now().Round(0)) // without the monotonic reading: times to be stored
	return c.last
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
