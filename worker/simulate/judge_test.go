package simulate

import (
	"fmt"

	"taskguard/lease/analysislock"
)

// judge looks at each write at the moment when the store applies it, with what
// it knows itself: who writes, and what was there. The mutex is held.
func (s *store) judge(key string, r *record, next analysislock.Analysis, by *tag) {
	was, is, now := r.doc.Lock, next.Lock, s.now()
	held := was.Owner != "" && now.Before(was.ExpiresAt)
	mine := by.act == "" && by.token != 0 && was.Owner == by.owner && was.Token == by.token
	wrong := func(what string) { s.w.fail("%s: %s %s: %+v → %+v", key, by.by, what, was, is) }
	terminal := next.Status == analysislock.Ready || next.Status == analysislock.Failed
	if terminal != is.Finished {
		wrong("left status and lock apart")
	}
	if is.Token < was.Token || is.Token > was.Token+1 {
		wrong("moved the token")
	}
	if is.Attempts > s.w.p.policy.MaxAttempts || is.Attempts < 0 {
		wrong("counted attempts wrongly")
	}
	what := ""
	switch {
	case by.act != "":
		what = by.act
		s.operated(r, next, by, held, wrong)
	case was.Finished:
		wrong("changed what is finished")
	case is.Token == was.Token+1:
		what = s.granted(r, next, by, held, wrong)
	case !mine:
		wrong("wrote without the lock")
	case is.Finished:
		what = "finishes"
		s.freed(r, by, wrong)
		s.finish(r, is.Token, by)
		s.w.figures["finishes"]++
	case is.Owner == "":
		what = "releases"
		s.freed(r, by, wrong)
		if is.Attempts == was.Attempts-1 {
			s.w.figures["stopped runs refunded"]++
			if !by.from.stopped(by) {
				wrong("refunded an attempt that no stop has ended")
			}
		}
	case is.Owner != was.Owner || is.Attempts != was.Attempts:
		wrong("gave the lock away")
	default:
		what = "renews"
	}
	s.w.tell("%s: %s %s %d", key, by.by, what, is.Token)
}

// granted is a write with a new token: an acquisition, or the end of attempts.
func (s *store) granted(r *record, next analysislock.Analysis, by *tag, held bool, wrong func(string)) (what string) {
	was, is := r.doc.Lock, next.Lock
	if held {
		wrong("took what is held")
	}
	if is.Finished {
		if was.Attempts < s.w.p.policy.MaxAttempts || is.Attempts != was.Attempts || is.FinishedBy != by.owner {
			wrong("gave up too early")
		}
		s.finish(r, is.Token, by)
		s.w.figures["attempts exhausted"]++
		return "gives up"
	}
	if is.Owner != by.owner || is.Attempts != was.Attempts+1 || next.Status != analysislock.Processing {
		wrong("acquired wrongly")
	}
	if was.Owner != "" {
		s.w.figures["steals"]++
	}
	h := hold{span{s.w.now(), -1}, by.from}
	if by.from.isDead() {
		h.until = h.from
	}
	r.held = append(r.held, h)
	return "acquires"
}

// freed is the end of a holder's lock.
func (s *store) freed(r *record, by *tag, wrong func(string)) {
	for _, b := range s.w.bodies {
		if b.on == by.from && b.id == by.id && b.token == by.token && b.end < 0 {
			wrong("released the lock while its body runs")
		}
	}
	r.held[len(r.held)-1].until = s.w.now()
}

func (s *store) finish(r *record, token int64, by *tag) {
	r.finishes = append(r.finishes, token)
	r.finished[by.owner] = true
	if len(r.finishes) > r.openings {
		s.w.fail("finished %d times in %d openings", len(r.finishes), r.openings)
	}
}

// operated is an operator's write.
func (s *store) operated(r *record, next analysislock.Analysis, by *tag, held bool, wrong func(string)) {
	was, is := r.doc.Lock, next.Lock
	if is.Owner != "" || is.Token != was.Token {
		wrong("freed nothing, or too much")
	}
	if by.told {
		s.w.landed[r.doc.ID] = s.w.now()
	}
	if by.act == "requeue" {
		if held {
			wrong("requeued what is held")
		}
		if was.Finished {
			r.openings++
		}
		return
	}
	if is.Finished != was.Finished || is.Attempts != was.Attempts {
		wrong("did more than unlock")
	}
	if was.Owner != "" {
		trust := was.ExpiresAt.Add(-s.w.p.policy.TTL / 10).Sub(s.now())
		r.broken = append(r.broken, broken{was.Token, span{s.w.now(), s.w.now() + max(trust, 0)}})
		r.held[len(r.held)-1].until = s.w.now()
	}
}

// verdict is about how it has all ended.
func (s *store) verdict() {
	for id, r := range s.records {
		d := r.doc
		last := int64(-1)
		if n := len(r.finishes); n > 0 {
			last = r.finishes[n-1]
		}
		switch {
		case len(r.finishes) != r.openings:
			s.w.fail("%s: %d finishes in %d openings", id, len(r.finishes), r.openings)
		case d.Status == analysislock.Ready && fmt.Sprint(d.Result) != result(id, last):
			s.w.fail("%s: READY with %v, finished by token %d", id, d.Result, last)
		case d.Status == analysislock.Failed && (d.Error == nil || d.Error.Message == ""):
			s.w.fail("%s: FAILED without a reason", id)
		case d.LastError != nil || d.Lock.Owner != "":
			s.w.fail("%s: finished with %+v, %+v", id, d.LastError, d.Lock)
		}
	}
}

// result is what the body of a token comes to.
func result(id string, token int64) string { return fmt.Sprintf("%s by %d", id, token) }
