package delivery

import (
	"log/slog"
	"strings"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// Record is one log line: "delivery", "rejected", "recovery" or "self-test". Every request to an
// internal route writes one.
type Record struct {
	Outcome
	Kind  Kind
	Task  string // short name of the task, or id of the message
	Tries int    // which of the task's tries this is, from 1; zero: unknown
	// HTTPStatus is the status of the answer.
	HTTPStatus int
	Took       time.Duration
}

// Field is a field of a Record. The names are public.
type Field struct {
	Name    string
	Type    string // in JSON
	Meaning string
	value   func(Record) (v slog.Value, present bool)
}

// LogFields returns all fields of a Record except severity, message, time and those of
// the trace.
func LogFields() []Field {
	return []Field{
		str("outcome", "the outcome of the request", func(r Record) string { return r.Case.String() }),
		number("status", "HTTP status of the answer",
			func(r Record) (int64, bool) { return int64(r.HTTPStatus), true }),
		ms("duration_ms", "time until the answer", func(r Record) (time.Duration, bool) { return r.Took, true }),
		str("analysis_id", "the id of the analysis, or of the work of another kind. "+
			"Absent if the request has no valid id", func(r Record) string { return ValidID(r.ID) }),
		str("kind", "the kind of work; absent for analyses", func(r Record) string { return r.Kind.other() }),
		number("lock_token", "fencing token of the acquired lock, or of the write that recorded attempts_exhausted "+
			"or run_time_exhausted", func(r Record) (int64, bool) { return r.Token, r.Token != 0 }),

		str("code", "the error's code, if the outcome is failed or retry", func(r Record) string { return r.Code }),
		str("reason", "how the analyzer failed, without its message", func(r Record) string { return r.Reason }),
		{"error", "string", "the error, if there is no code", func(r Record) (slog.Value, bool) {
			return slog.AnyValue(r.Err), r.Err != nil && r.Code == "" // an analyzer's message may contain its input
		}},

		number("attempt", "number of the attempt; with attempts_exhausted, of the last attempt",
			func(r Record) (int64, bool) { return int64(r.Attempt), r.Attempt != 0 }),
		{"stolen", "boolean", "true if the lock was stolen: it was another owner's, and had expired",
			func(r Record) (slog.Value, bool) { return slog.BoolValue(true), r.Stolen }},
		ms("acquire_ms", "time until the lock was acquired or refused",
			func(r Record) (time.Duration, bool) { return r.Acquire, r.Asked }),
		ms("run_ms", "time from the acquisition of the lock to the end of the analyzer",
			func(r Record) (time.Duration, bool) { return r.Run, r.Ran }),
		number("heartbeats", "renewals of the lock during the run",
			func(r Record) (int64, bool) { return int64(r.Heartbeats), r.Ran }),
		number("checkpoints", "commits with a checkpoint of the run",
			func(r Record) (int64, bool) { return int64(r.Checkpoints), r.Checkpoints > 0 }),
		str("lost", "why the lock was lost: taken, finished, cancelled, deleted or out_of_time",
			func(r Record) string { return r.Lost }),

		str("follow_up", "whether another delivery was booked: booked or failed. Absent without a queue, "+
			"and if this delivery is itself that follow-up", func(r Record) string { return r.FollowUp }),
		{"retry_at", "string", "expiry of the other worker's lock, or the time of the next attempt",
			func(r Record) (slog.Value, bool) {
				return slog.StringValue(iso8601.Format(r.RetryAt)), !r.RetryAt.IsZero()
			}},
		str("held_by", "owner of the other worker's lock", func(r Record) string { return Bounded(r.HeldBy) }),
		str("lock_owner", "owner of the acquired lock, or of the write that recorded attempts_exhausted "+
			"or run_time_exhausted", func(r Record) string { return r.Owner }),
		str("task", "short name of the task, or id of the message or event", func(r Record) string { return r.Task }),
		number("task_retry", "number of earlier tries of the task",
			func(r Record) (int64, bool) { return int64(r.Tries) - 1, r.Tries > 0 }),
		ms("time_to_start_ms", "time from the analysis's creation to its first acquisition, if it is this one. "+
			"Absent without `createdAt`", func(r Record) (time.Duration, bool) { return r.ToStart, r.ToStart > 0 }),
		ms("time_to_ready_ms", "time from the analysis's creation until it was READY. "+
			"Absent without `createdAt`", func(r Record) (time.Duration, bool) { return r.ToReady, r.ToReady > 0 }),

		number("found", "number of orphaned analyses that a recovery found",
			func(r Record) (int64, bool) { return int64(r.Found), r.recovers() }),
		number("booked", "number of deliveries that a recovery booked",
			func(r Record) (int64, bool) { return int64(r.Booked), r.recovers() }),
		ms("oldest_ms", "time since the creation of the oldest analysis that is QUEUED or PROCESSING. Absent if there "+
			"is none with a `createdAt`, or if it is unknown",
			func(r Record) (time.Duration, bool) { return r.Oldest, r.Oldest > 0 }),
	}
}

// str returns a field that is left out if it is empty.
func str(name, meaning string, value func(Record) string) Field {
	return Field{name, "string", meaning, func(r Record) (slog.Value, bool) {
		text := value(r)
		return slog.StringValue(text), text != ""
	}}
}

// number returns a field that is left out unless value reports that it is known.
func number(name, meaning string, value func(Record) (int64, bool)) Field {
	return Field{name, "integer", meaning, func(r Record) (slog.Value, bool) {
		n, known := value(r)
		return slog.Int64Value(n), known
	}}
}

// ms is number of a duration, in milliseconds.
func ms(name, meaning string, value func(Record) (time.Duration, bool)) Field {
	return number(name, meaning, func(r Record) (int64, bool) {
		d, known := value(r)
		return d.Milliseconds(), known
	})
}

// Attrs returns the fields of r that are known.
func (r Record) Attrs() (attrs []slog.Attr) {
	for _, f := range LogFields() {
		if v, known := f.value(r); known {
			attrs = append(attrs, slog.Attr{Key: f.Name, Value: v})
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
		expected = o.Err == nil // else it has recovered only a part
	}
	if expected {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// recovers reports whether o is that of a recovery, with its numbers.
func (o Outcome) recovers() bool { return o.Case == Recovered || o.Case == NotRecovered }

// ValidID returns id, or "" if no analysis can have that id. It is for ids that no
// acquisition has checked.
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
