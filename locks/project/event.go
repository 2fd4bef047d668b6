package project

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskguard/lease/iso8601"
)

// EventType names an event (SEEDS P7).
type EventType string

// The events, with the fields that each sets besides Time, Strategy and, once
// there is one, Lease.
const (
	Attempt          EventType = "lock:attempt"           // Retry, from 0
	Acquired         EventType = "lock:acquired"          // none
	RenewScheduled   EventType = "lock:renew-scheduled"   // Wait until the next heartbeat
	Renewed          EventType = "lock:renewed"           // Retry: failures before
	ReleaseRequested EventType = "lock:release-requested" // Force
	Released         EventType = "lock:released"          // Duration
	ReleaseAttempt   EventType = "lock:release-failed"    // Retry, Force, Err
	ReadonlyEntered  EventType = "lock:readonly-entered"  // Reason, Retry, Err
	Waiting          EventType = "lock:waiting"           // Retry, Wait: zero where the next strategy follows at once
	Failed           EventType = "lock:error"             // Retry, Err, always with its Retryable
	FallbackEngaged  EventType = "lock:fallback-engaged"  // Reason
	Warned           EventType = "lock:warning"           // Warning; Late for HeartbeatDelayed
)

// Warning is a kind of lock:warning.
type Warning string

// The warnings.
const (
	FallbackDegraded Warning = "fallback-degraded" // another holds the lock file
	HeartbeatDelayed Warning = "heartbeat-delayed" // a heartbeat began later than one interval after it was due
)

// Event reports one step of a Locker.
type Event struct {
	Type     EventType     // which step; it determines the other fields that are set
	Time     time.Time     // by the local clock
	Strategy Strategy      // in use at this step
	Lease    Lease         // as last renewed; zero: not acquired yet
	Retry    int           // failed attempts before this one
	Wait     time.Duration // until the next attempt or heartbeat
	Duration time.Duration // from the acquisition
	Late     time.Duration // of a heartbeat, after it was due
	Force    bool          // of a release
	Warning  Warning       // which one
	Reason   Code          // of read-only, or of the change of strategy
	Err      *Error        // nil: no failure
}

// MarshalJSON returns the event as one object, without the error's text, which may
// contain the user's data.
func (e Event) MarshalJSON() ([]byte, error) { return json.Marshal(e.fields()) }

func (e *Event) fields() map[string]any {
	f := map[string]any{"type": e.Type, "time": iso8601.Format(e.Time), "strategy": e.Strategy}
	if e.Lease.ID != "" {
		f["leaseId"] = e.Lease.ID
	}

	switch e.Type {
	case Attempt, Renewed, ReadonlyEntered, ReleaseAttempt, Failed, Waiting:
		f["retry"] = e.Retry
	}

	switch e.Type {
	case Acquired, Renewed:
		f["expiresAt"] = iso8601.Format(e.Lease.ExpiresAt)
	case RenewScheduled:
		f["nextHeartbeatInMs"] = e.Wait.Milliseconds()
	case Waiting:
		f["waitMs"] = e.Wait.Milliseconds()
	case Released:
		f["durationMs"] = e.Duration.Milliseconds()
	case ReleaseAttempt, ReleaseRequested:
		f["force"] = e.Force
	case ReadonlyEntered, FallbackEngaged:
		f["reason"] = e.Reason
	case Failed:
		f["code"], f["retryable"] = e.Err.Code, e.Err.Retryable
	case Warned:
		f["warning"] = e.Warning
		if e.Warning == HeartbeatDelayed {
			f["lateMs"] = e.Late.Milliseconds()
		}
	}
	return f
}

// Subscribe calls listen with each event from now on, in their order and one at a
// time, on the goroutine that caused one of them: a slow listener delays heartbeats,
// and a listener that calls Renew or Release while the lock is held deadlocks.
// unsubscribe may be called at any time, also by the listener and repeatedly;
// afterwards no call begins.
func (l *Locker) Subscribe(listen func(Event)) (unsubscribe func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(slices.Clone(l.listeners), &listen)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		own := func(other *func(Event)) bool { return other == &listen }
		l.listeners = slices.DeleteFunc(slices.Clone(l.listeners), own)
	}
}

// add queues events of h, with mu held.
func (l *Locker) add(h *holding, events ...Event) {
	for i := range events {
		e := &events[i]
		e.Time, e.Lease = time.Now(), h.lease
		e.Strategy = cmp.Or(e.Strategy, h.strategy)
		l.pending = append(l.pending, *e)
	}
}

// deliver delivers the queued events, unless another goroutine does.
func (l *Locker) deliver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.delivering {
		return
	}
	l.delivering = true
	defer func() { l.delivering = false }()
	for len(l.pending) > 0 {
		e := l.pending[0]
		l.pending = l.pending[1:]
		for _, listen := range l.listeners {
			if slices.Contains(l.listeners, listen) { // still
				l.call(*listen, e)
			}
		}
	}
}

// call calls a listener without mu.
func (l *Locker) call(listen func(Event), e Event) {
	l.mu.Unlock()
	defer l.mu.Lock()
	listen(e)
}

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

// Telemetry writes events to project/autosave, one line of JSON each, named
// autosave.lock.*: Subscribe its Record. A line that cannot be written is
// dropped; the lock is not affected (SEEDS P8).
type Telemetry struct {
	project string
	log     *slog.Logger
	failed  sync.Once
}

// NewTelemetry returns the sink for the project in dir; empty: the working
// directory. It reports its first failure to log.
func NewTelemetry(dir string, log *slog.Logger) *Telemetry {
	return &Telemetry{project: filepath.Join(dir, projectDir), log: log}
}

// Record appends one line.
func (t *Telemetry) Record(e Event) {
	if err := t.write(&e); err != nil {
		t.failed.Do(func() { t.log.Warn("lock telemetry is incomplete; the lock is not affected", "err", err) })
	}
}

// write appends the line by one write, so that the lines of programs that share
// the file do not mix.
func (t *Telemetry) write(e *Event) error {
	f := e.fields()
	f["feature"], f["type"] = "autosave", "autosave."+strings.Replace(string(e.Type), ":", ".", 1)
	if e.Type == ReadonlyEntered {
		f["alias"] = "autosave.lock.readonly" // seed 000's name of it
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}

	dir := filepath.Join(t.project, "autosave")
	for _, missing := range []string{t.project, dir} {
		_ = os.Mkdir(missing, 0o755) // if it fails, so does OpenFile
	}
	name := filepath.Join(dir, "lock-"+e.Time.UTC().Format(time.DateOnly)+".jsonl")
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	return errors.Join(err, file.Close())
}
