package repo

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// unreadableOwner replaces a lockOwner that is not a string. No worker has this name.
const unreadableOwner = "(unreadable)"

// codec converts documents to records D, and the difference of two records to fields. It knows the
// fields of the contract and no others.
type codec[D any] interface {
	// decode decodes a document that exists. It needs only the fields of the mask. It returns
	// lease.ErrMalformed, and the record, if it cannot assume a safe value for one of them.
	decode(r reading) (D, revision, error)
	// mask names the fields that a decision needs; nil: all.
	mask() []string
	// changes returns the fields that change prev to next, at Firestore's time now, with
	// firestore.Delete for a field that is deleted; none: nothing differs. It changes rev from the
	// revision of prev to the revision of next.
	changes(prev D, next *D, rev *revision, now time.Time) map[string]any
}

// revision is the Rev of a Cell: the version of a document, and what a commit needs to know about it
// beside the record.
type revision struct {
	updated   time.Time // the document's update time, on which a commit is conditional
	timestamp bool      // updatedAt is a Timestamp, and stays one
	repairs   []string  // fields with an unusable value, which the next commit replaces
	// work has the fields that a Load with lease.LeaseAndWork has read. The commit of an acquisition
	// keeps it, and later commits drop it.
	work map[string]*firestorepb.Value
}

// analysisCodec is the codec of analyses.
type analysisCodec struct {
	lockCodec
	fields  Fields
	keep    time.Duration // Options.Keep
	keepAll bool
	keys    *Concurrency // nil: no limit
}

var _ codec[analysislock.Analysis] = analysisCodec{}

// earliest is before any time that a program of ours or of an application's has written. 0, and a
// number of seconds, are read as a time in early 1970.
var earliest = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC)

// lockCodec decodes the fields of the lock, which analyses and rooms have in common.
type lockCodec struct {
	policy lease.Policy
	log    *slog.Logger
	name   func(id string) slog.Attr // names a record in the log
}

// mask adds the acts to what a list shows: their counts only serve queries, and may be wrong.
func (c analysisCodec) mask() []string {
	all := append(c.summary(), "effects", unfinishedActs)
	if c.keys != nil {
		all = append(all, c.keys.Fields...)
	}
	return all
}

// summary lists the fields that a list shows.
func (c analysisCodec) summary() []string {
	if c.keys == nil {
		return c.fields.summary()
	}
	return append(c.fields.summary(), "parkedAt", "parkedFor")
}

func (c analysisCodec) decode(r reading) (analysislock.Analysis, revision, error) {
	data, f := r.fields, c.fields
	a := analysislock.Analysis{
		ID: r.id, ReadAt: r.at, Status: f.status(data[f.Status]), Input: data[f.Input], Result: data[f.Result],
		Error: decodeError(data[f.Error]), LastError: decodeError(data["lastError"]),
		Progress: decodeProgress(data["progress"]), History: decodeHistory(data["history"]),
		BookedTask: cut(data["bookedTask"]),
	}
	if n, ok := parseInt(data["starts"]); ok && n > 0 {
		a.Starts = int(min(n, math.MaxInt32))
	}
	if v := data["checkpoint"]; v != nil { // a decision does not read it
		a.Checkpoint = &analysislock.Checkpoint{Value: v}
	}
	if v := data["effects"]; v != nil {
		a.Acts = decodeActs(v)
	}
	a.OpenActs = len(a.Acts.Open())
	if c.keys != nil {
		a.Key, a.Place = c.keys.key(r), cut(data["parkedFor"])
		a.ParkedAt, _ = parseTime(data["parkedAt"])
	}

	a.UpdatedAt, _ = parseTime(data["updatedAt"])
	a.NextAttemptAt, _ = parseTime(data["nextAttemptAt"])
	// Without a credible start the next acquisition sets it.
	if started, _ := parseTime(data["startedAt"]); lease.Credible(started, r.at) {
		a.StartedAt = started
	}
	a.CreatedAt, _ = parseTime(data["createdAt"])
	if !lease.Credible(a.CreatedAt, r.at) || !a.CreatedAt.IsZero() && a.CreatedAt.Before(earliest) {
		a.CreatedAt = r.created
	}

	lock, err := c.decodeLock(r)
	if lock.Token == 0 && c.keep > 0 { // an expired document may have had the same id
		lock.Token = lease.Fresh(r.created).Token
	}
	a.Lock, a.Attempts = lock, lock.Attempts
	a.Lock.Finished = analysislock.Finished(a.Status) || f.final(data[f.Status])

	var rev revision
	_, rev.timestamp = data["updatedAt"].(time.Time)
	for path, want := range map[string]int{openActs: a.OpenActs, unfinishedActs: c.atRisk(&a)} {
		if n, ok := parseInt(data[path]); !ok || n != int64(want) {
			rev.repairs = append(rev.repairs, path)
		}
	}
	if v := data["bookedTask"]; v != nil && a.BookedTask == "" {
		rev.repairs = append(rev.repairs, "bookedTask")
	}
	if err != nil {
		rev.repairs = append(rev.repairs, "lockToken")
	}
	if !a.Lock.Finished {
		a.Malformed = err
	}
	return a, rev, a.Malformed
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
		c.warn(r, "lockOwner")
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
	c.warn(r, field)
	return time.Time{}, false
}

func (c lockCodec) warn(r reading, field string) {
	c.log.LogAttrs(context.Background(), slog.LevelWarn, "unreadable lock field",
		c.name(r.id), slog.String("field", field), slog.String("type", kind(r.fields[field])))
}

// values returns the fields of d that a decision reads, except history, with firestore.Delete for
// a field that is not stored.
func (c analysisCodec) values(d *analysislock.Analysis) map[string]any {
	fields := map[string]any{
		c.fields.Status: c.fields.word(d.Status), c.fields.Error: errorValue(d.Error),
		"lastError": errorValue(d.LastError), "attempts": d.Lock.Attempts,
		"startedAt": timeValue(d.StartedAt), "nextAttemptAt": timeValue(d.NextAttemptAt),
		"bookedTask": orDelete(d.BookedTask), "starts": orDelete(d.Starts), "progress": progressValue(d.Progress),
		openActs: orDelete(d.OpenActs), unfinishedActs: orDelete(c.atRisk(d)),
		"finishedBy": orDelete(d.Lock.FinishedBy), "lockOwner": orDelete(d.Lock.Owner), "lockToken": d.Lock.Token,
		"lockHeartbeatAt": timeValue(d.Lock.HeartbeatAt), "lockExpiresAt": timeValue(d.Lock.ExpiresAt),
	}
	if c.keys != nil {
		fields["parkedAt"], fields["parkedFor"] = timeValue(d.ParkedAt), orDelete(d.Place)
	}
	return fields
}

// differences returns the fields of after that before has otherwise.
func differences(before, after map[string]any) map[string]any {
	fields := map[string]any{}
	for path, v := range after {
		if !reflect.DeepEqual(before[path], v) {
			fields[path] = v
		}
	}
	return fields
}

// changes also sets updatedAt to now, if any other field changes.
func (c analysisCodec) changes(prev analysislock.Analysis, next *analysislock.Analysis, rev *revision,
	now time.Time,
) map[string]any {
	values := c.values(next)
	fields := c.difference(&prev, next, values)
	if len(fields) == 0 && !slices.Contains(rev.repairs, "lockToken") {
		return nil
	}

	next.UpdatedAt, next.Attempts = now.Truncate(time.Millisecond), next.Lock.Attempts
	fields["updatedAt"] = timeValue(next.UpdatedAt)
	if rev.timestamp {
		fields["updatedAt"] = next.UpdatedAt
	}
	c.repair(fields, values, &prev, next, rev)
	c.expire(fields, &prev, next, now)

	rev.repairs = nil
	if next.Lock.Token == prev.Lock.Token { // only an acquisition begins an attempt, which gets the work
		rev.work = nil
	}
	return fields
}

// difference returns the fields of next that differ from prev. values are the values of next.
func (c analysisCodec) difference(prev, next *analysislock.Analysis, values map[string]any) map[string]any {
	fields := differences(c.values(prev), values)
	if !reflect.DeepEqual(prev.History, next.History) {
		fields["history"] = historyValue(next.History)
	}
	if next.Checkpoint != nil && next.Checkpoint != prev.Checkpoint {
		fields["checkpoint"] = checkpointValue(next.Checkpoint)
	}
	if next.Acts != nil && !reflect.DeepEqual(prev.Acts, next.Acts) {
		fields["effects"] = actsValue(next.Acts)
	}
	if next.Finished() == prev.Finished() {
		return fields
	}

	switch next.Status {
	case analysislock.Ready:
		fields[c.fields.Result] = next.Result
	case analysislock.Failed:
		fields[c.fields.Result] = firestore.Delete
	}
	return fields
}

// repair adds fields that the difference of two records may not show: a field of the document that cannot
// be read decodes as empty, so a change to empty would leave it as it is.
func (c analysisCodec) repair(fields, values map[string]any, prev, next *analysislock.Analysis, rev *revision) {
	paths, switched := slices.Clone(rev.repairs), next.Finished() != prev.Finished()
	if switched {
		paths = append(paths, c.fields.Error, "nextAttemptAt")
	}
	if switched && next.Status != analysislock.Failed {
		paths = append(paths, "lastError")
	}
	if switched || freed(prev, next) {
		paths = append(paths, "lockHeartbeatAt", "lockExpiresAt")
	}

	for _, path := range paths {
		fields[path] = values[path]
	}
}

// expire sets or deletes expireAt; see Options.Keep.
func (c analysisCodec) expire(fields map[string]any, prev, next *analysislock.Analysis, now time.Time) {
	finished, switched := next.Finished(), next.Finished() != prev.Finished()
	ends := switched || freed(prev, next) || prev.OpenActs > 0
	switch {
	case next.OpenActs > 0 || c.atRisk(next) > 0:
		fields["expireAt"] = firestore.Delete // an operator still has to answer for an open act
	case c.keepAll, c.keep > 0 && finished && ends:
		fields["expireAt"] = now.Add(c.keep)
	case !finished && (switched || next.Lock.Token != prev.Lock.Token):
		fields["expireAt"] = firestore.Delete // an earlier attempt may have finished it, and this one must not lose it
	}
}

// freed reports whether next has no owner any more.
func freed(prev, next *analysislock.Analysis) bool {
	return prev.Lock.Owner != "" && next.Lock.Owner == ""
}

// atRisk returns how many acts an unfinished record has. No queue brings its caller back, so the
// record does not expire before an end of it is recorded.
func (c analysisCodec) atRisk(d *analysislock.Analysis) int {
	if !c.keepAll || d.Finished() {
		return 0
	}
	return len(d.Acts)
}

func errorValue(e *analysislock.Error) any {
	if e == nil {
		return firestore.Delete
	}
	return map[string]any{"code": e.Code, "message": e.Message}
}
