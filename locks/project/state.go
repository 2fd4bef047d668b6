package project

import "slices"

// State is the state of a Locker (SEEDS P5).
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
// Beyond the seeds' diagram: a release may begin in HeartbeatQueued; the end of
// trust leads from every state with a lease to Readonly; a failed renewal that may
// be repeated leads back to HeartbeatQueued, as in the seeds' text. From Readonly only
// a forced release leads to Releasing.
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

// acquiring and active are the states of each strategy.
var (
	acquiring = map[Strategy]State{WebLock: AcquireWebLock, FileLock: AcquireFileLock}
	active    = map[Strategy]State{WebLock: ActiveWebLock, FileLock: ActiveFileLock}
)
