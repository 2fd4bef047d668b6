package analysislock

import (
	"math"
	"strings"
	"time"

	"taskguard/internal/text"
	"taskguard/lease"
)

// The states of an analysis. Any other status is unfinished too.
const (
	Queued     = "QUEUED"
	Processing = "PROCESSING"
	Ready      = "READY"
	Failed     = "FAILED"
)

// Finished reports whether READY or FAILED is the status. A store may have further words for a
// finished analysis; see Analysis.Finished.
func Finished(status string) bool { return status == Ready || status == Failed }

// Analysis is a document of the collection. Its JSON form is the public one: without
// the lock, the checkpoint and the tokens of the attempts. (SEEDS G4)
type Analysis struct {
	ID        string    `json:"id"`                   // of the document
	Status    string    `json:"status"`               // Queued, Processing, Ready, Failed, or another word
	Input     any       `json:"input,omitempty"`      // only where the whole document is read
	Result    any       `json:"result,omitempty"`     // as Input
	Error     *Error    `json:"error,omitempty"`      // with Failed
	LastError *Error    `json:"last_error,omitempty"` // of the last attempt that failed temporarily
	Attempts  int       `json:"attempts"`             // mirror of Lock.Attempts
	CreatedAt time.Time `json:"created_at,omitzero"`  // as its creator wrote it
	UpdatedAt time.Time `json:"updated_at,omitzero"`  // of the last write by a worker or an operator
	StartedAt time.Time `json:"started_at,omitzero"`  // first acquisition
	Progress  *Progress `json:"progress,omitempty"`   // nil: none was reported
	// NextAttemptAt is the time of the next delivery, which is booked after a temporary
	// failure; zero: none is booked. No other delivery begins an attempt before that time.
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	// BookedTask is the short name of the task that was booked for the next delivery, and may be
	// lost; empty: none is known.
	BookedTask string `json:"booked_task,omitempty"`
	// Starts is how many runs were started elsewhere since the last acquisition; see Locks.Start.
	Starts int `json:"starts,omitempty"`
	// Key is the concurrency key, by which Keys limits how many run at a time; empty: not limited.
	Key string `json:"key,omitempty"`
	// ParkedAt is the time since which it is parked: it waits for a slot of its Key, and no delivery is
	// booked. Zero: it is not parked.
	ParkedAt time.Time `json:"parked_at,omitzero"`
	// Place is where it stands among the parked ones, which are in the order of this text.
	Place   string    `json:"-"`
	History []Attempt `json:"history,omitempty"` // the last ten attempts, the newest last
	// Checkpoint is read only with the whole document. A change that sets it writes it.
	Checkpoint *Checkpoint `json:"-"`
	// Acts are the marked acts. They are read like Checkpoint, and a change that sets them
	// writes them.
	Acts     Acts `json:"effects,omitempty"`
	OpenActs int  `json:"open_effects,omitempty"` // how many of them have started and are not done

	Lock lease.Lease `json:"-"` // judged at ReadAt
	// Malformed is the error of a lock or an id that cannot be used. It is set by
	// methods that read several analyses, and by Unlock.
	Malformed error `json:"-"`
	// ReadAt is the store's time of the reading.
	ReadAt time.Time `json:"-"`
}

// Finished reports whether the analysis is finished. The store sets Lock.Finished by its words.
func (d *Analysis) Finished() bool { return d.Lock.Finished || Finished(d.Status) }

// Closed reports whether the analysis is finished and not FAILED: it is READY, or its status is
// another word of the store's for a finished one.
func (d *Analysis) Closed() bool { return d.Finished() && d.Status != Failed }

// Problem returns Malformed as a message, or "".
func (d *Analysis) Problem() string {
	if d.Malformed == nil {
		return ""
	}
	return strings.TrimSuffix(d.Malformed.Error(), ": "+lease.ErrMalformed.Error())
}

// Waits reports whether an unfinished analysis, whose lock is free, waits for its
// NextAttemptAt.
func (d *Analysis) Waits() bool { return !lease.Due(d.NextAttemptAt, d.ReadAt) }

// StuckAfter is how long after the time of Orphaned recovery, which looks each minute, has surely come by.
const StuckAfter = 2 * time.Minute

// Orphaned reports whether only another delivery can finish the analysis, and none is booked for it or the
// booked one is late by that time. It returns false for a parked analysis: the end of a run of its Key, or
// recovery, books its delivery. It also returns false for one that is QUEUED or PROCESSING and has no UpdatedAt, or
// one later than that time ago.
func (d *Analysis) Orphaned(late time.Duration) bool {
	unfinished := d.Status == Queued || d.Status == Processing
	if unfinished && (d.UpdatedAt.IsZero() || !lease.Late(d.UpdatedAt, d.ReadAt, late)) {
		return false
	}
	return d.ParkedAt.IsZero() && lease.Orphaned(d.Lock, d.ReadAt) && lease.Late(d.NextAttemptAt, d.ReadAt, late)
}

// Age returns the time from the creation of the analysis until now, which is the store's
// time; zero: it has no CreatedAt. A CreatedAt in the future, by another clock, is just now.
func (d *Analysis) Age(now time.Time) time.Duration {
	if d.CreatedAt.IsZero() {
		return 0
	}
	return max(1, now.Sub(d.CreatedAt))
}

// Percent returns the part of the work that is done in percent; -1: it was not reported.
func (p *Progress) Percent() int {
	if p == nil || p.Fraction == nil {
		return -1
	}
	return int(math.RoundToEven(100 * *p.Fraction))
}

// Error is the cause of the failure of an analysis, or of one of its attempts.
type Error struct {
	Code    string `json:"code"`    // for programs, such as attempts_exhausted
	Message string `json:"message"` // for people
}

// failedWith reports whether the analysis is FAILED with that code.
func (d *Analysis) failedWith(code string) bool {
	return d.Status == Failed && d.Error != nil && d.Error.Code == code
}

// Cause returns the error by which failures are grouped: LastError if the attempts ran out and it has
// a code, else Error. Nil: there is none.
func (d *Analysis) Cause() *Error {
	if d.failedWith(AttemptsExhausted) && d.LastError != nil && d.LastError.Code != "" {
		return d.LastError
	}
	return d.Error
}

// HasCode reports whether Error or Cause has this code. For an unfinished analysis, LastError counts too.
// A finished analysis may keep the LastError of an attempt that was repeated: that is not why it ended.
func (d *Analysis) HasCode(code string) bool {
	last := d.LastError
	if d.Finished() {
		last = d.Cause()
	}
	return d.Error != nil && d.Error.Code == code || last != nil && last.Code == code
}

// fail makes the analysis FAILED.
func (d *Analysis) fail(code, message string) {
	d.Status, d.Error = Failed, newError(code, message)
	d.unbook()
}

// unbook removes what is recorded of the next delivery, of starts elsewhere and of its place among the
// parked ones, which is not needed any more.
func (d *Analysis) unbook() {
	d.NextAttemptAt, d.BookedTask, d.Starts = time.Time{}, "", 0
	d.ParkedAt, d.Place = time.Time{}, ""
}

// queue changes PROCESSING back to QUEUED. It keeps any other status, which another
// program may have set.
func (d *Analysis) queue() {
	if d.Status == Processing {
		d.Status = Queued
	}
}

// The limits of an error, in bytes: the document must have room for it.
const (
	maxCode    = 64
	maxMessage = 4096
)

func newError(code, message string) *Error {
	return &Error{Code: BoundCode(code), Message: text.Head(message, maxMessage)}
}

// BoundCode returns the code of an error as a document has it: valid UTF-8, cut after 64 bytes.
func BoundCode(code string) string { return text.Head(code, maxCode) }

// maxID is Firestore's limit, in bytes.
const maxID = 1500

// CheckID returns lease.ErrInvalidKey for an id that Firestore cannot hold, or that
// would be the path of another document, as `a/b/c` is.
func CheckID(id string) error { return lease.CheckKey("analysis", id, maxID) }

// Progress is the newest Fraction of the work and Message that a run has reported.
type Progress struct {
	Fraction *float64  `json:"fraction,omitempty"` // from 0 to 1
	Message  string    `json:"message,omitempty"`
	At       time.Time `json:"at,omitzero"` // by the store's clock
}

// Checkpoint is a state from which a later attempt continues: a Value as
// orchestrator.Storable returns it. Nil is none.
type Checkpoint struct{ Value any }

// Attempt is an entry of an analysis's history. One without EndedAt is running, or its worker has
// crashed and no later acquisition has found it.
type Attempt struct {
	Number    int       `json:"attempt"`             // from 1; it can repeat, as the token cannot
	Token     int64     `json:"-"`                   // the fencing token
	Owner     string    `json:"owner"`               // the acquisition's
	StartedAt time.Time `json:"started_at,omitzero"` // by the store's clock
	EndedAt   time.Time `json:"ended_at,omitzero"`   // by the store's clock
	Outcome   string    `json:"outcome,omitempty"`   // OutcomeReady and so on; empty: none yet
	Code      string    `json:"code,omitempty"`      // of its error
	Message   string    `json:"message,omitempty"`   // of its error, at most 256 bytes
	// Uncounted is how many attempts in a row, with this one as the last, have asked for a wait and were
	// not counted.
	Uncounted int `json:"uncounted,omitempty"`
	// Alone reports that its worker ran nothing else.
	Alone bool `json:"alone,omitempty"`
	// Delays is how often the attempt after this one, which crashed, was delayed because the worker of the
	// delivery ran something else.
	Delays int `json:"delays,omitempty"`
	// Changes are the last three changes of operators since this attempt began, the newest last.
	Changes []OperatorChange `json:"changes,omitempty"`
}

// OperatorChange is what an operator has done to an analysis.
type OperatorChange struct {
	Change string    `json:"change"`      // such as ChangeRequeued
	By     string    `json:"by"`          // who did it, at most 128 bytes
	At     time.Time `json:"at,omitzero"` // by the store's clock
}

// mark sets the marked acts of the analysis.
func (d *Analysis) mark(e Acts) { d.Acts, d.OpenActs = e, len(e.Open()) }

// The reasons for a skip.
const (
	AlreadyFinished   = "already_finished"
	Locked            = "locked"
	Waiting           = "waiting"            // for NextAttemptAt
	Suspect           = "suspect"            // its last attempts crashed; see AcquireOptions.SkipSuspects
	KeyBusy           = "key_busy"           // as many of its Key run as may; see Acquisition.Parked
	AttemptsExhausted = "attempts_exhausted" // the call has recorded this: the analysis is FAILED
	RunTimeExhausted  = "run_time_exhausted" // likewise, as is Crashed
)
