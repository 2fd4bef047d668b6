package analysislock

import (
	"time"

	"taskguard/lease"
)

// Ending is the last write of an acquisition, for Hold.End. now is the store's time by Hold.Now.
type Ending = lease.Ending[Analysis]

// Completing makes the analysis READY with result, a value as orchestrator.Run returns it.
func Completing(now time.Time, result any) Ending {
	return lease.Finishing(func(d *Analysis) {
		d.Status, d.Result, d.Error, d.LastError = Ready, result, nil, nil
		d.Progress, d.Checkpoint = nil, &Checkpoint{}
		d.unbook()
		d.end(now, OutcomeReady, "", "")
	})
}

// Failing makes the analysis FAILED, and keeps its checkpoint. The code and the message are made
// valid UTF-8 and cut after 64 and 4,096 bytes.
func Failing(now time.Time, code, message string) Ending {
	return lease.Finishing(func(d *Analysis) {
		d.fail(code, message)
		d.end(now, OutcomeFailed, code, message)
	})
}

// Exhausting is Failing with AttemptsExhausted after the last attempt has failed temporarily with
// this code and message, which it records as LastError. summary is the message of the error.
func Exhausting(now time.Time, summary, code, message string) Ending {
	return lease.Finishing(func(d *Analysis) {
		d.fail(AttemptsExhausted, summary)
		d.LastError = newError(code, message)
		d.end(now, OutcomeFailed, AttemptsExhausted, summary)
	})
}

// Adopting frees the lock of an analysis that another program, such as the analyzer, has made READY
// or FAILED during the run. It keeps the status, the result and the error of that program.
func Adopting(now time.Time) Ending {
	return lease.Adopting(func(d *Analysis) {
		outcome := OutcomeFailed
		d.unbook()
		if d.Closed() {
			outcome, d.LastError, d.Progress, d.Checkpoint = OutcomeReady, nil, nil, &Checkpoint{}
		}
		d.end(now, outcome, "", "")
	})
}

// Retrying releases the lock after a temporary failure, which it records as LastError with a code
// and a message as Failing does, or without the message if the document has no room for it. The next
// attempt may begin at next, and task is the name of the task that is booked for it; both may be
// zero. refund subtracts the attempt.
func Retrying(now time.Time, code, message string, next time.Time, task string, refund bool) Ending {
	release := func(message string) func(*Analysis) {
		return func(d *Analysis) {
			d.queue()
			d.LastError, d.NextAttemptAt, d.BookedTask = newError(code, message), next, task
			earlier := d.Uncounted()
			if attempt := d.end(now, OutcomeRetry, d.LastError.Code, d.LastError.Message); attempt != nil && refund {
				attempt.Uncounted = earlier + 1
			}
		}
	}
	return lease.Releasing(refund, release(message), release(""))
}

// Releasing clears the lock, changes PROCESSING back to QUEUED, and records the outcome of the
// attempt and the name of the task that is booked next, if any. refund subtracts the attempt.
func Releasing(now time.Time, outcome, task string, refund bool) Ending {
	return lease.Releasing(refund, func(d *Analysis) {
		d.queue()
		d.BookedTask = task
		d.end(now, outcome, "", "")
	})
}
