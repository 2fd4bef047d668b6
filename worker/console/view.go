package console

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/lease/iso8601"
)

// The words for what a lock is, as pages and their addresses name it.
const (
	lockHeld      = "held"
	lockStale     = "stale" // expired, not released
	lockFree      = "free"
	lockMalformed = "malformed"
)

// stuck is the word for an overdue analysis, whatever its lock is.
const stuck = "stuck"

// noStatus is the word for an analysis without one, in pages and their addresses.
// A status that is this very text is listed beside them.
const noStatus = "no status"

// shown is one analysis as templates show it, at one moment.
type shown struct {
	Key        string // names it on a page
	ID         string // as it is, for addresses
	State      string
	Kind       string // queued, processing, ready, failed, none or other: how State looks
	Lock       string // held, stale, free or malformed
	Overdue    bool   // nobody has updated it for long, and it is unfinished
	Owner      string
	Token      int64
	Left       time.Duration // held: on the lock
	ExpiresAt  time.Time
	Expired    string // when; empty: it names no time
	Heartbeat  string
	Attempts   int
	Error      *Failure
	LastError  *Failure // while unfinished
	FinishedBy string
	Created    string
	Updated    string
	UpdatedAt  time.Time
	Age        time.Duration // since UpdatedAt
	Malformed  string
	Write      bool // changes may be made
	Finished   bool
}

// show judges e at now, the store's time.
func show(e *entry, now time.Time, write bool) shown {
	s := shown{
		Key: key(e.ID), ID: e.ID, State: stateOf(e.Status), Kind: kindOf(e.Status), Lock: e.lock(now), Overdue: e.overdue,
		Owner: e.Lock.Owner, Token: e.Lock.Token, ExpiresAt: e.Lock.ExpiresAt, Expired: stamp(e.Lock.ExpiresAt), Heartbeat: stamp(e.Lock.HeartbeatAt),
		Attempts: e.Attempts, Error: e.Error, FinishedBy: e.Lock.FinishedBy,
		Created: stamp(e.Created), Updated: stamp(e.Updated), UpdatedAt: e.Updated, Age: now.Sub(e.Updated),
		Malformed: e.Malformed, Write: write, Finished: e.Lock.Finished,
	}
	if s.Lock == lockHeld {
		s.Left = e.Lock.ExpiresAt.Sub(now)
	}
	if !s.Finished { // others may leave it behind when they finish one
		s.LastError = e.LastError
	}
	return s
}

// Unlockable reports whether there is a lock to be taken.
func (s shown) Unlockable() bool { return s.Write && (s.Lock == lockHeld || s.Lock == lockStale) }

// Requeueable reports whether it may be opened again.
func (s shown) Requeueable() bool { return s.Write && (s.Lock == lockStale || s.Lock == lockFree) }

// lock is what e's lock is at now, in a word.
func (e *entry) lock(now time.Time) string {
	switch {
	case e.Malformed != "":
		return lockMalformed
	case e.held(now):
		return lockHeld
	case e.Lock.Owner != "" && !e.Lock.Finished:
		return lockStale
	}
	return lockFree
}

// key is a name that is the same for an id each time, whatever is in the id.
func key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

func stateOf(status string) string { return cmp.Or(status, noStatus) }

// kinds are the states that look like something.
var kinds = []string{"QUEUED", "PROCESSING", "READY", "FAILED"}

func kindOf(status string) string {
	switch {
	case slices.Contains(kinds, status):
		return strings.ToLower(status)
	case status == "":
		return "none"
	}
	return "other"
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return iso8601.Format(t)
}

// choice is which analyses a page shows.
type choice struct {
	State  string // stateOf; empty: all
	Lock   string // empty: all
	Search string // part of the id, in any case
}

// Known reports whether State is one of the four.
func (c choice) Known() bool { return slices.Contains(kinds, c.State) }

// Any reports whether c leaves anything out.
func (c choice) Any() bool { return c != choice{} }

func (c choice) takes(e *entry, now time.Time) bool {
	return (c.State == "" || c.State == stateOf(e.Status)) &&
		(c.Lock == "" || c.Lock == e.lock(now) || c.Lock == stuck && e.overdue) &&
		(c.Search == "" || strings.Contains(strings.ToLower(e.ID), strings.ToLower(c.Search)))
}

// count is one word with the number of analyses that it is true of.
type count struct {
	Word, Kind string
	N          string // empty: unknown
	Current    bool   // the page shows these
	Query      string // of the address that shows these
}

// Key names c's filter on a page.
func (c count) Key() string { return key(c.Kind + " " + c.Word) }

// tally are numbers whatever a page shows of them: those of States of all analyses,
// those of Locks of the ones that are listed.
type tally struct {
	All           count
	States, Locks []count
}

// tally counts; c is the page's choice.
func (l *listing) tally(c choice) tally {
	others, locks := map[string]bool{}, map[string]int{}
	for i := range l.known {
		e := &l.known[i]
		others[e.Status] = !slices.Contains(kinds, e.Status)
		locks[e.lock(l.now)]++
		if e.overdue {
			locks[stuck]++
		}
	}
	of := func(status string) string {
		if n, known := l.counts[status]; known {
			return strconv.FormatInt(n, 10)
		}
		return ""
	}
	t := tally{All: count{Word: "All", N: of(""), Current: c.State == "" && c.Lock == "", Query: choice{Search: c.Search}.query()}}
	state := func(status, n string) {
		word := stateOf(status)
		t.States = append(t.States, count{word, kindOf(status), n, c.State == word, choice{State: word, Search: c.Search}.query()})
	}
	for _, status := range kinds {
		state(status, of(status))
	}
	maps.DeleteFunc(others, func(_ string, other bool) bool { return !other })
	for _, status := range slices.Sorted(maps.Keys(others))[:min(len(others), maxOthers)] {
		state(status, "")
	}
	for _, word := range []string{lockHeld, lockStale, stuck, lockMalformed} {
		n := ""
		if l.live.At != "" {
			n = strconv.Itoa(locks[word])
		}
		t.Locks = append(t.Locks, count{word, word, n, c.Lock == word, choice{Lock: word, Search: c.Search}.query()})
	}
	return t
}

// maxOthers is how many foreign words for a state have a filter of their own.
const maxOthers = 8
