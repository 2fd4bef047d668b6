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

// Orphaned finds the unfinished analyses whose lock is not held, so that only another
// delivery can finish them. It calls each for them, oldest update first; at is
// Firestore's time of the reading. Two queries find them: by status QUEUED or
// PROCESSING and an update older than one TTL; and, whatever the status, by a lock that
// has expired, or whose expiry is not credible. Each time may be a string, a Timestamp
// or epoch milliseconds. An analysis with another status that was never acquired is not
// found.
//
// Each query reads up to limit documents, including those that are held or finished. A
// malformed analysis, or one whose id analysislock.CheckID refuses, is skipped with a
// warning. Orphaned makes one read and two queries, within 15 s. It calls each after
// them, in this goroutine, and never if it returns an error.
//
// Errors: lease.ErrUnavailable; lease.ErrRefused, for example if the index in
// deploy/firestore.indexes.json is missing: Firestore's message contains a link that
// creates it.
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
	// The query compares strings as strings. A time with a zone offset may sort too
	// early, and is dropped here; or too late, and is found up to 14 hours late. A time
	// without decimals is found less than a second late.
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

// recoverable runs query without inputs and results, and drops the analyses that no
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

// unfinished returns a query of the unfinished analyses, oldest update first.
func (a *Analyses) unfinished(limit int) firestore.Query {
	return a.documents.collection.
		Where("status", "in", []string{analysislock.Queued, analysislock.Processing}).
		OrderBy("updatedAt", firestore.Asc).
		Limit(limit)
}

// expired returns a query of the analyses whose lock has expired by now, or expires so
// late that it is not credible, the oldest first. It needs only Firestore's automatic
// index of lockExpiresAt.
func (a *Analyses) expired(now time.Time, limit int) firestore.Query {
	filters := append(timeIs("lockExpiresAt", "<=", now), timeIs("lockExpiresAt", ">", now.Add(lease.MaxAhead))...)
	return anyOf(a.documents.collection.Query, filters).OrderBy("lockExpiresAt", firestore.Asc).Limit(limit)
}

// timeIs returns filters that compare a field with t, one for each type of value that
// the field may have. Firestore sorts numbers first, then Timestamps, then strings: if
// there are more documents than a query's limit, it finds them in that order.
func timeIs(field, operator string, t time.Time) (all []firestore.EntityFilter) {
	for _, v := range storedForms(t) {
		all = append(all, firestore.PropertyFilter{Path: field, Operator: operator, Value: v})
	}
	return all
}

func anyOf(q firestore.Query, filters []firestore.EntityFilter) firestore.Query {
	return q.WhereEntity(firestore.OrFilter{Filters: filters})
}

// storedForms returns t as each type of value that documents may hold. A range compares
// only values of its own type.
func storedForms(t time.Time) []any { return []any{timeValue(t), t, t.UnixMilli()} }

// oldestFirst sorts by the last update. Firestore cannot, since the values are of
// different types.
func oldestFirst(all []analysislock.Analysis) {
	slices.SortStableFunc(all, func(a, b analysislock.Analysis) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
}
