package delivery

import (
	"log/slog"
	"time"

	"taskguard/internal/taskqueue"
)

// Result is the outcome of one delivery.
type Result struct {
	Reason Reason
	// Ack reports that the task is deleted: another delivery is booked, none is needed, or none can
	// succeed. Otherwise the queue delivers the task again. See reasons.
	Ack      bool
	Rejected bool // acknowledged because no later try of the task is expected to succeed

	ID string // the analysis; of a delivery that was not claimed, only an id that an analysis can have
	// Status is the document's status if the reason is AlreadyFinished or LockLost. With Completed or
	// Failed it is set only if another program has set the status.
	Status string
	Value  any // what the analyzer returned, as stored, if the reason is Completed and Status is empty
	Err    error
	// Code is the code of Failed and Retry. The log then shows it and not Err: an analyzer's message
	// may contain its input.
	Code   string
	RunErr error // as the analyzer returned it
	Run
	Next
}

// Run measures the acquisition of the lock and the run under it.
type Run struct {
	AcquireTried bool
	Acquire      time.Duration // how long the acquisition took
	Owner        string        // this delivery's, if it acquired the lock or recorded FAILED instead
	Token        int64         // fencing token of that write
	Attempt      int
	Stolen       bool
	ToStart      time.Duration // from the creation to the first acquisition, if it is this one; zero: unknown
	ToReady      time.Duration // from the analysis's creation to READY; zero: unknown

	Ran         bool
	Took        time.Duration
	Failure     string // how the analyzer failed, without its message
	Heartbeats  int    // successful renewals
	Checkpoints int    // commits with a checkpoint, even if READY clears it at once
	Lost        string // why the lock was lost: taken, finished, cancelled, deleted or out_of_time
}

// Next describes the next delivery of the analysis.
type Next struct {
	RetryAt  time.Time     // the next attempt, or the expiry of the lock that another worker holds
	RetryIn  time.Duration // the same from now, or the wait that the analyzer asked for; zero after a backoff
	HeldBy   string        // owner of the other worker's lock
	FollowUp string        // booked or failed; empty: no booking was tried
	Needless bool          // the analysis has ended, and a queue is configured
	Parked   bool          // it waits for a slot of its key: the end of a run of that key books it
}

// Booked reports whether the queue has the next delivery.
func (n Next) Booked() bool { return n.FollowUp == booked }

// The values of Next.FollowUp.
const (
	booked    = "booked"
	notBooked = "failed"
)

// Reason says why a delivery ended.
type Reason int

// The reasons. Two of them may have the same name.
const (
	Completed Reason = iota
	Failed
	AlreadyFinished
	Forwarded
	Started
	Locked
	Waiting
	Suspect
	KeyBusy
	Retry
	LockLost
	ShuttingDown
	Continued
	NotClaimed
	NotFound
	InvalidID
	Unavailable
	FinishUnknown
	Malformed
	Corrupted
	numReasons
)

// rule says when something holds for a reason.
type rule int

const (
	never rule = iota
	always
	ifBooked // if the next delivery is booked, or needless
	ifParked // if the analysis is parked behind a slot, whose end books it
)

func (r rule) holds(n Next) bool {
	return r == always || r == ifBooked && (n.Booked() || n.Needless) || r == ifParked && n.Parked
}

// reasons says for each reason when its delivery is acknowledged. Only this table decides it. A request
// that has no delivery is answered by the worker.
var reasons = [numReasons]struct {
	name     string // in logs, metrics and answers
	ack      rule
	expected rule // logged as INFO, otherwise as WARN
	tries    int  // acknowledged at this try of a task all the same, as rejected; zero: never
}{
	// The result is recorded, by this delivery or before it.
	Completed:       {name: "ready", ack: always, expected: always},
	Failed:          {name: "failed", ack: always},
	AlreadyFinished: {name: "already_finished", ack: always, expected: always},
	// The delivery only had to book another, and has.
	Forwarded: {name: "booked", ack: always, expected: always},
	// A run has been started elsewhere. If it dies before it has the lock, recovery books a delivery.
	Started: {name: "started", ack: always, expected: always},
	// Another worker holds the lock. The follow-up comes after the lock's expiry.
	Locked: {name: "locked", ack: ifBooked, expected: always},
	// The next attempt is not due. Its task is booked.
	Waiting: {name: "waiting", ack: ifBooked, expected: ifBooked},
	// The last attempts crashed, and this process runs something else. The next delivery is booked.
	Suspect: {name: "suspect", ack: ifBooked, expected: ifBooked},
	// As many analyses of its key run as may. The end of one of them books this one.
	KeyBusy: {name: "key_busy", ack: ifParked, expected: ifParked},
	// The run failed temporarily. The next attempt is booked.
	Retry: {name: "retry", ack: ifBooked},
	// The lock was lost during the run. A follow-up comes after the other lock's expiry.
	LockLost: {name: "lock_lost", ack: ifBooked},
	// The run was stopped with the process. Another worker gets an immediate delivery.
	ShuttingDown: {name: "shutting_down", ack: ifBooked, expected: ifBooked},
	// The run passed its deadline after a new checkpoint. An immediate delivery continues it.
	Continued: {name: "continued", ack: ifBooked, expected: ifBooked},
	// The process is stopping, and has not tried to acquire the lock.
	NotClaimed: {name: "shutting_down"},
	// There is no such document. It may be created a little after its task.
	NotFound: {name: "not_found", tries: 6},
	// No document can have this id.
	InvalidID: {name: "bad_request", tries: 1},
	// Firestore or the queue did not answer before the run, or at its end.
	Unavailable:   {name: "unavailable"},
	FinishUnknown: {name: "unavailable"},
	// The document cannot be read: before the run, or since another program wrote to it during the run.
	Malformed: {name: "malformed", tries: 6},
	Corrupted: {name: "malformed", tries: 6},
}

// acknowledge sets Ack and Rejected for the result of d.
func (r *Result) acknowledge(d Delivery) {
	row := reasons[r.Reason]
	isTask := taskqueue.ValidName(d.Task) // any client can set it
	r.Rejected = isTask && row.tries > 0 && max(d.Tries, 1) >= row.tries
	r.Ack = r.Rejected || row.ack.holds(r.Next)
}

// String returns the reason's stable name.
func (r Reason) String() string { return reasons[r].name }

// Level returns INFO for an expected result, and WARN for any other.
func (r Result) Level() slog.Level {
	if reasons[r.Reason].expected.holds(r.Next) {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
