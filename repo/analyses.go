package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"

	"taskguard/lease"
)

// Options of Open. The zero value is the contract's default.
type Options struct {
	Database   string // "" is (default)
	Collection string // "" is analyses
	Policy     lease.Policy
	Log        *slog.Logger // nil: silent
}

// Analyses are the analyses of one collection: all that others know of
// Firestore. It is safe for concurrent use. Every method checks the id first
// (lease.ErrInvalidKey), bounds its own time, and answers lease.ErrUnavailable
// where Firestore cannot be reached.
type Analyses struct {
	store  *documents
	lessor *lease.Lessor[Analysis]
}

// Open connects to Firestore, or to the emulator that FIRESTORE_EMULATOR_HOST
// names, without a call yet. Close ends it.
func Open(ctx context.Context, project string, o Options, opts ...option.ClientOption) (*Analyses, error) {
	if o.Database == "" {
		o.Database = firestore.DefaultDatabaseID
	}
	if o.Collection == "" {
		o.Collection = "analyses"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	client, err := firestore.NewClientWithDatabase(ctx, project, o.Database, opts...)
	if err != nil {
		return nil, fmt.Errorf("repo: open database %s of project %s: %w", o.Database, project, err)
	}
	a, err := newAnalyses(client, o)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return a, nil
}

func newAnalyses(client *firestore.Client, o Options) (*Analyses, error) {
	if err := CheckCollection(o.Collection); err != nil {
		return nil, fmt.Errorf("repo: %w", err)
	}
	store := &documents{client: client, collection: client.Collection(o.Collection), codec: codec{policy: o.Policy, log: o.Log}}
	lessor, err := lease.NewLessor[Analysis](store, func(a *Analysis) *lease.Lease { return &a.Lock }, o.Policy)
	if err != nil {
		return nil, err
	}
	return &Analyses{store: store, lessor: lessor}, nil
}

// Close ends the connection.
func (a *Analyses) Close() error { return a.store.client.Close() }

// AcquireAnalysisLock takes the lock of an analysis for owner, new for each
// delivery, for ttl, zero being the policy's (G1–G7, G9). A finished or locked
// analysis is a skip; so is one whose attempts are exhausted, which is FAILED
// in the same commit. Acquisition writes PROCESSING. Two round trips, one to
// skip, none where this very process holds it. Errors: lease.ErrNotFound,
// lease.ErrMalformed, lease.ErrUnavailable after at most 20 s.
func (a *Analyses) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (lease.Acquisition, error) {
	if err := CheckID(id); err != nil {
		return lease.Acquisition{}, err
	}
	lessor, err := a.lessor.WithTTL(ttl)
	if err != nil {
		return lease.Acquisition{}, err
	}
	_, doc, err := lessor.Acquire(ctx, id, owner, taken)
	skip := lease.Acquisition{Status: doc.Status, Attempt: doc.Lock.Attempts}
	var held *lease.HeldError
	switch {
	case err == nil:
		return lease.Acquisition{Acquired: true, Status: doc.Status, Grant: doc.Lock.Grant(), Attempt: doc.Lock.Attempts, Last: lessor.Policy().Last(doc.Lock), ExpiresAt: doc.Lock.ExpiresAt}, nil
	case errors.Is(err, lease.ErrFinished):
		skip.Reason = lease.AlreadyFinished
	case errors.As(err, &held):
		skip.Reason, skip.ExpiresAt, skip.Remaining = lease.Locked, held.ExpiresAt, held.Remaining
		skip.Grant = lease.Grant{Owner: held.Owner, Token: held.Token}
	case errors.Is(err, lease.ErrExhausted):
		skip.Reason = lease.AttemptsExhausted
	default:
		return lease.Acquisition{}, err
	}
	return skip, nil
}

// taken sets an analysis's own fields in the commit of its acquisition, or of
// the refusal of one attempt too many.
func taken(d *Analysis) {
	if d.Lock.Finished {
		d.Status = Failed
		d.Error = &Error{Code: lease.AttemptsExhausted, Message: fmt.Sprintf("gave up after %d attempts", d.Lock.Attempts)}
		return
	}
	d.Status = Processing
}

// HoldAnalysisLock runs body with the analysis's input while it refreshes the
// lock; see lease.Hold.Run. owner must have acquired it here.
func (a *Analyses) HoldAnalysisLock(ctx context.Context, id, owner string, body func(ctx context.Context, input json.RawMessage) error) error {
	h, err := a.resume(ctx, id, owner)
	if err != nil {
		return err
	}
	return h.Run(ctx, func(ctx context.Context, d Analysis, _ lease.Grant) error {
		input, err := Plain(d.Input)
		if err != nil {
			return err
		}
		return body(ctx, input)
	})
}

// RefreshAnalysisLock moves the expiry of owner's lock to ttl from now, zero
// being the policy's (G6, G7). It revives an expired lock that nobody took,
// and answers lease.ErrLost for any other owner. HoldAnalysisLock does this by
// itself.
func (a *Analyses) RefreshAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) error {
	h, err := a.resume(ctx, id, owner)
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
func (a *Analyses) ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error {
	h, err := a.resume(context.WithoutCancel(ctx), id, owner)
	switch {
	case errors.Is(err, lease.ErrNotFound), errors.Is(err, lease.ErrLost):
		return nil
	case err != nil:
		return err
	}
	return h.Release(ctx, requeue, refund)
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
func (a *Analyses) Complete(ctx context.Context, id, owner string, result any) error {
	return a.finish(ctx, id, owner, func(d *Analysis) {
		d.Status, d.Result, d.Error = Ready, result, nil
	})
}

// maxMessage bounds an error's message, in bytes: it must fit beside the input.
const maxMessage = 4096

// Fail makes the analysis FAILED for good, as Complete does READY. The message
// is made valid UTF-8 and cut after 4,096 bytes.
func (a *Analyses) Fail(ctx context.Context, id, owner, code, message string) error {
	message = strings.ToValidUTF8(message[:min(maxMessage, len(message))], "")
	return a.finish(ctx, id, owner, func(d *Analysis) {
		d.Status, d.Error = Failed, &Error{Code: code, Message: message}
	})
}

func (a *Analyses) finish(ctx context.Context, id, owner string, set func(*Analysis)) error {
	h, err := a.resume(context.WithoutCancel(ctx), id, owner)
	if err != nil {
		return err
	}
	return h.Finish(ctx, set)
}

func (a *Analyses) resume(ctx context.Context, id, owner string) (*lease.Hold[Analysis], error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	return a.lessor.Resume(ctx, id, owner)
}
