package console

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"time"
)

const (
	maxRead  = 10 * time.Second // the time limit of a read
	maxWait  = 5 * time.Second  // how long a page waits for all its reads
	patience = time.Second      // a page that can show an older value waits only so long for a new one
	retry    = 4 * time.Second  // a failed read is repeated at the latest after this time
)

// readsPerSecond bounds what each of the four counts costs, whatever it counts: the states, the backlog,
// the failures and the run times.
const readsPerSecond = 5

// count is a value that Firestore counts, and for which it bills so many reads.
type count interface{ Reads() int64 }

// restAfter returns how long a count that took so long is not repeated, and for any other value zero. One
// that failed has no number to go by: Firestore counts less than a million entries, 1,000 reads, a second.
// But Firestore may only have been down: the first failures of a count that is unknown rest 1, 3, 9… minutes.
func (r *reading) restAfter(value any, took time.Duration, err error) time.Duration {
	rest := func(c count) time.Duration { return time.Duration(c.Reads()) * time.Second / readsPerSecond }
	c, counts := value.(count)
	last, known := r.value.(count)
	switch {
	case !counts:
		return 0
	case err == nil:
		return rest(c)
	case known:
		return min(rest(last), took*1000/readsPerSecond)
	}
	return min(max(time.Minute, 3*r.rest), took*1000/readsPerSecond)
}

// maxReadings are kept; then all but costly ones and those under way are read again.
const maxReadings = 32

// reading is a value that pages share, and the result of the last attempt to read it.
// Server.mu guards its fields; nothing is read while it is locked.
type reading struct {
	every time.Duration // the shortest time from one attempt to the next
	rest  time.Duration // the same, because of what the last attempt cost
	value any
	ended time.Time     // local time after the read of value; zero: it was never read
	tried time.Time     // local time at which the last attempt began
	err   error         // the error of the last attempt
	busy  chan struct{} // closed at the end of the attempt under way; nil: there is none
}

// shared begins to read the value with this key, unless the last attempt is recent or under
// way. It waits for the attempt until ctx ends, or for a short time if something is known
// already: it then returns what was read before.
func (s *Server) shared(
	ctx context.Context, key string, every time.Duration, read func(context.Context) (any, error),
) reading {
	s.mu.Lock()
	defer s.mu.Unlock()

	r := s.readings[key]
	if r == nil {
		if len(s.readings) >= maxReadings {
			maps.DeleteFunc(s.readings, func(_ string, r *reading) bool { return r.busy == nil && !r.costly() })
		}
		r = &reading{}
		s.readings[key] = r
	}
	pause := every
	if r.err != nil {
		pause = min(pause, retry)
	}
	pause, r.every = max(pause, r.rest), max(every, r.rest)
	if r.busy == nil && time.Since(r.tried) >= pause {
		r.tried, r.busy = time.Now(), make(chan struct{})
		go s.attempt(r, read, s.Track()) // a stop ends it and waits for it
	}

	if r.fresh() || r.err != nil {
		deadline, _ := ctx.Deadline() // of the page, after maxWait: all its reads together have the patience
		limited, cancel := context.WithDeadline(ctx, deadline.Add(patience-maxWait))
		defer cancel()
		ctx = limited
	}
	if busy := r.busy; busy != nil {
		s.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	return *r
}

// attempt reads the value of r, and calls done. read returns a count also beside an error.
func (s *Server) attempt(r *reading, read func(context.Context) (any, error), done func()) {
	defer done()
	ctx, cancel := context.WithTimeout(s.work, maxRead)
	defer cancel()
	began := time.Now()
	value, err := read(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	r.rest = r.restAfter(value, time.Since(began), err)
	if err == nil {
		r.value, r.ended = value, time.Now()
	} else if r.err == nil {
		s.o.Log.Warn("console cannot read Firestore", "error", err)
	}
	r.err = err
	close(r.busy)
	r.busy = nil
}

// forget makes the next pages read again, except costly counts: an operator has changed something.
func (s *Server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.readings, func(_ string, r *reading) bool { return !r.costly() })
}

// costly reports whether r is a count that is read less often because of its cost.
func (r *reading) costly() bool { return r.rest >= r.every }

// restLeft returns how long a count that failed is not yet repeated.
func (r *reading) restLeft() time.Duration {
	if r.err == nil || r.busy != nil {
		return 0
	}
	return max(0, r.rest-time.Since(r.tried))
}

// fresh reports whether the value is current.
func (r *reading) fresh() bool {
	return r.err == nil && !r.ended.IsZero() && time.Since(r.ended) < 2*r.every+maxRead
}

// live describes how old a page is.
type live struct {
	Status  string // static, or unavailable: the store does not answer
	At      string // the store's time of the data, as text
	Now     int64  // the same in milliseconds
	Problem string // a sentence about the store
	Again   string // the time until a count that failed is repeated, unless that is soon
	Age     string // of data that is older than a minute
}

// liveAt describes a page with data of the store's time readAt.
func liveAt(readAt time.Time) live {
	return live{Status: "static", At: clock(readAt), Now: readAt.UnixMilli()}
}

// age describes how old the value is, which was read at the store's time readAt. It also returns
// the store's time now, by which the page judges locks. now is late by the time that the answer took:
// the page may show a lock as held for that much too long, but never as stale too soon. In an outage
// now stays at readAt, as a holder may have renewed its lock.
func (r *reading) age(readAt time.Time) (l live, now time.Time) {
	cause, again := problem(r.err), ""
	if left := r.restLeft(); left > retry {
		again = age(left)
		cause = "The last count failed: " + cmp.Or(Permanent(r.err), "no answer") + ". Counted again in " + again
	}
	if r.ended.IsZero() {
		return live{Status: "unavailable", Problem: cause + ". Nothing is known yet.", Again: again}, time.Time{}
	}
	passed := time.Since(r.ended)
	if now = readAt; r.fresh() {
		now = readAt.Add(passed)
	}
	l = liveAt(now)
	if passed >= time.Minute {
		l.Age = age(passed)
	}
	if r.fresh() {
		return l, now
	}

	l.Status, l.Again, l.Problem = "unavailable", again, cause+". What is shown is as of "+l.At
	if l.Age != "" {
		l.Problem += ", " + l.Age + " ago"
	}
	l.Problem += "."
	return l, now
}

// Identity identifies the sender of a request. Its error contains no text of the request. It
// matches taskauth.ErrNoKeys if the sender cannot be identified now.
type Identity interface {
	Identify(r *http.Request) (who string, err error)
}
