package repo

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// The limits of each query of Orphaned. They leave time to book deliveries for the analyses found.
const (
	orphanPage     = 1000 // documents that are read at once: Firestore bills them, needed or not
	maxOrphanReads = 100_000
	orphanTimeout  = 10 * time.Second
	// parkedPage is orphanPage of the queries by update where analyses may be parked.
	parkedPage = 200
)

// maxWarnings is the number of skipped documents that a call of Orphaned logs.
const maxWarnings = 10

// Orphaned returns readings of up to limit unfinished analyses that only another delivery
// can finish: their lock is not held, and the delivery that is booked for them, if any, is late
// by one TTL. Three queries find them: by a lock that has expired; by a NextAttemptAt that passed
// one TTL ago; and by status QUEUED or PROCESSING and an update older than one TTL, oldest
// first. They also find times that are not lease.Credible. Each time may be a string, a
// Timestamp or a number; see parseTime. Queries compare strings as strings: a time with a zone offset may sort too
// early, and then a later call finds it, or too late: then it is found up to 14 hours late. A time without
// decimals is found less than a second late. An analysis that is QUEUED or PROCESSING is not found
// within one TTL after its last update. Unfound returns the analyses that it never finds. more
// reports that there may be others.
//
// Each query also reads analyses that are held, finished or waiting: up to 100,000, in pages of
// 1,000, within 10 s. The next call continues where it ended, so that those which need no delivery
// do not hide others. A query by update also ends after a page of 200 that is mostly parked analyses, which
// need no delivery: more does not report the rest. From the newest update it then goes back only one more TTL.
// So any number of parked ones costs a call 200 reads, and at most 200 more if some were parked within two
// TTLs. An error ends a query; Orphaned returns it only if the query had read nothing, and continues with the
// next query. It skips a malformed analysis, or one whose id analysislock.CheckID refuses, and logs a warning
// about the first ten.
//
// Errors, also together with those found: lease.ErrUnavailable; lease.ErrRefused, for
// example if the index in deploy/firestore.indexes.json is missing: Firestore's message
// contains a link that creates it.
func (a *Analyses) Orphaned(ctx context.Context, limit int) (
	due []lease.Cell[analysislock.Analysis], more bool, err error,
) {
	now, err := a.documents.now(ctx)
	if err != nil {
		return nil, false, err
	}

	warnings := 0
	visited := map[string]bool{} // several queries may find the same analysis
	visit := func(snap *firestore.DocumentSnapshot, asked time.Time) (parked, more bool) {
		c := a.found(snapshot(snap), asked)
		d := &c.Doc
		switch {
		case visited[d.ID]:
		case d.Malformed != nil:
			visited[d.ID] = true
			if warnings++; warnings <= maxWarnings {
				a.documents.log.WarnContext(ctx, "analysis not recovered: no delivery can finish it",
					"analysis_id", d.ID, "error", d.Malformed)
			}
		case d.Orphaned(a.TTL()):
			visited[d.ID] = true
			due = append(due, c)
		}
		return !d.ParkedAt.IsZero(), len(due) < limit
	}

	// Only the query by updates may read many waiting analyses, so it is made after the others. If it
	// does not end, it is made from its other end too, for a process that makes one call.
	all, cutoff := a.documents.collection.Query, now.Add(-a.TTL())
	queries := [len(a.stopped)]firestore.Query{
		anyOf(all, orAhead("lockExpiresAt", "<=", now, now)).OrderBy("lockExpiresAt", firestore.Asc),
		anyOf(all, orAhead("nextAttemptAt", "<", cutoff, now)).OrderBy("nextAttemptAt", firestore.Asc),
		a.stale(cutoff, now).OrderBy("updatedAt", firestore.Asc),
		a.stale(cutoff, now).OrderBy("updatedAt", firestore.Desc),
	}
	page := orphanPage
	if a.codec.keys != nil {
		page = parkedPage
	}
	ended, parked, failed := false, false, error(nil)
	for i := range queries {
		last := i == len(queries)-1
		if last && (ended || failed != nil) {
			break
		}
		if last && parked { // what has come since the last call is at this end
			queries[i] = anyOf(a.unfinished(), within("updatedAt", cutoff.Add(-a.TTL()), cutoff)).
				OrderBy("updatedAt", firestore.Desc)
			a.stopped[i].Store(nil)
		}
		ended, parked, failed = a.orphanPages(ctx, queries[i], &a.stopped[i], min(limit, page), visit)
		more, err = more || !ended && !parked, errors.Join(err, failed)
		if len(due) == limit {
			return due, true, err
		}
	}
	return due, more, err
}

// orphanFields lists the fields by which recovery finds and judges an analysis.
func (a *Analyses) orphanFields() []string {
	all := []string{
		a.codec.fields.Status, "updatedAt", "nextAttemptAt", "bookedTask",
		"lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt",
	}
	if a.codec.keys != nil {
		all = append(all, "parkedAt")
	}
	return all
}

// orphanPages calls visit for the documents of q, in pages of size, until visit returns false.
// It begins after stopped, if that is not nil. At the limit of its time or its reads, after a page with
// more parked analyses than others, or after an error, it stores the last document in stopped. It returns an
// error only if it has read none.
// asked is the local time of the page's request. ended is false if there may be others; parked, if they are
// mostly parked.
func (a *Analyses) orphanPages(ctx context.Context, q firestore.Query,
	stopped *atomic.Pointer[firestore.DocumentSnapshot], size int,
	visit func(snap *firestore.DocumentSnapshot, asked time.Time) (parked, more bool),
) (ended, parked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	q = q.Limit(size).Select(a.orphanFields()...)

	last, read := stopped.Swap(nil), 0
	for read < maxOrphanReads {
		page := q
		if last != nil {
			page = q.StartAfter(last)
		}
		n, waiting, asked := 0, 0, time.Now()
		for snap, err := range eachDocument(ctx, "find orphaned analyses", page) {
			if err != nil {
				stopped.Store(last)
				if read+n > 0 {
					err = nil
				}
				return false, false, err
			}
			n, last = n+1, snap
			waits, more := visit(snap, asked)
			if waits {
				waiting++
			}
			if !more {
				return false, false, nil
			}
		}
		if n < size {
			return true, false, nil
		}
		if read += n; waiting > n/2 {
			parked = true
			break
		}
	}
	stopped.Store(last)
	return false, parked, nil
}
