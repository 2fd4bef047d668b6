package console

import (
	"context"
	"net/http"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Source reads the analyses of a kind, as *repo.Analyses does. Only Get reads an input or a result.
type Source interface {
	Page(ctx context.Context, f repo.Filter, after string, limit int) (
		found []analysislock.Analysis, next string, at time.Time, err error)
	Active(ctx context.Context, limit int) (running, waiting, stuck []analysislock.Analysis, at time.Time, err error)
	Now(ctx context.Context) (time.Time, error)
	Count(ctx context.Context, f repo.Filter) (int64, error)
	OldestUnfinished(ctx context.Context) (oldest analysislock.Analysis, found bool, err error)
	Backlog(ctx context.Context, stuck int) (repo.Backlog, error)
	Failures(ctx context.Context, limit int) ([]repo.Failure, error)
	Uncertain(ctx context.Context, limit int) ([]analysislock.Analysis, error)
	Summary(ctx context.Context, id string) (analysislock.Analysis, error)
	Get(ctx context.Context, id string) (analysislock.Analysis, error)
}

// Identity identifies the sender of a request. Its error contains no text of the request. It
// matches taskauth.ErrNoKeys if the sender cannot be identified now.
type Identity interface {
	Identify(r *http.Request) (who string, err error)
}
