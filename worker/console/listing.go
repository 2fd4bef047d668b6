package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"taskguard/lease"
)

// maxOverdue is how many overdue analyses are listed.
const maxOverdue = 50

// lateness is how late the overdue analyses and the numbers may be, so that a page
// that asks every few seconds does not wait for them.
const lateness = 5 * time.Second

// listing is what the page of many analyses shows, at one moment.
type listing struct {
	known   []entry   // those overdue, then the newest
	now     time.Time // the store's time, by which locks are judged
	live    live
	counts  Counts // nil: unknown
	missing string // why overdue analyses are not listed, for people
}

// entry is one analysis that is listed.
type entry struct {
	Analysis
	overdue bool
}

// held says whether somebody holds e's lock at now, by the lease rule.
func (e *entry) held(now time.Time) bool { return lease.Held(e.Lock, now) }

// listing reads what is due, and waits for it for Pace.First at most; and up to
// Limit analyses in state, one of kinds, however long ago they were updated.
func (s *Server) listing(c context.Context, state string) listing {
	ctx, done := context.WithTimeout(c, s.o.Pace.First)
	defer done()
	s.newest.want()
	s.overdue.want()
	s.counts.want()
	newest := s.newest.get(ctx, 0)
	overdue := s.overdue.get(ctx, lateness)
	counts := s.counts.get(ctx, lateness)

	l := listing{now: newest.value.At}
	current := s.newest.fresh(newest)
	switch {
	case current:
		// The estimate is late by what the answer took to arrive: a lock may be shown
		// as held for that much too long, never as stale too soon.
		l.now = l.now.Add(time.Since(newest.value.Asked))
		l.live = liveAt(l.now)
	case newest.asked.IsZero() && newest.err == nil:
		l.live.Word = "waiting"
	default: // time stands still: a holder may have renewed since
		l.live = dark(newest.err, l.now)
	}
	if s.counts.fresh(counts) {
		l.counts = counts.value
	}
	late := overdue.value
	if current && !s.overdue.fresh(overdue) {
		late = nil
		if overdue.err != nil {
			l.missing = "Which analyses are stuck is not known now: " + unanswered(overdue.err) + "."
		}
	}
	all := slices.Clone(newest.value.All)
	if current && slices.Contains(kinds, state) {
		more, err := s.source.InState(c, state, s.o.Limit)
		if all = append(all, more...); err != nil {
			l.missing = "Older analyses in this state are not known now: " + unanswered(err) + "."
		}
	}
	if !newest.asked.IsZero() { // else there is no time by which a lock could be judged
		l.known = merged(all, late)
	}
	return l
}

// merged lists those overdue first, then the newest by their creation, an order in
// which a heartbeat moves nothing. One that was updated since it was read as overdue
// is overdue no more.
func merged(newest, overdue []Analysis) []entry {
	rest := make(map[string]Analysis, len(newest))
	for i := range newest {
		rest[newest[i].ID] = newest[i]
	}
	var all []entry
	for i := range overdue {
		a := overdue[i]
		now, listed := rest[a.ID]
		if listed && now.Updated.After(a.Updated) {
			continue
		}
		if listed {
			a = now
			delete(rest, a.ID)
		}
		all = append(all, entry{a, true})
	}
	first := len(all)
	for id := range rest {
		all = append(all, entry{rest[id], false})
	}
	slices.SortFunc(all[first:], func(a, b entry) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// live says how old a page is.
type live struct {
	Word string // static, waiting or dark
	At   string // the store's time of what is shown, for people
	Now  int64  // the same in milliseconds
	Dark string // what is wrong, for people
}

// liveAt is for a page that is as of at, the store's time.
func liveAt(at time.Time) live {
	return live{Word: "static", At: clock(at), Now: at.UnixMilli()}
}

// dark is for a page as of at, where the store has not answered since.
func dark(err error, at time.Time) live {
	l := live{Word: "dark", Dark: unanswered(err) + ". Nothing is known yet."}
	if !at.IsZero() {
		l.At, l.Now = clock(at), at.UnixMilli()
		l.Dark = unanswered(err) + ". What is shown is as of " + l.At + "."
	}
	return l
}

// unanswered is why the store has not answered, as the beginning of a sentence.
func unanswered(err error) string {
	var r *Refusal
	if errors.As(err, &r) {
		return "Firestore refuses: " + r.Words
	}
	return "Firestore does not answer"
}

// clock is a time of day for people.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("15:04:05") + " UTC"
}
