package repo

import (
	"context"
	"errors"
	"iter"
	"math"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// match returns up to limit analyses that q finds and keep accepts; nil: all. what names the query in
// an error. Malformed is set as by Page.
func (a *Analyses) match(ctx context.Context, what string, q firestore.Query, limit int,
	keep func(r reading, d *analysislock.Analysis) bool,
) (found []analysislock.Analysis, err error) {
	for snap, err := range eachDocument(ctx, what, q) {
		if err != nil || len(found) >= limit {
			return found, err
		}
		r := snapshot(snap)
		if d := a.decode(r); keep == nil || keep(r, &d) {
			found = append(found, d)
		}
	}
	return found, nil
}

// decode returns the analysis that a query has found; Malformed is set as by Page.
func (a *Analyses) decode(r reading) analysislock.Analysis { return a.found(r, time.Time{}).Doc }

// found returns the analysis that a query at asked has found; Malformed is set as by Page.
func (a *Analyses) found(r reading, asked time.Time) lease.Cell[analysislock.Analysis] {
	c, _ := a.documents.cell(r, asked, lease.EvenMalformed)
	d := &c.Doc
	if d.Acts == nil { // not read: their count is shown, and decides nothing
		open, _ := parseInt(r.fields[openActs])
		d.OpenActs = int(max(0, min(open, math.MaxInt32)))
	}
	d.Malformed = errors.Join(analysislock.CheckID(r.id), d.Malformed)
	return c
}

// eachDocument returns the documents of q. An error ends it; what names the query in the error.
func eachDocument(ctx context.Context, what string, q firestore.Query) iter.Seq2[*firestore.DocumentSnapshot, error] {
	return func(yield func(*firestore.DocumentSnapshot, error) bool) {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		docs := q.Documents(ctx)
		defer docs.Stop()
		for {
			snap, err := docs.Next()
			if errors.Is(err, iterator.Done) {
				return
			}
			if err != nil {
				err = queryError(what, err)
			}
			if !yield(snap, err) || err != nil {
				return
			}
		}
	}
}

func count(ctx context.Context, q firestore.Query) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	r, err := q.NewAggregationQuery().WithCount("n").Get(ctx)
	if err != nil {
		return 0, queryError("count analyses", err)
	}
	return r["n"].(*firestorepb.Value).GetIntegerValue(), nil
}

// withStatus returns a query of the analyses with status, or of all if status is empty.
func (a *Analyses) withStatus(status string) firestore.Query {
	if status == "" {
		return a.documents.collection.Query
	}
	return a.documents.collection.Where(a.codec.fields.Status, "==", a.codec.fields.word(status))
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
// not credible.
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
// only values of one type.
func storedForms(t time.Time) []any { return []any{timeValue(t), t, t.UnixMilli()} }

// lowest lists the least value of each type that updatedAt may have.
var lowest = []any{"", time.Time{}, math.Inf(-1)}

// within returns filters that find since ≤ field < before, one for each type of the field, as a
// range compares only values of one type. Zero: no limit.
func within(field string, since, before time.Time) (all []firestore.EntityFilter) {
	from, until := lowest, storedForms(before)
	if !since.IsZero() {
		from = storedForms(since)
	}
	for i := range from {
		limits := []firestore.EntityFilter{property(field, ">=", from[i])}
		if !before.IsZero() {
			limits = append(limits, property(field, "<", until[i]))
		}
		all = append(all, firestore.AndFilter{Filters: limits})
	}
	return all
}

func property(path, operator string, v any) firestore.EntityFilter {
	return firestore.PropertyFilter{Path: path, Operator: operator, Value: v}
}
