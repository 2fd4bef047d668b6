package repo

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Abandoned calls each, oldest update first, for the unfinished analyses that no one
// holds and that only another delivery can bring to their end; at is Firestore's time
// of the reading. Two queries find them: status QUEUED or PROCESSING and an update
// older than one TTL; and, whatever the status, a lock that has expired, or whose
// expiry is not credible. Each time may be a string, a Timestamp or epoch
// milliseconds. An analysis with another status that was never acquired is not found.
//
// Each query reads limit documents at most, also those that turn out to be held or
// finished; one that is malformed, or whose id analysislock.CheckID refuses, is skipped with a
// warning. One read and two queries, within 15 s; each is called after them, in this
// goroutine, and not at all with an error.
//
// Errors: lease.ErrUnavailable; lease.ErrRefused, as for want of the index
// in deploy/firestore.indexes.json, with Firestore's words, which say how to
// make it.
func (a *Analyses) Abandoned(ctx context.Context, limit int, each func(id string, token int64, at time.Time)) error {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	now, err := a.documents.now(ctx)
	if err != nil {
		return err
	}
	cutoff := now.Add(-a.TTL())
	found, err := a.recoverable(ctx, updatedBefore(a.unfinished(limit), cutoff))
	if err != nil {
		return err
	}
	// The query compares strings as strings. One with an offset that sorts before its
	// time is dropped here; one that sorts after it is found late, by up to 14 hours,
	// and one without decimals by under a second.
	found = slices.DeleteFunc(found, func(d analysislock.Analysis) bool { return !d.UpdatedAt.Before(cutoff) })
	expired, err := a.recoverable(ctx, a.expired(now, limit))
	if err != nil {
		return err
	}
	expired = slices.DeleteFunc(expired, func(d analysislock.Analysis) bool {
		return d.Status == analysislock.Queued || d.Status == analysislock.Processing
	}) // the first query's
	found = append(found, expired...)
	oldestFirst(found)
	for i := range found {
		if d := &found[i]; lease.Abandoned(d.Lock, d.ReadAt) {
			each(d.ID, d.Lock.Token, d.ReadAt)
		}
	}
	return nil
}

// maxWarnings bounds what a call says of documents that it must skip each time.
const maxWarnings = 10

// abandonedTimeout bounds Abandoned, whose next call is due in a minute.
const abandonedTimeout = 15 * time.Second

// recoverable reads what query finds, without inputs and results, and drops what no
// delivery could bring to its end.
func (a *Analyses) recoverable(ctx context.Context, query firestore.Query) ([]analysislock.Analysis, error) {
	found, err := a.summaries(ctx, "find abandoned analyses", query.Select("status", "updatedAt", "lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt"))
	if err != nil {
		return nil, err
	}
	stuck := 0
	found = slices.DeleteFunc(found, func(d analysislock.Analysis) bool {
		if d.Malformed == nil {
			return false
		}
		if stuck++; stuck <= maxWarnings {
			a.documents.log.WarnContext(ctx, "analysis not recovered: no delivery could bring it to its end", "analysis_id", d.ID, "error", d.Malformed)
		}
		return true
	})
	if stuck > maxWarnings {
		a.documents.log.WarnContext(ctx, "more analyses are not recovered", "analyses", stuck)
	}
	return found, nil
}

// unfinished is a query of the unfinished analyses, oldest update first.
func (a *Analyses) unfinished(limit int) firestore.Query {
	return a.documents.collection.
		Where("status", "in", []string{analysislock.Queued, analysislock.Processing}).
		OrderBy("updatedAt", firestore.Asc).
		Limit(limit)
}

// expired is a query of the analyses whose lock has expired by now, or expires so late
// that it is not credible, the oldest first. The automatic index of lockExpiresAt
// serves it.
func (a *Analyses) expired(now time.Time, limit int) firestore.Query {
	var either []firestore.EntityFilter
	for _, at := range forms(now) {
		either = append(either, firestore.PropertyFilter{Path: "lockExpiresAt", Operator: "<=", Value: at})
	}
	for _, at := range forms(now.Add(lease.MaxAhead)) {
		either = append(either, firestore.PropertyFilter{Path: "lockExpiresAt", Operator: ">", Value: at})
	}
	return a.documents.collection.WhereEntity(firestore.OrFilter{Filters: either}).OrderBy("lockExpiresAt", firestore.Asc).Limit(limit)
}

// updatedBefore is q of those whose last update was before cutoff. Firestore sorts
// numbers before Timestamps before strings: where there are more than the limit, they
// come in that order.
func updatedBefore(q firestore.Query, cutoff time.Time) firestore.Query {
	var either []firestore.EntityFilter
	for _, at := range forms(cutoff) {
		either = append(either, firestore.PropertyFilter{Path: "updatedAt", Operator: "<", Value: at})
	}
	return q.WhereEntity(firestore.OrFilter{Filters: either})
}

// forms are the types of value in which documents hold t. A range compares with those
// of its own type alone.
func forms(t time.Time) []any { return []any{timeValue(t), t, t.UnixMilli()} }

// oldestFirst sorts by the last update, whatever its type, as Firestore cannot.
func oldestFirst(all []analysislock.Analysis) {
	slices.SortStableFunc(all, func(a, b analysislock.Analysis) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
}
