package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/lease"
)

// Locks is the lock on analyses and what is recorded under it, over any
// store: Analyses is one over Firestore. It is safe for concurrent use.
type Locks struct {
	store  lease.Store[Analysis]
	lessor *lease.Lessor[Analysis]
	// input is the input of an acquired analysis, as JSON.
	input func(ctx context.Context, d Analysis) (json.RawMessage, error)
}

// New refuses a policy that lease.Policy.Check refuses. input reads the input of an
// acquired analysis, as JSON; nil encodes its Input.
func New(store lease.Store[Analysis], p lease.Policy,
	input func(ctx context.Context, d Analysis) (json.RawMessage, error),
) (*Locks, error) {
	lessor, err := lease.NewLessor(store, func(a *Analysis) *lease.Lease { return &a.Lock }, p)
	if err != nil {
		return nil, err
	}
	if input == nil {
		input = func(_ context.Context, d Analysis) (json.RawMessage, error) { return json.Marshal(d.Input) }
	}
	return &Locks{store: store, lessor: lessor, input: input}, nil
}

// TTL is how long a lock lives after its last refresh.
func (l *Locks) TTL() time.Duration { return l.lessor.Policy().TTL }

// AcquireAnalysisLock takes the lock of an analysis for owner, new for each
// delivery, for ttl, zero being the policy's (G1–G7, G9). A finished or locked
// analysis is a skip; so is one whose attempts are exhausted, which is FAILED
// in the same commit. Acquisition writes PROCESSING over no status and QUEUED, and
// leaves any other word. Two round trips, one to skip, none where this very process
// holds it. Errors: lease.ErrNotFound, lease.ErrMalformed, lease.ErrUnavailable after
// at most 20 s.
func (l *Locks) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (Acquisition, error) {
	if err := CheckID(id); err != nil {
		return Acquisition{}, err
	}
	lessor, err := l.lessor.WithTTL(ttl)
	if err != nil {
		return Acquisition{}, err
	}
	hold, doc, err := lessor.Acquire(ctx, id, owner, taken)
	skip := Acquisition{Status: doc.Status, Attempt: doc.Lock.Attempts}
	var held *lease.HeldError
	switch {
	case err == nil:
		return Acquisition{
			Acquired: true, Status: doc.Status, Grant: doc.Lock.Grant(), Attempt: doc.Lock.Attempts,
			Last: lessor.Policy().Last(doc.Lock), Stolen: hold.Stolen(), ExpiresAt: doc.Lock.ExpiresAt,
		}, nil
	case errors.Is(err, lease.ErrFinished):
		skip.Reason = AlreadyFinished
	case errors.As(err, &held):
		skip.Reason, skip.ExpiresAt, skip.Remaining = Locked, held.ExpiresAt, held.Remaining
		skip.Grant, skip.Own = lease.Grant{Owner: held.Owner, Token: held.Token}, held.Own
	case errors.Is(err, lease.ErrExhausted):
		skip.Reason, skip.Grant = AttemptsExhausted, lease.Grant{Owner: owner, Token: doc.Lock.Token}
	default:
		return Acquisition{}, err
	}
	return skip, nil
}

// PeekAnalysisLock reads who holds the lock of an analysis, and until when:
// Reason is Locked, or empty where nobody does. One round trip.
func (l *Locks) PeekAnalysisLock(ctx context.Context, id string) (Acquisition, error) {
	if err := CheckID(id); err != nil {
		return Acquisition{}, err
	}
	c, err := l.store.Load(ctx, id)
	switch {
	case err != nil:
		return Acquisition{}, outOfReach(err)
	case !c.Exists:
		return Acquisition{}, lease.ErrNotFound
	}
	lock := c.Doc.Lock
	seen := Acquisition{Status: c.Doc.Status, Attempt: lock.Attempts}
	if !lock.Finished && !lease.Abandoned(lock, c.At) {
		seen.Reason, seen.Grant, seen.ExpiresAt, seen.Remaining = Locked, lock.Grant(), lock.ExpiresAt, lock.ExpiresAt.Sub(c.At)
	}
	return seen, nil
}

// taken sets an analysis's own fields in the commit of its acquisition, or of
// the refusal of one attempt too many.
func taken(d *Analysis) {
	if d.Lock.Finished {
		last := "no attempt lived to tell why"
		if d.LastError != nil {
			last = "last error: " + d.LastError.Message
		}
		message := fmt.Sprintf("gave up after %d attempts; %s", d.Lock.Attempts, last)
		d.Status, d.Error, d.LastError = Failed, &Error{Code: AttemptsExhausted, Message: bounded(message)}, nil
		return
	}
	if d.Status == "" || d.Status == Queued { // another word is its author's
		d.Status = Processing
	}
}

// HoldAnalysisLock runs body with the analysis's input while it refreshes the
// lock; see lease.Hold.Run. owner must have acquired it here. lease.ErrUnavailable:
// the input could not be read, and body did not run. Each of renewed is
// told of each refresh.
func (l *Locks) HoldAnalysisLock(ctx context.Context, id, owner string, body func(ctx context.Context, input json.RawMessage) error, renewed ...lease.Renewed) error {
	h, err := l.resume(ctx, id, owner)
	if err != nil {
		return err
	}
	return h.Run(ctx, func(ctx context.Context, d Analysis, _ lease.Grant) error {
		input, err := l.input(ctx, d)
		if err != nil {
			return err
		}
		return body(ctx, input)
	}, renewed...)
}

// RefreshAnalysisLock moves the expiry of owner's lock to ttl from now, zero
// being the policy's (G6, G7). It revives an expired lock that nobody took,
// and answers lease.ErrLost for any other owner. HoldAnalysisLock does this by
// itself.
func (l *Locks) RefreshAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) error {
	h, err := l.resume(ctx, id, owner)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	return h.Renew(ctx, ttl)
}

// refreshTimeout bounds a refresh outside HoldAnalysisLock.
const refreshTimeout = 15 * time.Second

// ReleaseAnalysisLock clears owner's lock and puts PROCESSING back to QUEUED;
// refund takes back the attempt. For another owner, or a missing analysis, it
// changes nothing and is silent (G8).
func (l *Locks) ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error {
	return l.release(ctx, id, owner, requeue, refund)
}

// Retry is the release after a failure for now, which is kept in the document
// for people, and for the day when no attempt is left. The message is made
// valid UTF-8 and cut after 4,096 bytes; a document that is too full for it is
// released without.
func (l *Locks) Retry(ctx context.Context, id, owner, code, message string) error {
	err := l.release(ctx, id, owner, func(d *Analysis) {
		requeue(d)
		d.LastError = &Error{Code: code, Message: bounded(message)}
	}, false)
	if errors.Is(err, lease.ErrRefused) {
		return l.ReleaseAnalysisLock(ctx, id, owner, false)
	}
	return err
}

// release is silent where there is nothing of owner's to release.
func (l *Locks) release(ctx context.Context, id, owner string, set func(*Analysis), refund bool) error {
	h, err := l.resume(context.WithoutCancel(ctx), id, owner)
	switch {
	case errors.Is(err, lease.ErrNotFound), errors.Is(err, lease.ErrLost):
		return nil
	case err != nil:
		return err
	}
	return h.Release(ctx, set, refund)
}

func requeue(d *Analysis) {
	if d.Status == Processing {
		d.Status = Queued
	}
}

// Complete makes the analysis READY with result, a value as orchestrator.Run
// returns it, and frees the lock in the same commit, which holds only while
// owner has it: else lease.ErrLost. lease.ErrRefused: Firestore cannot hold the
// result; the lock is kept.
func (l *Locks) Complete(ctx context.Context, id, owner string, result any) error {
	return l.finish(ctx, id, owner, func(d *Analysis) {
		d.Status, d.Result, d.Error, d.LastError = Ready, result, nil, nil
	})
}

// maxMessage bounds an error's message, in bytes: it must fit beside the input.
const maxMessage = 4096

// Fail makes the analysis FAILED for good, as Complete does READY. The message
// is made valid UTF-8 and cut after 4,096 bytes.
func (l *Locks) Fail(ctx context.Context, id, owner, code, message string) error {
	return l.finish(ctx, id, owner, func(d *Analysis) {
		d.Status, d.Error, d.LastError = Failed, &Error{Code: code, Message: bounded(message)}, nil
	})
}

func bounded(message string) string {
	return strings.ToValidUTF8(message[:min(maxMessage, len(message))], "")
}

func (l *Locks) finish(ctx context.Context, id, owner string, set func(*Analysis)) error {
	h, err := l.resume(context.WithoutCancel(ctx), id, owner)
	if err != nil {
		return err
	}
	return h.Finish(ctx, set)
}

// outOfReach marks the error of a single call as lease.ErrUnavailable unless the store
// has refused it.
func outOfReach(err error) error {
	if errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrMalformed) {
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
}

func (l *Locks) resume(ctx context.Context, id, owner string) (*lease.Hold[Analysis], error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	return l.lessor.Resume(ctx, id, owner)
}
