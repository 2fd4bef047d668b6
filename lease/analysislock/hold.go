package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"taskguard/lease"
)

// Hold is one acquisition of an analysis's lock. Its methods are called one after
// another, by one goroutine: Run, then Complete, Fail, Retry or Release, which end it.
type Hold struct {
	lease *lease.Hold[Analysis]
	input func(ctx context.Context, d Analysis) (json.RawMessage, error)
}

// Run runs body with the analysis's input while it refreshes the lock; see
// lease.Hold.Run. lease.ErrUnavailable: the input could not be read, and body did not
// run. Run calls each function of renewed after each refresh.
func (h *Hold) Run(ctx context.Context, body func(ctx context.Context, input json.RawMessage) error, renewed ...lease.Renewed) error {
	return h.lease.Run(ctx, func(ctx context.Context, d Analysis, _ lease.Grant) error {
		input, err := h.input(ctx, d)
		if err != nil {
			return err
		}
		return body(ctx, input)
	}, renewed...)
}

// Refresh moves the lock's expiry to ttl from now (G6, G7). A zero ttl means the Policy's. It
// revives an expired lock that no other owner has taken. If the lock is lost, it returns
// lease.ErrLost. It tries for up to 15 s. Run refreshes the lock by itself.
func (h *Hold) Refresh(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return h.lease.Renew(ctx, ttl)
}

// Complete makes the analysis READY with result, a value as orchestrator.Run returns
// it, and frees the lock in the same commit. If the lock is no longer held, it changes
// nothing and returns lease.ErrLost. lease.ErrRefused: the store cannot hold the result; the
// lock is kept. It tries for up to 60 s, also when ctx has ended.
func (h *Hold) Complete(ctx context.Context, result any) error {
	return h.lease.Finish(ctx, func(d *Analysis) {
		d.Status, d.Result, d.Error, d.LastError = Ready, result, nil, nil
	})
}

// Fail makes the analysis FAILED, in the same way as Complete makes it READY. The message is
// made valid UTF-8 and cut after 4,096 bytes.
func (h *Hold) Fail(ctx context.Context, code, message string) error {
	return h.lease.Finish(ctx, func(d *Analysis) { d.fail(code, message) })
}

// Retry releases the lock after a temporary failure, which it records as LastError.
// The message is made valid UTF-8 and cut after 4,096 bytes; if the document
// has no room for it, Retry releases the lock without it.
func (h *Hold) Retry(ctx context.Context, code, message string) error {
	err := h.lease.Release(ctx, func(d *Analysis) {
		d.queue()
		d.LastError = &Error{Code: code, Message: bounded(message)}
	}, false)
	if errors.Is(err, lease.ErrRefused) {
		return h.Release(ctx, false)
	}
	return err
}

// Release clears the lock if it is still held, and changes PROCESSING back to QUEUED;
// refund subtracts the attempt. Otherwise it changes nothing and returns nil (G8). It
// tries for 2 s, or until the deadline of ctx if that is later, also when ctx has been
// cancelled.
func (h *Hold) Release(ctx context.Context, refund bool) error {
	return h.lease.Release(ctx, (*Analysis).queue, refund)
}
