package documentlock

import (
	"time"

	"taskguard/lease"
)

// room is what a Feed knows of a room. Feed.mu guards it.
type room struct {
	id   string
	subs map[*Subscription]struct{}
	uses int // subscriptions, also those that are being made

	known  bool
	cell   lease.Cell[Lock] // by which all is judged: the newest by the store's time
	latest Event            // the state that cell shows
	due    time.Time        // when to read the room again, local; zero: not now
}

// least is the shortest time to a next reading: the store's clock may be behind
// the estimate by a part of a round trip.
const least = 20 * time.Millisecond

// apply takes a reading or a change of the record, if it is newer than what is
// known, and tells the subscribers if it is another state.
func (r *room) apply(c lease.Cell[Lock]) {
	if r.known && !c.At.After(r.cell.At) {
		return
	}
	was, last, first := r.latest, r.cell, !r.known
	now := Event{Room: r.id, Version: max(c.At.UnixMicro(), was.Version+1)} // where a clock is finer than that
	r.known, r.cell, r.due = true, c, time.Time{}
	if now.Locked = lease.Held(c.Doc.Lease, c.At); now.Locked {
		now.Holder, now.ExpiresAt = c.Doc.Holder, c.Doc.ExpiresAt
		// Expiries are whole milliseconds. A little late is no reading in vain.
		r.due = c.Asked.Add(c.Doc.ExpiresAt.Sub(c.At.Truncate(time.Millisecond)))
		if soon := time.Now().Add(least); r.due.Before(soon) {
			r.due = soon
		}
	}
	now.Reason = reason(now.Locked, last, c)
	r.latest = now
	if !first && (now.Locked != was.Locked || now.Holder != was.Holder) {
		for s := range r.subs {
			s.tell(now)
		}
	}
}

// reason is why a room that was last is now c.
func reason(locked bool, last, c lease.Cell[Lock]) string {
	switch {
	case locked:
		return Acquired
	case c.Doc.Unlocked:
		return Unlocked
	case lease.Held(last.Doc.Lease, c.At):
		return Released
	}
	return Expired
}
