package repo

import (
	"context"
	"math"
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

// findTimeout bounds Find, which may read 100,000 analyses.
const findTimeout = time.Minute

// Find reads up to limit analyses that f selects, without inputs, results and histories;
// Malformed is set as by Newest. They are sorted by updatedAt, the oldest first within
// each type of it. It makes one query, within a minute. Firestore compares strings as
// strings, so an updatedAt with another zone's offset may not be found. Errors: those of
// Orphaned; a Code needs the indexes of both codes.
func (a *Analyses) Find(ctx context.Context, f Filter, limit int) ([]analysislock.Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
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
	q = anyOf(q, updated).OrderBy("updatedAt", firestore.Asc).Limit(min(limit, math.MaxInt32)).Select(fields...)
	found, err := a.summaries(ctx, "find analyses", q)
	return slices.DeleteFunc(found, func(d analysislock.Analysis) bool { // it had an offset
		return d.UpdatedAt.Before(f.Since) || !d.UpdatedAt.Before(f.Before)
	}), err
}

// Now returns Firestore's time, by one read.
func (a *Analyses) Now(ctx context.Context) (time.Time, error) { return a.documents.now(ctx) }
