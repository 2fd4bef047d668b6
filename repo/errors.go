package repo

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
)

// ErrExists is Create's answer for an id that is taken.
var ErrExists = errors.New("repo: analysis exists")

// storeError says what a failed call may mean. Hardly any code proves that
// nothing was written: a commit whose reply was lost and which the client sent
// again comes back as FailedPrecondition, a creation as AlreadyExists. So a conflict means "read again", and
// only InvalidArgument is final, and that outside a transaction: inside, it is also the
// answer to a commit whose reply was lost and which the client sent again.
func storeError(verb, what, id string, err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.Aborted, codes.NotFound, codes.AlreadyExists:
		return fmt.Errorf("repo: %s %s %q: %w: %w", verb, what, id, lease.ErrConflict, err)
	case codes.InvalidArgument:
		return fmt.Errorf("repo: %s %s %q: %w: %w", verb, what, id, lease.ErrRefused, err)
	}
	return fmt.Errorf("repo: %s %s %q: %w", verb, what, id, err)
}

// queryError says what a failed query may mean: a refusal for want of an index,
// in Firestore's words, or out of reach.
func queryError(verb string, err error) error {
	code := status.Code(err)
	err = fmt.Errorf("repo: %s: %w", verb, err)
	if code == codes.FailedPrecondition || code == codes.InvalidArgument {
		return fmt.Errorf("%w: %w", lease.ErrRefused, err)
	}
	return outOfReach(err)
}

// outOfReach marks the error of a single call as lease.ErrUnavailable unless
// the store has refused it.
func outOfReach(err error) error {
	if errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrMalformed) {
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
}
