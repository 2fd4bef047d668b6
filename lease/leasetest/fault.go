package leasetest

// Fault is what goes wrong in a test. This package, internal/testing/proof, cmd/worker/chaos and worker/workertest
// share these words, in their plans, traces, figures and reports. A commit is a call, and so is a booking.
type Fault string

// At names the fault of one step, such as "book: reply lost".
func (f Fault) At(step string) Fault { return Fault(step) + ": " + f }

// None is no fault.
const None Fault = ""

// The faults of a call. Faulty injects all but Gateway.
const (
	RequestLost Fault = "request lost"           // not applied; the caller gets an error
	ReplyLost   Fault = "reply lost"             // applied; the caller gets an error
	Late        Fault = "late"                   // applied after its caller has given up
	SlowRequest Fault = "slow request"           // applied after a delay
	SlowReply   Fault = "slow reply"             // applied at once, and answered after a delay
	SlowFailure Fault = "slow failure"           // not applied; the caller gets an error after a delay
	SentTwice   Fault = "sent twice"             // the caller gets the second reply
	Conflict    Fault = "conflict"               // not applied, as if another had written
	Refuse      Fault = "refused"                // not applied, and never will be
	RefuseAfter Fault = "refused though applied" // applied all the same
	Unavailable Fault = "unavailable"            // for a time no call gets through: its caller gives up
	Gateway     Fault = "answered 504"           // applied, but a gateway answers for the receiver
)

// The faults of a process.
const (
	Crash       Fault = "crash"        // kill -9
	CrashBefore Fault = "crash before" // before the step
	CrashAfter  Fault = "crash after"  // after the step, before the process learns of it
	Pause       Fault = "pause"        // for longer than the lock's TTL, as by SIGSTOP; then it goes on
	Stop        Fault = "SIGTERM"
)

// The faults of the queue.
const (
	DeliveredTwice Fault = "delivered twice"
	DeliveredLate  Fault = "delivered late"
	AnswerLost     Fault = "answer lost" // the queue does not get the worker's answer
	TaskLost       Fault = "task lost"   // deleted with its worker's crash, or never created
)
