package projectlock

import (
	"encoding/json"
	"strings"
	"time"

	"taskguard/lease/iso8601"
)

// EventType names an event (P7).
type EventType string

// The events.
const (
	Attempt          EventType = "lock:attempt"           // Strategy, Retry from 0; LeaseID in a renewal or release
	Acquired         EventType = "lock:acquired"          // Lease
	RenewScheduled   EventType = "lock:renew-scheduled"   // Lease, Wait until the next heartbeat
	Renewed          EventType = "lock:renewed"           // Lease, Retry: failures before
	ReleaseRequested EventType = "lock:release-requested" // Lease, Force
	Released         EventType = "lock:released"          // Lease, Duration
	ReleaseAttempt   EventType = "lock:release-failed"    // Lease, Retry, Force, Err
	ReadonlyEntered  EventType = "lock:readonly-entered"  // Reason, Retry, Err; Lease if there was one
	Waiting          EventType = "lock:waiting"           // Strategy, Retry, Wait: zero where the next strategy follows at once
	Failed           EventType = "lock:error"             // Strategy, Retry, Err, always with its Retryable
	FallbackEngaged  EventType = "lock:fallback-engaged"  // Strategy now used, Reason
	Warned           EventType = "lock:warning"           // Warning; Late for HeartbeatDelayed
)

// Warning is a kind of lock:warning.
type Warning string

// The warnings.
const (
	FallbackDegraded Warning = "fallback-degraded" // another holds the lock file
	HeartbeatDelayed Warning = "heartbeat-delayed" // a heartbeat began later than one interval after it was due
)

// Event is one step in the life of a lock. Which fields are set is said at its
// type; strategy and lease id are set wherever they are known.
type Event struct {
	Type     EventType
	Time     time.Time
	Strategy Strategy
	LeaseID  string
	Lease    Lease
	Retry    int
	Wait     time.Duration
	Duration time.Duration // from the acquisition
	Late     time.Duration
	Force    bool
	Warning  Warning
	Reason   Code
	Err      *Error
}

// line is an event in JSON; what its type does not have is left out.
type line struct {
	Feature           string   `json:"feature,omitempty"`
	Type              string   `json:"type"`
	Time              string   `json:"time"`
	LeaseID           string   `json:"leaseId,omitempty"`
	Strategy          Strategy `json:"strategy,omitempty"`
	Retry             *int     `json:"retry,omitempty"`
	ExpiresAt         string   `json:"expiresAt,omitempty"`
	NextHeartbeatInMs *int64   `json:"nextHeartbeatInMs,omitempty"`
	WaitMs            *int64   `json:"waitMs,omitempty"`
	DurationMs        *int64   `json:"durationMs,omitempty"`
	LateMs            *int64   `json:"lateMs,omitempty"`
	Force             *bool    `json:"force,omitempty"`
	Warning           Warning  `json:"warning,omitempty"`
	Reason            Code     `json:"reason,omitempty"`
	Code              Code     `json:"code,omitempty"`
	Retryable         *bool    `json:"retryable,omitempty"`
}

// MarshalJSON is the event as one object. It holds no error's text, which may
// name what is the user's.
func (e Event) MarshalJSON() ([]byte, error) { return json.Marshal(e.line()) }

// telemetry is the event's line under its other name (R4).
func (e *Event) telemetry() line {
	l := e.line()
	l.Feature, l.Type = "autosave", "autosave."+strings.Replace(l.Type, ":", ".", 1)
	return l
}

func (e *Event) line() line {
	l := line{Type: string(e.Type), Time: iso8601.Format(e.Time), LeaseID: e.LeaseID, Strategy: e.Strategy, Warning: e.Warning, Reason: e.Reason}
	switch e.Type {
	case Attempt, Renewed, ReadonlyEntered, ReleaseAttempt, Failed, Waiting:
		l.Retry = &e.Retry
	}
	switch e.Type {
	case Acquired, Renewed:
		l.ExpiresAt = iso8601.Format(e.Lease.ExpiresAt)
	case RenewScheduled:
		l.NextHeartbeatInMs = millis(e.Wait)
	case Waiting:
		l.WaitMs = millis(e.Wait)
	case Released:
		l.DurationMs = millis(e.Duration)
	case ReleaseAttempt, ReleaseRequested:
		l.Force = &e.Force
	case Failed:
		l.Code, l.Retryable = e.Err.Code, &e.Err.Retryable
	case Warned:
		if e.Warning == HeartbeatDelayed {
			l.LateMs = millis(e.Late)
		}
	}
	return l
}

func millis(d time.Duration) *int64 {
	ms := d.Milliseconds()
	return &ms
}
