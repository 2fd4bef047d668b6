package proof

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// mutants are two workers and an operator that write what the guard never writes. p has acquired the
// analysis, and its run goes on.
type mutants struct {
	*model
	r         *record
	p, q, ops *caller
}

type change = func(m *mutants, p *caller, d *analysis)

// write writes the changes, one after the other, at the present revision.
func (m *mutants) write(p *caller, all ...change) {
	next := m.r.doc
	next.History = slices.Clone(next.History)
	for _, change := range all {
		change(m, p, &next)
	}
	_, _ = m.swap(p, "a", cell{Doc: m.r.doc, Rev: revision{number: m.r.rev}}, next) // a refused one changes nothing
}

// What the guard writes: an acquisition, a release, a failure for now, a finish and an operator's commands.
func take(m *mutants, p *caller, d *analysis) {
	n := d.Lock.Attempts + 1
	d.Lock = lease.Lease{Owner: p.name, Token: d.Lock.Token + 1, Attempts: n, ExpiresAt: m.now().Add(m.policy.TTL)}
	d.Status, d.NextAttemptAt, d.BookedTask = analysislock.Processing, time.Time{}, ""
	crash(m, p, d)
	d.History = append(d.History, analysislock.Attempt{Token: d.Lock.Token})
}

// crash records that the last attempt crashed, if it has no end.
func crash(m *mutants, _ *caller, d *analysis) {
	if n := len(d.History); n > 0 && d.History[n-1].Outcome == "" {
		d.History[n-1].EndedAt, d.History[n-1].Outcome = m.now(), analysislock.OutcomeCrashed
		d.LastError = &analysislock.Error{Code: analysislock.Crashed}
	}
}

func free(m *mutants, _ *caller, d *analysis) {
	d.Lock.Owner, d.Lock.ExpiresAt, d.Status = "", time.Time{}, analysislock.Queued
	last := &d.History[len(d.History)-1]
	last.EndedAt, last.Outcome = m.now(), analysislock.OutcomeLockLost
}

func retry(m *mutants, p *caller, d *analysis) {
	free(m, p, d)
	d.History[len(d.History)-1].Outcome = analysislock.OutcomeRetry
	d.NextAttemptAt = m.now().Add(m.retryMin).Truncate(time.Millisecond)
	d.BookedTask = nextName(*d)
}

func ready(m *mutants, p *caller, d *analysis) {
	free(m, p, d)
	d.Lock.Finished, d.Lock.FinishedBy, d.Status = true, p.name, analysislock.Ready
	d.Result = result("a", d.Lock.Token)
}

func reopen(_ *mutants, _ *caller, d *analysis) {
	d.Lock = lease.Lease{Token: d.Lock.Token}
	d.Status, d.NextAttemptAt = analysislock.Queued, time.Time{}
}

func giveUp(m *mutants, p *caller, d *analysis) {
	take(m, p, d)
	d.History = d.History[:len(d.History)-1]
	d.Lock.Finished, d.Lock.Owner, d.Status, d.Lock.Attempts = true, "", analysislock.Failed, d.Lock.Attempts-1
	d.Error = &analysislock.Error{Code: analysislock.AttemptsExhausted}
}

// delay delays a suspect, and books it in 30 s.
func delay(m *mutants, p *caller, d *analysis) {
	crash(m, p, d)
	d.Lock.Owner, d.Lock.ExpiresAt, d.Status, d.ReadAt = "", time.Time{}, analysislock.Queued, m.now()
	d.History[len(d.History)-1].Delays++
	d.NextAttemptAt = m.now().Add(30 * time.Second).Truncate(time.Millisecond)
	d.BookedTask = nextName(*d)
}

// alone says that the attempt which a write begins is alone.
func alone(_ *mutants, _ *caller, d *analysis) { d.History[len(d.History)-1].Alone = true }

// killed gives up a killer.
func killed(m *mutants, p *caller, d *analysis) {
	giveUp(m, p, d)
	d.Error.Code = analysislock.Crashed
}

// next makes the next attempt due in so long.
func next(in time.Duration) change {
	return func(m *mutants, _ *caller, d *analysis) { d.NextAttemptAt = m.now().Add(in).Truncate(time.Millisecond) }
}

// named names the task of the next attempt.
func named(_ *mutants, _ *caller, d *analysis) { d.BookedTask = nextName(*d) }

// keep writes the n-th checkpoint of a run.
func keep(token int64, n int) change {
	return set(func(d *analysis) { d.Checkpoint = &analysislock.Checkpoint{Value: mark{n, token, n}.String()} })
}

// effect writes the record of an act, and so many open acts.
func effect(state string, open int) change {
	return set(func(d *analysis) {
		d.Acts, d.OpenActs = analysislock.Acts{"charge": {State: state, Token: 1}}, open
	})
}

func set(change func(d *analysis)) change {
	return func(_ *mutants, _ *caller, d *analysis) { change(d) }
}

// acts are what the two workers and the operator do, one after the other.
type acts []func(m *mutants)

// The run of p ends.
func over(m *mutants) { m.p.run.ended = m.since() }

func wait(d time.Duration) func(*mutants) { return func(*mutants) { time.Sleep(d) } }

// byP writes the changes in one write of p.
func byP(all ...change) func(*mutants) { return func(m *mutants) { m.write(m.p, all...) } }

func byQ(all ...change) func(*mutants) { return func(m *mutants) { m.write(m.q, all...) } }

// operator writes an operator's command.
func operator(k Kind, all ...change) func(*mutants) {
	return func(m *mutants) {
		m.ops.operates = k
		m.write(m.ops, all...)
	}
}

// crashed makes workers with places crash in attempts 2 to n of the analysis, alone from the third on. The
// lock of the last has expired. The first attempt has crashed too.
func crashed(n int) func(*mutants) {
	return func(m *mutants) {
		m.policy.MaxAttempts = 10
		m.q.on.places = delivery.NewPlaces(2)
		for attempt := 2; attempt <= n; attempt++ {
			time.Sleep(time.Hour)
			changes := []change{take, alone}
			m.write(m.q, changes[:min(2, attempt-1)]...)
		}
		time.Sleep(time.Hour)
		m.q.entered = m.since()
	}
}

// answer ends the run of p, and answers its delivery.
func answer(r delivery.Reason, ack bool) func(*mutants) {
	return func(m *mutants) { m.answer(delivery.Result{Reason: r, Ack: ack}) }
}

// answerNow answers that the delivery is to come again now.
func answerNow(r delivery.Reason, ack bool) func(*mutants) {
	return func(m *mutants) {
		m.answer(delivery.Result{Reason: r, Ack: ack, Next: delivery.Next{RetryAt: m.now()}})
	}
}

// retried answers that the next attempt is booked.
func retried(m *mutants) {
	due := delivery.Next{RetryAt: m.r.doc.NextAttemptAt}
	m.answer(delivery.Result{Reason: delivery.Retry, Ack: true, Next: due})
}

func (m *mutants) answer(r delivery.Result) {
	over(m)
	m.judgeAnswer(m.p, r, false)
}

// booked enqueues a task for the delivery of p.
func booked(name string) func(*mutants) {
	return func(m *mutants) { m.book(taskqueue.Task{Name: name, AnalysisID: "a", At: m.r.doc.NextAttemptAt}, m.p) }
}

// holders judges who holds the lock, as a search does after each step.
func holders(m *mutants) {
	(&execution{model: m.model, rec: m.r, callers: []*caller{m.p, m.q}}).judgeHolders()
}

const hour = time.Hour

// Each mutant breaks one rule, which the model reports in these words. Without words it breaks none.
var mutantWorkers = []struct {
	name string
	do   acts
	want string
}{
	{"none", acts{over, byP(ready), answer(delivery.Completed, true)}, ""},
	{"none that retries", acts{over, byP(retry), bookNext, retried, waitForRetry, byQ(take)}, ""},
	{"none that delays a suspect", acts{crashed(2), byQ(delay), wait(30 * time.Second), byQ(take, alone)}, ""},
	{"none that gives up a killer", acts{crashed(4), byQ(killed)}, ""},

	{"a release during the run", acts{byP(free)}, "wrote release before its run had ended"},
	{"a lock that is held", acts{byQ(take)}, "but p held the lock until"},
	{"another result", acts{over, byP(ready, set(func(d *analysis) { d.Result = "x" }))}, "wrote the result x"},
	{"a status without a finish", acts{over, byP(free, become("READY"))}, "a status that does not fit"},
	{"the last attempt too early", acts{wait(hour), byQ(giveUp)}, "gave up too early"},
	{"MAX_RUN_TIME too early", acts{wait(hour), byQ(giveUp, slow)}, "gave up before MAX_RUN_TIME"},
	{"an attempt not counted", acts{wait(hour), byQ(take, counted(1))}, "a wrong count of attempts"},
	{"an attempt above the limit", acts{maxAttempts1, wait(hour), byQ(take)}, "a wrong count of attempts"},
	{"an attempt without an entry", acts{wait(hour), byQ(take, forget)}, "a wrong status or history"},
	{"an attempt that stays QUEUED", acts{wait(hour), byQ(take, become("QUEUED"))}, "a wrong status or history"},
	{"an attempt without its end", acts{over, byP(free, endless)}, "its end in the history"},
	{"an attempt taken back", acts{over, byP(free, counted(0))}, "changed the attempts by -1"},
	{"a requeue keeps attempts", acts{over, byP(ready), operator(Requeue, reopen, counted(1))}, "requeued wrongly"},
	{"an unlock of two locks", acts{unlock, byQ(take), unlock}, "broke token 1 and token 2"},

	{"a mark without a time", acts{wait(hour), operator(Mark)}, "marked 0001"},
	{"a mark of one that waits", acts{over, byP(retry), operator(Mark, next(0), named)}, "that waits until"},
	{"a mark of another task", acts{wait(hour), operator(Mark, next(0))}, "marked another task than the next"},
	{"a next attempt much later", acts{over, byP(retry, next(hour))}, "booked the next attempt in 1h"},
	{"no next attempt", acts{over, byP(retry, never)}, "booked the next attempt in"},
	{"a next attempt at once", acts{over, byP(retry, next(0))}, "booked the attempt after 1 for"},
	{"a heartbeat that changes it", acts{byP(next(hour))}, "changed the time of the next attempt"},
	{"a finish that keeps it", acts{over, byP(ready, next(hour))}, "left the next attempt at"},
	{"a finish that keeps its task", acts{over, byP(ready, named)}, "left a booked task"},
	{"an attempt 3 s before its time", acts{over, byP(retry), waitAlmost, byQ(take)}, "too early"},

	{"a crash not recorded", acts{crashed(1), byQ(take, unended)}, "left an attempt without its end"},
	{"a crash without its error", acts{crashed(1), byQ(take, noError)}, "without its end or its error"},
	{"a suspect beside others", acts{crashed(2), byQ(take)}, "beside others after 0 delays and"},
	{"a suspect that has not waited", acts{crashed(2), byQ(delay), delayedTen, byQ(take)}, "after 10 delays and 10s"},
	{"a killer after three crashes", acts{crashed(3), byQ(killed)}, "give up after 3 crashes in a row, the last 1"},
	{"a killer that runs again", acts{crashed(4), byQ(take, alone)}, "wrote acquire after 4 crashes in a row"},
	{"a delay of no suspect", acts{crashed(1), byQ(delay)}, "wrote delay 1 after 1 crashes"},
	{"a delay not counted", acts{crashed(2), byQ(delay, undelayed)}, "changed the time of the next attempt"},
	{"a delay of an hour", acts{crashed(2), byQ(delay, next(hour))}, "delayed the next attempt by 1h"},
	{"a delay of another task", acts{crashed(2), byQ(delay, misnamed)}, "booked another task than the next"},
	{"a run beside one that is alone", acts{bothOnOne}, "run together, but one of them alone"},
	{"suspect until another time", acts{booked("x"), answerNow(delivery.Suspect, true)}, "answered suspect until"},

	{"a checkpoint beside READY", acts{byP(keep(1, 1)), over, byP(ready, keep(1, 2))}, "kept 2 units"},
	{"a checkpoint with the acquisition", acts{wait(hour), byQ(take, keep(2, 1))}, "replaced 0 units"},
	{"a checkpoint of another run", acts{byP(keep(2, 1))}, "of another run"},
	{"an older checkpoint", acts{byP(keep(1, 2)), byP(keep(1, 1))}, "by the older"},
	{"a checkpoint that is dropped", acts{reported, over, byP(retry)}, "without 1 units"},
	{"a continued run counts", acts{byP(keep(1, 1)), over, byP(retry, timedOut)}, "an attempt that has committed"},
	{"a checkpoint not committed", acts{handedOut}, "was handed 1 units"},

	{"an open act not counted", acts{byP(effect("started", 0))}, "left openEffects 0"},
	{"an act dropped", acts{byP(effect("started", 1)), unlockDone}, "dropped an uncertain act"},
	{"an act left open", acts{charged, over, byP(effect("started", 1), ready)}, "left an act open"},
	{"an answer for another state", acts{over, byP(ready), seenAnother, operator(Resolve)}, "answered an act of"},

	{"an answer during the run", acts{answerEarly}, "answered before its run had ended"},
	{"acknowledged without a task", acts{over, byP(free), answer(delivery.ShuttingDown, true)}, "no delivery is"},
	{"acknowledged with its own task", acts{ownTask, answer(delivery.Locked, true)}, "no delivery is booked"},
	{"a retry by another name", acts{over, byP(retry), booked("x"), retried}, "the next attempt is not booked"},
	{"stopped early, but it has written", acts{answer(delivery.NotClaimed, false)}, "but has written"},
	{"locked by its own lock", acts{owner, answer(delivery.Locked, false)}, "because of its own lock"},
	{"locked until another time", acts{answerNow(delivery.Locked, false)}, "but no lock had that expiry"},
	{"waiting until another time", acts{answerNow(delivery.Waiting, false)}, "no next attempt was booked"},
	{"lost, and it has finished", acts{over, byP(ready), owner, answer(delivery.LockLost, true)}, "it had finished"},
	{"ran, and it has not", acts{answer(delivery.Completed, false)}, "token 1 has not finished"},
	{"finished already, and is not", acts{answer(delivery.AlreadyFinished, false)}, "was not finished"},

	{"nobody for an hour after a crash", acts{onlyCrash, wait(hour), byQ(take)}, "unheld for"},
	{"no heartbeat", acts{noBeat}, "p sends no heartbeat"},
	{"a run without the lock", acts{heldByQ, holders}, "p runs without the lock"},
	{"a run after the expiry", acts{wait(hour), holders}, "p runs with an expired lock"},
	{"two runs", acts{bothRun, holders}, "2 runs hold the lock"},
	{"a broken run, after trust", acts{broken(false), wait(time.Nanosecond), holders}, "after the end of its trust"},
	{"a broken run that has read it", acts{broken(true), holders}, "although it has read"},
	{"two in effect", acts{overlap}, "were both in effect for 1s"},
	{"a slot in front of a parked one", acts{takeSlot(1)}, "took a slot, with 0 left for 1 in front of it"},
	{"a slot too many", acts{takeSlot(0)}, "took slot 1 of 0"},
}

// What only one mutant writes.
var (
	unlock     = operator(Unlock, free)
	unlockDone = operator(Unlock, free, effect("done", 0))

	forget    = set(func(d *analysis) { d.History = nil })
	endless   = set(func(d *analysis) { d.History[0].EndedAt = time.Time{} })
	unended   = set(func(d *analysis) { d.History[0].Outcome = "" })
	undelayed = set(func(d *analysis) { d.History[1].Delays = 0 })
	timedOut  = set(func(d *analysis) { d.History[0].Code = "run_timeout" })
	noError   = set(func(d *analysis) { d.LastError = nil })
	misnamed  = set(func(d *analysis) { d.BookedTask = "another" })
	never     = set(func(d *analysis) { d.NextAttemptAt = time.Time{} })
	slow      = set(func(d *analysis) { d.Error.Code, d.StartedAt = analysislock.RunTimeExhausted, time.Now() })
)

func become(status string) change { return set(func(d *analysis) { d.Status = status }) }

func counted(attempts int) change { return set(func(d *analysis) { d.Lock.Attempts = attempts }) }

// What happens besides in one mutant.
func bookNext(m *mutants)     { booked(m.r.doc.BookedTask)(m) }
func waitForRetry(m *mutants) { time.Sleep(m.retryMin) }
func waitAlmost(m *mutants)   { time.Sleep(m.retryMin - 3*time.Second) }
func owner(m *mutants)        { m.p.owner = "p" }
func maxAttempts1(m *mutants) { m.policy.MaxAttempts = 1 }
func reported(m *mutants)     { m.p.run.reported = mark{1, 1, 1} }
func charged(m *mutants)      { m.r.charges = []string{"receipt"} }
func seenAnother(m *mutants)  { m.ops.seen = &analysislock.Seen{} }
func answerEarly(m *mutants)  { m.judgeAnswer(m.p, delivery.Result{}, false) }
func onlyCrash(m *mutants)    { m.single, m.crashedAt, m.p.on.crashed = true, 1, true }
func noBeat(m *mutants)       { (&execution{model: m.model}).judgeBeats([]*caller{m.p}) }
func heldByQ(m *mutants)      { m.r.holder = m.q }
func bothRun(m *mutants)      { m.q.run = m.p.run }

func broken(andRead bool) func(*mutants) {
	return func(m *mutants) { m.p.broken, m.p.readBreak = &Span{}, andRead }
}

func ownTask(m *mutants) { m.p.task = m.book(taskqueue.Task{Name: "own", AnalysisID: "a"}, m.p) }

func delayedTen(m *mutants) {
	m.r.doc.History[1].Delays = 10
	time.Sleep(hour)
	m.q.entered = m.since() - 10*time.Second
}

func bothOnOne(m *mutants) {
	m.q.on, m.p.alone = m.p.on, true
	m.p.on.callers = []*caller{m.p, m.q}
	m.hand(m.q, orchestrator.Job{})
}

func handedOut(m *mutants) {
	m.p.acquired = 1
	m.hand(m.p, orchestrator.Job{Resume: []byte(`"1 units, checkpoint 1 of token 1"`)})
}

// takeSlot takes a slot of a key for a, while b has been parked in front of it.
func takeSlot(slots int) func(*mutants) {
	return func(m *mutants) {
		m.create("b").doc.Place, m.r.doc.Place = "k 1", "k 2"
		m.keySlots, m.q.lookedAt = slots, 1
		held := lease.Lease{Owner: "q", Token: 1, ExpiresAt: m.now().Add(hour)}
		c := &call{by: m.q, id: "k", key: lease.Cell[analysislock.Key]{Doc: analysislock.Key{Waiting: true}}}
		c.then.Slots = map[string]analysislock.Slotted{"q": {Lease: held, Analysis: "a"}}
		_, _ = m.swapKey(c) // which records what is wrong
	}
}

func overlap(m *mutants) {
	m.q.run = &run{begun: time.Second, ended: hour, cancelled: -1}
	m.p.run.ended = 2 * time.Second
	(&simulation{model: m.model, runs: []*caller{m.p, m.q}}).judgeRuns()
}

func TestModel_Judge(t *testing.T) {
	for _, c := range mutantWorkers {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mutants{model: newModel(lease.Policy{TTL: 300 * time.Second, MaxAttempts: 3})}
				m.limits, m.maxRun, m.begun = perfect().limits, 24*hour, time.Now()
				m.r = m.create("a")
				for n, p := range []**caller{&m.p, &m.q, &m.ops} {
					name := []string{"p", "q", "ops"}[n]
					*p = &caller{name: name, on: &instance{}, analysis: "a", since: 1, task: &task{}}
				}
				m.write(m.p, take)
				m.p.run = &run{ctx: t.Context(), ended: -1, cancelled: -1}
				for _, act := range c.do {
					act(m)
				}

				found := strings.Join(m.wrong, "\n")
				if none := c.want == ""; none != (found == "") || !strings.Contains(found, c.want) {
					t.Errorf("found %q, want %q", found, c.want)
				}
			})
		})
	}
}
