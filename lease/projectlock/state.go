package projectlock

import "slices"

// State is where a Locker is in the life of a lock (P5).
type State string

// The states.
const (
	Idle            State = "Idle"
	AcquireWebLock  State = "AcquireWebLock"
	AcquireFileLock State = "AcquireFileLock"
	ActiveWebLock   State = "ActiveWebLock"
	ActiveFileLock  State = "ActiveFileLock"
	HeartbeatQueued State = "HeartbeatQueued"
	Renewing        State = "Renewing"
	Releasing       State = "Releasing"
	Readonly        State = "Readonly"
)

// leads reports whether to can follow s.
//
// Beyond the seeds' picture: a release may find a heartbeat queued; the end of
// trust degrades whatever holds a lease; a failed renewal that may be repeated
// goes back to HeartbeatQueued, as their text says. From Readonly only a forced
// release leads to Releasing.
func (s State) leads(to State) bool {
	return slices.Contains(map[State][]State{
		Idle:            {AcquireWebLock, AcquireFileLock},
		AcquireWebLock:  {ActiveWebLock, AcquireFileLock, Idle, Readonly},
		AcquireFileLock: {ActiveFileLock, Idle, Readonly},
		ActiveWebLock:   {HeartbeatQueued, Releasing, Readonly},
		ActiveFileLock:  {HeartbeatQueued, Releasing, Readonly},
		HeartbeatQueued: {Renewing, Releasing, Readonly},
		Renewing:        {ActiveWebLock, ActiveFileLock, HeartbeatQueued, Readonly},
		Releasing:       {Idle, Readonly},
		Readonly:        {Idle, Releasing},
	}[s], to)
}

// acquiring and active are the states of a strategy.
func (s Strategy) acquiring() State {
	if s == WebLock {
		return AcquireWebLock
	}
	return AcquireFileLock
}

func (s Strategy) active() State {
	if s == WebLock {
		return ActiveWebLock
	}
	return ActiveFileLock
}
