package console

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Listing holds a part of the analyses as they were read.
type Listing struct {
	At   time.Time // the store's time of the read
	All  []analysislock.Analysis
	Next string // where the next page begins; empty: there is none

	Stuck int // of Active: how many of All are stuck
}

// Counts has the number of analyses by status; "" has the number of all.
type Counts map[string]int64

// Detail is one analysis as it was read.
type Detail struct {
	analysislock.Analysis
	Input, Result json.RawMessage // instead of Analysis's; nil: absent, or not asked for
}

// Refusal is a permanent error of a Source.
type Refusal struct {
	Text string // a fixed text for the page
	Err  error
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Source reads the analyses, whose texts may be any text that a document contains. Its
// methods may be called concurrently. Their errors may be or wrap a *Refusal. Only Get with
// contents reads an input or a result.
type Source interface {
	// Page reads up to limit analyses that f selects, after where another page's Next is:
	// those that were updated last first, with a Prefix by ID.
	Page(ctx context.Context, f repo.Filter, after string, limit int) (Listing, error)
	// Active reads up to limit analyses whose lock is held, up to limit that wait for their
	// next attempt, and up to limit that are stuck, the oldest update first.
	Active(ctx context.Context, limit int) (Listing, error)
	// Count counts all analyses, and those of each of these statuses.
	Count(ctx context.Context, statuses []string) (Counts, error)
	// Oldest reads the unfinished analysis that was created first, if there is one.
	Oldest(ctx context.Context) ([]analysislock.Analysis, error)
	// Backlog counts what is unfinished, of which so many are known to be stuck, and what was
	// done in the last hours.
	Backlog(ctx context.Context, stuck int) (repo.Backlog, error)
	// Failures counts the FAILED analyses by code, for up to limit codes.
	Failures(ctx context.Context, limit int) ([]repo.Failure, error)
	// Get reads one analysis and its checkpoint, with its input and result if contents is
	// set; else Malformed may be set. Errors: lease.ErrNotFound, ErrInvalidKey, ErrMalformed,
	// ErrUnavailable.
	Get(ctx context.Context, id string, contents bool) (Detail, error)
}

// Identity identifies the sender of a request. Its error contains no text of the request. It
// matches taskauth.ErrNoKeys if the sender cannot be identified now.
type Identity interface {
	Identify(r *http.Request) (who string, err error)
}

// Everybody is an Identity that lets in every caller under one name, for the
// loopback interface of an operator's own machine.
type Everybody string

// Identify returns the name.
func (e Everybody) Identify(*http.Request) (string, error) { return string(e), nil }
