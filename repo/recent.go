package repo

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Newest reads, without inputs and results, the limit analyses with the latest
// updatedAt, the latest first, and Firestore's time of the reading. One without an
// updatedAt is not found; Malformed is set where nothing can be done with the lock
// or by the id.
//
// It takes one query for each type of updatedAt, of up to limit documents each, and
// 15 s at most. Firestore's automatic index of updatedAt serves it.
//
// Errors: lease.ErrUnavailable; lease.ErrRefused.
func (a *Analyses) Newest(ctx context.Context, limit int) (found []analysislock.Analysis, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	found, err = a.eachType(ctx, "find the newest analyses", a.documents.collection.OrderBy("updatedAt", firestore.Desc).Limit(limit), ">=", lowest...)
	if err != nil {
		return nil, at, err
	}
	if len(found) == 0 { // the reply without a document has a time, which the client drops
		at, err = a.documents.now(ctx)
		return nil, at, err
	}
	slices.SortStableFunc(found, func(a, b analysislock.Analysis) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
	return first(found, limit), found[0].ReadAt, nil
}

// InState reads, without inputs and results, up to limit analyses with status, by id;
// Malformed is set as by Newest. It takes one query, and 5 s at most.
func (a *Analyses) InState(ctx context.Context, status string, limit int) ([]analysislock.Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return a.summaries(ctx, "list analyses", briefly(a.documents.collection.Where("status", "==", status).Limit(limit)))
}

// Count returns how many analyses have status, or, where that is empty, how many
// there are, within 15 s. Firestore counts: it bills one read for a thousand.
// Errors: lease.ErrUnavailable; lease.ErrRefused.
func (a *Analyses) Count(ctx context.Context, status string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	q := a.documents.collection.Query
	if status != "" {
		q = q.Where("status", "==", status)
	}
	r, err := q.NewAggregationQuery().WithCount("n").Get(ctx)
	if err != nil {
		return 0, queryError("count analyses", err)
	}
	return r["n"].(*firestorepb.Value).GetIntegerValue(), nil
}

// Summary reads one analysis without its input and result, as Newest does:
// lease.ErrNotFound if there is none.
func (a *Analyses) Summary(ctx context.Context, id string) (analysislock.Analysis, error) {
	d, err := a.get(ctx, id, decision)
	if errors.Is(err, lease.ErrMalformed) {
		d.Malformed, err = err, nil
	}
	return d, err
}

// summary is what can be read of a document, but for its input and result.
func (a *Analyses) summary(snap *firestore.DocumentSnapshot) analysislock.Analysis {
	doc, err := a.documents.codec.decode(snapshot(snap))
	doc.Malformed = errors.Join(analysislock.CheckID(snap.Ref.ID), err)
	doc.Input, doc.Result = nil, nil
	return doc
}

// Overdue reads, without inputs and results, up to limit analyses that are QUEUED
// or PROCESSING although their last update is older than one TTL, oldest first;
// Malformed is set as by Newest. It takes a read, up to limit for each type of
// updatedAt, and 15 s at most.
//
// Errors: those of Abandoned, whose index it needs.
func (a *Analyses) Overdue(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	now, err := a.documents.now(ctx)
	if err != nil {
		return nil, err
	}
	cutoff := now.Add(-a.TTL())
	found, err := a.eachType(ctx, "find overdue analyses", a.unfinished(limit), "<", forms(cutoff)...)
	oldestFirst(found)
	return first(found, limit), err
}

// Unfinished reads as Overdue does, but whenever the last update was: an analysis
// that runs has just been updated. It does not read Firestore's time. An analysis without an updatedAt is not found.
func (a *Analyses) Unfinished(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	found, err := a.eachType(ctx, "list unfinished analyses", a.unfinished(limit), ">=", lowest...)
	oldestFirst(found)
	return first(found, limit), err
}

// lowest are the least values of the types that an updatedAt may have.
var lowest = []any{"", time.Time{}, math.Inf(-1)}

// eachType runs q once with each of values as a bound of updatedAt. A bound keeps a
// query to the values of its own type; without one Firestore sorts all numbers
// before all Timestamps and these before all strings, and a limit could hide one
// type behind another.
func (a *Analyses) eachType(ctx context.Context, what string, q firestore.Query, operator string, values ...any) (all []analysislock.Analysis, err error) {
	for _, v := range values {
		found, err := a.summaries(ctx, what, briefly(q.Where("updatedAt", operator, v)))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func first(found []analysislock.Analysis, limit int) []analysislock.Analysis {
	return found[:min(limit, len(found))]
}

// briefly asks for all that is known of an analysis but its input and result.
func briefly(q firestore.Query) firestore.Query { return q.Select(decision...) }

// summaries are what a query finds; what names it in an error.
func (a *Analyses) summaries(ctx context.Context, what string, q firestore.Query) (found []analysislock.Analysis, err error) {
	docs := q.Documents(ctx)
	defer docs.Stop()
	for {
		snap, err := docs.Next()
		switch {
		case errors.Is(err, iterator.Done):
			return found, nil
		case err != nil:
			return nil, queryError(what, err)
		}
		found = append(found, a.summary(snap))
	}
}
