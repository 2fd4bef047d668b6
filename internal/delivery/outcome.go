package delivery

import "time"

// Case is the result of a request.
type Case int

// The cases of the contract. The answers to some of them, such as Locked, depend on
// Outcome.Settled too.
const (
	Ran Case = iota
	Failed
	AlreadyFinished
	Locked        // by another owner
	Retry         // the run failed temporarily
	Waiting       // for the time of the next attempt
	LockLost      // during the run
	Busy          // as many deliveries as allowed are in progress
	ShuttingDown  // stopped during the run
	Continued     // the run passed its deadline after a checkpoint
	Forwarded     // the delivery only had to book another
	NotClaimed    // stopped before the acquisition
	NotFound      // there is no such analysis
	BadRequest    // the request can never succeed
	Incomplete    // the body did not arrive in full; another try may succeed
	TooLarge      // the body is too large
	Unavailable   // before the run
	FinishUnknown // Firestore was unavailable at the finish of the run
	Malformed     // before the run
	Corrupted     // malformed by another program during the run
	WrongMethod
	NoSuchRoute
	Internal
	Unauthenticated
	Forbidden
	Recovered
	NotRecovered // or only in part
	NoQueue
	SelfTested
	SelfTestFailed
	NotConfigured // no input for a self-test
)

// String returns the case's stable name in logs, metrics and answers.
func (c Case) String() string { return names[c] }

var names = [...]string{
	Ran: "ready", Failed: "failed", AlreadyFinished: "already_finished", Locked: "locked",
	Retry: "retry", Waiting: "waiting", LockLost: "lock_lost", Busy: "busy",
	ShuttingDown: "shutting_down", Continued: "continued", Forwarded: "booked",
	NotClaimed: "shutting_down", NotFound: "not_found", BadRequest: "bad_request",
	Incomplete: "bad_request", TooLarge: "too_large", Unavailable: "unavailable",
	FinishUnknown: "unavailable", Malformed: "malformed", Corrupted: "malformed",
	WrongMethod: "method_not_allowed", NoSuchRoute: "no_such_route", Internal: "internal",
	Unauthenticated: "unauthenticated", Forbidden: "forbidden", Recovered: "recovered",
	NotRecovered: "unavailable", NoQueue: "no_queue", SelfTested: "ok",
	SelfTestFailed: "self_test_failed", NotConfigured: "not_configured",
}

// Outcome is the result of a request, with the values of its answer and its log line.
type Outcome struct {
	Case Case
	// Settled reports that the task needs no other try: another delivery is booked, or none is
	// needed. A delivery is acknowledged only if its outcome is settled, or it can never succeed.
	Settled bool
	ID      string
	// Status is the document's status: of AlreadyFinished and LockLost, and of Ran and Failed if
	// another program has set it.
	Status  string
	Token   int64  // of Ran and Failed
	HeldBy  string // the owner of the other worker's lock
	RetryAt time.Time
	RetryIn time.Duration
	Result  any // of Ran, as stored; nil if Status is set
	Recovery
	Measures
	Err error
	// Code and Reason are the cause of Failed and Retry in the log. The log does not
	// show Err then, since an analyzer's message may contain its input.
	Code, Reason string
	RunErr       error // as the analyzer returned it
}

// Measures are the measured values of a delivery, for its log line.
type Measures struct {
	Asked   bool // an acquisition was tried
	Acquire time.Duration
	Owner   string // of this delivery, if it acquired the lock or recorded FAILED instead
	Attempt int
	Stolen  bool
	ToStart time.Duration // from the analysis's creation to its first acquisition, if it is this one; zero: unknown
	ToReady time.Duration // from the analysis's creation to READY; zero: unknown

	Ran         bool
	Run         time.Duration
	Heartbeats  int    // successful renewals
	Lost        string // the reason: taken, finished, cancelled, deleted or out_of_time
	Checkpoints int    // commits with a checkpoint

	FollowUp string // booked or failed, if a booking was tried
}
