package delivery

import (
	"log/slog"
	"strings"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// Record is the log line of one request to an internal route. Its message is "delivery",
// "rejected", "recovery" or "self-test".
type Record struct {
	Outcome
	Kind  Kind
	Task  string // short name of the task, or id of the message
	Tries int    // the number of this try of the task, from 1; zero: unknown
	// HTTPStatus is the status of the answer.
	HTTPStatus int
	Took       time.Duration
}

// Field is a field of a Record. The names are public.
type Field struct {
	Name    string
	Type    string // in JSON
	Meaning string
	value   func(Record) any // nil or empty text: the field is absent; a duration is in milliseconds
}

// LogFields returns all fields of a Record except severity, message, time and those of
// the trace.
func LogFields() []Field {
	return []Field{
		{"outcome", "string", "the outcome of the request", func(r Record) any { return r.Case.String() }},
		{"status", "integer", "HTTP status of the answer; absent for the kind do",
			func(r Record) any { return known(r.HTTPStatus != 0, r.HTTPStatus) }},
		{"duration_ms", "integer", "time until the answer", func(r Record) any { return r.Took }},
		{"analysis_id", "string", "the id of the analysis, or of the work of another kind. " +
			"Absent if the request has no valid id", func(r Record) any { return ValidID(r.ID) }},
		{"kind", "string", "the kind of work; absent for analyses", func(r Record) any { return r.Kind.Name }},
		{"lock_token", "integer", "fencing token of the acquired lock, or of the write that recorded " +
			"attempts_exhausted or run_time_exhausted", func(r Record) any { return known(r.Token != 0, r.Token) }},

		{"code", "string", "the error's code, if the outcome is failed or retry", func(r Record) any { return r.Code }},
		{"reason", "string", "how the analyzer failed, without its message", func(r Record) any { return r.Reason }},
		{"error", "string", "the error, if there is no code",
			func(r Record) any { return known(r.Code == "", r.Err) }}, // an analyzer's message may contain its input

		{"attempt", "integer", "number of the attempt; with attempts_exhausted, of the last attempt",
			func(r Record) any { return known(r.Attempt != 0, r.Attempt) }},
		{"stolen", "boolean", "true if the lock was stolen: it was another owner's, and had expired",
			func(r Record) any { return known(r.Stolen, true) }},
		{"acquire_ms", "integer", "time until the lock was acquired or refused",
			func(r Record) any { return known(r.Asked, r.Acquire) }},
		{"run_ms", "integer", "time from the acquisition of the lock to the end of the analyzer",
			func(r Record) any { return known(r.Ran, r.Run) }},
		{"heartbeats", "integer", "renewals of the lock during the run",
			func(r Record) any { return known(r.Ran, r.Heartbeats) }},
		{"checkpoints", "integer", "commits with a checkpoint of the run",
			func(r Record) any { return known(r.Checkpoints > 0, r.Checkpoints) }},
		{"lost", "string", "why the lock was lost: taken, finished, cancelled, deleted or out_of_time",
			func(r Record) any { return r.Lost }},

		{"follow_up", "string", "whether another delivery was booked: booked or failed. Absent without a queue, " +
			"and if this delivery is itself that follow-up", func(r Record) any { return r.FollowUp }},
		{"retry_at", "string", "expiry of the other worker's lock, or the time of the next attempt",
			func(r Record) any { return known(!r.RetryAt.IsZero(), iso8601.Format(r.RetryAt)) }},
		{"held_by", "string", "owner of the other worker's lock", func(r Record) any { return Bounded(r.HeldBy) }},
		{"lock_owner", "string", "owner of the acquired lock, or of the write that recorded attempts_exhausted " +
			"or run_time_exhausted", func(r Record) any { return r.Owner }},
		{"task", "string", "short name of the task, or id of the message or event",
			func(r Record) any { return r.Task }},
		{"task_retry", "integer", "number of earlier tries of the task",
			func(r Record) any { return known(r.Tries > 0, r.Tries-1) }},
		{"time_to_start_ms", "integer", "time from the analysis's creation to its first acquisition, if it is " +
			"this one. Absent without `createdAt`", func(r Record) any { return known(r.ToStart > 0, r.ToStart) }},
		{"time_to_ready_ms", "integer", "time from the analysis's creation until it was READY. " +
			"Absent without `createdAt`", func(r Record) any { return known(r.ToReady > 0, r.ToReady) }},

		{"found", "integer", "number of orphaned analyses that a recovery found",
			func(r Record) any { return known(r.recovers(), r.Found) }},
		{"booked", "integer", "number of deliveries that a recovery booked",
			func(r Record) any { return known(r.recovers(), r.Booked) }},
		{"waiting", "integer", "number of orphaned analyses whose booked task the queue has",
			func(r Record) any { return known(r.recovers(), r.Waiting) }},
		{"stuck", "integer", "`found` without `waiting`",
			func(r Record) any { return known(r.recovers(), r.Found-r.Waiting) }},
		{"abandoned", "integer", "number of unfinished records of `Do` with an act, whose callers have not come back",
			func(r Record) any { return known(r.recovers(), r.Abandoned) }},
		{"oldest_ms", "integer", "time since the creation of the oldest analysis that is QUEUED or PROCESSING. " +
			"Absent if there is none with a `createdAt`, or if it is unknown",
			func(r Record) any { return known(r.Oldest > 0, r.Oldest) }},
	}
}

// known returns value, or nil unless ok.
func known(ok bool, value any) any {
	if !ok {
		return nil
	}
	return value
}

// Attrs returns the fields of r that are known.
func (r Record) Attrs() (attrs []slog.Attr) {
	for _, f := range LogFields() {
		value := f.value(r)
		if d, ok := value.(time.Duration); ok {
			value = d.Milliseconds()
		}
		if value != nil && value != "" {
			attrs = append(attrs, slog.Any(f.Name, value))
		}
	}
	return attrs
}

// Level returns INFO for an expected outcome, and WARN for any other.
func (o Outcome) Level() slog.Level {
	expected := false
	switch o.Case {
	case Ran, AlreadyFinished, Locked, Forwarded, SelfTested:
		expected = true
	case Waiting, ShuttingDown, Continued:
		expected = o.Settled
	case Recovered:
		expected = o.Err == nil // with an error, only a part is recovered
	}
	if expected {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// recovers reports whether o is the outcome of a recovery, which has the numbers of Recovery.
func (o Outcome) recovers() bool { return o.Case == Recovered || o.Case == NotRecovered }

// ValidID returns id, or "" if no analysis can have it. It is for an id that no acquisition
// has checked.
func ValidID(id string) string {
	if analysislock.CheckID(id) != nil {
		return ""
	}
	return id
}

// maxText limits text from other programs, in bytes: an analyzer may return megabytes.
const maxText = 4096

// Bounded returns the beginning of a text from another program.
func Bounded(s string) string { return strings.ToValidUTF8(s[:min(maxText, len(s))], "") }
