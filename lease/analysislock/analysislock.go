package analysislock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

// Hold is one acquisition of an analysis's lock.
type Hold = lease.Hold[Analysis]

// Locks gives access to the locks on a store's analyses. It is safe for concurrent use. Every
// method returns lease.ErrInvalidKey for an id that no analysis can have.
type Locks struct {
	// Keys limits how many analyses of one Key run at a time; nil: there is no limit. Set it before the
	// first acquisition.
	Keys *Keys

	store   lease.Store[Analysis]
	records *lease.Records[Analysis]
	maxRun  time.Duration
	work    func(ctx context.Context, c lease.Cell[Analysis]) (Work, error)
}

// New returns the error of lease.Policy.Check, if any. An analysis that is acquired maxRun
// after its first acquisition, or later, becomes FAILED instead; zero: none does. work reads
// the work of an acquired analysis; nil encodes its Input and Checkpoint.
func New(store lease.Store[Analysis], p lease.Policy, maxRun time.Duration,
	work func(ctx context.Context, c lease.Cell[Analysis]) (Work, error),
) (*Locks, error) {
	records, err := lease.NewRecords(store, func(a *Analysis) *lease.Lease { return &a.Lock }, p)
	if err != nil {
		return nil, err
	}
	records.Shed = shed
	if work == nil {
		work = encodeWork
	}
	return &Locks{store: store, records: records, maxRun: maxRun, work: work}, nil
}

// Work is the Input of an attempt and the Checkpoint from which it continues, as JSON.
type Work struct {
	Input      json.RawMessage
	Checkpoint json.RawMessage // the newest that was committed; nil: none
	Acts       Acts            // the marked acts; nil: none
}

// Work returns the work of the analysis that h holds. lease.ErrUnavailable: it cannot be read.
func (l *Locks) Work(ctx context.Context, h *Hold) (Work, error) { return l.work(ctx, h.Cell()) }

func encodeWork(_ context.Context, c lease.Cell[Analysis]) (w Work, err error) {
	d := c.Doc
	w.Acts = d.Acts
	if w.Input, err = json.Marshal(d.Input); err == nil && d.Checkpoint != nil && d.Checkpoint.Value != nil {
		w.Checkpoint, err = json.Marshal(d.Checkpoint.Value)
	}
	return w, err
}

// TTL returns how long a lock lives after its last refresh.
func (l *Locks) TTL() time.Duration { return l.records.Policy().TTL }

// Acquisition is the result of an attempt to acquire a lock. If the lock was not acquired,
// that is a skip, not an error. (SEEDS G6, G9)
type Acquisition struct {
	Acquired  bool          // else it is a skip
	Hold      *Hold         // if acquired
	Reason    string        // if not: AlreadyFinished and so on, or Unrecordable
	Status    string        // of the analysis
	Grant     lease.Grant   // of this lock, or of the other's
	Attempt   int           // number of this acquisition
	First     bool          // there was no acquisition before, also none before a requeue
	Last      bool          // no further attempt is left
	Stolen    bool          // the lock was another owner's, and had expired
	ExpiresAt time.Time     // of this lock, or of the other's, by the store's clock; if Waiting: NextAttemptAt
	Remaining time.Duration // from the store's time of the reading until ExpiresAt
	RunTime   time.Duration // left until maxRun of New; 0: not limited
	Uncertain int           // if the call has recorded FAILED: the acts that have started and are not done
	MustRun   bool          // if Suspect: it was delayed so often that it must run now, alone or not
	Message   string        // if Crashed: of the error that the call has recorded
	Key       string        // of the analysis
	Unparked  bool          // if acquired: it was parked until now
	// Slot is the slot of the Key that the call has taken, also if it has not acquired the lock afterwards.
	// The caller must Leave it after the lock.
	Slot *Slot
	// Parked reports, if KeyBusy, that the analysis is parked: it needs no delivery before a slot is free.
	Parked bool
	// Next are the parked analyses, if KeyBusy, that come before this one and for which a slot is free.
	Next []Analysis

	suspect *Analysis // if Suspect: as it was read
}

// AcquireOptions configures an acquisition. The zero value decides by the lock alone.
type AcquireOptions struct {
	// Early makes an analysis that waits for its NextAttemptAt a skip, unless Early returns true for it.
	Early func(d Analysis) bool
	// SkipSuspects makes an analysis whose last two attempts crashed a skip, with the reason Suspect: it
	// may be what killed its worker, and the work beside it. Alone records that the worker runs nothing else.
	SkipSuspects, Alone bool
	// Want with lease.LeaseAndWork also reads the work of the attempt, if it is small. That saves a
	// reading where the lock is acquired, and costs bytes where the call is a skip.
	Want lease.Want
}

// AcquireAnalysisLock acquires the lock on analysis id. owner must be new for each delivery.
// A zero ttl is the Policy's. An acquisition changes QUEUED, or a missing status, to PROCESSING
// and keeps any other.
//
// A finished or locked analysis is a skip. So is one whose attempts or run time are exhausted, or that has
// crashed too often while it ran alone: it becomes FAILED in the same commit. One whose document has no room
// for the acquisition becomes FAILED in another commit. An attempt that has no end is recorded as crashed.
//
// With Keys, the decision is made first, then a slot of the analysis's Key is taken, then the lock. Without a
// slot the analysis is parked, which is a skip with the reason KeyBusy.
//
// An acquisition takes two round trips, and a skip takes one. A Key adds two. Errors: lease.ErrNotFound;
// lease.ErrMalformed; lease.ErrUnavailable after at most 20 s; lease.ErrRefused if the document
// has no room for FAILED either. (SEEDS G1–G7, G9)
func (l *Locks) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration, o AcquireOptions,
) (Acquisition, error) {
	if err := CheckID(id); err != nil {
		return Acquisition{}, err
	}
	records, err := l.records.WithTTL(ttl)
	if err != nil {
		return Acquisition{}, err
	}
	policy := records.Policy()
	acquire := func(d *Analysis, now time.Time) error { return d.acquire(now, owner, policy, l.maxRun, o) }

	for { // again only if the analysis was to be skipped, and could be acquired without a slot meanwhile
		var from *lease.Cell[Analysis]
		var slot *Slot
		rule, key, parked := acquire, "", false
		if l.Keys != nil {
			e := &entry{locks: l, id: id, owner: owner, policy: policy, acquire: acquire}
			if err := e.enter(ctx, o.Want); err != nil {
				return e.skip(err)
			}
			from, slot, rule, key = e.from, e.slot, e.withSlot, e.doc.Key
			parked = !e.doc.ParkedAt.IsZero()
		}

		hold, doc, err := records.AcquireFrom(ctx, from, id, owner, o.Want, rule)
		if errors.Is(err, lease.ErrRefused) { // FAILED is final, so a second refusal must confirm the first
			hold, doc, err = records.Acquire(ctx, id, owner, o.Want, rule)
		}
		written := doc.ID != "" // else Firestore has refused the reading, and not the write
		if errors.Is(err, lease.ErrRefused) && written {
			err = l.failFull(ctx, &doc)
		}
		if errors.Is(err, errLimited) && slot == nil {
			continue
		}

		var got Acquisition
		if err != nil {
			got, err = skip(&doc, owner, err)
		} else {
			got = l.acquired(hold, &doc, policy)
		}
		got.Key, got.Slot, got.Unparked = key, slot, parked && got.Acquired
		return got, err
	}
}

// acquired returns the Acquisition that doc shows.
func (l *Locks) acquired(hold *Hold, doc *Analysis, p lease.Policy) Acquisition {
	got := Acquisition{
		Acquired: true, Hold: hold, Status: doc.Status,
		Grant: doc.Lock.Grant(), ExpiresAt: doc.Lock.ExpiresAt, Attempt: doc.Lock.Attempts,
		First: doc.Lock.Attempts == 1 && len(doc.History) == 1,
		Last:  p.Last(doc.Lock), Stolen: hold.Stolen(),
	}
	if l.maxRun > 0 {
		got.RunTime = max(1, l.maxRun-doc.Lock.HeartbeatAt.Sub(doc.StartedAt))
	}
	return got
}

// The reasons for which AcquireAnalysisLock skips an analysis that waits, and a suspect.
var (
	errWaiting = errors.New("analysislock: the next attempt is not due")
	errSuspect = errors.New("analysislock: the last attempts crashed")
)

// skip returns the Acquisition of a call that ended with err, or err if it is not a skip.
func skip(d *Analysis, owner string, err error) (Acquisition, error) {
	got := Acquisition{Status: d.Status, Attempt: d.Lock.Attempts, Key: d.Key}
	var held *lease.HeldError
	switch {
	case errors.Is(err, lease.ErrFinished):
		got.Reason = AlreadyFinished
	case errors.As(err, &held):
		got.Reason, got.ExpiresAt, got.Remaining = Locked, held.ExpiresAt, held.Remaining
		got.Grant = lease.Grant{Owner: held.Owner, Token: held.Token}
	case errors.Is(err, errWaiting):
		got.Reason, got.Grant = Waiting, d.Lock.Grant()
		got.ExpiresAt, got.Remaining = d.NextAttemptAt, d.NextAttemptAt.Sub(d.ReadAt)
	case errors.Is(err, errSuspect):
		got.Reason, got.Grant, got.suspect = Suspect, d.Lock.Grant(), d
		got.MustRun = d.Delays() >= maxDelays
	case errors.Is(err, lease.ErrExhausted):
		got.Reason, got.Grant = AttemptsExhausted, lease.Grant{Owner: owner, Token: d.Lock.Token}
		if d.failedWith(RunTimeExhausted) || d.failedWith(Crashed) {
			got.Reason = d.Error.Code
		}
		if got.Reason == Crashed {
			got.Message = d.Error.Message
		}
		got.Uncertain = d.OpenActs
	case errors.Is(err, ErrUnrecordable):
		got.Reason, got.Status, got.Uncertain = Unrecordable, Failed, d.OpenActs
	default:
		return Acquisition{}, err
	}
	return got, nil
}

// acquire is the rule of an acquisition at now: lease.Acquire and, beside it, NextAttemptAt, crashes and the
// run time. If no attempt or no run time is left, or the analysis kills its workers, acquire makes it FAILED
// and returns lease.ErrExhausted. After any other error nothing of d is written.
func (d *Analysis) acquire(now time.Time, owner string, p lease.Policy, maxRun time.Duration, o AcquireOptions,
) error {
	lock, err := lease.Acquire(d.Lock, now, owner, p)
	if err != nil && !errors.Is(err, lease.ErrExhausted) {
		return err
	}
	if err == nil && o.Early != nil && !lease.Due(d.NextAttemptAt, now) && !o.Early(*d) {
		return errWaiting
	}

	d.crash(now)
	kills, counted := d.kills(), d.Lock.Attempts
	if err == nil && !kills && o.SkipSuspects && d.suspect() {
		return errSuspect
	}

	d.Lock = lock
	d.unbook()
	if d.StartedAt.IsZero() {
		d.StartedAt = now.Truncate(time.Millisecond)
	}

	switch {
	case kills: // no other attempt counts
		if err == nil {
			d.Lock, _ = lease.Finish(lock, lock.Grant())
			d.Lock.Attempts = counted
		}
		d.failCrashed()
		return lease.ErrExhausted
	case err != nil:
		last := "no attempt reported a cause"
		if d.LastError != nil {
			last = "last error: " + d.LastError.Message
		}
		d.fail(AttemptsExhausted, fmt.Sprintf("gave up after %d attempts; %s", lock.Attempts, last))
		return err
	case maxRun > 0 && now.Sub(d.StartedAt) >= maxRun: // the acquisition counts, and ends at once
		d.Lock, _ = lease.Finish(lock, lock.Grant())
		d.fail(RunTimeExhausted, fmt.Sprintf("gave up %v after the first attempt began", maxRun))
		return lease.ErrExhausted
	}

	if d.Status == "" || d.Status == Queued { // any other may have been set by another program
		d.Status = Processing
	}
	d.begin(now, o.Alone)
	return nil
}

// RefreshAnalysisLock renews the lock that owner acquired, perhaps in another process: it expires
// one ttl from now, or one TTL of the Policy if ttl is zero. An expired lock that no other owner has
// acquired is revived. It returns lease.ErrLost if owner does not hold the lock, and tries for up to
// 15 s. (SEEDS G6, G7)
func (l *Locks) RefreshAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	h, err := l.resume(ctx, id, owner, ttl)
	if err != nil {
		return err
	}
	return h.Renew(ctx)
}

// ReleaseAnalysisLock frees the lock that owner acquired, perhaps in another process. For another
// owner, or a missing analysis, it changes nothing and returns nil. (SEEDS G6, G8)
func (l *Locks) ReleaseAnalysisLock(ctx context.Context, id, owner string) error {
	h, err := l.resume(context.WithoutCancel(ctx), id, owner, 0)
	if err == nil {
		err = h.End(ctx, Releasing(h.Now(), OutcomeRetry, "", false))
	}
	if errors.Is(err, lease.ErrNotFound) || errors.Is(err, lease.ErrLost) {
		return nil
	}
	return err
}

func (l *Locks) resume(ctx context.Context, id, owner string, ttl time.Duration) (*Hold, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	records, err := l.records.WithTTL(ttl)
	if err != nil {
		return nil, err
	}
	return records.Resume(ctx, id, owner)
}

// timeout bounds an operator's change, and a refresh outside Run.
const timeout = 15 * time.Second
