package repo

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// The limits of one call of Orphaned. It leaves time to book what it has found.
const (
	orphanPage     = 1000             // documents that are read at once: Firestore bills them, needed or not
	maxOrphanReads = 100_000          // documents that a query reads in all
	orphanTimeout  = 40 * time.Second // a quarter for each query
)

// errOrphanTime is the cause of a context that Orphaned has ended because its time has passed.
var errOrphanTime = errors.New("repo: the time to find orphaned analyses has passed")

// Orphaned returns readings of up to limit unfinished analyses that only another delivery
// can finish: their lock is not held, and the delivery that is booked for them, if any, is late
// by one TTL. Three queries find them: by a lock that has expired; by a NextAttemptAt that passed
// one TTL ago; and by status QUEUED or PROCESSING and an update older than one TTL, oldest
// first. They also find times that are not lease.Credible. Each time may be a string, a
// Timestamp or a number; see parseTime. An analysis that is QUEUED or PROCESSING is not found
// within one TTL after its last update. Unfound returns those that are never found. more
// reports that there may be others.
//
// Each query also reads analyses that are held, finished or waiting: up to 100,000, in pages
// of 1,000, within 10 s. A query that reaches one of these limits has failed only if it has
// read nothing. Orphaned also runs it in the opposite order, with the same limits, within 40 s
// in all. The next call continues both where they ended. So the analyses that need no delivery
// hide no others, even if each call is the first of its process. After an error Orphaned
// continues with the next query, and runs none in the opposite order. It skips a malformed
// analysis, or one whose id analysislock.CheckID refuses, with a warning.
//
// Errors, also together with those found before: lease.ErrUnavailable; lease.ErrRefused, for
// example if the index in deploy/firestore.indexes.json is missing: Firestore's message
// contains a link that creates it.
func (a *Analyses) Orphaned(ctx context.Context, limit int) (
	due []lease.Cell[analysislock.Analysis], more bool, err error,
) {
	ctx, cancel := context.WithTimeoutCause(ctx, orphanTimeout, errOrphanTime)
	defer cancel()
	now, err := a.documents.now(ctx)
	if err != nil {
		return nil, false, err
	}

	skips := skipped{log: a.documents.log, message: "analysis not recovered: no delivery can finish it"}
	defer skips.end(ctx)
	visited := map[string]bool{} // several queries may find the same analysis
	visit := func(snap *firestore.DocumentSnapshot, asked time.Time) bool {
		d := a.decode(snap)
		switch {
		case visited[d.ID]:
		case d.Malformed != nil:
			visited[d.ID] = true
			skips.add(ctx, analysisName(d.ID), d.Malformed)
		case a.orphaned(&d, a.TTL()):
			visited[d.ID] = true
			due = append(due, lease.Cell[analysislock.Analysis]{
				Doc: d, Exists: true, Rev: snap.UpdateTime, At: d.ReadAt, Asked: asked,
			})
		}
		return len(due) < limit
	}

	// Only the last query may read many analyses that wait. So these hide none that the others find.
	all, cutoff := a.documents.collection.Query, now.Add(-a.TTL())
	queries := [...]struct {
		query firestore.Query
		field string
	}{
		{anyOf(all, orAhead("lockExpiresAt", "<=", now, now)), "lockExpiresAt"},
		{anyOf(all, orAhead("nextAttemptAt", "<", cutoff, now)), "nextAttemptAt"},
		{a.stale(cutoff, now), "updatedAt"},
	}
	ended := make([]bool, len(queries)) // the query has read everything that it selects
	for n := range a.stopped {
		i, order := n%len(queries), firestore.Asc
		if n >= len(queries) {
			order = firestore.Desc
		}
		if ended[i] || order == firestore.Desc && (err != nil || ctx.Err() != nil) {
			continue
		}

		var failed error
		sorted := queries[i].query.OrderBy(queries[i].field, order)
		ended[i], failed = a.orphanPages(ctx, sorted, &a.stopped[n], min(limit, orphanPage), visit)
		if errors.Is(context.Cause(ctx), errOrphanTime) { // the time left may be too short for a page
			failed = nil
		}
		err = errors.Join(err, failed)
		if len(due) == limit {
			return due, true, err
		}
	}
	return due, slices.Contains(ended, false), err
}

// orphaned reports whether only another delivery can finish d, and none is booked for it or
// the booked one is late by that time. It returns false for an analysis that was updated after
// the cutoff of the query. Queries compare strings as strings. A time with a zone offset may
// sort too early: then orphaned returns false. Or it sorts too late: then it is found up to 14
// hours late. A time without decimals is found less than a second late.
func (a *Analyses) orphaned(d *analysislock.Analysis, late time.Duration) bool {
	unfinished := d.Status == analysislock.Queued || d.Status == analysislock.Processing
	if unfinished && (d.UpdatedAt.IsZero() || !lease.Late(d.UpdatedAt, d.ReadAt, late)) {
		return false
	}
	return lease.Orphaned(d.Lock, d.ReadAt) && lease.Late(d.NextAttemptAt, d.ReadAt, late)
}

// orphanFields lists the fields by which recovery finds and judges an analysis.
func (a *Analyses) orphanFields() []string {
	return []string{
		a.codec.fields.Status, "updatedAt", "nextAttemptAt", "bookedTask",
		"lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt",
	}
}

// orphanPages calls visit for the documents of q, in pages of size, until visit returns false.
// It begins after stopped, if that is not nil. At the limit of its time or its reads, it stores
// the last document in stopped, and returns an error only if it has read none. asked is the
// local time of the page's request. all is false if there may be others.
func (a *Analyses) orphanPages(ctx context.Context, q firestore.Query,
	stopped *atomic.Pointer[firestore.DocumentSnapshot], size int,
	visit func(snap *firestore.DocumentSnapshot, asked time.Time) bool,
) (all bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, orphanTimeout/4, errOrphanTime)
	defer cancel()
	q = q.Limit(size).Select(a.orphanFields()...)

	last := stopped.Swap(nil)
	begin := last
	for range maxOrphanReads / size {
		page := q
		if last != nil {
			page = q.StartAfter(last)
		}
		n, asked := 0, time.Now()
		for snap, err := range eachDocument(ctx, "find orphaned analyses", page) {
			if err != nil {
				stopped.Store(last)
				if last != begin && errors.Is(context.Cause(ctx), errOrphanTime) {
					err = nil
				}
				return false, err
			}
			n, last = n+1, snap
			if !visit(snap, asked) {
				return false, nil
			}
		}
		if n < size {
			return true, nil
		}
	}
	stopped.Store(last)
	return false, nil
}

// stale returns a query of the unfinished analyses whose update was before cutoff, or is not
// credible at now.
func (a *Analyses) stale(cutoff, now time.Time) firestore.Query {
	return anyOf(a.unfinished(), orAhead("updatedAt", "<", cutoff, now))
}

// unfinished returns a query of the unfinished analyses.
func (a *Analyses) unfinished() firestore.Query {
	f := a.codec.fields
	return a.documents.collection.Where(f.Status, "in", []string{f.Queued, f.Processing})
}

// orAhead returns filters that compare a field with t, or find it so far ahead of now that it is
// not credible. They also find microseconds and nanoseconds, which are larger than milliseconds.
func orAhead(field, operator string, t, now time.Time) []firestore.EntityFilter {
	return append(timeIs(field, operator, t), timeIs(field, ">", now.Add(lease.MaxAhead))...)
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

// oldestFirst sorts by the last update. Firestore would sort values of different types apart.
func oldestFirst(all []analysislock.Analysis) {
	slices.SortStableFunc(all, func(a, b analysislock.Analysis) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
}
