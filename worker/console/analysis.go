package console

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"taskguard/lease"
)

// Analysis is what a page shows of one, besides its input and result. All of its
// texts may be anything that a document holds.
type Analysis struct {
	ID, Status       string
	Attempts         int
	Error            *Failure
	LastError        *Failure // of the last attempt that ended for now
	Created, Updated time.Time
	Lock             lease.Lease
	Malformed        string // why Lock says nothing, or nothing can be done by the id
}

// Failure is why an analysis, or an attempt at it, failed.
type Failure struct{ Code, Message string }

// Listing is the newest analyses as they were read.
type Listing struct {
	At    time.Time // the store's time of the reading
	Asked time.Time // the local time that goes with it
	All   []Analysis
}

// Counts are the numbers of all analyses by status; "" is that of all of them.
type Counts map[string]int64

// Whole is one analysis as it was read.
type Whole struct {
	Analysis
	At, Asked time.Time
	// Input and Result are what was asked for; nil: there is none.
	Input, Result json.RawMessage
}

// Refusal is an error of a Source that no waiting ends.
type Refusal struct {
	Words string // that are fixed, for a page
	Err   error
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap answers the Source's own error.
func (r *Refusal) Unwrap() error { return r.Err }

// Source is where the analyses are. Its methods may be called concurrently; their
// errors may be or wrap a *Refusal. All but Get with contents read no input and no
// result.
type Source interface {
	// Newest reads the limit analyses that were updated last.
	Newest(ctx context.Context, limit int) (Listing, error)
	// InState reads up to limit analyses with this status, by id.
	InState(ctx context.Context, status string, limit int) ([]Analysis, error)
	// Count counts all analyses, and those of each of these statuses.
	Count(ctx context.Context, statuses []string) (Counts, error)
	// Overdue reads up to limit unfinished analyses that nobody has updated for
	// longer than a lock's time to live, the longest first.
	Overdue(ctx context.Context, limit int) ([]Analysis, error)
	// Get reads one analysis, with its input and result if contents is set; else
	// Malformed may be set. Errors: lease.ErrNotFound, ErrInvalidKey, ErrMalformed,
	// ErrUnavailable.
	Get(ctx context.Context, id string, contents bool) (Whole, error)
}

// Identity says who sends a request. Its error matches taskauth.ErrUnauthenticated,
// ErrForbidden or ErrNoKeys and holds nothing of the request.
type Identity interface {
	Identify(r *http.Request) (who string, err error)
}

// Everybody is the Identity of who needs no proof: whoever reaches this process,
// as on the loopback interface of an operator's own machine.
type Everybody string

// Identify answers the name that e is.
func (e Everybody) Identify(*http.Request) (string, error) { return string(e), nil }
