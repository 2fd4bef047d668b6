package doclock

import "sync"

// audiences are who listens, by room. The zero value is empty.
type audiences struct {
	mu    sync.Mutex
	rooms map[string]*audience
}

// audience is who listens to one room.
type audience struct {
	sockets  int
	unlocked int64 // version of the last unlock by an operator that was logged
}

func (a *audiences) enter(room string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rooms == nil {
		a.rooms = map[string]*audience{}
	}
	if a.rooms[room] == nil {
		a.rooms[room] = &audience{}
	}
	a.rooms[room].sockets++
}

func (a *audiences) leave(room string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.rooms[room]; r.sockets > 1 {
		r.sockets--
	} else {
		delete(a.rooms, room)
	}
}

// first reports whether no other socket of the room has seen that unlock.
func (a *audiences) first(room string, version int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.rooms[room]
	if version <= r.unlocked {
		return false
	}
	r.unlocked = version
	return true
}
