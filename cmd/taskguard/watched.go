package main

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/repo"
	"taskguard/worker/console"
)

// watched is the console's view of the analyses.
type watched struct{ *client }

var _ console.Source = watched{}

// Follow implements console.Source.
func (w watched) Follow(ctx context.Context, limit int, each func(console.News)) error {
	return refusal(w.analyses.WatchRecent(ctx, limit, func(r repo.Recent) {
		n := console.News{At: r.At, Asked: r.Asked, All: r.All, Gone: r.Gone}
		for i := range r.Changed {
			n.Changed = append(n.Changed, viewOf(&r.Changed[i]))
		}
		each(n)
	}))
}

// Overdue implements console.Source.
func (w watched) Overdue(ctx context.Context, limit int) ([]console.Analysis, error) {
	found, err := w.analyses.Overdue(ctx, limit)
	all := make([]console.Analysis, len(found))
	for i := range found {
		all[i] = viewOf(&found[i])
	}
	return all, refusal(err)
}

// Get implements console.Source.
func (w watched) Get(ctx context.Context, id string, contents bool) (console.Whole, error) {
	a, err := w.analyses.Get(ctx, id)
	if err != nil {
		return console.Whole{}, refusal(err)
	}
	whole := console.Whole{Analysis: viewOf(&a), At: a.ReadAt, Asked: time.Now()}
	if !contents {
		return whole, nil
	}
	whole.Input, err = plainOf(a.Input)
	if err == nil {
		whole.Result, err = plainOf(a.Result)
	}
	return whole, err
}

// Newest implements console.Source.
func (w watched) Newest(ctx context.Context) (console.Newest, error) {
	written, at, err := w.analyses.Newest(ctx)
	return console.Newest{Written: written, At: at, Asked: time.Now()}, refusal(err)
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
	return &console.Refusal{Words: words, Err: err}
}

// plainOf is the JSON of an input or a result; nil: there is none.
func plainOf(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	return repo.Plain(v)
}

// viewOf is what the console shows of a.
func viewOf(a *repo.Analysis) console.Analysis {
	return console.Analysis{
		ID: a.ID, Status: a.Status, Attempts: a.Attempts, Error: failureOf(a.Error), LastError: failureOf(a.LastError),
		Created: a.CreatedAt, Updated: a.UpdatedAt, Lock: a.Lock, Malformed: malformed(a),
	}
}

func failureOf(e *repo.Error) *console.Failure {
	if e == nil {
		return nil
	}
	return &console.Failure{Code: e.Code, Message: e.Message}
}
