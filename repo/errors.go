package repo

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
)

// ErrExists is Create's error for an id that is taken.
var ErrExists = errors.New("repo: analysis exists")

// storeError classifies the error of a call that cannot conflict with others, such as a read: a missing database
// answers NotFound, and one in Datastore mode FailedPrecondition. Only InvalidArgument is final, and only outside
// a transaction: inside, it is also the answer to a commit that was sent again.
func storeError(verb, what, id string, err error) error {
	if status.Code(err) == codes.InvalidArgument {
		return fmt.Errorf("repo: %s %s %q: %w: %w", verb, what, id, lease.ErrRefused, err)
	}
	return fmt.Errorf("repo: %s %s %q: %w", verb, what, id, err)
}

// writeError classifies the error of a write. Few status codes prove that nothing was
// written. If the reply to a creation or to a commit in a transaction was lost, the client sends
// it again and gets AlreadyExists or FailedPrecondition. So a conflict means that the
// document must be read again.
//
// Aborted is no conflict: another transaction has locked the document, and perhaps not changed
// it. After two conflicts lease.Edit opens a transaction, which locks it too. On Google's emulator
// 40 deliveries whose commits a transaction had aborted blocked each other without end after it.
func writeError(verb, what, id string, err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists:
		return fmt.Errorf("repo: %s %s %q: %w: %w", verb, what, id, lease.ErrConflict, err)
	}
	return storeError(verb, what, id, err)
}

// queryError classifies the error of a query: lease.ErrRefused, for example if an
// index is missing, or lease.ErrUnavailable.
func queryError(verb string, err error) error {
	code := status.Code(err)
	err = fmt.Errorf("repo: %s: %w", verb, err)
	if code == codes.FailedPrecondition || code == codes.InvalidArgument {
		return fmt.Errorf("%w: %w", lease.ErrRefused, err)
	}
	return unavailable(err)
}

// unavailable marks the error of a single call, if any, as lease.ErrUnavailable, unless the
// store has refused the call or the record is malformed.
func unavailable(err error) error {
	if err == nil || errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrMalformed) {
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
}
