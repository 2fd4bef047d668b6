package repo

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease/analysislock"
)

// Filter selects analyses that have an UpdatedAt. The zero value selects all of them.
type Filter struct {
	Status        string
	Code          string    // of Error or LastError
	Since, Before time.Time // of UpdatedAt: Since ≤ UpdatedAt < Before; zero: no limit
}

// findPage is the number of analyses that one query of Find reads.
const findPage = 1000

// Find reads up to limit analyses that f selects, without inputs, results and histories;
// Malformed is set as by Newest. They are sorted by updatedAt, the oldest first within
// each type of it. A query, within 15 s, reads 1,000 of them: one that changes meanwhile
// may be found twice. Firestore compares strings as strings, so an updatedAt with another
// zone's offset may not be found. Errors: those of Orphaned.
func (a *Analyses) Find(ctx context.Context, f Filter, limit int) (found []analysislock.Analysis, err error) {
	if f.Before.IsZero() {
		f.Before = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if f.Since.IsZero() {
		f.Since = time.UnixMilli(0)
	}
	is := func(path, operator string, v any) firestore.EntityFilter {
		return firestore.PropertyFilter{Path: path, Operator: operator, Value: v}
	}
	q, before := a.withStatus(f.Status), storedForms(f.Before)
	var updated []firestore.EntityFilter
	for i, since := range storedForms(f.Since) {
		updated = append(updated, firestore.AndFilter{Filters: []firestore.EntityFilter{is("updatedAt", ">=", since), is("updatedAt", "<", before[i])}})
	}
	if f.Code != "" {
		q = anyOf(q, []firestore.EntityFilter{is("error.code", "==", f.Code), is("lastError.code", "==", f.Code)})
	}
	fields := slices.DeleteFunc(slices.Clone(decision), func(field string) bool { return field == "history" })
	q = anyOf(q, updated).OrderBy("updatedAt", firestore.Asc).Select(fields...).Limit(findPage)
	for read := findPage; read == findPage && len(found) < limit; {
		read = 0
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		err := eachDocument(ctx, "find analyses", q, func(snap *firestore.DocumentSnapshot) bool {
			if d := a.decode(snap); !d.UpdatedAt.Before(f.Since) && d.UpdatedAt.Before(f.Before) { // it may have had an offset
				found = append(found, d)
			}
			q, read = q.StartAfter(snap), read+1
			return len(found) < limit
		})
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Now returns Firestore's time, by one read.
func (a *Analyses) Now(ctx context.Context) (time.Time, error) { return a.documents.now(ctx) }
