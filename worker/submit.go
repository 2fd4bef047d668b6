package worker

import (
	"context"
	"fmt"

	"taskguard/internal/delivery"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Submission is the result of Submit.
type Submission = delivery.Submission

// Errors of Submit.
var (
	// ErrOtherInput reports that a document with this id exists with another input.
	ErrOtherInput = delivery.ErrOtherInput
	// ErrNotBooked reports that the document exists, but its delivery is not booked. Call
	// Submit again; otherwise recovery books it.
	ErrNotBooked = delivery.ErrNotBooked
)

// Submit creates a document of a kind, and books its delivery in the Guard's Queue. id is the
// document's id, and encoding/json must be able to encode input. Submit is idempotent: if the
// id is derived from a request, a repeated request changes nothing. A document that exists keeps
// its state; if it has another input, Submit returns ErrOtherInput. Without a Queue no delivery
// is booked.
//
// Other errors: lease.ErrInvalidKey for an id that Firestore cannot hold; lease.ErrRefused or
// an *orchestrator.PermanentError for an input that it cannot hold; lease.ErrUnavailable,
// after which the document may exist; ErrNotBooked; ErrStopping after Shutdown.
func Submit(ctx context.Context, g *Guard, k Kind, id string, input any) (s Submission, err error) {
	defer g.server.Track()()
	if g.work.Err() != nil {
		return s, ErrStopping
	}
	kind, err := g.register(k)
	if err != nil {
		return s, err
	}
	value, err := orchestrator.Storable(input)
	if err == nil {
		s, err = kind.guard.Submit(ctx, kind.analyses, repo.ErrExists, id, value)
	}
	if err != nil {
		err = fmt.Errorf("worker: submit %q: %w", id, err)
	}
	return s, err
}
