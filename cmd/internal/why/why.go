// Package why answers two questions about an analysis in one line: why is it not running, and what happens next?
//
// The command status and the console print the same line. It needs nothing but one reading of the analysis and, if
// that is parked, of its key. The rules about locks and deliveries are those of lease and analysislock, by the
// store's time.
package why

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// State is the state of an analysis, as an operator needs it.
type State string

// The states, first those that need an operator.
const (
	Malformed State = "malformed" // its lock or its id cannot be used
	Uncertain State = "uncertain" // finished, and a side effect may have happened
	Stuck     State = "stuck"     // no delivery came, and recovery has not enqueued one in time
	Unfound   State = "unfound"   // recovery never finds it
	Silent    State = "silent"    // it is locked, and its worker seems to be dead
	Failed    State = "failed"
	Expired   State = "expired"  // its worker died, and the lock has expired
	Orphaned  State = "orphaned" // no delivery came, and recovery enqueues one next
	Running   State = "running"
	Waiting   State = "waiting" // for the time of its next attempt
	Queued    State = "queued"  // for a delivery
	Parked    State = "parked"  // for a slot of its key
	Called    State = "called"  // for its caller, as a record of Do
	Ready     State = "ready"
)

// Answer says why an analysis is not running.
type Answer struct {
	State State
	// Text is one line, with what happens next.
	Text string
	// Command is the command of taskguard that helps now, such as "requeue"; empty: none is needed.
	Command string
}

// Options is what an answer needs beside the analysis.
type Options struct {
	Lock   lease.Policy  // the workers'
	Key    repo.KeyState // of a parked analysis; empty: it was not read
	Called bool          // no delivery runs it, but a call of its caller, as a record of Do
}

// Of returns the answer for a as it was at a.ReadAt. A list that has not read the history knows less about what
// an analysis waits for.
func Of(a *analysislock.Analysis, o Options) Answer {
	switch {
	case errors.Is(a.Malformed, lease.ErrMalformed):
		return Answer{Malformed, "no worker can run it, because its lock cannot be read: " +
			printable.Line(a.Problem()) +
			"; unlock repairs it", "unlock"}
	case a.Finished():
		return finished(a)
	case lease.Held(a.Lock, a.ReadAt):
		return running(a, o.Lock)
	case a.Malformed != nil:
		return Answer{Malformed, "no delivery can name it: " + printable.Line(a.Problem()) +
			"; create it again under another id", ""}
	}

	answer := waiting(a, o)
	if a.Status == analysislock.Processing && a.Lock.Owner == "" {
		answer.Text = "no worker has its lock, although its status is PROCESSING: " + answer.Text
	}
	if n := a.Suspicion(); n > 0 {
		answer.Text = fmt.Sprintf("its last %d attempts crashed, so it runs alone%s: %s", n, delayed(a), answer.Text)
	}
	if a.OpenActs > 0 {
		answer.Text += "; its next attempt is told that " + acts(a) + " may have happened"
	}
	return answer
}

// delayed says how often a suspect has waited for a worker that runs nothing else.
func delayed(a *analysislock.Analysis) string {
	if a.Delays() == 0 {
		return ""
	}
	return " (delayed " + cli.Count(a.Delays(), "time") + ", as the worker was busy)"
}

// finished answers for a finished analysis.
func finished(a *analysislock.Analysis) Answer {
	cause := cmp.Or(a.Cause(), &analysislock.Error{Code: "no code"})
	code, ended := printable.Line(cause.Code), past(a, a.UpdatedAt, " %s ago")
	answer := Answer{Failed, "failed" + ended + " with " + code, "requeue"}
	switch {
	case a.Status == analysislock.Ready:
		answer = Answer{Ready, "finished" + ended, ""}
	case a.Status != analysislock.Failed:
		answer = Answer{Ready, "finished" + ended + ": its status " + printable.Line(a.Status) + " is final", ""}
	case code == analysislock.Cancelled:
		answer.Text = "cancelled" + ended + by(cause.Message)
	case cause == a.LastError:
		answer.Text = "failed" + ended + ": no attempt is left, and the last ended with " + code
	}

	if a.OpenActs > 0 {
		answer.State, answer.Command = Uncertain, "resolve"
		answer.Text += "; nobody has confirmed whether " + acts(a) + " happened: find out, then answer with resolve"
		return answer
	}
	answer.Text += "; requeue runs it again"
	return answer
}

// by returns who has cancelled an analysis, as its message says.
func by(message string) string {
	who, found := strings.CutPrefix(message, "cancelled by ")
	if !found {
		return ""
	}
	return " by " + printable.Line(who)
}

// running answers for an analysis whose lock is held.
func running(a *analysislock.Analysis, p lease.Policy) Answer {
	left := cli.Span(a.Lock.ExpiresAt.Sub(a.ReadAt))
	heartbeat := past(a, a.Lock.HeartbeatAt, "the last heartbeat was %s ago")
	if a.Silent(p.Silence()) {
		return Answer{Silent, "its worker seems to be dead: " + heartbeat + "; the lock expires in " + left +
			", then the next delivery or recovery runs it again; unlock does so now", "unlock"}
	}
	began := past(a, a.Began(), " for %s")
	return Answer{Running, "running" + began + "; " + cmp.Or(heartbeat, "the lock expires in "+left), ""}
}

// waiting answers for an unfinished analysis whose lock is not held.
func waiting(a *analysislock.Analysis, o Options) Answer {
	ttl := cmp.Or(o.Lock.TTL, lease.DefaultTTL)
	known := a.Status == analysislock.Queued || a.Status == analysislock.Processing
	// Recovery finds another status only by these.
	unnoticed := a.Lock.Owner == "" && a.NextAttemptAt.IsZero()

	switch {
	case o.Called:
		return Answer{Called, "no delivery runs it: it waits" + past(a, a.UpdatedAt, " for %s") +
			" for its caller to call again", ""}
	case !a.ParkedAt.IsZero():
		return parked(a, &o.Key)
	case a.Waits():
		return Answer{Waiting, failedBefore(a) + "the next attempt begins in " +
			cli.Span(a.NextAttemptAt.Sub(a.ReadAt)) + ", at " + iso8601.Format(a.NextAttemptAt), ""}
	case known && a.UpdatedAt.IsZero():
		return unfound("it has no updatedAt that can be read")
	case !known && unnoticed && a.Status == "":
		return unfound("it has no status")
	case !known && unnoticed:
		return unfound("its status " + printable.Line(a.Status) + " is not QUEUED")
	case (known || !a.NextAttemptAt.IsZero()) && a.Orphaned(ttl+analysislock.StuckAfter):
		return stuck(a)
	case a.Lock.Owner != "":
		return Answer{Expired, "its worker died" + lockEnd(a) +
			"; the next delivery, or recovery within about a minute, runs it again", ""}
	case known && a.Orphaned(ttl):
		return Answer{Orphaned, past(a, a.UpdatedAt, "no delivery has come for %s; ") +
			"recovery enqueues it within about two minutes", ""}
	}
	return Answer{Queued, queued(a), ""}
}

// parked answers for an analysis that waits for a slot of its key.
func parked(a *analysislock.Analysis, key *repo.KeyState) Answer {
	text := "parked" + past(a, a.ParkedAt, " for %s")
	if key.Key == "" {
		return Answer{Parked, text + ": the slots of its key are taken; it starts when one is free", ""}
	}
	text += " behind key " + printable.Line(key.Key) + ": " + key.Runs()
	if key.Before != nil && *key.Before > 0 {
		text += ", " + key.Queue()
	}
	switch free := key.Limit - len(key.Running) - len(key.Reserved); {
	case key.Paused:
		text += "; it starts when the limit is raised"
	case free > 0:
		text += "; a slot is free, and recovery enqueues the first within about a minute"
	default:
		text += "; it starts when a run of the key ends"
	}
	return Answer{Parked, text, ""}
}

// failedBefore says how the last attempt ended, if it failed temporarily.
func failedBefore(a *analysislock.Analysis) string {
	if a.LastError == nil || a.LastError.Code == "" {
		return ""
	}
	return "the last attempt ended with " + printable.Line(a.LastError.Code) + "; "
}

// unfound answers for an analysis that recovery never finds.
func unfound(reason string) Answer {
	return Answer{Unfound, "it waits for a delivery, and if that is lost, recovery does not replace it, because " +
		reason + "; requeue enqueues it", "requeue"}
}

// stuck answers for an analysis to which recovery should have come. A recovery that runs marks it each time that it
// enqueues it, or finds its task in the queue: there is no other trace of recovery in the documents.
func stuck(a *analysislock.Analysis) Answer {
	since := cmp.Or(a.UpdatedAt, a.NextAttemptAt)
	text := past(a, since, "no delivery has come for %s") + lockEnd(a)
	if marked(a) {
		text = past(a, since, "recovery enqueued it %s ago, no delivery came, and recovery has not come back")
	}
	return Answer{Stuck, text + ": recovery does not seem to run. Check its job; the command recover enqueues it now",
		"recover"}
}

// lockEnd says when the lock of a dead worker expired.
func lockEnd(a *analysislock.Analysis) string {
	if a.Lock.Owner == "" {
		return ""
	}
	return past(a, a.Lock.ExpiresAt, ": its lock expired %s ago")
}

// marked reports whether the last write was by recovery, which then sets NextAttemptAt to the present time.
func marked(a *analysislock.Analysis) bool {
	return !a.NextAttemptAt.IsZero() && !a.NextAttemptAt.After(a.UpdatedAt)
}

// queued says for what delivery an analysis waits.
func queued(a *analysislock.Analysis) string {
	last := &analysislock.Attempt{}
	if n := len(a.History); n > 0 {
		last = &a.History[n-1]
	}
	changed := analysislock.OperatorChange{}
	if n := len(last.Changes); n > 0 {
		changed = last.Changes[n-1]
	}

	switch {
	case a.Starts > 0:
		return "its run was started" + past(a, a.NextAttemptAt, " %s ago") + ", and has not taken the lock yet"
	case marked(a):
		return past(a, a.NextAttemptAt, "recovery enqueued it, or found its task in the queue, %s ago") +
			"; it waits for a free worker. If that lasts, doctor shows whether the queue is paused"
	case !a.NextAttemptAt.IsZero():
		return failedBefore(a) + past(a, a.NextAttemptAt, "the next attempt was due %s ago") +
			"; it waits for a free worker"
	case changed.Change != "": // after the last attempt, or to end it
		return printable.Line(changed.Change+" by "+changed.By) + past(a, changed.At, " %s ago") +
			"; it waits for a free worker"
	case last.Outcome == analysislock.OutcomeContinued:
		return past(a, last.EndedAt, "its run was cut off %s ago") + ", and continues with the next delivery"
	case last.Outcome == analysislock.OutcomeShuttingDown:
		return past(a, last.EndedAt, "its worker shut down %s ago") + "; the next delivery runs it again"
	case a.StartedAt.IsZero():
		return "in the queue" + past(a, cmp.Or(a.CreatedAt, a.UpdatedAt), " for %s") + "; no worker has taken it yet"
	}
	return "in the queue" + past(a, a.UpdatedAt, " for %s") + "; it waits for a free worker"
}

// acts names the side effects of which nobody knows whether they happened.
func acts(a *analysislock.Analysis) string {
	names := a.Acts.Open()
	for i, name := range names {
		names[i] = `"` + printable.Line(name) + `"`
	}
	return cmp.Or(strings.Join(names, " and "), "a side effect") // lists do not read them
}

// past formats how long ago t was; a zero t is unknown, and gives an empty text.
func past(a *analysislock.Analysis, t time.Time, format string) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(format, cli.Span(a.ReadAt.Sub(t)))
}
