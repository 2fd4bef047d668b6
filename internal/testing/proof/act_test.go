package proof

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// The steps of a marked act, beside analysislock.EffectStarted and EffectDone.
const (
	ActCharged = "charged"   // the act itself, at its receiver
	ActMissing = "missing"   // the receiver, asked by a later attempt, does not know the act
	ActRemoved = "no record" // the record was removed
)

// ActStep is a step of a marked act: a change of its record, or what happens at its receiver.
type ActStep struct {
	At      time.Time
	Writer  int64  // token of the attempt; zero: an operator
	State   string // the record's, ActCharged or ActMissing
	Token   int64  // in the record
	Receipt string // of a charge; in the record: the result
}

// JudgeAct judges the steps of one act. An attempt commits its marker before the act. Another's
// marker is replaced or removed only by an operator, or by an attempt that has asked the receiver:
// that is an answer. A result that is recorded is one that the receiver gave before, and only an
// operator drops it. A receiver that knows keys makes one charge. At any other, two charges have
// an answer between their markers: it said that the first attempt had not charged, which then was
// still able to.
func JudgeAct(steps []ActStep, keys bool) (wrong []string) {
	slices.SortStableFunc(steps, func(a, b ActStep) int { return a.At.Compare(b.At) })
	now, answers := ActStep{State: ActRemoved}, 0
	marked, charged := map[int64]int{}, map[int]bool{} // the answers before the marker, by token; those that had a charge
	missing, given := map[int64]bool{}, map[string]bool{}
	for _, s := range steps {
		if s.State == now.State && s.Token == now.Token && s.Receipt == now.Receipt { // written again
			continue
		}
		bad, own := false, now.Token == s.Writer
		started, done := now.State == analysislock.EffectStarted, now.State == analysislock.EffectDone
		asked := started && !own && (s.Writer == 0 || missing[s.Writer])
		switch s.State {
		case ActMissing:
			missing[s.Writer] = true
			continue
		case ActCharged:
			n, begun := marked[s.Writer]
			if bad = !begun || charged[n] || keys && len(charged) > 0; begun {
				charged[n] = true
			}
			given[s.Receipt] = true
		case analysislock.EffectDone:
			bad = !started && !done || !given[s.Receipt] || done && now.Receipt != s.Receipt
		case ActRemoved:
			if asked || done && s.Writer == 0 {
				answers++
			} else if bad = !started || !own; own {
				delete(marked, s.Writer)
			}
		case analysislock.EffectStarted:
			if _, before := marked[s.Token]; own && before { // the attempt has not begun the act
				delete(marked, s.Writer)
				break
			}
			if asked {
				answers++
			}
			bad = done || started && !asked || s.Token != s.Writer
			marked[s.Token] = answers
		}

		if bad {
			wrong = append(wrong, fmt.Sprintf("%+v after %+v and %d answers", s, now, answers))
		}
		if s.State != ActCharged {
			now = s
		}
	}
	return wrong
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
		"once":                              {[]ActStep{begin(1), charge(1), record(1, 1)}, 0, 0},
		"each record written twice":         {[]ActStep{begin(1), begin(1), remove(1), remove(1), begin(2), begin(2), charge(2), record(2, 2), record(2, 2)}, 0, 0},
		"not done, and again":               {[]ActStep{begin(1), remove(1), begin(2), charge(2), record(2, 2)}, 0, 0},
		"found by a later attempt":          {[]ActStep{begin(1), charge(1), record(2, 1)}, 0, 0},
		"answered by an operator":           {[]ActStep{begin(1), charge(1), record(0, 1)}, 0, 0},
		"dropped by an operator":            {[]ActStep{begin(1), charge(1), record(1, 1), remove(0), begin(2)}, 0, 0},
		"not begun, restored":               {[]ActStep{begin(1), ask(2), begin(2), restore}, 0, 0},
		"two after an answer":               {[]ActStep{begin(1), remove(0), begin(2), charge(2), charge(1)}, 0, 1},
		"two after a search":                {[]ActStep{begin(1), ask(2), begin(2), charge(2), charge(1)}, 0, 1},
		"two without an answer":             {[]ActStep{begin(1), charge(1), remove(1), begin(2), charge(2)}, 1, 1},
		"two by one attempt":                {[]ActStep{begin(1), charge(1), charge(1)}, 1, 1},
		"without a marker":                  {[]ActStep{charge(1), begin(1)}, 1, 1},
		"another's marker":                  {[]ActStep{begin(1), charge(2)}, 1, 1},
		"a marker over another's":           {[]ActStep{begin(1), begin(2)}, 1, 1},
		"another's marker removed":          {[]ActStep{begin(1), remove(2)}, 1, 1},
		"a result that was not given":       {[]ActStep{begin(1), record(1, 1)}, 1, 1},
		"a result without a marker":         {[]ActStep{begin(1), charge(1), remove(0), record(2, 1)}, 1, 1},
		"another result":                    {[]ActStep{begin(1), remove(0), begin(2), charge(2), record(2, 2), charge(1), record(1, 1)}, 1, 2},
		"a done act begun again":            {[]ActStep{begin(1), charge(1), record(1, 1), begin(2)}, 1, 1},
		"a done act removed by an attempt":  {[]ActStep{begin(1), charge(1), record(1, 1), remove(1)}, 1, 1},
		"a marker in the name of another":   {[]ActStep{{Writer: 2, State: started, Token: 1}}, 1, 1},
		"a done act removed after a search": {[]ActStep{begin(1), ask(2), charge(1), record(1, 1), remove(2)}, 1, 1},
		"a charge after it was not done":    {[]ActStep{begin(1), remove(1), charge(1)}, 1, 1},
		"a charge after it was not begun":   {[]ActStep{begin(1), ask(2), begin(2), restore, charge(2)}, 1, 1},
	} {
		for i := range c.steps {
			c.steps[i].At = time.Unix(int64(i), 0)
		}
		if keyless, keyed := JudgeAct(c.steps, false), JudgeAct(c.steps, true); len(keyless) != c.keyless || len(keyed) != c.keyed {
			t.Errorf("%s: %q without keys, want %d; %q with keys, want %d", name, keyless, c.keyless, keyed, c.keyed)
		}
	}
}
