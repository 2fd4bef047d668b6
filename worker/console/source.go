package console

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"taskguard/lease/analysislock"
)

// Listing holds the newest analyses as they were read.
type Listing struct {
	At    time.Time // the store's time of the read
	Asked time.Time // the local time of the request
	All   []analysislock.Analysis
}

// Counts has the number of analyses by status; "" has the number of all.
type Counts map[string]int64

// Detail is one analysis as it was read.
type Detail struct {
	analysislock.Analysis
	At, Asked     time.Time       // as in Listing
	Input, Result json.RawMessage // instead of Analysis's; nil: absent, or not asked for
}

// now estimates the store's time.
func (w *Detail) now() time.Time { return w.At.Add(time.Since(w.Asked)) }

// Refusal is a permanent error of a Source.
type Refusal struct {
	Text string // a fixed text for the page
	Err  error
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the Source's own error.
func (r *Refusal) Unwrap() error { return r.Err }

// Source reads the analyses, whose texts may be any text that a document contains. Its
// methods may be called concurrently; their errors may be or wrap a *Refusal. Only Get with contents reads an input or a result.
type Source interface {
	// Newest reads the limit analyses that were updated last.
	Newest(ctx context.Context, limit int) (Listing, error)
	// InState reads up to limit analyses with this status, by id.
	InState(ctx context.Context, status string, limit int) ([]analysislock.Analysis, error)
	// Count counts all analyses, and those of each of these statuses.
	Count(ctx context.Context, statuses []string) (Counts, error)
	// Overdue reads up to limit unfinished analyses that have not been updated for
	// longer than the TTL of a lock, the oldest update first.
	Overdue(ctx context.Context, limit int) ([]analysislock.Analysis, error)
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
