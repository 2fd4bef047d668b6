package chaos

import (
	"fmt"
	"slices"
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
			switch {
			case !held:
				wrong("write %d is the heartbeat of a lock that nobody holds", i)
			case w.caller != j.last.caller:
				wrong("write %d is worker %d's heartbeat of the lock of worker %d", i, w.caller, j.last.caller)
			}
			expires = w
		case release:
			switch {
			case !held:
				wrong("write %d is the release of a lock that nobody holds", i)
			case w.caller != j.last.caller && w.caller != operator:
				wrong("write %d is worker %d's release of the lock of worker %d", i, w.caller, j.last.caller)
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

// explained judges a history, some of whose writes are in doubt: where it does
// not pass without them, with some of them put in where it does. Each may have
// been applied at any time after it was sent, or never.
func explained(known, doubted []write, pass func(judgement) bool) judgement {
	j := judged(known)
	if pass(j) {
		return j
	}
	for i := range doubted {
		rest := slices.Delete(slices.Clone(doubted), i, i+1)
		for at := len(known); at >= 0; at-- {
			if with := explained(slices.Insert(slices.Clone(known), at, doubted[i]), rest, pass); pass(with) {
				return with
			}
			if at > 0 && known[at-1].at.Before(doubted[i].at) {
				break
			}
		}
	}
	return j
}

func TestADoubtExcusesOnlyTheGapItLeaves(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	take := func(token int64, second int) write {
		return write{kind: acquire, caller: int(token), owner: "o", token: token, at: at(second), read: at(second), expires: at(second + 10)}
	}
	free := func(caller, second int) write { return write{kind: release, caller: caller, at: at(second)} }
	sound := func(j judgement) bool { return len(j.bad) == 0 }
	for name, c := range map[string]struct {
		known, doubted []write
		sound          bool
	}{
		"not needed":             {[]write{take(1, 0), free(1, 2)}, []write{take(2, 3)}, true},
		"a release":              {[]write{take(1, 0), take(2, 5)}, []write{free(1, 3)}, true},
		"a release sent later":   {[]write{take(1, 0), take(2, 5)}, []write{free(1, 6)}, false},
		"an acquisition":         {[]write{take(1, 0), free(1, 2), take(3, 20)}, []write{take(2, 3)}, true},
		"two":                    {[]write{take(1, 0), free(1, 2), take(3, 6)}, []write{free(2, 5), take(2, 3)}, true},
		"another gap than its":   {[]write{take(1, 0), take(2, 5), free(2, 6), take(4, 7)}, []write{free(1, 3)}, false},
		"a heartbeat beside it":  {[]write{take(1, 0), {kind: heartbeat, caller: 2, at: at(2)}}, []write{free(1, 3)}, false},
		"a finish that is final": {[]write{take(1, 0), {kind: finish, owner: "o", token: 1, at: at(2)}, take(2, 3)}, []write{free(1, 1)}, false},
	} {
		if j := explained(c.known, c.doubted, sound); sound(j) != c.sound {
			t.Errorf("%s: %q", name, j.bad)
		}
	}
}

func TestAHistoryIsJudged(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	take := func(token int64, second int) write {
		return write{kind: acquire, caller: int(token), owner: fmt.Sprint("owner ", token), token: token, read: at(second), expires: at(second + 10)}
	}
	theirs := func(caller, second int) write {
		return write{kind: heartbeat, caller: caller, read: at(second), expires: at(second + 10)}
	}
	beat := func(second int) write { return theirs(1, second) }
	freed := func(caller int) write { return write{kind: release, caller: caller} }
	free := freed(1)
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
		"an unlock, and the next":      {[]write{take(1, 0), freed(operator), take(2, 1), theirs(2, 2), freed(2)}, 0, 0},
		"the superseded's heartbeat":   {[]write{take(1, 0), take(2, 15), beat(16)}, 1, 1},
		"the superseded's release":     {[]write{take(1, 0), take(2, 15), free}, 1, 1},
		"a release of nothing":         {[]write{take(1, 0), free, free}, 1, 0},
	} {
		if j := judged(c.writes); len(j.bad) != c.bad || j.steals != c.steals {
			t.Errorf("%s: %d steals, and %q; want %d and %d of these", name, j.steals, j.bad, c.steals, c.bad)
		}
	}
}
