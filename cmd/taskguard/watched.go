package main

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease/analysislock"
	"taskguard/repo"
	"taskguard/worker/console"
)

// watched is the console's view of the analyses.
type watched struct{ *client }

var _ console.Source = watched{}

// Newest implements console.Source.
func (w watched) Newest(ctx context.Context, limit int) (console.Listing, error) {
	found, at, err := w.analyses.Newest(ctx, limit)
	return console.Listing{At: at, Asked: time.Now(), All: viewsOf(found)}, refusal(err)
}

// InState implements console.Source.
func (w watched) InState(ctx context.Context, status string, limit int) ([]console.Analysis, error) {
	found, err := w.analyses.InState(ctx, status, limit)
	return viewsOf(found), refusal(err)
}

// Count implements console.Source.
func (w watched) Count(ctx context.Context, statuses []string) (console.Counts, error) {
	counts := console.Counts{}
	for _, status := range append([]string{""}, statuses...) {
		n, err := w.analyses.Count(ctx, status)
		if err != nil {
			return nil, refusal(err)
		}
		counts[status] = n
	}
	return counts, nil
}

// Overdue implements console.Source.
func (w watched) Overdue(ctx context.Context, limit int) ([]console.Analysis, error) {
	found, err := w.analyses.Overdue(ctx, limit)
	return viewsOf(found), refusal(err)
}

// Get implements console.Source.
func (w watched) Get(ctx context.Context, id string, contents bool) (console.Whole, error) {
	read := w.analyses.Summary
	if contents {
		read = w.analyses.Get
	}
	a, err := read(ctx, id)
	if err != nil {
		return console.Whole{}, refusal(err)
	}
	whole := console.Whole{Analysis: viewOf(&a), At: a.ReadAt, Asked: time.Now()}
	whole.Input, err = plainOf(a.Input)
	if err == nil {
		whole.Result, err = plainOf(a.Result)
	}
	return whole, err
}

// refusals are what Firestore says to a reader that waiting does not change.
var refusals = map[codes.Code]string{
	codes.PermissionDenied:   "this account may not read the analyses (PERMISSION_DENIED)",
	codes.Unauthenticated:    "it does not accept these credentials (UNAUTHENTICATED)",
	codes.FailedPrecondition: "an index of deploy/firestore.indexes.json is missing, or is still being built (FAILED_PRECONDITION)",
	codes.InvalidArgument:    "it does not accept the query (INVALID_ARGUMENT)",
	codes.ResourceExhausted:  "a quota is used up (RESOURCE_EXHAUSTED)",
}

// refusal is err, as a *console.Refusal where it is one.
func refusal(err error) error {
	words, is := refusals[status.Code(err)]
	if err == nil || !is {
		return err
	}
	return &console.Refusal{Text: words, Err: err}
}

// plainOf is the JSON of an input or a result; nil: there is none.
func plainOf(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	return repo.Plain(v)
}

func viewsOf(found []analysislock.Analysis) []console.Analysis {
	all := make([]console.Analysis, len(found))
	for i := range found {
		all[i] = viewOf(&found[i])
	}
	return all
}

// viewOf is what the console shows of a.
func viewOf(a *analysislock.Analysis) console.Analysis {
	return console.Analysis{
		ID: a.ID, Status: a.Status, Attempts: a.Attempts, Error: failureOf(a.Error), LastError: failureOf(a.LastError),
		Created: a.CreatedAt, Updated: a.UpdatedAt, Lock: a.Lock, Malformed: malformed(a),
	}
}

func failureOf(e *analysislock.Error) *console.Failure {
	if e == nil {
		return nil
	}
	return &console.Failure{Code: e.Code, Message: e.Message}
}
