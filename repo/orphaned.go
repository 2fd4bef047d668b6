package repo

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Orphaned calls each, oldest update first, for the unfinished analyses that nobody
// holds, so that only another delivery can finish them; at is Firestore's time of the
// reading. Two queries find them: status QUEUED or PROCESSING and an update
// older than one TTL; and, whatever the status, a lock that has expired, or whose
// expiry is not credible. Each time may be a string, a Timestamp or epoch
// milliseconds. An analysis with another status that was never acquired is not found.
//
// Each query reads limit documents at most, also those that turn out to be held or
// finished; one that is malformed, or whose id analysislock.CheckID refuses, is skipped
// with a warning. One read and two queries, within 15 s; each is called after them, in
// this goroutine, and not at all with an error.
//
// Errors: lease.ErrUnavailable; lease.ErrRefused, as where the index
// in deploy/firestore.indexes.json is missing, with Firestore's message, which says how
// to make it.
func (a *Analyses) Orphaned(ctx context.Context, limit int, each func(id string, token int64, at time.Time)) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	now, err := a.documents.now(ctx)
	if err != nil {
		return err
	}
	cutoff := now.Add(-a.TTL())
	found, err := a.recoverable(ctx, anyOf(a.unfinished(limit), timeIs("updatedAt", "<", cutoff)))
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
	expired = slices.DeleteFunc(expired, func(d analysislock.Analysis) bool { // found by the first query
		return d.Status == analysislock.Queued || d.Status == analysislock.Processing
	})
	found = append(found, expired...)
	oldestFirst(found)
	for i := range found {
		if d := &found[i]; lease.Orphaned(d.Lock, d.ReadAt) {
			each(d.ID, d.Lock.Token, d.ReadAt)
		}
	}
	return nil
}

// recoverable reads what query finds, without inputs and results, and drops what no
// delivery can finish.
func (a *Analyses) recoverable(ctx context.Context, query firestore.Query) ([]analysislock.Analysis, error) {
	found, err := a.summaries(ctx, "find orphaned analyses", query.Select("status", "updatedAt", "lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt"))
	if err != nil {
		return nil, err
	}
	skips := skipped{log: a.documents.log, message: "analysis not recovered: no delivery can finish it"}
	found = slices.DeleteFunc(found, func(d analysislock.Analysis) bool {
		if d.Malformed != nil {
			skips.add(ctx, slog.String("analysis_id", d.ID), d.Malformed)
		}
		return d.Malformed != nil
	})
	skips.end(ctx)
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
	filters := append(timeIs("lockExpiresAt", "<=", now), timeIs("lockExpiresAt", ">", now.Add(lease.MaxAhead))...)
	return anyOf(a.documents.collection.Query, filters).OrderBy("lockExpiresAt", firestore.Asc).Limit(limit)
}

// timeIs are filters that compare a field with t, one for each type of value that the
// field may have. Firestore sorts numbers before Timestamps before strings: where there
// are more than a query's limit, they are found in that order.
func timeIs(field, operator string, t time.Time) (all []firestore.EntityFilter) {
	for _, v := range storedForms(t) {
		all = append(all, firestore.PropertyFilter{Path: field, Operator: operator, Value: v})
	}
	return all
}

func anyOf(q firestore.Query, filters []firestore.EntityFilter) firestore.Query {
	return q.WhereEntity(firestore.OrFilter{Filters: filters})
}

// storedForms are the types of value in which documents hold t. A range compares only
// values of its own type.
func storedForms(t time.Time) []any { return []any{timeValue(t), t, t.UnixMilli()} }

// oldestFirst sorts by the last update, whatever its type, as Firestore cannot.
func oldestFirst(all []analysislock.Analysis) {
	slices.SortStableFunc(all, func(a, b analysislock.Analysis) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
}
