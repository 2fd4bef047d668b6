package explore

import (
	"fmt"
	"time"

	"taskguard/lease/analysislock"
)

func (w *world) violated(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, args...)
	}
}

// checkSwap looks at a swap at the moment at which it is applied.
func (w *world) checkSwap(c *call) {
	was, is, p := w.doc.Lock, c.next.Lock, c.by
	finished := c.next.Status == analysislock.Ready || c.next.Status == analysislock.Failed
	switch {
	case was.Finished && !same(w.doc, c.next):
		w.violated("%s changed a finished record: %s to %s", p, show(w.doc), show(c.next))
	case is.Token < was.Token:
		w.violated("%s turned the token back from %d to %d", p, was.Token, is.Token)
	case is.Finished != finished:
		w.violated("%s wrote status %s with finished %v", p, c.next.Status, is.Finished)
	}
	switch {
	case p.host == w.op:
		w.checkUnlock(p)
	case p.body == nil && is.Token != was.Token: // one whose reply was lost may be broken, and made again
		w.checkTake(c)
	default:
		w.checkFenced(c)
	}
}

// checkUnlock: one unlock breaks one lock, however often it is tried.
func (w *world) checkUnlock(op *party) {
	for _, p := range w.parties {
		if !p.holds(w.doc) {
			continue
		}
		if op.token != 0 {
			w.violated("one unlock broke token %d and token %d", op.token, p.token)
		}
		op.token = p.token
		p.broken, p.trust = true, w.local(w.doc.Lock.ExpiresAt).Add(-margin)
	}
	w.count(func(s *stats) { s.unlocks++ })
}

// checkTake: an acquisition is of a lock that nobody holds, with a token that
// nobody has had.
func (w *world) checkTake(c *call) {
	was, is, p := w.doc.Lock, c.next.Lock, c.by
	switch {
	case was.Owner != "" && w.now().Before(was.ExpiresAt):
		w.violated("%s took a lock that is held: %s", p, show(w.doc))
	case is.Token <= w.maxToken:
		w.violated("%s took token %d, which has been given before", p, is.Token)
	}
	p.token, p.broken, p.told = is.Token, false, false
	w.maxToken = max(w.maxToken, is.Token)
	w.count(func(s *stats) {
		if was.Owner != "" {
			s.steals++
		}
	})
}

// checkFenced: any other write is its holder's.
func (w *world) checkFenced(c *call) {
	was, is, p := w.doc.Lock, c.next.Lock, c.by
	switch {
	case !p.holds(w.doc):
		w.violated("%s, superseded, wrote %s over %s", p, show(c.next), show(w.doc))
	case is.Owner == "" && p.body.runs():
		w.violated("%s freed its lock while its run went on", p)
	case is.Token != was.Token:
		w.violated("%s changed the token from %d to %d", p, was.Token, is.Token)
	case c.next.Status == analysislock.Ready && c.next.Result != any(p.token):
		w.violated("%s wrote the result of token %v", p, c.next.Result)
	}
	w.count(func(s *stats) {
		if !time.Now().Before(w.local(was.ExpiresAt).Add(-margin)) {
			s.wakeups++
		}
		if is.ExpiresAt.After(was.ExpiresAt) {
			s.extended++
		}
	})
}

// holds: the lock that d shows is p's.
func (p *party) holds(d analysislock.Analysis) bool {
	return p.token != 0 && d.Lock.Owner == p.owner && d.Lock.Token == p.token
}

// checkHolders: who believes to hold the lock does hold it, and is alone. Only
// one whose lock an operator broke may not know, until it has read the record
// or its trust has ended.
func (w *world) checkHolders() {
	believing := 0
	for _, p := range w.parties {
		if p.body == nil || !p.live() {
			continue
		}
		l := w.doc.Lock
		switch {
		case p.broken && p.told:
			w.violated("%s runs on although it has read that its lock was broken", p)
		case p.broken && time.Now().After(p.trust):
			w.violated("%s, whose lock was broken, trusts it past its end", p)
		case p.broken:
			continue
		case !p.holds(w.doc):
			w.violated("%s runs without the lock: %s", p, show(w.doc))
		case !w.now().Before(l.ExpiresAt):
			w.violated("%s runs with an expired lock", p)
		}
		believing++
	}
	if believing > 1 {
		w.violated("%d runs believe to hold the lock", believing)
	}
}

// answered looks at an answer at the moment at which it is given.
func (w *world) answered(p *party) {
	w.count(func(s *stats) { s.answers[p.code]++ })
	p.task.flying--
	w.note("%s answers %d %s %s", p, p.code, p.answer.Status, p.answer.Reason)
	l := w.doc.Lock
	if p.code/100 == 2 {
		p.task.gone = true
		if !l.Finished && !w.queue.left() {
			w.violated("%s was acknowledged, and nothing is booked for %s", p, show(w.doc))
		}
	}
	switch reason := p.answer.Reason; {
	case p.body.runs():
		w.violated("%s answered before its run had ended", p)
	case reason == analysislock.Locked && l.Owner == p.owner:
		w.violated("%s was told that it is locked out by itself", p)
	case reason == "lock_lost" && l.FinishedBy == p.owner:
		w.violated("%s was told that its lock is lost, and finished the record", p)
	case p.code == 200 && p.answer.Status != "" && reason == "" && !l.Finished:
		w.violated("%s is said to be finished, and is not", p)
	}
}

// same: nothing differs but what a finished record may lose.
func same(a, b analysislock.Analysis) bool {
	return a.Status == b.Status && a.Result == b.Result && a.Lock == b.Lock && (a.Error == b.Error || (a.Error != nil && b.Error != nil && *a.Error == *b.Error))
}

// checkBeats: who is due has asked, or is asking. It is called at the instant
// at which a heartbeat is due, and no earlier call has been kept waiting.
func (w *world) checkBeats(due []*party) {
	for _, p := range due {
		if p.pending == nil && p.live() {
			w.violated("%s sends no heartbeat", p)
		}
	}
}

// local is a store's time by the workers' clocks.
func (w *world) local(store time.Time) time.Time { return store.Add(skew) }

func (p *party) String() string {
	if p.host.index < 0 {
		return "the operator"
	}
	return fmt.Sprintf("delivery %d at w%d", p.id, p.host.index)
}

func show(d analysislock.Analysis) string {
	l := d.Lock
	s := fmt.Sprintf("%s token %d", d.Status, l.Token)
	if l.Owner != "" {
		s += fmt.Sprintf(" owner %.8s until %s", l.Owner, l.ExpiresAt.Format("15:04:05.000"))
	}
	if l.FinishedBy != "" {
		s += fmt.Sprintf(" by %.8s", l.FinishedBy)
	}
	return s
}
