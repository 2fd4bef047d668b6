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
	records map[string]Cell[D] // as last written
	rev     int64
}

// Load does not block.
func (m *Memory[D]) Load(ctx context.Context, key string, _ Want) (Cell[D], error) {
	asked := time.Now()
	if err := ctx.Err(); err != nil {
		return Cell[D]{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.records[key]
	c.At, c.Asked = storeTime(m.Now), asked
	return c, nil
}

// Swap does not block. Swapping a Cell that did not exist creates the record.
func (m *Memory[D]) Swap(ctx context.Context, key string, prev Cell[D], next D) (Cell[D], error) {
	asked := time.Now()
	if err := ctx.Err(); err != nil {
		return Cell[D]{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	stored := m.records[key]
	if stored.Exists != prev.Exists || stored.Exists && stored.Rev != prev.Rev {
		return Cell[D]{}, ErrUnwritten
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
		m.records = map[string]Cell[D]{}
	}
	m.rev++
	m.records[key] = Cell[D]{Doc: doc, Exists: true, Rev: m.rev, At: storeTime(m.Now), Asked: asked}
	return m.records[key]
}

// storeTime returns the time of now, or of the machine if now is nil, without a monotonic
// reading: a time to be stored.
func storeTime(now func() time.Time) time.Time {
	if now == nil {
		now = time.Now
	}
	return now().Round(0)
}
