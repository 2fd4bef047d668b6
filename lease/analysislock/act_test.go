package analysislock_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

func done(result string) *analysislock.Act {
	return &analysislock.Act{State: analysislock.ActDone, Result: json.RawMessage(result)}
}

// started is an act that the attempt with this token has begun.
func started(token int64) analysislock.Act {
	return analysislock.Act{State: analysislock.ActStarted, Token: token}
}

// The results of acts have 64 KiB. An open act counts with the room that is kept for its result.
func TestActs_Room(t *testing.T) {
	with := func(a analysislock.Act) analysislock.Acts { return analysislock.Acts{"a": a} }
	large := func(n int) string { return strings.Repeat("7", n) }
	unresolved := analysislock.Act{State: analysislock.ActDone, ResultError: large(60<<10 + 1)}
	for name, c := range map[string]struct {
		acts  analysislock.Acts
		bytes int // of the result of another act; 0: one begins
		room  bool
	}{
		"a result":                    {nil, 64 << 10, true},
		"a larger result":             {nil, 64<<10 + 1, false},
		"beside an open act":          {with(started(1)), 60 << 10, true},
		"too large for an open act":   {with(started(1)), 60<<10 + 1, false},
		"to begin":                    {with(*done(large(60 << 10))), 0, true},
		"to begin, without its room":  {with(*done(large(60<<10 + 1))), 0, false},
		"why there is no result":      {with(unresolved), 0, false},
		"in place of its own reserve": {analysislock.Acts{"x": started(1)}, 64 << 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := c.acts.Begin("x", 2, time.Time{}, false)
			if c.bytes > 0 {
				_, err = c.acts.End("x", 2, time.Time{}, done(large(c.bytes)))
			}
			same(t, c.room, err == nil)
			same(t, c.room, !errors.Is(err, analysislock.ErrFull))
		})
	}
}

// The attempt has the token 5.
func TestActs_Begin(t *testing.T) {
	acts := func(name, state string, token int64) analysislock.Acts {
		return analysislock.Acts{name: {State: state, Token: token}}
	}
	const open, done = analysislock.ActStarted, analysislock.ActDone
	for name, c := range map[string]struct {
		acts    analysislock.Acts
		again   bool
		begun   bool
		earlier bool // an earlier record is returned
	}{
		"the first":                {nil, false, true, false},
		"beside others":            {acts("ab", open, 5), false, true, false},
		"begun earlier":            {acts("a", open, 4), false, false, true},
		"begun earlier, and again": {acts("a", open, 4), true, true, true},
		"done earlier":             {acts("a", done, 4), true, false, true},
		"of an unreadable record":  {acts("*", open, 0), false, false, true},
		"unreadable, said done":    {acts("*", done, 0), false, true, false},
		"unreadable, not found":    {acts("*", open, 0), true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(c.acts)
			changed, earlier, err := c.acts.Begin("a", 5, time.Time{}, c.again)
			wantErr(t, err, nil)
			same(t, before, len(c.acts))
			same(t, c.begun, changed != nil)
			if c.begun {
				same(t, started(5), changed["a"])
			}
			same(t, c.earlier, earlier != nil)
			if record, exists := c.acts["a"]; exists {
				same(t, &record, earlier)
			}
		})
	}

	// The second act of an attempt with one name would get the result of the first.
	for name, c := range map[string]analysislock.Acts{"begun": acts("a", open, 5), "done": acts("a", done, 5)} {
		t.Run("by the same attempt, "+name, func(t *testing.T) {
			_, _, err := c.Begin("a", 5, time.Time{}, true)
			wantErr(t, err, analysislock.ErrReused)
		})
	}
	t.Run("the 17th", func(t *testing.T) {
		full := analysislock.Acts{}
		for i := range 16 {
			full[strings.Repeat("x", i+1)] = analysislock.Act{State: done}
		}
		_, _, err := full.Begin("a", 5, time.Time{}, false)
		wantErr(t, err, analysislock.ErrFull)
	})
}

// Each case begins with an act that an attempt has begun, and with one that is done.
func TestResolve(t *testing.T) {
	failed := func(d *analysis) {
		d.Status, d.Error, d.Lock.Finished = analysislock.Failed, &failure{Code: analysislock.ActUncertain}, true
	}
	ready := func(d *analysis) { d.Status, d.Lock.Finished = analysislock.Ready, true }
	cancelled := func(d *analysis) { failed(d); d.Error.Code = analysislock.Cancelled }
	unreadable := func(d *analysis) { failed(d); d.Acts = analysislock.Acts{"*": started(0)} }
	held := func(d *analysis) { d.Lock.Owner, d.Lock.ExpiresAt = "w/1", time.Now().Add(ahead+time.Minute) }
	result := func(r string) analysislock.Answer { return analysislock.Answer{Done: true, Result: []byte(r)} }
	notDone := analysislock.Answer{}

	resolve := func(w *fixture, state func(d *analysis), act string, answer analysislock.Answer) error {
		w.rewrite(func(d *analysis) {
			d.Acts, d.OpenActs, d.Lock.Token = analysislock.Acts{"charge": started(1), "mail": *done("1")}, 1, 1
			state(d)
		})
		w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.RequestLost, leasetest.ReplyLost))
		d := w.doc()
		seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}
		_, err := w.locks.Resolve(w.Context(), "x", "", seen, act, answer, "task")
		if _, err := w.locks.Resolve(w.Context(), "x", "", seen, act, answer, "task"); err == nil {
			w.Error("a second operator resolved it too")
		}
		return err
	}
	for name, c := range map[string]struct {
		state  func(d *analysis)
		act    string
		answer analysislock.Answer
		status string
	}{
		"done":                  {failed, "charge", result(`"r"`), analysislock.Queued},
		"not done":              {failed, "charge", notDone, analysislock.Queued},
		"of READY":              {ready, "charge", notDone, analysislock.Ready},
		"of a cancelled one":    {cancelled, "charge", notDone, analysislock.Failed},
		"no act was ever begun": {unreadable, "*", notDone, analysislock.Queued},
	} {
		inBubble(t, name, func(w *fixture) {
			w.check(resolve(w, c.state, c.act, c.answer))
			d := w.doc()
			same(w, c.status, d.Status)
			same(w, 0, d.OpenActs)
			same(w, c.status == analysislock.Queued, d.BookedTask == "task")
			same(w, string(c.answer.Result), string(d.Acts["charge"].Result))
			same(w, c.answer.Done, d.Acts["charge"].State == analysislock.ActDone)
		})
	}
	for name, c := range map[string]struct {
		state  func(d *analysis)
		act    string
		answer analysislock.Answer
		want   error // nil: another
	}{
		"an unknown act":           {failed, "refund", notDone, analysislock.ErrNotUncertain},
		"a done act":               {failed, "mail", notDone, analysislock.ErrNotUncertain},
		"a result of all acts":     {unreadable, "*", result(`"r"`), analysislock.ErrAllActs},
		"a result too large":       {failed, "charge", result(strings.Repeat("7", 64<<10+1)), analysislock.ErrFull},
		"of an analysis that runs": {held, "charge", notDone, nil},
	} {
		inBubble(t, "refused, "+name, func(w *fixture) {
			err := resolve(w, c.state, c.act, c.answer)
			if held := new(lease.HeldError); c.want == nil {
				same(w, true, errors.As(err, &held))
			} else {
				wantErr(w, err, c.want)
			}
			d := w.doc()
			same(w, "1 ", strings.Repeat("1", d.OpenActs)+" "+d.BookedTask)
		})
	}
}

func begunAgain(d *analysis) {
	d.Lock.Token, d.Lock.Attempts = 2, 1
	d.Acts, d.OpenActs = analysislock.Acts{"charge": started(2)}, 1
}

func TestResolve_Unknown(t *testing.T) {
	// After the answer, whose reply is lost, a newer attempt begins the act again: its marker stays.
	// The record of an act may lack the token of the attempt.
	running := func(d *analysis) { d.Lock.Owner, d.Lock.ExpiresAt = "w/2", time.Now().Add(ahead+time.Minute) }
	for name, c := range map[string]struct {
		token  int64
		done   bool
		others func(d *analysis)
		left   int64 // the token of the act afterwards; 0: it has no record
	}{
		"no other program":                {1, false, unchanged, 0},
		"without a token":                 {0, false, running, 0},
		"begun again":                     {1, false, begunAgain, 2},
		"without a token, begun again":    {0, false, begunAgain, 2},
		"done, and another run has begun": {1, true, running, 1},
	} {
		inBubble(t, "an answer is not given again, "+name, func(w *fixture) {
			w.rewrite(func(d *analysis) {
				d.Acts, d.OpenActs = analysislock.Acts{"charge": started(c.token)}, 1
			})
			w.interrupt(c.others)
			_, err := w.locks.Resolve(w.Context(), "x", "", nil, "charge", analysislock.Answer{Done: c.done}, "")
			w.check(err)
			act, exists := w.doc().Acts["charge"]
			same(w, c.left, act.Token)
			same(w, c.left != 0, exists)
		})
	}

	// While an operator answers, a later attempt begins the act again, and dies too.
	for _, fault := range []leasetest.Fault{leasetest.RequestLost, leasetest.None} {
		inBubble(t, "an answer does not erase a later marker, "+string(fault), func(w *fixture) {
			w.rewrite(func(d *analysis) { d.Acts = analysislock.Acts{"charge": started(1)} })
			w.faulty().SetPlan(func(c leasetest.Call) leasetest.Fault {
				if c != (leasetest.Call{Op: leasetest.Swap, N: 1}) {
					return leasetest.None
				}
				w.rewrite(begunAgain)
				return fault
			})
			w.check(w.resolve(""))
			same(w, int64(2), w.doc().Acts["charge"].Token)
		})
	}
}

// begin begins an act, and end ends it with a result.
func (w *fixture) begin(h *hold, name string) {
	b := &analysislock.Beginning{Name: name, Token: h.Grant().Token, Now: h.Now().Truncate(time.Millisecond)}
	h.Send(b.Change(w.answer(name)))
}

func (w *fixture) ends(h *hold, name, answer string, result *analysislock.Act) {
	now := h.Now().Truncate(time.Millisecond)
	h.Send(analysislock.ActEnded(name, h.Grant().Token, now, result, w.answer(answer)))
}

func TestActs_Commit(t *testing.T) {
	// An act that was recorded in memory alone is not reported as committed.
	inBubble(t, "a second end waits for the commit of the first", func(w *fixture) {
		s, h := w.faulty(), w.acquire("w/1").Hold
		w.check(w.run(h, func() {
			w.begin(h, "charge")
			time.Sleep(time.Second)
			s.SetPlan(leasetest.Always(leasetest.RequestLost))
			w.ends(h, "charge", "end", done("1"))
			w.ends(h, "charge", "again", done("1"))
			time.Sleep(time.Second)
			w.wantAnswers("charge")
			s.SetPlan(nil)
			time.Sleep(time.Minute)
			w.wantAnswers("end", "again")
		}))
		same(w, analysislock.ActDone, w.doc().Acts["charge"].State)
	})

	// While the store refuses the end of one act, another begins: the first can still be ended.
	inBubble(t, "a refused end returns to what is committed", func(w *fixture) {
		s, h := w.faulty(), w.acquire("w/1").Hold
		w.check(w.run(h, func() {
			w.begin(h, "a")
			time.Sleep(time.Second)
			s.SetPlan(func(c leasetest.Call) leasetest.Fault {
				if c != (leasetest.Call{Op: leasetest.Swap, N: 1}) {
					return leasetest.None
				}
				w.begin(h, "b")
				return leasetest.Refuse
			})
			w.ends(h, "a", "its end", done("1"))
			time.Sleep(time.Second)
			w.ends(h, "a", "without a result", &analysislock.Act{ResultError: "no room"})
			time.Sleep(time.Second)
			w.wantAnswers("a", "its end refused", "b", "without a result")
		}))
		d := w.doc()
		same(w, "no room", d.Acts["a"].ResultError)
		same(w, analysislock.ActStarted, d.Acts["b"].State)
		same(w, int64(1), d.Acts["b"].Token)
		same(w, 1, d.OpenActs)
	})

	// The second begin of an act is refused.
	inBubble(t, "an undo removes no other marker", func(w *fixture) {
		h := w.acquire("w/1").Hold
		w.check(w.run(h, func() {
			w.begin(h, "charge")
			second := &analysislock.Beginning{Name: "charge", Token: h.Grant().Token, Now: h.Now()}
			h.Send(second.Change(w.answer("second")), second.Undo())
			time.Sleep(time.Second)
			w.wantAnswers("second reused", "charge")
		}))
		same(w, analysislock.ActStarted, w.doc().Acts["charge"].State)
	})
}

// Each report that the document can hold is answered as written, whatever it cannot hold beside it.
func TestReports_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		refused int // commits in a row
		mark    bool
		want    string
	}{
		"nothing":                       {0, true, "progress, mark, checkpoint"},
		"the checkpoint":                {1, false, "progress, checkpoint refused"},
		"the checkpoint, beside a mark": {1, true, "progress, mark, checkpoint refused"},
		"the mark, but not that":        {2, true, "progress, mark refused, checkpoint"},
		"the mark too":                  {3, true, "progress, mark refused, checkpoint refused"},
		"all":                           {2, false, "progress refused, checkpoint refused"},
	} {
		inBubble(t, name, func(w *fixture) {
			s, h := w.faulty(), w.acquire("w/1").Hold
			refusals := slices.Repeat([]leasetest.Fault{leasetest.Refuse}, c.refused)
			w.check(w.run(h, func() {
				s.SetPlan(leasetest.On(leasetest.Swap, refusals...))
				report := analysislock.Progressed(analysislock.Progress{Message: "half"})
				report.Delay, report.Done = time.Hour, w.answer("progress")
				h.Send(report)
				if c.mark {
					w.begin(h, "mark")
				}
				report = analysislock.Checkpointed(&analysislock.Checkpoint{Value: "c"})
				report.Done = w.answer("checkpoint")
				h.Send(report)
				time.Sleep(time.Second)
			}))
			w.wantAnswers(strings.Split(c.want, ", ")...)
			d, written := w.doc(), ", "+c.want+","
			same(w, strings.Contains(written, ", progress,"), d.Progress != nil)
			same(w, strings.Contains(written, ", mark,"), d.OpenActs == 1)
			same(w, strings.Contains(written, ", checkpoint,"), d.Checkpoint != nil)
		})
	}

	// The message of a failure gives way before an act, which would be uncertain without its record.
	inBubble(t, "a retry gives up its message first", func(w *fixture) {
		s, h := w.faulty(), w.acquire("w/1").Hold
		w.begin(h, "mark")
		s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		w.end(h, retrying(h))
		w.wantAnswers("mark")
		same(w, &failure{Code: "c"}, w.doc().LastError)
		same(w, "", w.doc().Lock.Owner)
	})
}
