package console

import (
	"context"
	"time"

	"taskguard/repo"
)

const (
	maxRead  = 10 * time.Second // the time limit of a read
	maxWait  = 5 * time.Second  // how long after the start of a read a page waits for it
	patience = time.Second      // instead of maxWait, after an error, for a fresh value, or if another read is late
	retry    = 4 * time.Second  // the longest time from the start of an attempt with an error to the next
	outage   = time.Minute      // how long after the start of a slow attempt with an error no page waits
)

// maxReadings are kept; then all are read again.
const maxReadings = 32

// reading is a value that pages share, and the result of the last attempt to read it.
// Server.mu guards its fields; nothing is read while it is locked.
type reading struct {
	every time.Duration // the shortest time from one attempt to the next
	value any
	ended time.Time     // local time after the read of value; zero: it was never read
	tried time.Time     // local time at which the last attempt began
	err   error         // of the last attempt
	slow  bool          // the last attempt had its error after patience: no page waits for the next
	busy  chan struct{} // closed at the end of the attempt under way; nil: there is none
}

// shared begins to read the value with this key, unless the last attempt is recent or under
// way. It waits for the attempt for a short time, and not at all after a slow error: it then
// returns what was read before.
func (s *Server) shared(key string, every time.Duration, read func(context.Context) (any, error)) reading {
	s.mu.Lock()
	defer s.mu.Unlock()

	r := s.readings[key]
	if r == nil {
		if len(s.readings) == maxReadings {
			clear(s.readings)
		}
		r = &reading{}
		s.readings[key] = r
	}
	r.every = every
	if b, ok := r.value.(repo.Backlog); ok { // it is billed at most a read a second
		r.every = max(every, time.Duration(b.Reads())*time.Second)
	}

	pause := r.every
	if r.err != nil {
		pause = min(pause, retry)
	}
	if now := time.Now(); r.busy == nil && now.Sub(r.tried) >= pause {
		if now.Sub(r.tried) > outage {
			r.err, r.slow = nil, false
		}
		r.tried, r.busy = now, make(chan struct{})
		go s.attempt(r, read, s.Track()) // a stop ends it and waits for it
	}

	wait := maxWait
	if r.fresh() || r.err != nil {
		wait = patience
	}
	for _, other := range s.readings { // a page waits once for a store that does not answer
		if other.busy != nil && time.Since(other.tried) >= maxWait {
			wait = patience
		}
	}
	if busy, left := r.busy, wait-time.Since(r.tried); busy != nil && !r.slow && left > 0 {
		s.mu.Unlock()
		select {
		case <-busy:
		case <-time.After(left):
		}
		s.mu.Lock()
	}
	return *r
}

// attempt reads the value of r, and calls done.
func (s *Server) attempt(r *reading, read func(context.Context) (any, error), done func()) {
	defer done()
	ctx, cancel := context.WithTimeout(s.work, maxRead)
	defer cancel()
	value, err := read(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		r.value, r.ended = value, time.Now()
	} else if r.err == nil {
		s.o.Log.Warn("console cannot read Firestore", "error", err)
	}
	r.err, r.slow = err, err != nil && time.Since(r.tried) > patience
	close(r.busy)
	r.busy = nil
}

// forget makes the next pages read again: an operator has changed something.
func (s *Server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.readings)
}

// fresh reports whether the value is current.
func (r *reading) fresh() bool {
	return r.err == nil && !r.ended.IsZero() && time.Since(r.ended) < 2*r.every+maxRead
}

// age describes how old the value is, which the store has read at its time at. now is the
// store's time by which the value is to be judged: late by the time of the answer, so that a
// lock may be shown as held for that much too long, never as stale too soon. It does not pass
// in an outage, as a holder may have renewed its lock.
func (r *reading) age(at time.Time) (l live, now time.Time) {
	if r.ended.IsZero() || r.err != nil && at.IsZero() {
		return live{Status: "unavailable", Problem: problem(r.err) + ". Nothing is known yet."}, time.Time{}
	}
	passed := time.Since(r.ended)
	if r.fresh() {
		now = at.Add(passed)
		return liveAt(now), now
	}
	l = liveAt(at)
	l.Status, l.Problem = "unavailable", problem(r.err)+". What is shown is as of "+l.At
	if passed >= time.Minute {
		l.Problem += ", " + age(passed) + " ago"
	}
	l.Problem += "."
	return l, at
}
