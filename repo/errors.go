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
// again comes back as FailedPrecondition. So a conflict means "read again", and
// only InvalidArgument outside a transaction is final.
func storeError(verb, id string, err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.Aborted, codes.NotFound:
		return fmt.Errorf("repo: %s analysis %q: %w: %w", verb, id, lease.ErrConflict, err)
	case codes.InvalidArgument:
		return fmt.Errorf("repo: %s analysis %q: %w: %w", verb, id, lease.ErrRefused, err)
	}
	return fmt.Errorf("repo: %s analysis %q: %w", verb, id, err)
}

// transactionError is storeError for a transaction, where InvalidArgument is
// also what a commit says that was applied, lost its reply and was sent again.
func transactionError(id string, err error) error {
	if status.Code(err) == codes.InvalidArgument {
		return fmt.Errorf("repo: write analysis %q: %w: %w", id, lease.ErrConflict, err)
	}
	return storeError("write", id, err)
}
