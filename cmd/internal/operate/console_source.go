package operate

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// consoleSource reads the analyses for the console.
type consoleSource struct{ *Client }

var _ console.Source = consoleSource{}

// Page implements console.Source.
func (s consoleSource) Page(ctx context.Context, f repo.Filter, after string, limit int) (console.Listing, error) {
	found, next, at, err := s.Analyses.Page(ctx, f, after, limit)
	return console.Listing{At: at, All: found, Next: next}, refusal(err)
}

// Active implements console.Source.
func (s consoleSource) Active(ctx context.Context, limit int) (console.Listing, error) {
	running, waiting, stuck, at, err := s.Analyses.Active(ctx, limit)
	return console.Listing{At: at, All: slices.Concat(running, waiting, stuck), Stuck: len(stuck)}, refusal(err)
}

// Count implements console.Source.
func (s consoleSource) Count(ctx context.Context, statuses []string) (console.Counts, error) {
	counts := console.Counts{}
	for _, status := range append([]string{""}, statuses...) {
		n, err := s.Analyses.Count(ctx, repo.Filter{Status: status})
		if err != nil {
			return nil, refusal(err)
		}
		counts[status] = n
	}
	return counts, nil
}

// Oldest implements console.Source.
func (s consoleSource) Oldest(ctx context.Context) ([]analysislock.Analysis, error) {
	oldest, found, err := s.Analyses.OldestUnfinished(ctx)
	if err != nil || !found {
		return nil, refusal(err)
	}
	return []analysislock.Analysis{oldest}, nil
}

// Backlog implements console.Source.
func (s consoleSource) Backlog(ctx context.Context, stuck int) (repo.Backlog, error) {
	b, err := s.Analyses.Backlog(ctx, stuck)
	return b, refusal(err)
}

// Failures implements console.Source.
func (s consoleSource) Failures(ctx context.Context, limit int) ([]repo.Failure, error) {
	all, err := s.Analyses.Failures(ctx, limit)
	return all, refusal(err)
}

// Get implements console.Source.
func (s consoleSource) Get(ctx context.Context, id string, contents bool) (console.Detail, error) {
	read := s.Analyses.Summary
	if contents {
		read = s.Analyses.Get
	}
	a, err := read(ctx, id)
	if err != nil {
		return console.Detail{}, refusal(err)
	}
	whole := console.Detail{Analysis: a}
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
	codes.FailedPrecondition: missingIndex + " (FAILED_PRECONDITION)",
	codes.InvalidArgument:    "it does not accept the query (INVALID_ARGUMENT)",
	codes.ResourceExhausted:  "a quota is used up (RESOURCE_EXHAUSTED)",
}

// refusal returns err, as a *console.Refusal where waiting does not help.
func refusal(err error) error {
	if text := refusals[status.Code(err)]; text != "" {
		return &console.Refusal{Text: text, Err: err}
	}
	return err
}
