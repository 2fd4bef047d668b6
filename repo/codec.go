package repo

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// unreadableOwner replaces a lockOwner that is not a string. No worker has this name.
const unreadableOwner = "(unreadable)"

// analysisCodec is the codec of analyses.
type analysisCodec struct {
	lockCodec
	noun         string // see Options
	fields       Fields
	keep         time.Duration // see Options
	keepAll      bool
	replaceToken bool // for operators: accept an unusable lockToken, and write a usable one
}

var _ codec[analysislock.Analysis] = analysisCodec{}

// lockCodec decodes the fields of the lock, which analyses and rooms have in common.
type lockCodec struct {
	policy lease.Policy
	log    *slog.Logger
	name   func(id string) slog.Attr // names a record in the log
}

// stored is the value in Analysis.Stored.
type stored struct {
	updatedAt    any                           // as the document has it: a commit keeps its type
	derived      map[string]any                // counts of acts, as the document has them: a commit corrects them
	tokenAssumed bool                          // the document's lockToken is unusable; Lock.Token replaces it
	unleased     bool                          // no acquisition has written a lockToken
	params       string                        // if the call reads it; see CreateWith
	work         map[string]*firestorepb.Value // if the reading has it; see Analyses.work
}

// mask adds the acts to what a list shows: their counts only serve queries, and may be wrong.
func (c analysisCodec) mask() []string {
	return append(c.fields.summary(), "effects", unfinishedEffects)
}

func (c analysisCodec) decode(r reading) (analysislock.Analysis, error) {
	data, f := r.fields, c.fields
	a := analysislock.Analysis{
		ID: r.id, ReadAt: r.at, Status: f.status(data[f.Status]), Input: data[f.Input], Result: data[f.Result],
		Error: decodeError(data[f.Error]), LastError: decodeError(data["lastError"]),
		Progress: decodeProgress(data["progress"]), History: decodeHistory(data["history"]),
		BookedTask: decodeTask(data["bookedTask"]),
	}
	if v := data["checkpoint"]; v != nil { // a decision does not read it
		a.Checkpoint = &analysislock.Checkpoint{Value: v}
	}
	if v := data["effects"]; v != nil {
		a.Effects = decodeEffects(v)
	}
	a.OpenEffects = len(a.Effects.Open())

	a.UpdatedAt, _ = parseTime(data["updatedAt"])
	a.NextAttemptAt, _ = parseTime(data["nextAttemptAt"])
	if started, _ := parseTime(data["startedAt"]); lease.Credible(started, r.at) { // else the next acquisition sets it
		a.StartedAt = started
	}
	a.CreatedAt, _ = parseTime(data["createdAt"])
	if !lease.Credible(a.CreatedAt, r.at) || !a.CreatedAt.IsZero() && a.CreatedAt.Before(earliest) {
		a.CreatedAt = r.created
	}

	lock, err := c.decodeLock(r)
	unleased := lock.Token == 0
	if unleased && c.keep > 0 { // an expired document may have had the same id
		lock.Token = lease.Fresh(r.created).Token
	}
	a.Lock, a.Attempts = lock, lock.Attempts
	a.Lock.Finished = analysislock.Finished(a.Status) || f.final(data[f.Status])
	params, _ := data["params"].(string)
	a.Stored = stored{
		updatedAt: data["updatedAt"], tokenAssumed: err != nil, unleased: unleased, params: params, work: r.encoded,
		derived: map[string]any{
			openEffects: derived(data[openEffects]), unfinishedEffects: derived(data[unfinishedEffects]),
		},
	}
	if err == nil || a.Lock.Finished {
		return a, nil
	}

	a.Malformed = err
	if c.replaceToken {
		return a, nil
	}
	return a, fmt.Errorf("repo: %s %q: %w", c.noun, a.ID, a.Malformed)
}

// decodeTask returns the name of a task. A value of another type becomes one that no task has, so
// that an acquisition deletes it.
func decodeTask(v any) string {
	if _, text := v.(string); v != nil && !text {
		return "(unreadable)"
	}
	return cut(v)
}

func decodeError(v any) *analysislock.Error {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	return &analysislock.Error{Code: cut(m["code"]), Message: cut(m["message"])}
}

// decodeLock reads the lock, except Finished. It returns lease.ErrMalformed only for a
// lockToken that cannot be used. With that error, the other fields are valid, and Token is
// larger than any that the record had by its last update.
func (c lockCodec) decodeLock(r reading) (l lease.Lease, err error) {
	token, ok := parseInt(r.fields["lockToken"])
	if !ok || token < 0 || token == math.MaxInt64 {
		token = lease.Fresh(r.updated).Token
		err = fmt.Errorf("lockToken is %s, not a usable integer: %w", kind(r.fields["lockToken"]), lease.ErrMalformed)
	}
	l.Token = token
	l.FinishedBy = cut(r.fields["finishedBy"])
	if n, ok := parseInt(r.fields["attempts"]); ok && n > 0 {
		l.Attempts = int(min(n, math.MaxInt32))
	}
	c.decodeHolder(&l, r)
	return l, err
}

// decodeHolder reads the owner and the times of the lock. It treats a time that is not
// credible as unreadable.
func (c lockCodec) decodeHolder(l *lease.Lease, r reading) {
	switch owner := r.fields["lockOwner"].(type) {
	case nil:
		return // the lock is free, whatever the other fields are
	case string:
		l.Owner = cut(owner)
	default:
		l.Owner = unreadableOwner
		c.warn(r, "lockOwner", owner)
	}

	l.HeartbeatAt, _ = c.credible(r, "lockHeartbeatAt")
	expiry, ok := c.credible(r, "lockExpiresAt")
	if !ok {
		expiry = lease.AssumedExpiry(l.HeartbeatAt, r.updated, c.policy)
	}
	l.ExpiresAt = expiry
}

// credible reads a time of the lock. If it cannot be read, or lease.Credible refuses it,
// credible logs a warning and returns false.
func (c lockCodec) credible(r reading, field string) (time.Time, bool) {
	t, ok := parseTime(r.fields[field])
	if ok && lease.Credible(t, r.at) {
		return t, true
	}
	c.warn(r, field, r.fields[field])
	return time.Time{}, false
}

func (c lockCodec) warn(r reading, field string, v any) {
	c.log.LogAttrs(context.Background(), slog.LevelWarn, "unreadable lock field",
		c.name(r.id), slog.String("field", field), slog.String("type", kind(v)))
}

// values returns the fields of d that a decision reads, except history, with firestore.Delete for
// a field that is not stored.
func (c analysisCodec) values(d *analysislock.Analysis) map[string]any {
	return map[string]any{
		c.fields.Status: c.fields.word(d.Status), c.fields.Error: errorValue(d.Error),
		"lastError": errorValue(d.LastError), "attempts": d.Lock.Attempts,
		"startedAt": timeValue(d.StartedAt), "nextAttemptAt": timeValue(d.NextAttemptAt),
		"bookedTask": orDelete(d.BookedTask), "progress": progressValue(d.Progress),
		openEffects: orDelete(d.OpenEffects), unfinishedEffects: orDelete(c.atRisk(d)),
		"finishedBy": orDelete(d.Lock.FinishedBy), "lockOwner": orDelete(d.Lock.Owner), "lockToken": d.Lock.Token,
		"lockHeartbeatAt": timeValue(d.Lock.HeartbeatAt), "lockExpiresAt": timeValue(d.Lock.ExpiresAt),
	}
}

// differences returns the updates of the fields that differ, and of those in always.
func differences(before, after map[string]any, always ...string) (updates []firestore.Update) {
	for path, v := range after {
		if slices.Contains(always, path) || !reflect.DeepEqual(before[path], v) {
			updates = append(updates, firestore.Update{Path: path, Value: v})
		}
	}
	return updates
}

// changes also sets updatedAt to now, if any other field changes.
func (c analysisCodec) changes(prev analysislock.Analysis, next *analysislock.Analysis,
	now time.Time,
) []firestore.Update {
	f, finished := c.fields, next.Finished()
	switched := finished != prev.Finished()
	freed := switched || prev.Lock.Owner != "" && next.Lock.Owner == ""

	// Decoding has replaced values that it could not read, so a comparison does not show all
	// fields that must be deleted.
	var always []string
	if switched {
		always = append(always, f.Error, "nextAttemptAt")
	}
	if switched && next.Status != analysislock.Failed {
		always = append(always, "lastError")
	}
	if freed {
		always = append(always, "lockHeartbeatAt", "lockExpiresAt")
	}
	origin, _ := prev.Stored.(stored)
	before := c.values(&prev)
	maps.Copy(before, origin.derived)
	updates := differences(before, c.values(next), always...)

	set := func(path string, v any) { updates = append(updates, firestore.Update{Path: path, Value: v}) }
	if !slices.Equal(prev.History, next.History) {
		set("history", historyValue(next.History))
	}
	if switched && next.Status == analysislock.Ready {
		set(f.Result, next.Result)
	}
	if switched && next.Status == analysislock.Failed {
		set(f.Result, firestore.Delete)
	}
	if next.Checkpoint != nil && next.Checkpoint != prev.Checkpoint {
		set("checkpoint", checkpointValue(next.Checkpoint))
	}
	if next.Effects != nil && !reflect.DeepEqual(prev.Effects, next.Effects) {
		set("effects", effectsValue(next.Effects))
	}
	if origin.tokenAssumed && next.Lock.Token == prev.Lock.Token && (len(updates) > 0 || c.replaceToken) {
		set("lockToken", next.Lock.Token)
	}
	if len(updates) == 0 {
		return nil
	}

	next.UpdatedAt, next.Attempts = now.Truncate(time.Millisecond), next.Lock.Attempts
	if _, timestamp := origin.updatedAt.(time.Time); timestamp { // it remains one
		set("updatedAt", next.UpdatedAt)
	} else {
		set("updatedAt", timeValue(next.UpdatedAt))
	}
	origin.derived = nil // the values of next, from now on
	next.Stored = origin
	switch {
	case next.OpenEffects > 0 || c.atRisk(next) > 0: // nobody would know that an act was, or may have been, done
		set("expireAt", firestore.Delete)
	case c.keepAll, c.keep > 0 && finished && (freed || prev.OpenEffects > 0):
		set("expireAt", now.Add(c.keep))
	case !finished && (switched || next.Lock.Token != prev.Lock.Token):
		// An attempt must not lose its document because an earlier one had finished it.
		set("expireAt", firestore.Delete)
	}
	return updates
}

// The fields that count acts. They only serve queries: a decision reads the acts.
const (
	openEffects       = "openEffects"       // acts that have started and are not done
	unfinishedEffects = "unfinishedEffects" // all acts of an unfinished record of Do
)

// derived returns the count in a document, as values returns it. What is no count differs from all.
func derived(v any) any {
	n, ok := parseInt(v)
	if !ok {
		return v
	}
	return orDelete(int(n))
}

// atRisk returns how many acts an unfinished record has. No queue brings its caller back, so the
// record does not expire before an end of it is recorded.
func (c analysisCodec) atRisk(d *analysislock.Analysis) int {
	if !c.keepAll || d.Finished() {
		return 0
	}
	return len(d.Effects)
}

func errorValue(e *analysislock.Error) any {
	if e == nil {
		return firestore.Delete
	}
	return map[string]any{"code": e.Code, "message": e.Message}
}

// orDelete returns v, or the value that deletes its field if v is zero.
func orDelete[T comparable](v T) any {
	if v == *new(T) {
		return firestore.Delete
	}
	return v
}

// present removes from m the fields that are not stored, and returns m.
func present(m map[string]any) map[string]any {
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == any(firestore.Delete) })
	return m
}

func timeValue(t time.Time) any {
	if t.IsZero() {
		return firestore.Delete
	}
	return iso8601.Format(t)
}

// maxText is the limit, in bytes, of a string that another program has written and a record
// contains. The strings of this program, such as owners, are shorter.
const maxText = 4 << 10

// cut returns a string, cut after maxText bytes, and "" for a value of another type.
func cut(v any) string {
	s, _ := v.(string)
	if len(s) > maxText {
		s = strings.ToValidUTF8(strings.Clone(s[:maxText]), "")
	}
	return s
}

// parseTime reads ISO 8601 of any precision, a Timestamp, or a number of milliseconds,
// microseconds or nanoseconds since 1970. It chooses the unit by the number's size: a number over
// maxMillis is of microseconds, or if it is too large for these, of nanoseconds. A missing value is
// the zero time. ok is false for a value that is not a time. ISO 8601 without a zone is read as UTC.
func parseTime(v any) (t time.Time, ok bool) {
	switch v := v.(type) {
	case nil:
		return time.Time{}, true
	case time.Time:
		return v, true
	case int64:
		return fromEpoch(float64(v))
	case float64:
		return fromEpoch(v)
	case string:
		return iso8601.Parse(v)
	}
	return time.Time{}, false
}

// maxMillis is the year 9999, the last that ISO 8601 and Firestore can write.
const maxMillis = 253402300799999

// earliest is before any time that a program of ours or of an application's has written. 0, and a
// number of seconds, are read as a time in early 1970.
var earliest = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC)

func fromEpoch(n float64) (time.Time, bool) {
	if !(n >= 0 && n <= maxMillis*1e6) { // also NaN
		return time.Time{}, false
	}
	for n > maxMillis {
		n /= 1000
	}
	return time.UnixMilli(int64(n)), true
}

// parseInt reads an integer, also one that another client wrote as a double. A missing
// value is 0.
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

// kind names the type of a document's value.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case map[string]any:
		return "a map"
	case []any:
		return "an array"
	}
	return fmt.Sprintf("a %T", v)
}
