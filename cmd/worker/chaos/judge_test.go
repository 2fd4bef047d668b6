package chaos

import (
	"fmt"
	"testing"
	"time"
)

// judgement of a document's history.
type judgement struct {
	bad    []string // what must not be
	steals int      // acquisitions of an expired lock
	last   write    // acquisition
	by     write    // the finish
}

// judged goes through the writes of a document, in Firestore's order.
func judged(writes []write) (j judgement) {
	held := false
	var expires write // who last wrote an expiry
	wrong := func(format string, args ...any) { j.bad = append(j.bad, fmt.Sprintf(format, args...)) }
	for i := range writes {
		w := writes[i]
		if j.by.kind == finish {
			wrong("%s after the finish", w.kind)
		}
		switch w.kind {
		case acquire:
			if w.token != j.last.token+1 {
				wrong("token %d after %d", w.token, j.last.token)
			}
			if held {
				j.steals++
				if w.read.Before(expires.expires) {
					wrong("token %d was taken at %v, and the lock held until %v", w.token, w.read, expires.expires)
				}
			}
			j.last, expires, held = w, w, true
		case heartbeat:
			if !held {
				wrong("write %d is the heartbeat of a lock that nobody holds", i)
			}
			expires = w
		case release:
			if !held {
				wrong("write %d is the release of a lock that nobody holds", i)
			}
			held = false
		case finish:
			if !held || w.owner != j.last.owner || w.token != j.last.token {
				wrong("finished by %s with the result of token %d; the lock was %s's, token %d", w.owner, w.token, j.last.owner, j.last.token)
			}
			j.by, held = w, false
		case other:
			wrong("write %d is none that a worker makes", i)
		}
	}
	return j
}

func TestAHistoryIsJudged(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	take := func(token int64, second int) write {
		return write{kind: acquire, owner: fmt.Sprint("owner ", token), token: token, read: at(second), expires: at(second + 10)}
	}
	beat := func(second int) write { return write{kind: heartbeat, read: at(second), expires: at(second + 10)} }
	free := write{kind: release}
	end := func(owner, result int64) write {
		return write{kind: finish, owner: fmt.Sprint("owner ", owner), token: result}
	}
	for name, c := range map[string]struct {
		writes      []write
		bad, steals int
	}{
		"nothing":                      {nil, 0, 0},
		"two attempts":                 {[]write{take(1, 0), beat(5), free, take(2, 6), end(2, 2)}, 0, 0},
		"a steal":                      {[]write{take(1, 0), beat(5), take(2, 15), end(2, 2)}, 0, 1},
		"a steal before the expiry":    {[]write{take(1, 0), beat(5), take(2, 14)}, 1, 1},
		"a token again":                {[]write{take(1, 0), free, take(1, 1)}, 1, 0},
		"a token left out":             {[]write{take(1, 0), free, take(3, 1)}, 1, 0},
		"a finish of the superseded":   {[]write{take(1, 0), take(2, 15), end(1, 1)}, 1, 1},
		"the result of the superseded": {[]write{take(1, 0), take(2, 15), end(2, 1)}, 1, 1},
		"a second finish":              {[]write{take(1, 0), end(1, 1), end(1, 1)}, 2, 0},
		"a ghost of a lock":            {[]write{take(1, 0), end(1, 1), beat(5)}, 2, 0},
		"a heartbeat after a release":  {[]write{take(1, 0), free, beat(5)}, 1, 0},
		"a release of nothing":         {[]write{take(1, 0), free, free}, 1, 0},
	} {
		if j := judged(c.writes); len(j.bad) != c.bad || j.steals != c.steals {
			t.Errorf("%s: %d steals, and %q; want %d and %d of these", name, j.steals, j.bad, c.steals, c.bad)
		}
	}
}
