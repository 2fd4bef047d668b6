package cloudtasks

import "time"

const (
	// nameHeld is how long a finished task's name is refused. The service says up
	// to 24 h; the longest is the strictest on a caller that reuses names.
	nameHeld = 24 * time.Hour
	// maxTombstones bounds their memory: some 40 MB with names of 64 bytes.
	maxTombstones = 1 << 18
)

// tombstones are the names of ended tasks that may not be used again yet.
type tombstones struct {
	held  map[string]struct{}
	order []tombstone // oldest first
}

type tombstone struct {
	id    string
	until time.Time
}

// add holds id from now on; beyond maxTombstones the oldest is let go.
func (t *tombstones) add(id string, now time.Time) {
	t.expire(now)
	if len(t.order) >= maxTombstones {
		t.drop()
	}
	if t.held == nil {
		t.held = map[string]struct{}{}
	}
	t.held[id] = struct{}{}
	t.order = append(t.order, tombstone{id, now.Add(nameHeld)})
}

func (t *tombstones) holds(id string, now time.Time) bool {
	t.expire(now)
	_, held := t.held[id]
	return held
}

func (t *tombstones) expire(now time.Time) {
	for len(t.order) > 0 && !t.order[0].until.After(now) {
		t.drop()
	}
}

func (t *tombstones) drop() {
	delete(t.held, t.order[0].id)
	t.order[0] = tombstone{}
	t.order = t.order[1:]
}
