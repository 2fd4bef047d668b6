package proof

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// The steps of a marked act, beside analysislock.ActStarted and ActDone.
const (
	actCharged = "charged"   // the act itself, at its receiver
	actMissing = "missing"   // the receiver, asked by a later attempt, does not know the act
	actRemoved = "no record" // the record was removed
)

// actStep is a step of a marked act: a change of its record, or what happens at its receiver.
type actStep struct {
	At      time.Time
	Writer  int64  // token of the attempt; zero: an operator
	State   string // the record's, actCharged or actMissing
	Token   int64  // in the record
	Receipt string // of a charge; in the record: the result
}

// judgeAct judges the steps of one act. An attempt commits its marker before the act. Another's
// marker is replaced or removed only by an operator, or by an attempt that has asked the receiver:
// that is an answer. A result that is recorded is one that the receiver gave before, and only an
// operator drops it. A receiver that knows keys makes one charge. At any other, two charges have
// an answer between their markers: it said that the first attempt had not charged, which then was
// still able to.
func judgeAct(steps []actStep, keys bool) (wrong []string) {
	slices.SortStableFunc(steps, func(a, b actStep) int { return a.At.Compare(b.At) })
	now, answers := actStep{State: actRemoved}, 0
	marked := map[int64]int{} // the answers before the marker, by token
	charged := map[int]bool{} // the counts of answers at which there was a charge
	missing, given := map[int64]bool{}, map[string]bool{}
	for _, s := range steps {
		again := actStep{s.At, s.Writer, now.State, now.Token, now.Receipt}
		if s == again { // written again
			continue
		}
		bad, own := false, now.Token == s.Writer
		started, done := now.State == analysislock.ActStarted, now.State == analysislock.ActDone
		asked := started && !own && (s.Writer == 0 || missing[s.Writer])
		switch s.State {
		case actMissing:
			missing[s.Writer] = true
			continue
		case actCharged:
			n, begun := marked[s.Writer]
			if bad = !begun || charged[n] || keys && len(charged) > 0; begun {
				charged[n] = true
			}
			given[s.Receipt] = true
		case analysislock.ActDone:
			bad = !started && !done || !given[s.Receipt] || done && now.Receipt != s.Receipt
		case actRemoved:
			if dropped := done && s.Writer == 0; asked || dropped {
				answers++
			} else if bad = !started || !own; own {
				delete(marked, s.Writer)
			}
		case analysislock.ActStarted:
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
		if s.State != actCharged {
			now = s
		}
	}
	return wrong
}

func TestJudgeAct(t *testing.T) {
	const started, done = analysislock.ActStarted, analysislock.ActDone
	begin := func(token int64) actStep { return actStep{Writer: token, State: started, Token: token} }
	charge := func(token int64) actStep {
		return actStep{Writer: token, State: actCharged, Receipt: fmt.Sprint("r", token)}
	}
	record := func(writer, token int64) actStep {
		return actStep{Writer: writer, State: done, Token: writer, Receipt: fmt.Sprint("r", token)}
	}
	ask := func(token int64) actStep { return actStep{Writer: token, State: actMissing} }
	remove := func(writer int64) actStep { return actStep{Writer: writer, State: actRemoved} }
	restore := actStep{Writer: 2, State: started, Token: 1}
	for name, c := range map[string]struct {
		steps          []actStep
		keyless, keyed int // wrong
	}{
		"once":                              {[]actStep{begin(1), charge(1), record(1, 1)}, 0, 0},
		"records written twice":             {[]actStep{begin(1), begin(1), remove(1), remove(1), begin(2)}, 0, 0},
		"the result written twice":          {[]actStep{begin(2), charge(2), record(2, 2), record(2, 2)}, 0, 0},
		"not done, and again":               {[]actStep{begin(1), remove(1), begin(2), charge(2), record(2, 2)}, 0, 0},
		"found by a later attempt":          {[]actStep{begin(1), charge(1), record(2, 1)}, 0, 0},
		"answered by an operator":           {[]actStep{begin(1), charge(1), record(0, 1)}, 0, 0},
		"dropped by an operator":            {[]actStep{begin(1), charge(1), record(1, 1), remove(0), begin(2)}, 0, 0},
		"not begun, restored":               {[]actStep{begin(1), ask(2), begin(2), restore}, 0, 0},
		"two after an answer":               {[]actStep{begin(1), remove(0), begin(2), charge(2), charge(1)}, 0, 1},
		"two after a search":                {[]actStep{begin(1), ask(2), begin(2), charge(2), charge(1)}, 0, 1},
		"two without an answer":             {[]actStep{begin(1), charge(1), remove(1), begin(2), charge(2)}, 1, 1},
		"two by one attempt":                {[]actStep{begin(1), charge(1), charge(1)}, 1, 1},
		"without a marker":                  {[]actStep{charge(1), begin(1)}, 1, 1},
		"another's marker":                  {[]actStep{begin(1), charge(2)}, 1, 1},
		"a marker over another's":           {[]actStep{begin(1), begin(2)}, 1, 1},
		"another's marker removed":          {[]actStep{begin(1), remove(2)}, 1, 1},
		"a result that was not given":       {[]actStep{begin(1), record(1, 1)}, 1, 1},
		"a result without a marker":         {[]actStep{begin(1), charge(1), remove(0), record(2, 1)}, 1, 1},
		"another result":                    {[]actStep{begin(1), charge(1), record(1, 1), record(1, 2)}, 1, 1},
		"a done act begun again":            {[]actStep{begin(1), charge(1), record(1, 1), begin(2)}, 1, 1},
		"a done act removed by an attempt":  {[]actStep{begin(1), charge(1), record(1, 1), remove(1)}, 1, 1},
		"a marker in the name of another":   {[]actStep{{Writer: 2, State: started, Token: 1}}, 1, 1},
		"a done act removed after a search": {[]actStep{begin(1), ask(2), charge(1), record(1, 1), remove(2)}, 1, 1},
		"a charge after it was not done":    {[]actStep{begin(1), remove(1), charge(1)}, 1, 1},
		"a charge after it was not begun":   {[]actStep{begin(1), ask(2), begin(2), restore, charge(2)}, 1, 1},
	} {
		for i := range c.steps {
			c.steps[i].At = time.Unix(int64(i), 0)
		}
		keyless, keyed := judgeAct(c.steps, false), judgeAct(c.steps, true)
		if len(keyless) != c.keyless || len(keyed) != c.keyed {
			t.Errorf("%s: %q without keys, want %d; %q with keys, want %d", name, keyless, c.keyless, keyed, c.keyed)
		}
	}
}
