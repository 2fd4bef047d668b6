package repo

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/iso8601"
)

// unreadableOwner stands for a lockOwner that is not a string: somebody's, and
// certainly not ours.
const unreadableOwner = "(unreadable)"

// analysisCodec is the codec of analyses.
type analysisCodec struct{ lockCodec }

var _ codec[Analysis] = analysisCodec{}

// lockCodec reads the lock fields that all documents have in common.
type lockCodec struct {
	policy lease.Policy
	log    *slog.Logger
	name   func(id string) slog.Attr // of a record, in the log
}

func (c analysisCodec) decode(snap *firestore.DocumentSnapshot) (Analysis, error) {
	data := snap.Data()
	a := Analysis{ID: snap.Ref.ID, Input: data["input"], Result: data["result"], ReadAt: snap.ReadTime}
	a.Status, _ = data["status"].(string)
	a.CreatedAt, _ = parseTime(data["createdAt"])
	a.UpdatedAt, _ = parseTime(data["updatedAt"])
	a.Error, a.LastError = decodeError(data["error"]), decodeError(data["lastError"])
	lock, err := c.decodeLock(data, snap)
	if err != nil {
		return a, fmt.Errorf("repo: analysis %q: %w", a.ID, err)
	}
	a.Lock, a.Attempts = lock, lock.Attempts
	a.Lock.Finished = finishedStatus(a.Status)
	return a, nil
}

func decodeError(v any) *Error {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	var e Error
	e.Code, _ = m["code"].(string)
	e.Message, _ = m["message"].(string)
	return &e
}

// decodeLock reads the lock but for whether it is finished. Of ill-typed fields
// only lockToken is an error, lease.ErrMalformed, since no value is safe for every
// record; all else is read beside it.
func (c lockCodec) decodeLock(data map[string]any, snap *firestore.DocumentSnapshot) (l lease.Lease, err error) {
	token, ok := parseInt(data["lockToken"])
	if !ok || token < 0 || token == math.MaxInt64 {
		token, err = 0, fmt.Errorf("field lockToken is %s, not a usable integer: %w", kind(data["lockToken"]), lease.ErrMalformed)
	}
	l.Token = token
	l.FinishedBy, _ = data["finishedBy"].(string)
	if n, ok := parseInt(data["attempts"]); ok && n > 0 {
		l.Attempts = int(min(n, math.MaxInt32))
	}
	c.decodeHolder(&l, data, snap)
	return l, err
}

// decodeHolder reads who holds the lock, and until when (G5).
func (c lockCodec) decodeHolder(l *lease.Lease, data map[string]any, snap *firestore.DocumentSnapshot) {
	switch owner := data["lockOwner"].(type) {
	case nil:
		return // whatever else is left of a lock, nobody holds it
	case string:
		l.Owner = owner
	default:
		l.Owner = unreadableOwner
		c.warn(snap, "lockOwner", owner)
	}
	heartbeat, readable := parseTime(data["lockHeartbeatAt"])
	if !readable {
		c.warn(snap, "lockHeartbeatAt", data["lockHeartbeatAt"])
	}
	l.HeartbeatAt = heartbeat
	l.ExpiresAt, readable = parseTime(data["lockExpiresAt"])
	if !readable {
		l.ExpiresAt = lease.Presume(heartbeat, snap.UpdateTime, c.policy)
		c.warn(snap, "lockExpiresAt", data["lockExpiresAt"])
	}
}

func (c lockCodec) warn(snap *firestore.DocumentSnapshot, field string, v any) {
	c.log.LogAttrs(context.Background(), slog.LevelWarn, "unreadable lock field", c.name(snap.Ref.ID), slog.String("field", field), slog.String("type", kind(v)))
}

// changes sets updatedAt to now with every other.
func (c analysisCodec) changes(prev Analysis, next *Analysis, now time.Time) []firestore.Update {
	var us []firestore.Update
	set := func(path string, changed bool, v any) {
		if changed {
			us = append(us, firestore.Update{Path: path, Value: v})
		}
	}
	p, n := prev.Lock, next.Lock
	// What others left in result and error is not what a READY or FAILED means.
	turned := finishedStatus(prev.Status) != finishedStatus(next.Status)
	set("status", prev.Status != next.Status, next.Status)
	set("result", turned && next.Status == Ready || !reflect.DeepEqual(prev.Result, next.Result), next.Result)
	set("error", turned || !reflect.DeepEqual(prev.Error, next.Error), errorValue(next.Error))
	set("lastError", !reflect.DeepEqual(prev.LastError, next.LastError), errorValue(next.LastError))
	set("attempts", p.Attempts != n.Attempts, n.Attempts)
	set("finishedBy", p.FinishedBy != n.FinishedBy, orDelete(n.FinishedBy))
	set("lockToken", p.Token != n.Token, n.Token)
	set("lockOwner", p.Owner != n.Owner, orDelete(n.Owner))
	set("lockHeartbeatAt", !p.HeartbeatAt.Equal(n.HeartbeatAt), timeValue(n.HeartbeatAt))
	set("lockExpiresAt", !p.ExpiresAt.Equal(n.ExpiresAt), timeValue(n.ExpiresAt))
	if len(us) > 0 {
		next.UpdatedAt, next.Attempts = now.Truncate(time.Millisecond), n.Attempts
		set("updatedAt", true, timeValue(next.UpdatedAt))
	}
	return us
}

func errorValue(e *Error) any {
	if e == nil {
		return firestore.Delete
	}
	return map[string]any{"code": e.Code, "message": e.Message}
}

// orDelete is v, or the removal of its field where v is zero.
func orDelete[T comparable](v T) any {
	if v == *new(T) {
		return firestore.Delete
	}
	return v
}

func timeValue(t time.Time) any {
	if t.IsZero() {
		return firestore.Delete
	}
	return iso8601.Format(t)
}

// parseTime reads ISO 8601 of any precision, a Timestamp or epoch milliseconds.
// Nothing at all is the zero time and readable; ok is false for what is not.
// ISO 8601 without a zone is taken as UTC.
func parseTime(v any) (t time.Time, ok bool) {
	switch v := v.(type) {
	case nil:
		return time.Time{}, true
	case time.Time:
		return v, true
	case int64:
		return fromMillis(float64(v))
	case float64:
		return fromMillis(v)
	case string:
		return iso8601.Parse(v)
	}
	return time.Time{}, false
}

// maxMillis is the year 9999, the last that ISO 8601 and Firestore can write.
const maxMillis = 253402300799999

func fromMillis(ms float64) (time.Time, bool) {
	if !(ms >= 0 && ms <= maxMillis) { // also NaN
		return time.Time{}, false
	}
	return time.UnixMilli(int64(ms)), true
}

// parseInt reads an integer, also one that another client wrote as a double.
// Nothing at all is 0.
func parseInt(v any) (n int64, ok bool) {
	switch v := v.(type) {
	case nil:
		return 0, true
	case int64:
		return v, true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v), true
		}
	}
	return 0, false
}

// kind names the type of a document's value for people.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case map[string]any:
		return "a map"
	case []any:
		return "an array"
	}
	return fmt.Sprintf("a %T", v)
}
