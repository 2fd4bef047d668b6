package delivery

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// Field is a field of the log line "delivery", "rejected", "recovery" or "self-test". Every request to an internal
// route writes one such line. The names are public.
type Field struct {
	Name    string
	Type    string // in JSON
	Meaning string
}

// LogFields returns all fields of such a line except severity, message, time and those of
// the trace.
func LogFields() []Field {
	all := make([]Field, len(fields))
	for i := range fields {
		all[i] = fields[i].Field
	}
	return all
}

// line holds the data of one log line.
type line struct {
	Outcome
	status int
	took   time.Duration
}

// fields is the one table of the log line's fields. A zero value is left out.
var fields = [...]struct {
	Field
	value func(line) slog.Value
}{
	{Field{"outcome", "string", "the outcome of the request"}, func(l line) slog.Value { return slog.StringValue(l.Case.String()) }},
	{Field{"status", "integer", "HTTP status of the answer"}, func(l line) slog.Value { return slog.IntValue(l.status) }},
	{Field{"duration_ms", "integer", "time until the answer"}, func(l line) slog.Value { return milliseconds(true, l.took) }},
	{Field{"analysis_id", "string", "the id of the analysis, or of the work of another kind. Absent if the request has no valid id"}, func(l line) slog.Value { return text(validID(l.ID)) }},
	{Field{"kind", "string", "the kind of work; absent for analyses"}, func(l line) slog.Value { return text(l.Kind.other()) }},
	{Field{"lock_token", "integer", "fencing token of the acquired lock, or of the write that recorded attempts_exhausted or run_time_exhausted"}, func(l line) slog.Value { return number(l.Token != 0, l.Token) }},
	{Field{"code", "string", "the error's code, if the outcome is failed or retry"}, func(l line) slog.Value { return text(l.Code) }},
	{Field{"reason", "string", "how the analyzer failed, without its message"}, func(l line) slog.Value { return text(l.Reason) }},
	{Field{"error", "string", "the error, if there is no code"}, func(l line) slog.Value {
		if l.Err == nil || l.Code != "" { // an analyzer's message may contain its input
			return slog.Value{}
		}
		return slog.AnyValue(l.Err)
	}},
	{Field{"attempt", "integer", "number of the attempt; with attempts_exhausted, of the last attempt"}, func(l line) slog.Value { return number(l.Attempt != 0, int64(l.Attempt)) }},
	{Field{"stolen", "boolean", "true if the lock was stolen: it was another owner's, and had expired"}, func(l line) slog.Value {
		if !l.Stolen {
			return slog.Value{}
		}
		return slog.BoolValue(true)
	}},
	{Field{"acquire_ms", "integer", "time until the lock was acquired or refused"}, func(l line) slog.Value { return milliseconds(l.Asked, l.Acquire) }},
	{Field{"run_ms", "integer", "time from the acquisition of the lock to the end of the analyzer"}, func(l line) slog.Value { return milliseconds(l.Ran, l.Run) }},
	{Field{"heartbeats", "integer", "renewals of the lock during the run"}, func(l line) slog.Value { return number(l.Ran, int64(l.Heartbeats)) }},
	{Field{"checkpoints", "integer", "commits with a checkpoint of the run"}, func(l line) slog.Value { return number(l.Checkpoints > 0, int64(l.Checkpoints)) }},
	{Field{"lost", "string", "why the lock was lost: taken, finished, cancelled, deleted or out_of_time"}, func(l line) slog.Value { return text(l.Lost) }},
	{Field{"follow_up", "string", "whether another delivery was booked: booked or failed. Absent without a queue, and if this delivery is itself that follow-up"}, func(l line) slog.Value { return text(l.FollowUp) }},
	{Field{"retry_at", "string", "expiry of the other worker's lock, or the time of the next attempt"}, func(l line) slog.Value {
		if l.RetryAt.IsZero() {
			return slog.Value{}
		}
		return slog.StringValue(iso8601.Format(l.RetryAt))
	}},
	{Field{"held_by", "string", "owner of the other worker's lock"}, func(l line) slog.Value { return text(bounded(l.HeldBy)) }},
	{Field{"lock_owner", "string", "owner of the acquired lock, or of the write that recorded attempts_exhausted or run_time_exhausted"}, func(l line) slog.Value { return text(l.Owner) }},
	{Field{"task", "string", "short name of the task, or id of the message or event"}, func(l line) slog.Value { return text(l.Task) }},
	{Field{"task_retry", "integer", "number of earlier tries of the task"}, func(l line) slog.Value { return number(l.Tries > 0, int64(l.Tries)-1) }},
	{Field{"time_to_start_ms", "integer", "time from the analysis's creation to its first acquisition, if it is this one. Absent without `createdAt`"}, func(l line) slog.Value { return milliseconds(l.ToStart > 0, l.ToStart) }},
	{Field{"time_to_ready_ms", "integer", "time from the analysis's creation until it was READY. Absent without `createdAt`"}, func(l line) slog.Value { return milliseconds(l.ToReady > 0, l.ToReady) }},
	{Field{"found", "integer", "number of orphaned analyses that a recovery found"}, func(l line) slog.Value {
		return number(answers[l.Case].counts, int64(l.Found))
	}},
	{Field{"booked", "integer", "number of deliveries that a recovery booked"}, func(l line) slog.Value { return number(answers[l.Case].counts, int64(l.Booked)) }},
	{Field{"oldest_ms", "integer", "time since the creation of the oldest analysis that is QUEUED or PROCESSING. Absent if there is none with a `createdAt`, or if it is unknown"}, func(l line) slog.Value { return milliseconds(l.Oldest > 0, l.Oldest) }},
}

// printableTask returns the name of a task, or "" if it is invalid: any client can set it.
func printableTask(task string) string {
	invalid := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}
	if len(task) > 500 || strings.ContainsFunc(task, invalid) {
		return ""
	}
	return task
}

func text(s string) slog.Value {
	if s == "" {
		return slog.Value{}
	}
	return slog.StringValue(s)
}

func number(present bool, n int64) slog.Value {
	if !present {
		return slog.Value{}
	}
	return slog.Int64Value(n)
}

func milliseconds(present bool, d time.Duration) slog.Value { return number(present, d.Milliseconds()) }

// validID returns id, or "" if no analysis can have that id. It is for ids that no
// acquisition has checked.
func validID(id string) string {
	if analysislock.CheckID(id) != nil {
		return ""
	}
	return id
}

// level returns INFO for an expected outcome, ERROR for a rejected task, and WARN otherwise.
func (o Outcome) level() slog.Level {
	if o.rejected() {
		return slog.LevelError
	}
	if o.Case == Recovered && o.Err != nil { // in part
		return slog.LevelWarn
	}
	switch o.Case {
	case Ran, AlreadyFinished, Locked, LockedBooked, WaitingBooked, ShuttingDownBooked, ContinuedBooked, Booked, Recovered, SelfTested:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// record writes the one log line of a request, and ends its span.
func (s *Server) record(ctx context.Context, t *telemetry.Telemetry, span telemetry.Span, message string, o Outcome, took time.Duration) {
	l := line{Outcome: o}
	l.status, _ = o.answer()
	l.took = took
	attrs := make([]slog.Attr, 0, len(fields))
	for i := range fields {
		if v := fields[i].value(l); v.Kind() != slog.KindAny || v.Any() != nil {
			attrs = append(attrs, slog.Attr{Key: fields[i].Name, Value: v})
		}
	}
	if message == telemetry.Delivery {
		t.Delivered(ctx, o.Case.String(), l.status)
	}
	if o.rejected() {
		message = "rejected"
		t.Rejected(ctx, o.Case.String())
	}
	s.log.LogAttrs(ctx, o.level(), message, attrs...) //nolint:sloglint // delivery, rejected, recovery or self-test
	span.Describe(validID(o.ID), o.Token, o.Attempt)
	span.Close(o.Case.String(), l.status >= http.StatusInternalServerError)
}
