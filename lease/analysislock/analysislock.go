package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

// Locks are the locks on a store's analyses. They are safe for concurrent use. Every
// method returns lease.ErrInvalidKey for an id that no analysis can have.
type Locks struct {
	store  lease.Store[Analysis]
	lessor *lease.Lessor[Analysis]
	maxRun time.Duration
	work   func(ctx context.Context, d Analysis) (Work, error)
}

// New returns the error of lease.Policy.Check, if any. work reads the work of an acquired
// analysis; nil encodes its Input and Checkpoint. An analysis that is acquired later than
// maxRun after its first acquisition becomes FAILED instead; zero: none does.
func New(store lease.Store[Analysis], p lease.Policy, maxRun time.Duration,
	work func(ctx context.Context, d Analysis) (Work, error),
) (*Locks, error) {
	lessor, err := lease.NewLessor(store, func(a *Analysis) *lease.Lease { return &a.Lock }, p)
	if err != nil {
		return nil, err
	}
	if work == nil {
		work = encodeWork
	}
	return &Locks{store: store, lessor: lessor, maxRun: maxRun, work: work}, nil
}

func encodeWork(_ context.Context, d Analysis) (w Work, err error) {
	if w.Input, err = json.Marshal(d.Input); err == nil && d.Checkpoint != nil && d.Checkpoint.Value != nil {
		w.Checkpoint, err = json.Marshal(d.Checkpoint.Value)
	}
	return w, err
}

// TTL returns how long a lock lives after its last refresh.
func (l *Locks) TTL() time.Duration { return l.lessor.Policy().TTL }

// Acquisition is the result of an attempt to acquire a lock. If it was not
// Acquired, that is a skip, not an error (G6, G9).
type Acquisition struct {
	Acquired  bool
	Hold      *Hold         // if acquired
	Reason    string        // if not: AlreadyFinished, Locked, Waiting, AttemptsExhausted, RunTimeExhausted or Unrecordable
	Status    string        // of the analysis
	Grant     lease.Grant   // of this lock, or of the other's
	Attempt   int           // number of this acquisition
	First     bool          // there was no acquisition before, also none before a requeue
	Last      bool          // no further attempt is left
	Stolen    bool          // the lock was another owner's, and had expired
	ExpiresAt time.Time     // by the store's clock: of this lock, or of the other's; or NextAttemptAt, if Waiting
	Remaining time.Duration // from the store's time of the reading until ExpiresAt
	RunTime   time.Duration // left until maxRun of New; 0: not limited
}

// The reasons for a skip.
const (
	AlreadyFinished   = "already_finished"
	Locked            = "locked"
	Waiting           = "waiting"            // for NextAttemptAt
	AttemptsExhausted = "attempts_exhausted" // the call has recorded this: the analysis is FAILED
	RunTimeExhausted  = "run_time_exhausted" // likewise
)

// AcquireAnalysisLock acquires the lock on analysis id (G1–G7, G9). owner must be new
// for each delivery. A zero ttl means the Policy's. A finished or locked analysis is a
// skip; so is one whose attempts are exhausted, which becomes FAILED in the same commit, and
// one whose document has no room for the acquisition, which becomes FAILED in another commit.
// An acquisition changes QUEUED, or a missing status, to PROCESSING and keeps any other.
// It takes two round trips, and a skip takes one. Errors: lease.ErrNotFound,
// lease.ErrMalformed, lease.ErrUnavailable after at most 20 s; lease.ErrRefused if the document
// has no room for FAILED either.
func (l *Locks) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (Acquisition, error) {
	return l.Acquire(ctx, id, owner, ttl, nil)
}

// Acquire is like AcquireAnalysisLock, but an analysis that waits for its NextAttemptAt is
// a skip, unless early returns true for it. A nil early always does.
func (l *Locks) Acquire(ctx context.Context, id, owner string, ttl time.Duration, early func(d Analysis) bool) (Acquisition, error) {
	if err := CheckID(id); err != nil {
		return Acquisition{}, err
	}
	lessor, err := l.lessor.WithTTL(ttl)
	if err != nil {
		return Acquisition{}, err
	}
	permit := func(d Analysis) error {
		if early == nil || !d.Waits() || early(d) {
			return nil
		}
		return errWaiting
	}
	hold, doc, err := lessor.AcquireIf(ctx, id, owner, permit, l.acquired)
	if errors.Is(err, lease.ErrRefused) { // FAILED is final: ask twice
		if hold, doc, err = lessor.AcquireIf(ctx, id, owner, permit, l.acquired); errors.Is(err, lease.ErrRefused) {
			err = l.failFull(ctx, &doc)
		}
	}
	got := Acquisition{Status: doc.Status, Attempt: doc.Lock.Attempts}
	var held *lease.HeldError
	switch {
	case err == nil:
		got.Acquired, got.Hold = true, &Hold{lease: hold, work: l.work}
		got.Grant, got.ExpiresAt = doc.Lock.Grant(), doc.Lock.ExpiresAt
		got.First = doc.Lock.Attempts == 1 && len(doc.History) == 1
		got.Last, got.Stolen = lessor.Policy().Last(doc.Lock), hold.Stolen()
		if l.maxRun > 0 {
			got.RunTime = max(1, l.maxRun-doc.Lock.HeartbeatAt.Sub(doc.StartedAt))
		}
	case errors.Is(err, lease.ErrFinished):
		got.Reason = AlreadyFinished
	case errors.As(err, &held):
		got.Reason, got.ExpiresAt, got.Remaining = Locked, held.ExpiresAt, held.Remaining
		got.Grant = lease.Grant{Owner: held.Owner, Token: held.Token}
	case errors.Is(err, errWaiting):
		got.Reason, got.Grant = Waiting, doc.Lock.Grant()
		got.ExpiresAt, got.Remaining = doc.NextAttemptAt, doc.NextAttemptAt.Sub(doc.ReadAt)
	case errors.Is(err, lease.ErrExhausted):
		got.Reason = AttemptsExhausted
		if doc.Error != nil && doc.Error.Code == RunTimeExhausted {
			got.Reason = RunTimeExhausted
		}
		got.Grant = lease.Grant{Owner: owner, Token: doc.Lock.Token}
	case errors.Is(err, ErrUnrecordable):
		got.Reason, got.Status = Unrecordable, Failed
	default:
		return Acquisition{}, err
	}
	return got, nil
}

// acquired sets an analysis's own fields in the commit that acquires its lock, or that
// records that no attempt is left.
func (l *Locks) acquired(d *Analysis) {
	d.NextAttemptAt = time.Time{}
	if d.StartedAt.IsZero() {
		d.StartedAt = d.ReadAt.Truncate(time.Millisecond)
	}
	if l.maxRun > 0 && !d.Lock.Finished && d.ReadAt.Sub(d.StartedAt) >= l.maxRun {
		d.Lock, _ = lease.Finish(d.Lock, d.Lock.Grant()) // it has just been acquired
		d.fail(RunTimeExhausted, fmt.Sprintf("gave up %v after the first attempt began", l.maxRun))
		return
	}
	if d.Lock.Finished {
		last := "no attempt reported a cause"
		if d.LastError != nil {
			last = "last error: " + d.LastError.Message
		}
		d.fail(AttemptsExhausted, fmt.Sprintf("gave up after %d attempts; %s", d.Lock.Attempts, last))
		return
	}
	if d.Status == "" || d.Status == Queued { // any other may have been set by another program
		d.Status = Processing
	}
	d.begin(d.ReadAt)
}

// RefreshAnalysisLock reads the analysis, and calls Hold.Refresh for the lock that owner
// acquired, perhaps in another process.
func (l *Locks) RefreshAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) error {
	h, err := l.resume(ctx, id, owner)
	if err != nil {
		return err
	}
	return h.Refresh(ctx, ttl)
}

// ReleaseAnalysisLock reads the analysis, and calls Hold.Release for the lock that owner
// acquired, perhaps in another process. For another owner, or a missing analysis, it
// changes nothing and returns nil (G8).
func (l *Locks) ReleaseAnalysisLock(ctx context.Context, id, owner string) error {
	h, err := l.resume(context.WithoutCancel(ctx), id, owner)
	switch {
	case errors.Is(err, lease.ErrNotFound), errors.Is(err, lease.ErrLost):
		return nil
	case err != nil:
		return err
	}
	return h.Release(ctx, OutcomeRetry, false)
}

func (l *Locks) resume(ctx context.Context, id, owner string) (*Hold, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	h, err := l.lessor.Resume(ctx, id, owner)
	return &Hold{lease: h, work: l.work}, err
}
