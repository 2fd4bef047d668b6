package proof

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Kind is the effect of a write on the lock of an analysis.
type Kind string

// The kinds of writes. A worker makes no other.
const (
	Create    Kind = "create" // makes the document; no judge adds it to a History
	Acquire   Kind = "acquire"
	Heartbeat Kind = "heartbeat"
	Release   Kind = "release"
	Finish    Kind = "finish"
	GiveUp    Kind = "give up" // FAILED, because all attempts are used
	Unlock    Kind = "unlock"  // an operator's write, like Requeue and Cancel
	Requeue   Kind = "requeue"
	Cancel    Kind = "cancel"
	Resolve   Kind = "resolve" // an operator's answer for a finished analysis; for others it is a Requeue
	Mark      Kind = "mark"    // recovery's write: a delivery is due
	Park      Kind = "park"    // the analysis waits for a slot of its key: an expired lock is freed
	Delay     Kind = "delay"   // a suspect could not run alone: its lock is freed, and a delivery booked
	Other     Kind = "other"
)

// Write is a write that the store has applied.
type Write struct {
	Kind    Kind
	By      string    // the delivery or the worker that made it
	Owner   string    // set for an acquisition, a finish and a cancel
	Token   int64     // zero: the write does not name one
	At      time.Time // the store's time of the read on which it is based
	Expires time.Time // set for an acquisition and a heartbeat
	Running bool      // the run of this lock has not ended
}

// History judges the writes to one analysis, in the order in which the store applied them.
type History struct {
	Token    int64     // the last one issued
	Owner    string    // who acquired with that token
	Holder   string    // Write.By of the acquisition; empty: the lock is free
	Expires  time.Time // when the holder's lock expires
	Finished bool
	Finishes []int64 // the tokens that finished the analysis, one between two requeues
	Steals   int     // acquisitions of an expired lock
	Wrong    []string
}

// Add judges the next write. Each token is one more than the last. A lock is acquired only
// if it is free or has expired. Only the holder extends the lock, releases it or finishes
// the analysis, and it does the last two only after its run has ended. Recovery marks an
// analysis, and a worker delays a suspect or parks an analysis, only if its lock is not held. An operator's cancel
// takes a token and finishes the analysis, even if the lock is held. A finished analysis does
// not change until an operator requeues it.
func (h *History) Add(w Write) {
	held := h.Holder != "" && w.At.Before(h.Expires)
	allowed := w.Kind == Unlock || w.Kind == Requeue || w.Kind == Resolve
	switch {
	case w.Kind == Other:
		h.wrong("%s made a write of unknown kind", w.By)
	case h.Finished && !allowed:
		h.wrong("%s wrote %s after the finish", w.By, w.Kind)
	case held && (w.Kind == Acquire || w.Kind == GiveUp):
		h.wrong("%s took token %d at %v, but %s held the lock until %v", w.By, w.Token, w.At, h.Holder, h.Expires)
	case held && (w.Kind == Requeue || w.Kind == Resolve || w.Kind == Mark || w.Kind == Delay || w.Kind == Park):
		h.wrong("%s wrote %s while %s held the lock", w.By, w.Kind, h.Holder)
	}

	switch w.Kind {
	case Acquire, GiveUp, Cancel:
		if w.Token != h.Token+1 {
			h.wrong("%s took token %d after token %d", w.By, w.Token, h.Token)
		}
		if h.Holder != "" && w.Kind != Cancel {
			h.Steals++
		}
		h.Token, h.Owner, h.Holder, h.Expires = w.Token, w.Owner, w.By, w.Expires
	case Heartbeat, Release, Finish:
		switch {
		case w.By != h.Holder:
			h.wrong("%s wrote %s to the lock of %q", w.By, w.Kind, h.Holder)
		case w.Token != 0 && w.Token != h.Token, w.Kind == Finish && w.Owner != h.Owner:
			h.wrong("%s wrote %s as %s with token %d to the lock of %s with token %d",
				w.By, w.Kind, w.Owner, w.Token, h.Owner, h.Token)
		case w.Running && w.Kind != Heartbeat:
			h.wrong("%s wrote %s before its run had ended", w.By, w.Kind)
		}
	}

	switch w.Kind {
	case Heartbeat:
		h.Expires = w.Expires
	case Finish, GiveUp, Cancel:
		h.Finished, h.Finishes, h.Holder = true, append(h.Finishes, h.Token), ""
	case Requeue:
		h.Finished, h.Holder = false, ""
	case Release, Unlock, Delay, Park:
		h.Holder = ""
	}
}

func (h *History) wrong(format string, args ...any) {
	h.Wrong = append(h.Wrong, fmt.Sprintf(format, args...))
}

// Span is a period, in time since the start of the test.
type Span struct{ From, Until time.Duration }

// Uncovered returns how much of s no other span covers.
func (s Span) Uncovered(others ...Span) (sum time.Duration) {
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	for _, o := range others {
		sum += max(0, min(o.From, s.Until)-s.From)
		s.From = max(s.From, min(o.Until, s.Until))
	}
	return sum + max(0, s.Until-s.From)
}
