package delivery

import (
	"log/slog"
	"time"

	"taskguard/internal/text"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// LogLine is the log line of one request to an internal route. Its message is "delivery",
// "rejected", "recovery" or "self-test".
type LogLine struct {
	Outcome  string
	Result            // of a delivery; a self-test has an error, a code and a Failure too
	Recovers bool     // this is the line of a recovery
	Recovery Recovery // what the recovery did

	Names      TaskNames
	Task       string // short name of the task, or id of the message
	Tries      int    // the number of this try of the task, from 1; zero: unknown
	HTTPStatus int
	Took       time.Duration // until the answer
}

// Field is a field of a LogLine. The names are public.
type Field struct {
	Name    string
	Type    string // in JSON
	Meaning string
	value   func(LogLine) any // nil or empty text: the field is absent; a duration is in milliseconds
}

// LogFields returns all fields of a LogLine except severity, message, time and the trace's fields.
func LogFields() []Field {
	return []Field{
		{"outcome", "string", "the outcome of the request", func(l LogLine) any { return l.Outcome }},
		{"status", "integer", "HTTP status of the answer; absent for the kind do",
			func(l LogLine) any { return valueIf(l.HTTPStatus != 0, l.HTTPStatus) }},
		{"duration_ms", "integer", "time until the answer", func(l LogLine) any { return l.Took }},
		{"analysis_id", "string", "the id of the analysis, or of the work of another kind. " +
			"Absent if the request has no valid id", func(l LogLine) any { return ValidID(l.ID) }},
		{"kind", "string", "the kind of work; absent for analyses", func(l LogLine) any { return l.Names.Kind }},
		{"lock_token", "integer", "fencing token of the acquired lock, or of the write that recorded " +
			"attempts_exhausted, run_time_exhausted or crashed",
			func(l LogLine) any { return valueIf(l.Token != 0, l.Token) }},

		{"code", "string", "the error's code, if the outcome is failed or retry",
			func(l LogLine) any { return l.Code }},
		{"reason", "string", "how the analyzer failed, without its message", func(l LogLine) any { return l.Failure }},
		{"error", "string", "the error, if there is no code",
			func(l LogLine) any { return valueIf(l.Code == "", l.Err) }}, // an analyzer's message may contain its input

		{"attempt", "integer", "number of the attempt; with attempts_exhausted, of the last attempt",
			func(l LogLine) any { return valueIf(l.Attempt != 0, l.Attempt) }},
		{"stolen", "boolean", "true if an expired lock of another owner was taken over",
			func(l LogLine) any { return valueIf(l.Stolen, true) }},
		{"acquire_ms", "integer", "time until the lock was acquired or refused",
			func(l LogLine) any { return valueIf(l.AcquireTried, l.Acquire) }},
		{"run_ms", "integer", "time from the acquisition of the lock to the end of the analyzer",
			func(l LogLine) any { return valueIf(l.Ran, l.Run.Took) }},
		{"heartbeats", "integer", "renewals of the lock during the run",
			func(l LogLine) any { return valueIf(l.Ran, l.Heartbeats) }},
		{"checkpoints", "integer", "commits with a checkpoint of the run",
			func(l LogLine) any { return valueIf(l.Checkpoints > 0, l.Checkpoints) }},
		{"lost", "string", "why the lock was lost: taken, finished, cancelled, deleted or out_of_time",
			func(l LogLine) any { return l.Lost }},

		{"follow_up", "string", "whether another delivery was enqueued: booked or failed. Absent without a queue, " +
			"and if this delivery is itself that follow-up", func(l LogLine) any { return l.FollowUp }},
		{"retry_at", "string", "expiry of the other worker's lock, or the time of the next attempt",
			func(l LogLine) any { return valueIf(!l.RetryAt.IsZero(), iso8601.Format(l.RetryAt)) }},
		{"asked_ms", "integer", "the wait that the analyzer asked for, if the outcome is retry",
			func(l LogLine) any { return valueIf(l.Reason == Retry && l.RetryIn > 0, l.RetryIn) }},
		{"held_by", "string", "owner of the other worker's lock",
			func(l LogLine) any { return text.Head(l.HeldBy, MaxText) }},
		{"lock_owner", "string", "owner of the acquired lock, or of the write that recorded " +
			"attempts_exhausted, run_time_exhausted or crashed", func(l LogLine) any { return l.Owner }},
		{"task", "string", "short name of the task, or id of the message or event",
			func(l LogLine) any { return l.Task }},
		{"task_retry", "integer", "number of earlier tries of the task",
			func(l LogLine) any { return valueIf(l.Tries > 0, l.Tries-1) }},
		{"time_to_start_ms", "integer", "time from the analysis's creation to its first acquisition, if it is " +
			"this one. Absent without `createdAt`, and if the analysis was parked",
			func(l LogLine) any { return valueIf(l.ToStart > 0, l.ToStart) }},
		{"time_to_ready_ms", "integer", "time from the analysis's creation until it was READY. " +
			"Absent without `createdAt`", func(l LogLine) any { return valueIf(l.ToReady > 0, l.ToReady) }},

		{"found", "integer", "number of orphaned analyses that a recovery found",
			func(l LogLine) any { return valueIf(l.Recovers, l.Recovery.Found) }},
		{"booked", "integer", "number of deliveries that recovery enqueued",
			func(l LogLine) any { return valueIf(l.Recovers, l.Recovery.Booked) }},
		{"waiting", "integer", "number of orphaned analyses whose task is still in the queue",
			func(l LogLine) any { return valueIf(l.Recovers, l.Recovery.Waiting) }},
		{"stuck", "integer", "`found` without `waiting`",
			func(l LogLine) any { return valueIf(l.Recovers, l.Recovery.Found-l.Recovery.Waiting) }},
		{"abandoned", "integer", "number of unfinished records of `Do` with an act, whose callers have not come back",
			func(l LogLine) any { return valueIf(l.Recovers, l.Recovery.Abandoned) }},
		{"oldest_ms", "integer", "time since the creation of the oldest analysis that is QUEUED or PROCESSING, and " +
			"not parked. Absent if there is none with a `createdAt`, or if it is unknown",
			func(l LogLine) any { return valueIf(l.Recovery.Oldest > 0, l.Recovery.Oldest) }},
	}
}

// valueIf returns value if the condition holds, and nil otherwise.
func valueIf(condition bool, value any) any {
	if !condition {
		return nil
	}
	return value
}

// Attrs returns the fields of l that are known.
func (l LogLine) Attrs() (attrs []slog.Attr) {
	for _, f := range LogFields() {
		value := f.value(l)
		if d, ok := value.(time.Duration); ok {
			value = d.Milliseconds()
		}
		if value != nil && value != "" {
			attrs = append(attrs, slog.Any(f.Name, value))
		}
	}
	return attrs
}

// ValidID returns id, or "" if no analysis can have it. It is for an id that no acquisition
// has checked.
func ValidID(id string) string {
	if analysislock.CheckID(id) != nil {
		return ""
	}
	return id
}

// MaxText limits text from other programs, in bytes: an analyzer may return megabytes.
const MaxText = 4096
