package repo

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
)

// Abandoned calls each, oldest update first, for the unfinished analyses that
// nobody holds although their last update is older than one TTL; at is
// Firestore's time of the reading. It reads limit documents at most, also those
// that turn out to be held; one that is malformed, or whose id CheckID refuses,
// is skipped with a warning.
// The status is QUEUED or PROCESSING, the update a string or a Timestamp: any
// other document is not found. One read and one query, within 15 s; each is
// called after both, in this goroutine, and not at all with an error.
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
	cutoff := now.Add(-a.lessor.Policy().TTL)
	found, err := a.unfinishedSince(ctx, cutoff, limit)
	if err != nil {
		return err
	}
	for i := range found {
		d := &found[i]
		// The query compares strings as strings. One with an offset that sorts
		// before its time is dropped here; one that sorts after it is found late,
		// by up to 14 hours, and one without decimals by under a second.
		if d.UpdatedAt.Before(cutoff) && lease.Abandoned(d.Lock, d.ReadAt) {
			each(d.ID, d.Lock.Token, d.ReadAt)
		}
	}
	return nil
}

// maxWarnings bounds what a call says of documents that it must skip each time.
const maxWarnings = 10

// abandonedTimeout bounds Abandoned, whose next call is due in a minute.
const abandonedTimeout = 15 * time.Second

// unfinishedSince reads, without inputs and results, up to limit unfinished
// analyses whose last update was before cutoff, oldest first. Firestore sorts
// every Timestamp before every string: where there are more than limit, those
// with a Timestamp come first.
func (a *Analyses) unfinishedSince(ctx context.Context, cutoff time.Time, limit int) ([]Analysis, error) {
	query := updatedBefore(a.unfinished(limit), cutoff).
		Select("status", "updatedAt", "lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt")
	found, err := a.glimpses(ctx, "find abandoned analyses", query)
	if err != nil {
		return nil, err
	}
	stuck := 0
	found = slices.DeleteFunc(found, func(d Analysis) bool {
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
	oldestFirst(found)
	return found, nil
}

// unfinished is a query of the unfinished analyses, oldest update first.
func (a *Analyses) unfinished(limit int) firestore.Query {
	return a.documents.collection.
		Where("status", "in", []string{Queued, Processing}).
		OrderBy("updatedAt", firestore.Asc).
		Limit(limit)
}

// updatedBefore is q of those whose last update was before cutoff.
func updatedBefore(q firestore.Query, cutoff time.Time) firestore.Query {
	return q.WhereEntity(firestore.OrFilter{Filters: []firestore.EntityFilter{
		firestore.PropertyFilter{Path: "updatedAt", Operator: "<", Value: timeValue(cutoff)},
		firestore.PropertyFilter{Path: "updatedAt", Operator: "<", Value: cutoff},
	}})
}

// oldestFirst sorts by the last update, whatever its type, as Firestore cannot.
func oldestFirst(all []Analysis) {
	slices.SortStableFunc(all, func(a, b Analysis) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
}
