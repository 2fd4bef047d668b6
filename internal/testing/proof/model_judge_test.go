package proof

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

func kindOf(from, to *analysis, p *caller) Kind {
	before, after := from.Lock, to.Lock
	switch {
	case to.ParkedAt.After(from.ParkedAt):
		return Park
	case p.operates == Resolve && !after.Finished:
		return Requeue
	case p.operates != "":
		return p.operates
	case after.Finished && after.Token != before.Token:
		return GiveUp
	case after.Finished:
		return Finish
	case after.Token != before.Token:
		return Acquire
	case lastOf(*to).Delays > lastOf(*from).Delays:
		return Delay
	case after.Owner == "":
		return Release
	case after.Owner == before.Owner:
		return Heartbeat
	}
	return Other
}

// judge checks a write when the store applies it.
func (m *model) judge(r *record, next analysis, mark mark, p *caller) {
	before, after, h := r.doc.Lock, next.Lock, &r.history
	w := Write{
		Kind: kindOf(&r.doc, &next, p), By: p.name, Owner: after.Owner, Token: after.Token,
		At: m.now(), Expires: after.ExpiresAt, Running: p.running(),
	}
	if after.Finished {
		w.Owner = after.FinishedBy
	}

	seen, steals := len(h.Wrong), h.Steals
	h.Add(w)
	attempts, due := m.wrongAttempts(r, next, w.Kind, p), m.wrongNext(r.doc, next, w.Kind, p)
	crash := m.judgeCrash(r, next, w.Kind, p)
	for _, what := range []string{attempts, due, crash, m.wrongMark(r, next, mark, w.Kind, p)} {
		if what != "" {
			h.wrong("%s %s", p, what)
		}
	}
	for _, what := range h.Wrong[seen:] {
		m.fail("%s: %s: %s to %s", r.doc.ID, what, m.show(r.doc), m.show(next))
	}

	m.note("%s: %s token %d", p, w.Kind, after.Token)
	m.count(figure(w.Kind))
	if h.Steals > steals {
		m.count("steals")
	}
	if outcome := outcomeOf(next); w.Kind != Acquire && outcome != outcomeOf(r.doc) {
		m.count(figure("ended " + outcome + " " + lastOf(next).Code))
	}

	switch w.Kind {
	case Heartbeat:
		if !time.Now().Before(m.trust(before)) {
			m.count("late wake-ups")
		}
		return
	case Acquire, GiveUp:
		m.judgeUnheld(r)
		p.token, p.broken, p.acquired, p.alone = after.Token, nil, len(r.states), lastOf(next).Alone
	case Unlock, Cancel:
		m.breakLock(r, p)
	case Mark, Resolve:
		return
	}
	if r.holder = nil; w.Kind == Acquire {
		r.holder = p
		r.attempts++
	}
}

// wrongAttempts returns what is wrong with the count of attempts, the status or the result of a
// write.
func (m *model) wrongAttempts(r *record, after analysis, k Kind, p *caller) string {
	before, gaveUp := r.doc, after.Error != nil && after.Error.Code == analysislock.AttemptsExhausted
	attempts := after.Lock.Attempts - before.Lock.Attempts
	refunded, outcome := k == Release && attempts == -1, outcomeOf(after)
	running := m.since() - r.states[p.acquired].at
	if p.alone {
		running = m.since() - p.entered // its wait for the places counts
	}
	switch {
	case after.Lock.Finished != (after.Status == analysislock.Ready || after.Status == analysislock.Failed):
		return "wrote a status that does not fit the lock"
	case after.Status == analysislock.Ready && k == Finish && after.Result != any(result(p.analysis, p.token)):
		return fmt.Sprintf("wrote the result %v", after.Result)
	case k == GiveUp && after.Error.Code == analysislock.RunTimeExhausted:
		if m.maxRun == 0 || m.now().Sub(after.StartedAt) < m.maxRun {
			return "gave up before MAX_RUN_TIME"
		}
		m.count("given up after MAX_RUN_TIME")
	case k == GiveUp && after.Error.Code == analysislock.Crashed && attempts == 0: // see judgeCrash
		m.count("given up after crashes alone")
	case (k == GiveUp || k == Finish && gaveUp) && before.Lock.Attempts < m.policy.MaxAttempts:
		return "gave up too early"
	case k == Acquire && (attempts != 1 || after.Lock.Attempts > m.policy.MaxAttempts):
		return "acquired with a wrong count of attempts"
	case k == Acquire && (after.Status != analysislock.Processing || lastOf(after).Token != after.Lock.Token):
		return "acquired with a wrong status or history"
	case (k == Release || k == Finish) && lastOf(after).EndedAt.IsZero():
		return "left the attempt without its entry or its end in the history"
	case k == Park && (after.Status == analysislock.Processing || after.Lock.Owner != "" ||
		after.Lock.Token != before.Lock.Token || !strings.HasPrefix(after.Place, analysislock.KeyID(after.Key)+" ")):
		return "parked wrongly"
	case k != Park && (!after.ParkedAt.IsZero() || after.Place != ""):
		return "left it parked"
	case k == Requeue && (after.Lock.Attempts != 0 || after.Status != analysislock.Queued):
		return "requeued wrongly"
	case refunded && p.on.stopping && (p.run == nil || p.run.stopped) && outcome == analysislock.OutcomeShuttingDown:
		m.count("stopped runs refunded")
	case refunded && p.run != nil && running >= m.runTimeout &&
		p.run.written.n > 0 && outcome == analysislock.OutcomeContinued:
		m.count("continued runs refunded")
	case k != Acquire && k != Requeue && attempts != 0:
		return fmt.Sprintf("changed the attempts by %d", attempts)
	}
	return ""
}

// judgeCrash counts the crashes that a write records. It returns what is wrong with them, or with what the write
// does about a suspect.
func (m *model) judgeCrash(r *record, after analysis, k Kind, p *caller) string {
	before := r.doc
	switch {
	case k == Requeue:
		r.crashes, r.series = 0, before.Lock.Token
	case k == Unlock && lastOf(before).Outcome == "" && outcomeOf(after) == analysislock.OutcomeCrashed:
		r.crashes++ // the lock had expired
	}
	if !slices.Contains([]Kind{Acquire, GiveUp, Delay, Park}, k) {
		return ""
	}
	past := after.History
	if k == Acquire && len(past) > 0 {
		past = past[:len(past)-1]
	}
	if len(past) == 0 {
		return ""
	}

	last, found := past[len(past)-1], lastOf(before).Outcome == ""
	if found {
		m.count("crashes found")
		if last.Token > r.series {
			r.crashes++
		}
	}
	inARow, alone := crashes(past)
	kills := inARow >= 4 && alone >= 2 && r.crashes >= 2
	gaveUp := k == GiveUp && after.Error.Code == analysislock.Crashed
	switch {
	case last.Outcome == "" || found && last.Outcome != analysislock.OutcomeCrashed:
		return "left an attempt without its end"
	case found && (last.EndedAt.IsZero() || after.LastError == nil || after.LastError.Code != analysislock.Crashed):
		return "left a crash without its end or its error"
	case !found && last.Outcome != lastOf(before).Outcome:
		return fmt.Sprintf("recorded %s for an attempt that had ended", last.Outcome)
	case gaveUp != (kills && k != Delay):
		return fmt.Sprintf("wrote %s after %d crashes in a row, the last %d of them alone", k, inARow, alone)
	case k == Delay && (inARow < 2 || last.Delays != lastOf(before).Delays+1):
		return fmt.Sprintf("wrote delay %d after %d crashes in a row", last.Delays, inARow)
	case k == Delay && last.Delays > 10 && m.since()-p.entered >= placesTime: // unless another suspect was first
		return fmt.Sprintf("wrote delay %d after a wait of %v", last.Delays, m.since()-p.entered)
	case k == Delay && after.Status == analysislock.Processing:
		return "delayed an analysis that stays PROCESSING"
	case k != Acquire || p.on.places == nil || inARow < 2:
	case lastOf(after).Alone && last.Delays >= 10:
		m.count("suspects that emptied their worker")
	case lastOf(after).Alone:
	case m.since()-p.entered < m.runTimeout: // only after ten delays it waits so long
		return fmt.Sprintf("ran a suspect beside others after %d delays and %v", last.Delays, m.since()-p.entered)
	default:
		m.count("suspects that ran beside others")
	}
	return ""
}

// crashes counts the last attempts that crashed, and how many of the last ones ran alone. An attempt that was
// stopped, or lost its lock, does not count.
func crashes(history []analysislock.Attempt) (inARow, alone int) {
	for i := range slices.Backward(history) {
		a := &history[i]
		switch a.Outcome {
		case analysislock.OutcomeShuttingDown, analysislock.OutcomeLockLost:
			continue
		case analysislock.OutcomeCrashed:
		default:
			return inARow, alone
		}
		if a.Alone && alone == inARow {
			alone++
		}
		inARow++
	}
	return inARow, alone
}

// wrongNext returns what is wrong with the time of the next attempt that a write leaves, or
// with an acquisition before that time.
func (m *model) wrongNext(before, after analysis, k Kind, p *caller) string {
	now, next := m.now(), after.NextAttemptAt
	switch {
	case k == Mark && (after.Lock != before.Lock || next.IsZero() || next.After(now)): // it may arrive late
		return fmt.Sprintf("marked %v at %v", next, now)
	case k == Mark && now.Sub(before.NextAttemptAt) < m.policy.TTL:
		return fmt.Sprintf("marked an analysis that waits until %v", before.NextAttemptAt)
	case k == Mark && after.BookedTask != "" && after.BookedTask == before.BookedTask:
		m.count("marks of those that wait in the queue")
	case k == Mark && after.BookedTask != nextName(after):
		return "marked another task than the next"
	case k == Mark:
	case k == Delay:
		if wait := next.Sub(after.ReadAt); wait < 15*time.Second-time.Millisecond || wait > 45*time.Second {
			return fmt.Sprintf("delayed the next attempt by %v", wait)
		}
		if after.BookedTask != nextName(after) {
			return "booked another task than the next of a suspect"
		}
	case k == Release && outcomeOf(after) == analysislock.OutcomeRetry:
		// It may arrive late; a slow reply makes it later.
		if wait := next.Sub(now); next.IsZero() || wait > m.retryMax*5/4+callTimeout {
			return fmt.Sprintf("booked the next attempt in %v", wait)
		}
		attempts := before.Lock.Attempts
		least := min(m.retryMin<<(attempts-1), m.retryMax)
		if p.run != nil && next.Before(m.begun.Add(p.run.ended+m.skew+least).Truncate(time.Millisecond)) {
			return fmt.Sprintf("booked the attempt after %d for %v, want %v or more after it", attempts, next, least)
		}
	case k == Heartbeat || k == Release: // recovery may have marked it since the lock expired
		if !next.Equal(before.NextAttemptAt) {
			return "changed the time of the next attempt"
		}
	case !next.IsZero():
		return fmt.Sprintf("left the next attempt at %v", next)
	case after.BookedTask != "" && k != Requeue && (k != Unlock || after.Lock.Finished):
		return "left a booked task"
	}
	begins := k == Acquire || k == Delay
	if begins && now.Add(2*time.Second).Before(before.NextAttemptAt) {
		if p.task.Name != before.BookedTask {
			return fmt.Sprintf("began or delayed an attempt %v too early", before.NextAttemptAt.Sub(now))
		}
		m.count("booked attempts delivered early")
	}
	return ""
}

// unbooked reports whether p has released the lock after a failure for now, or has delayed a suspect, and
// the queue has no task for the next attempt yet.
func (m *model) unbooked(p *caller) bool {
	r := m.records[p.analysis]
	if r == nil || p.operates != "" {
		return false
	}
	wrote := r.states[len(r.states)-1].by == p
	return wrote && !r.doc.NextAttemptAt.IsZero() && m.taskNamed(r.doc.BookedTask) == nil
}

// nextName returns the name of the task of the next attempt.
func nextName(d analysis) string {
	return taskqueue.Name("next", d.ID, strconv.FormatInt(d.Lock.Token, 10), iso8601.Format(d.NextAttemptAt))
}

// breakLock records that an operator broke the lock of a live run, at most one.
func (m *model) breakLock(r *record, operator *caller) {
	h := r.holder
	if h == nil {
		return
	}
	if operator.token != 0 {
		m.fail("one unlock broke token %d and token %d", operator.token, h.token)
	}
	operator.token = h.token
	h.broken = &Span{m.since(), max(m.since(), m.trust(r.doc.Lock).Sub(m.begun))}
}

// dispatchTime is the limit of the time from a booking to the acquisition.
const dispatchTime = 5 * time.Second

// judgeUnheld checks, if one crash is the only fault, for how long an analysis was not held by a
// live worker when it is acquired after the crash, although its next attempt was due.
func (m *model) judgeUnheld(r *record) {
	waits := m.keySlots > 0 // for a slot
	if alone := m.single && m.crashedAt != 0; !alone || waits {
		return
	}
	last := &r.states[len(r.states)-1]
	for n := len(r.states) - 2; last.by != nil && last.by.operates == Mark; n-- { // its delivery does not hold it yet
		last = &r.states[n]
	}
	free := last.at
	switch held := last.lock.Owner != ""; {
	case held && last.by.on.crashed: // held until the crash
		free = last.by.on.died
	case held:
		return
	case !last.next.IsZero(): // it waits, crash or not
		free = max(free, m.local(last.next).Sub(m.begun))
	case last.by == nil && free < m.crashedAt:
		m.count("first acquired after a crash")
	}
	bound := max(m.policy.TTL, unanswered) + time.Minute + dispatchTime
	if delivery.DispatchDeadline(m.runTimeout) < unanswered+time.Minute {
		bound += m.retryMin // it may pass between two recoveries: then the task waits for its next try
	}
	if gap := m.since() - max(free, m.crashedAt); gap > bound {
		m.fail("%s: unheld for %v after a crash, want at most %v", r.doc.ID, gap, bound)
	}
}

// judgeAnswer checks the answer to a delivery, which acknowledges its task if it is settled. If
// excused, no delivery has to be booked: an operator has opened the analysis and has not booked one
// yet.
func (m *model) judgeAnswer(p *caller, o delivery.Result, excused bool) {
	r := m.records[p.analysis]
	l, t := r.doc.Lock, p.task
	answer := map[bool]string{true: "settled ", false: "unsettled "}[o.Ack] + o.Reason.String()
	switch {
	case p.busy:
		answer = "unsettled busy"
	case o.Reason == delivery.NotClaimed:
		answer = "unsettled stopped" // before it began
		if o.Ack || slices.ContainsFunc(r.states, func(s state) bool { return s.by == p }) {
			m.fail("%s was stopped before it began, but has written or was acknowledged", p)
		}
	}
	m.count(figure(answer))
	m.note("%s: answered %s", p, answer)
	if o.Ack && !t.done {
		t.done, t.freed = true, time.Now().Add(m.queueSkew+24*time.Hour)
	}
	wasSo := func(matches func(state) bool) bool { return slices.ContainsFunc(r.states[p.since-1:], matches) }

	if o.Ack {
		m.judgeAck(p, o, excused)
	}
	switch {
	case p.running():
		m.fail("%s answered before its run had ended", p)
	case o.Reason == delivery.Locked && l.Owner != "" && l.Owner == p.owner:
		m.fail("%s was answered locked because of its own lock", p)
	case o.Reason == delivery.Locked && !wasSo(func(s state) bool { return s.lock.ExpiresAt.Equal(o.RetryAt) }):
		m.fail("%s was answered locked until %s, but no lock had that expiry", p, o.RetryAt)
	case (o.Reason == delivery.Waiting || o.Reason == delivery.Suspect && o.Ack) &&
		!wasSo(func(s state) bool { return s.lock.Owner == "" && s.next.Equal(o.RetryAt) }):
		m.fail("%s was answered %s until %s, but no next attempt was booked for that time", p, o.Reason, o.RetryAt)
	case o.Reason == delivery.LockLost && l.FinishedBy != "" && l.FinishedBy == p.owner:
		m.fail("%s was answered lock_lost, but it had finished the analysis", p)
	case (o.Reason == delivery.Completed || o.Reason == delivery.Failed) &&
		!slices.Contains(r.history.Finishes, p.token):
		m.fail("%s was answered %s, but token %d has not finished the analysis", p, o.Reason, p.token)
	case o.Reason == delivery.AlreadyFinished && !wasSo(func(s state) bool { return s.lock.Finished }):
		m.fail("%s was answered already_finished, but the analysis was not finished", p)
	}
}

// judgeAck checks that the task of p may be acknowledged: its analysis is finished or parked, or another delivery is
// booked for it.
func (m *model) judgeAck(p *caller, o delivery.Result, excused bool) {
	r := m.records[p.analysis]
	by, t := r.states[len(r.states)-1].by, p.task
	waits := r.doc.Lock.Owner == "" && r.doc.NextAttemptAt.Equal(o.RetryAt)
	if waits && slices.Contains([]delivery.Reason{delivery.Retry, delivery.Waiting, delivery.Suspect}, o.Reason) {
		next := m.taskNamed(r.doc.BookedTask)
		if open := next != nil && !next.done; !open || next.At.After(o.RetryAt) {
			m.fail("%s was acknowledged with %s, but the next attempt is not booked for %s", p, o.Reason, m.show(r.doc))
		}
		if by.task == t && by.on.crashed {
			m.count("booked again after a crash")
		}
	}

	if o.Reason == delivery.KeyBusy && !slices.Contains(r.parkings, p) {
		m.fail("%s was acknowledged with key_busy, but has not parked %s", p, m.show(r.doc))
	}
	if m.pending(p.analysis, t) > 0 {
		return
	}
	if !r.doc.ParkedAt.IsZero() {
		m.judgeParked(r, p)
		return
	}
	// Another delivery of the same task has taken the slot since. It may do so just after the answer too: then only
	// recovery finds it if it dies.
	other := by != nil && by != p
	duplicate := other && o.Reason == delivery.KeyBusy && by.task == t
	if excused = excused || duplicate; !excused && !r.doc.Lock.Finished {
		m.fail("%s was acknowledged with %s, but no delivery is booked for %s", p, o.Reason, m.show(r.doc))
	}
}
