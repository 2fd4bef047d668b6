package console

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"time"

	"taskguard/lease"
)

// state is what is known at one moment. It does not change.
type state struct {
	known    []entry // those overdue, then those followed
	overdue  []entry // the longest first
	followed []entry // the newest creation first
	at       time.Time
	asked    time.Time // at, by the local monotonic clock
	loaded   bool      // else nothing has been heard yet
	sought   bool      // those overdue were asked for
	missing  error     // why it is not known which are overdue now
	dark     time.Time // since when the store has not answered, locally; zero: it does
	cause    error     // why, where dark
}

// entry is one analysis in one of its versions.
type entry struct {
	Analysis
	key     string
	version int64 // another with each change
	overdue bool
}

// held says whether somebody holds e's lock at now, by the lease rule.
func (e *entry) held(now time.Time) bool { return lease.Held(e.Lock, now) }

// now is the store's time, as estimated: it is late by what the last news took to
// arrive, so a lock may be shown as held for that much too long, never as stale
// too soon. It stands still in the dark, in which nobody can say who has renewed.
func (s *state) now() time.Time {
	switch {
	case !s.loaded:
		return s.at
	case !s.dark.IsZero():
		return s.at.Add(s.dark.Sub(s.asked))
	}
	return s.at.Add(time.Since(s.asked))
}

// find is the analysis id; ok is false where it is not among those known.
func (s *state) find(id string) (e entry, ok bool) {
	i := slices.IndexFunc(s.known, func(e entry) bool { return e.ID == id })
	if i < 0 {
		return entry{}, false
	}
	return s.known[i], true
}

// arranged is s with what follows from those overdue and those followed: one that
// was updated since it was read is overdue no more, and what is followed is newer.
// Before the first news there is no time by which a lock could be judged.
func (s state) arranged() state {
	if !s.loaded {
		return s
	}
	followed := make(map[string]*entry, len(s.followed))
	for i := range s.followed {
		followed[s.followed[i].ID] = &s.followed[i]
	}
	var overdue []entry
	for i := range s.overdue {
		e := &s.overdue[i]
		now, is := followed[e.ID]
		switch {
		case !is:
			overdue = append(overdue, *e)
		case !now.Updated.After(e.Updated):
			overdue = append(overdue, *now)
			delete(followed, e.ID)
		}
	}
	for i := range overdue {
		overdue[i].overdue = true
	}
	s.overdue, s.known = overdue, slices.Clone(overdue)
	for i := range s.followed {
		if followed[s.followed[i].ID] != nil {
			s.known = append(s.known, s.followed[i])
		}
	}
	return s
}

// versioned is s with another version of everything.
func (s state) versioned(version int64) state {
	s.followed, s.overdue = slices.Clone(s.followed), slices.Clone(s.overdue)
	for _, all := range [][]entry{s.followed, s.overdue} {
		for i := range all {
			all[i].version = version
		}
	}
	return s
}

// kept is the version of a among those that were known, or the next one.
func kept(known []entry, a Analysis, next int64) entry {
	for i := range known {
		if reflect.DeepEqual(known[i].Analysis, a) {
			return known[i]
		}
	}
	return entry{Analysis: a, key: key(a.ID), version: next}
}

// newestFirst is an order in which a heartbeat moves nothing.
func newestFirst(a, b entry) int {
	return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
}

// feedState is how the updates are, at one moment.
type feedState struct {
	Word    string `json:"word"`              // live, waiting or dark
	At      string `json:"at"`                // the store's time of what is shown
	Dark    string `json:"dark,omitempty"`    // in words, where it is
	Missing string `json:"missing,omitempty"` // why those overdue are not listed, in words
	Limit   int    `json:"-"`
	Overdue int    `json:"-"` // limit of those
}

func (s *Server) feedState(st *state) feedState {
	f := feedState{Word: "live", At: clock(st.now()), Limit: s.o.Limit, Overdue: maxOverdue}
	switch {
	case !st.dark.IsZero():
		f.Word, f.At = "dark", clock(st.at)
		f.Dark = unanswered(st.cause) + " since " + clock(st.dark)
		if f.At == "" {
			f.Dark += "; nothing is known yet"
		} else {
			f.Dark += "; what is shown is as of " + f.At
		}
	case !st.loaded:
		f.Word = "waiting"
	}
	if st.missing != nil && st.dark.IsZero() {
		f.Missing = "Which analyses have been stuck for long is not known now: " + unanswered(st.missing) + "."
	}
	return f
}

// unanswered is why the store has not answered, as the beginning of a sentence.
func unanswered(err error) string {
	var r *Refusal
	switch {
	case errors.As(err, &r):
		return "Firestore refuses: " + r.Words
	case errors.Is(err, errUntold):
		return "Firestore answers, but has told of no change"
	}
	return "Firestore has not answered"
}

// clock is a time of day for people.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("15:04:05") + " UTC"
}
