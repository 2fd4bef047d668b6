package operate

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease/analysislock"
	"taskguard/worker/console"
)

// consoleSource reads the analyses for the console.
type consoleSource struct{ *Client }

var _ console.Source = consoleSource{}

// Newest implements console.Source.
func (s consoleSource) Newest(ctx context.Context, limit int) (console.Listing, error) {
	found, at, err := s.analyses.Newest(ctx, limit)
	return console.Listing{At: at, Asked: time.Now(), All: viewsOf(found)}, refusal(err)
}

// InState implements console.Source.
func (s consoleSource) InState(ctx context.Context, status string, limit int) ([]console.Analysis, error) {
	found, err := s.analyses.List(ctx, status, limit)
	return viewsOf(found), refusal(err)
}

// Count implements console.Source.
func (s consoleSource) Count(ctx context.Context, statuses []string) (console.Counts, error) {
	counts := console.Counts{}
	for _, status := range append([]string{""}, statuses...) {
		n, err := s.analyses.Count(ctx, status)
		if err != nil {
			return nil, refusal(err)
		}
		counts[status] = n
	}
	return counts, nil
}

// Overdue implements console.Source.
func (s consoleSource) Overdue(ctx context.Context, limit int) ([]console.Analysis, error) {
	found, err := s.analyses.Overdue(ctx, limit)
	return viewsOf(found), refusal(err)
}

// Get implements console.Source.
func (s consoleSource) Get(ctx context.Context, id string, contents bool) (console.Detail, error) {
	read := s.analyses.Summary
	if contents {
		read = s.analyses.Get
	}
	a, err := read(ctx, id)
	if err != nil {
		return console.Detail{}, refusal(err)
	}
	whole := console.Detail{Analysis: viewOf(&a), At: a.ReadAt, Asked: time.Now()}
	whole.Input, err = plainJSON(a.Input)
	if err == nil {
		whole.Result, err = plainJSON(a.Result)
	}
	return whole, err
}

// refusals are Firestore's answers that do not change by waiting.
var refusals = map[codes.Code]string{
	codes.PermissionDenied:   "this account may not read the analyses (PERMISSION_DENIED)",
	codes.Unauthenticated:    "it does not accept these credentials (UNAUTHENTICATED)",
	codes.FailedPrecondition: "an index of deploy/firestore.indexes.json is missing, or is still being built (FAILED_PRECONDITION)",
	codes.InvalidArgument:    "it does not accept the query (INVALID_ARGUMENT)",
	codes.ResourceExhausted:  "a quota is used up (RESOURCE_EXHAUSTED)",
}

// refusal returns err, as a *console.Refusal where waiting does not help.
func refusal(err error) error {
	words, is := refusals[status.Code(err)]
	if err == nil || !is {
		return err
	}
	return &console.Refusal{Text: words, Err: err}
}

func viewsOf(found []analysislock.Analysis) []console.Analysis {
	all := make([]console.Analysis, len(found))
	for i := range found {
		all[i] = viewOf(&found[i])
	}
	return all
}

// viewOf returns what the console shows of a.
func viewOf(a *analysislock.Analysis) console.Analysis {
	return console.Analysis{
		ID: a.ID, Status: a.Status, Attempts: a.Attempts, Error: (*console.Failure)(a.Error), LastError: (*console.Failure)(a.LastError),
		Created: a.CreatedAt, Updated: a.UpdatedAt, Lock: a.Lock, Malformed: malformed(a),
	}
}
