package proof

import (
	"fmt"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

func TestAHistoryIsJudged(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	write := func(k Kind, token int64, second int) Write {
		return Write{
			Kind: k, By: fmt.Sprint("delivery ", token), Owner: fmt.Sprint("owner ", token), Token: token,
			At: at(second), Expires: at(second + 10),
		}
	}
	acquire := func(token int64, second int) Write { return write(Acquire, token, second) }
	beat := func(second int) Write { return write(Heartbeat, 1, second) }
	release := func(second int) Write { return write(Release, 1, second) }
	finish := func(token int64) Write { return write(Finish, token, 20) }
	unlock, requeue := Write{Kind: Unlock, At: at(5)}, Write{Kind: Requeue, At: at(5)}
	running, mixed := release(5), finish(2)
	running.Running = true
	mixed.Token = 1
	for name, c := range map[string]struct {
		writes        []Write
		wrong, steals int
	}{
		"nothing":                       {nil, 0, 0},
		"two attempts":                  {[]Write{acquire(1, 0), beat(5), release(6), acquire(2, 6), finish(2)}, 0, 0},
		"a steal":                       {[]Write{acquire(1, 0), beat(5), acquire(2, 15), finish(2)}, 0, 1},
		"an unlock, and the next":       {[]Write{acquire(1, 0), unlock, acquire(2, 5), finish(2)}, 0, 0},
		"a requeue, and the next":       {[]Write{acquire(1, 0), finish(1), requeue, acquire(2, 5), finish(2)}, 0, 0},
		"a cancel of a run":             {[]Write{acquire(1, 0), write(Cancel, 2, 5)}, 0, 0},
		"a cancel, a requeue, the next": {[]Write{acquire(1, 0), write(Cancel, 2, 5), requeue, acquire(3, 6), finish(3)}, 0, 0},
		"the last attempt":              {[]Write{acquire(1, 0), write(GiveUp, 2, 11)}, 0, 1},
		"a steal before the expiry":     {[]Write{acquire(1, 0), beat(5), acquire(2, 14)}, 1, 1},
		"a token again":                 {[]Write{acquire(1, 0), release(1), acquire(1, 1)}, 1, 0},
		"a skipped token":               {[]Write{acquire(1, 0), release(1), acquire(3, 1)}, 1, 0},
		"a finish of the superseded":    {[]Write{acquire(1, 0), acquire(2, 15), finish(1)}, 1, 1},
		"the result of the superseded":  {[]Write{acquire(1, 0), acquire(2, 15), mixed}, 1, 1},
		"a heartbeat of the superseded": {[]Write{acquire(1, 0), acquire(2, 15), beat(16)}, 1, 1},
		"a release of the superseded":   {[]Write{acquire(1, 0), acquire(2, 15), release(16)}, 1, 1},
		"a second finish":               {[]Write{acquire(1, 0), finish(1), finish(1)}, 2, 0},
		"a heartbeat after the finish":  {[]Write{acquire(1, 0), finish(1), beat(5)}, 2, 0},
		"a heartbeat after a release":   {[]Write{acquire(1, 0), release(1), beat(5)}, 1, 0},
		"a heartbeat after an unlock":   {[]Write{acquire(1, 0), unlock, beat(5)}, 1, 0},
		"a release of nothing":          {[]Write{acquire(1, 0), release(1), release(1)}, 1, 0},
		"a release during a run":        {[]Write{acquire(1, 0), running}, 1, 0},
		"a requeue during a run":        {[]Write{acquire(1, 0), requeue}, 1, 0},
		"a heartbeat after a cancel":    {[]Write{acquire(1, 0), write(Cancel, 2, 5), beat(6)}, 2, 0},
		"a result after a cancel":       {[]Write{acquire(1, 0), write(Cancel, 2, 5), finish(1)}, 2, 0},
		"a cancel that takes no token":  {[]Write{acquire(1, 0), write(Cancel, 1, 5)}, 1, 0},
		"a cancel of the finished":      {[]Write{acquire(1, 0), finish(1), write(Cancel, 2, 5)}, 1, 0},
		"an unknown write":              {[]Write{acquire(1, 0), {Kind: Other}}, 1, 0},
	} {
		var h History
		for _, w := range c.writes {
			h.Add(w)
		}
		if len(h.Wrong) != c.wrong || h.Steals != c.steals {
			t.Errorf("%s: %d steals, and %q; want %d and %d of these", name, h.Steals, h.Wrong, c.steals, c.wrong)
		}
	}
}

func TestAnExcusedPartOfARunDoesNotOverlap(t *testing.T) {
	older, newer := Span{0, 10}, []Span{{6, 20}}
	for _, c := range []struct {
		excuses []Span
		want    time.Duration
	}{{nil, 4}, {[]Span{{5, 8}}, 2}, {[]Span{{8, 9}}, 3}, {[]Span{{2, 7}, {7, 30}}, 0}, {[]Span{{11, 12}}, 4}} {
		if got := Overlap(older.Without(c.excuses...), newer); got != c.want {
			t.Errorf("without %v: %v, want %v", c.excuses, got, c.want)
		}
	}
}

func TestTheStepsOfAnActAreJudged(t *testing.T) {
	const started, done = analysislock.EffectStarted, analysislock.EffectDone
	begin := func(token int64) ActStep { return ActStep{Writer: token, State: started, Token: token} }
	charge := func(token int64) ActStep {
		return ActStep{Writer: token, State: ActCharged, Receipt: fmt.Sprint("r", token)}
	}
	record := func(writer, token int64) ActStep {
		return ActStep{Writer: writer, State: done, Token: writer, Receipt: fmt.Sprint("r", token)}
	}
	ask := func(token int64) ActStep { return ActStep{Writer: token, State: ActMissing} }
	remove := func(writer int64) ActStep { return ActStep{Writer: writer, State: ActRemoved} }
	restore := ActStep{Writer: 2, State: started, Token: 1}
	for name, c := range map[string]struct {
		steps          []ActStep
		keyless, keyed int // wrong
	}{
		"once":                               {[]ActStep{begin(1), charge(1), record(1, 1)}, 0, 0},
		"each record written twice":          {[]ActStep{begin(1), begin(1), remove(1), remove(1), begin(2), begin(2), charge(2), record(2, 2), record(2, 2)}, 0, 0},
		"not done, and again":                {[]ActStep{begin(1), remove(1), begin(2), charge(2), record(2, 2)}, 0, 0},
		"found by a later attempt":           {[]ActStep{begin(1), charge(1), record(2, 1)}, 0, 0},
		"answered by an operator":            {[]ActStep{begin(1), charge(1), record(0, 1)}, 0, 0},
		"dropped by an operator":             {[]ActStep{begin(1), charge(1), record(1, 1), remove(0), begin(2)}, 0, 0},
		"not begun, restored":                {[]ActStep{begin(1), ask(2), begin(2), restore}, 0, 0},
		"two after an answer":                {[]ActStep{begin(1), remove(0), begin(2), charge(2), charge(1)}, 0, 1},
		"two after a search":                 {[]ActStep{begin(1), ask(2), begin(2), charge(2), charge(1)}, 0, 1},
		"two after a search that removes":    {[]ActStep{begin(1), ask(2), remove(2), begin(2), charge(2), charge(1)}, 0, 1},
		"two without an answer":              {[]ActStep{begin(1), charge(1), remove(1), begin(2), charge(2)}, 1, 1},
		"two by one attempt":                 {[]ActStep{begin(1), charge(1), charge(1)}, 1, 1},
		"without a marker":                   {[]ActStep{charge(1), begin(1)}, 1, 1},
		"another's marker":                   {[]ActStep{begin(1), charge(2)}, 1, 1},
		"a marker over another's":            {[]ActStep{begin(1), begin(2)}, 1, 1},
		"another's marker removed":           {[]ActStep{begin(1), remove(2)}, 1, 1},
		"a result that was not given":        {[]ActStep{begin(1), record(1, 1)}, 1, 1},
		"a result without a marker":          {[]ActStep{begin(1), charge(1), remove(0), record(2, 1)}, 1, 1},
		"another result":                     {[]ActStep{begin(1), remove(0), begin(2), charge(2), record(2, 2), charge(1), record(1, 1)}, 1, 2},
		"a done act begun again":             {[]ActStep{begin(1), charge(1), record(1, 1), begin(2)}, 1, 1},
		"a done act removed by an attempt":   {[]ActStep{begin(1), charge(1), record(1, 1), remove(1)}, 1, 1},
		"a marker in the name of another":    {[]ActStep{{Writer: 2, State: started, Token: 1}}, 1, 1},
		"a done act removed after a search":  {[]ActStep{begin(1), ask(2), charge(1), record(1, 1), remove(2)}, 1, 1},
		"a charge after it was not done":     {[]ActStep{begin(1), remove(1), charge(1)}, 1, 1},
		"a charge after it was not begun":    {[]ActStep{begin(1), ask(2), begin(2), restore, charge(2)}, 1, 1},
		"a search that precedes its attempt": {[]ActStep{begin(1), ask(2), begin(3)}, 1, 1},
	} {
		for i := range c.steps {
			c.steps[i].At = time.Unix(int64(i), 0)
		}
		if keyless, keyed := JudgeAct(c.steps, false), JudgeAct(c.steps, true); len(keyless) != c.keyless || len(keyed) != c.keyed {
			t.Errorf("%s: %q without keys, want %d; %q with keys, want %d", name, keyless, c.keyless, keyed, c.keyed)
		}
	}
}
