package projectlock

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

// signal is what happens to a Locker.
type signal string

const (
	wantWeb     signal = "want web-lock"
	wantFile    signal = "want file-lock"
	fallBack    signal = "fall back"
	granted     signal = "granted"
	aborted     signal = "aborted"
	queued      signal = "heartbeat queued"
	beat        signal = "heartbeat"
	renewedWeb  signal = "web-lock renewed"
	renewedFile signal = "file-lock renewed"
	release     signal = "release"
	force       signal = "force release"
	released    signal = "released"
	degraded    signal = "degraded"
	reset       signal = "reset"
)

// next is the state that sig leads to from s. What the table does not name is
// impossible, and false.
//
// Beyond the seeds' picture: a release may find a heartbeat queued; the end of
// trust degrades whatever holds a lease; a failed renewal that may be repeated
// goes back to HeartbeatQueued, as their text says.
func next(s State, sig signal) (State, bool) {
	to, ok := map[State]map[signal]State{
		Idle:            {wantWeb: AcquireWebLock, wantFile: AcquireFileLock},
		AcquireWebLock:  {granted: ActiveWebLock, fallBack: AcquireFileLock, aborted: Idle, degraded: Readonly},
		AcquireFileLock: {granted: ActiveFileLock, aborted: Idle, degraded: Readonly},
		ActiveWebLock:   {queued: HeartbeatQueued, release: Releasing, force: Releasing, degraded: Readonly},
		ActiveFileLock:  {queued: HeartbeatQueued, release: Releasing, force: Releasing, degraded: Readonly},
		HeartbeatQueued: {beat: Renewing, release: Releasing, force: Releasing, degraded: Readonly},
		Renewing:        {renewedWeb: ActiveWebLock, renewedFile: ActiveFileLock, queued: HeartbeatQueued, degraded: Readonly},
		Releasing:       {released: Idle, degraded: Readonly},
		Readonly:        {reset: Idle, force: Releasing},
	}[s][sig]
	return to, ok
}

// renewed is the signal of a renewal under s.
func renewed(s Strategy) signal {
	if s == WebLock {
		return renewedWeb
	}
	return renewedFile
}
