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

// crashes makes workers with places crash in attempts 2 to n of the analysis, alone from the third on. The
// lock of the last has expired. The first attempt has crashed too.
func (m *mutants) crashes(n int) {
	m.policy.MaxAttempts = 10
	m.q.on.places = delivery.NewPlaces(2)
	for attempt := 2; attempt <= n; attempt++ {
		time.Sleep(time.Hour)
		if attempt > 2 {
			m.write(m.q, take, alone)
		} else {
			m.write(m.q, take)
		}
	}
	time.Sleep(time.Hour)
	m.q.entered = m.since()
}

// keep writes the n-th checkpoint of a run.
func keep(token int64, n int) change {
	return set(func(d *analysis) { d.Checkpoint = &analysislock.Checkpoint{Value: mark{n, token, n}.String()} })
}

// record1 writes the record of an act, and so many open acts.
func record1(state string, open int) change {
	return set(func(d *analysis) {
		d.Acts, d.OpenActs = analysislock.Acts{"charge": {State: state, Token: 1}}, open
	})
}

func set(change func(d *analysis)) change {
	return func(_ *mutants, _ *caller, d *analysis) { change(d) }
}

// over ends the run of p.
func (m *mutants) over() { m.p.run.ended = m.since() }

// operate writes an operator's command.
func (m *mutants) operate(k Kind, all ...change) {
	m.ops.operates = k
	m.write(m.ops, all...)
}

// retries fails the run of p for now, books its next attempt by a name and answers.
func (m *mutants) retries(name func() string) {
	m.over()
	m.write(m.p, retry)
	m.book(taskqueue.Task{Name: name(), AnalysisID: "a", At: m.r.doc.NextAttemptAt}, m.p)
	m.answer(delivery.Result{Reason: delivery.Retry, Ack: true, Next: delivery.Next{RetryAt: m.r.doc.NextAttemptAt}})
}

// answer answers the delivery of p.
func (m *mutants) answer(o delivery.Result) {
	m.over()
	m.judgeAnswer(m.p, o, false)
}

func TestAMutantWorkerIsFound(t *testing.T) {
	forget := set(func(d *analysis) { d.History[0].Outcome = "" })
	noError := set(func(d *analysis) { d.LastError = nil })
	misnamed := set(func(d *analysis) { d.BookedTask = "another" })
	uncounted := set(func(d *analysis) { d.History[1].Delays = 0 })
	after := func(crashes int, all ...change) func(m *mutants) {
		return func(m *mutants) { m.crashes(crashes); m.write(m.q, all...) }
	}
	const hour = time.Hour
	next := func(in time.Duration) change {
		return func(m *mutants, _ *caller, d *analysis) { d.NextAttemptAt = m.now().Add(in).Truncate(time.Millisecond) }
	}
	named := func(_ *mutants, _ *caller, d *analysis) { d.BookedTask = nextName(*d) }
	settled := func(c delivery.Reason) delivery.Result { return delivery.Result{Reason: c, Ack: true} }
	for name, c := range map[string]struct {
		do   func(m *mutants)
		want string // empty: it is no mutant
	}{
		"none": {func(m *mutants) { m.over(); m.write(m.p, ready); m.answer(settled(delivery.Completed)) }, ""},
		"none that retries": {func(m *mutants) {
			m.retries(func() string { return m.r.doc.BookedTask })
			time.Sleep(m.retryMin)
			m.write(m.q, take)
		}, ""},

		"a release by another":       {func(m *mutants) { m.over(); m.write(m.q, free) }, `wrote release to the lock of "p"`},
		"a release during the run":   {func(m *mutants) { m.write(m.p, free) }, "wrote release before its run had ended"},
		"a lock that is held":        {func(m *mutants) { m.write(m.q, take) }, "but p held the lock until"},
		"another result":             {func(m *mutants) { m.over(); m.write(m.p, ready, set(func(d *analysis) { d.Result = "x" })) }, "wrote the result x"},
		"a result of the superseded": {func(m *mutants) { time.Sleep(hour); m.write(m.q, take); m.over(); m.write(m.p, ready) }, `wrote finish to the lock of "q"`},
		"a status without a finish":  {func(m *mutants) { m.over(); m.write(m.p, free, set(func(d *analysis) { d.Status = "READY" })) }, "a status that does not fit"},
		"the last attempt too early": {func(m *mutants) { time.Sleep(hour); m.write(m.q, giveUp) }, "gave up too early"},
		"the time too early": {func(m *mutants) {
			time.Sleep(hour)
			m.write(m.q, giveUp, set(func(d *analysis) { d.Error.Code, d.StartedAt = analysislock.RunTimeExhausted, time.Now() }))
		}, "gave up before MAX_RUN_TIME"},
		"an attempt that is not counted": {func(m *mutants) { time.Sleep(hour); m.write(m.q, take, set(func(d *analysis) { d.Lock.Attempts = 1 })) }, "a wrong count of attempts"},
		"an attempt above the limit":     {func(m *mutants) { m.policy.MaxAttempts = 1; time.Sleep(hour); m.write(m.q, take) }, "a wrong count of attempts"},
		"an attempt without an entry":    {func(m *mutants) { time.Sleep(hour); m.write(m.q, take, set(func(d *analysis) { d.History = nil })) }, "a wrong status or history"},
		"an attempt that stays QUEUED":   {func(m *mutants) { time.Sleep(hour); m.write(m.q, take, set(func(d *analysis) { d.Status = "QUEUED" })) }, "a wrong status or history"},
		"an attempt without its end": {func(m *mutants) {
			m.over()
			m.write(m.p, free, set(func(d *analysis) { d.History[0].EndedAt = time.Time{} }))
		}, "its end in the history"},
		"an attempt taken back": {func(m *mutants) { m.over(); m.write(m.p, free, set(func(d *analysis) { d.Lock.Attempts = 0 })) }, "changed the attempts by -1"},
		"a requeue that keeps attempts": {func(m *mutants) {
			m.over()
			m.write(m.p, ready)
			m.ops.operates = Requeue
			m.write(m.ops, reopen, set(func(d *analysis) { d.Lock.Attempts = 1 }))
		}, "requeued wrongly"},
		"an unlock of two locks": {func(m *mutants) { m.operate(Unlock, free); m.write(m.q, take); m.operate(Unlock, free) }, "one unlock broke token 1 and token 2"},

		"a mark without a time":     {func(m *mutants) { time.Sleep(hour); m.operate(Mark) }, "marked 0001"},
		"a mark of one that waits":  {func(m *mutants) { m.over(); m.write(m.p, retry); m.operate(Mark, next(0), named) }, "marked an analysis that waits until"},
		"a mark of another task":    {func(m *mutants) { time.Sleep(hour); m.operate(Mark, next(0)) }, "marked another task than the next"},
		"a next attempt much later": {func(m *mutants) { m.over(); m.write(m.p, retry, next(hour)) }, "booked the next attempt in 1h"},
		"no next attempt": {func(m *mutants) {
			m.over()
			m.write(m.p, retry, set(func(d *analysis) { d.NextAttemptAt = time.Time{} }))
		}, "booked the next attempt in"},
		"a next attempt at once":       {func(m *mutants) { m.over(); m.write(m.p, retry, next(0)) }, "booked the attempt after 1 for"},
		"a heartbeat that changes it":  {func(m *mutants) { m.write(m.p, next(hour)) }, "changed the time of the next attempt"},
		"a finish that keeps it":       {func(m *mutants) { m.over(); m.write(m.p, ready, next(hour)) }, "left the next attempt at"},
		"a finish that keeps its task": {func(m *mutants) { m.over(); m.write(m.p, ready, named) }, "left a booked task"},
		"an attempt before its time":   {func(m *mutants) { m.over(); m.write(m.p, retry); m.write(m.q, take) }, "too early"},
		"an attempt just before it": {func(m *mutants) {
			m.over()
			m.write(m.p, retry)
			time.Sleep(m.retryMin - 3*time.Second)
			m.write(m.q, take)
		}, "too early"},

		"none that delays a suspect": {func(m *mutants) {
			m.crashes(2)
			m.write(m.q, delay)
			time.Sleep(30 * time.Second)
			m.write(m.q, take, alone)
		}, ""},
		"none that gives up a killer":  {after(4, killed), ""},
		"a crash that is not recorded": {after(1, take, forget), "left an attempt without its end"},
		"a crash without its error":    {after(1, take, noError), "without its end or its error"},
		"a suspect beside others":      {after(2, take), "beside others after 0 delays and"},
		"a suspect beside others after ten delays without a wait": {func(m *mutants) {
			m.crashes(2)
			m.write(m.q, delay, set(func(d *analysis) { d.History[1].Delays = 1 }))
			m.r.doc.History[1].Delays = 10
			time.Sleep(hour)
			m.q.entered = m.since() - 10*time.Second
			m.write(m.q, take)
		}, "beside others after 10 delays and 10s"},
		"a killer after three crashes": {after(3, killed), "wrote give up after 3 crashes in a row, the last 1"},
		"a killer that runs again":     {after(4, take, alone), "wrote acquire after 4 crashes in a row"},
		"a delay of no suspect":        {after(1, delay), "wrote delay 1 after 1 crashes"},
		"a delay that is not counted":  {after(2, delay, uncounted), "changed the time of the next attempt"},
		"a delay of an hour":           {after(2, delay, next(hour)), "delayed the next attempt by 1h"},
		"a delay of another task":      {after(2, delay, misnamed), "booked another task than the next of a suspect"},
		"a delay while the lock is held": {func(m *mutants) {
			m.crashes(1)
			m.write(m.q, take)
			m.write(m.p, delay)
		}, "wrote delay while q held the lock"},
		"a run beside one that is alone": {func(m *mutants) {
			m.q.on, m.p.alone = m.p.on, true
			m.p.on.callers = []*caller{m.p, m.q}
			m.hand(m.q, orchestrator.Job{})
		}, "run together, but one of them alone"},
		"suspect until another time": {func(m *mutants) {
			m.book(taskqueue.Task{Name: "another", AnalysisID: "a"}, m.p)
			m.answer(delivery.Result{Reason: delivery.Suspect, Ack: true, Next: delivery.Next{RetryAt: m.now()}})
		}, "was answered suspect until"},

		"a checkpoint kept with READY":      {func(m *mutants) { m.write(m.p, keep(1, 1)); m.over(); m.write(m.p, ready, keep(1, 2)) }, "kept 2 units"},
		"a checkpoint with the acquisition": {func(m *mutants) { time.Sleep(hour); m.write(m.q, take, keep(2, 1)) }, "replaced 0 units"},
		"a checkpoint of another run":       {func(m *mutants) { m.write(m.p, keep(2, 1)) }, "of another run"},
		"an older checkpoint":               {func(m *mutants) { m.write(m.p, keep(1, 2)); m.write(m.p, keep(1, 1)) }, "by the older"},
		"a checkpoint that is dropped":      {func(m *mutants) { m.p.run.reported = mark{1, 1, 1}; m.over(); m.write(m.p, retry) }, "without 1 units"},
		"a continued run that is counted": {func(m *mutants) {
			m.write(m.p, keep(1, 1))
			m.over()
			m.write(m.p, retry, set(func(d *analysis) { d.History[0].Code = "run_timeout" }))
		}, "counted an attempt that has committed"},

		"an open act that is not counted": {func(m *mutants) { m.write(m.p, record1("started", 0)) }, "left openEffects 0"},
		"an act that is dropped":          {func(m *mutants) { m.write(m.p, record1("started", 1)); m.operate(Unlock, free, record1("done", 0)) }, "dropped an uncertain act"},
		"an act that is left open": {func(m *mutants) {
			m.r.charges = []string{"receipt"}
			m.over()
			m.write(m.p, record1("started", 1), ready)
		}, "left an act open that has been done"},
		"an answer for another state": {func(m *mutants) { m.over(); m.write(m.p, ready); m.ops.seen = &analysislock.Seen{}; m.operate(Resolve) }, "answered an act of"},

		"an answer during the run":       {func(m *mutants) { m.judgeAnswer(m.p, delivery.Result{}, false) }, "answered before its run had ended"},
		"acknowledged without a booking": {func(m *mutants) { m.over(); m.write(m.p, free); m.answer(settled(delivery.ShuttingDown)) }, "but no delivery is booked"},
		"acknowledged with its own task": {func(m *mutants) {
			m.p.task = m.book(taskqueue.Task{Name: "own", AnalysisID: "a"}, m.p)
			m.answer(settled(delivery.Locked))
		}, "but no delivery is booked"},
		"a retry booked by another name": {func(m *mutants) { m.retries(func() string { return "another" }) }, "but the next attempt is not booked"},
		"stopped while it waited, and it has written": {func(m *mutants) {
			m.answer(delivery.Result{Reason: delivery.NotClaimed})
		}, "but has written"},
		"locked by its own lock": {func(m *mutants) { m.p.owner = "p"; m.answer(delivery.Result{Reason: delivery.Locked}) }, "because of its own lock"},
		"locked until another time": {func(m *mutants) {
			m.answer(delivery.Result{Reason: delivery.Locked, Next: delivery.Next{RetryAt: m.now()}})
		}, "but no lock had that expiry"},
		"waiting until another time": {func(m *mutants) {
			m.answer(delivery.Result{Reason: delivery.Waiting, Next: delivery.Next{RetryAt: m.now()}})
		}, "but no next attempt was booked for that time"},
		"lost, and it has finished":    {func(m *mutants) { m.over(); m.write(m.p, ready); m.p.owner = "p"; m.answer(settled(delivery.LockLost)) }, "but it had finished the analysis"},
		"ran, and it has not":          {func(m *mutants) { m.answer(delivery.Result{Reason: delivery.Completed}) }, "but token 1 has not finished the analysis"},
		"finished already, and is not": {func(m *mutants) { m.answer(delivery.Result{Reason: delivery.AlreadyFinished}) }, "but the analysis was not finished"},

		"nobody for an hour after a crash": {func(m *mutants) {
			m.single, m.crashedAt, m.p.on.crashed = true, 1, true
			time.Sleep(hour)
			m.write(m.q, take)
		}, "unheld for"},
		"a checkpoint handed out that was not committed": {func(m *mutants) {
			m.p.acquired = 1
			m.hand(m.p, orchestrator.Job{Resume: []byte(`"1 units, checkpoint 1 of token 1"`)})
		}, "was handed 1 units"},
		"no heartbeat":                  {func(m *mutants) { (&execution{model: m.model}).judgeBeats([]*caller{m.p}) }, "p sends no heartbeat"},
		"a run without the lock":        {func(m *mutants) { m.r.holder = m.q; m.holders() }, "p runs without the lock"},
		"a run after the expiry":        {func(m *mutants) { time.Sleep(hour); m.holders() }, "p runs with an expired lock"},
		"two runs":                      {func(m *mutants) { m.q.run = m.p.run; m.holders() }, "2 runs hold the lock"},
		"a broken run, after trust":     {func(m *mutants) { m.p.broken = &Span{}; time.Sleep(time.Nanosecond); m.holders() }, "continues after the end of its trust"},
		"a broken run that has read it": {func(m *mutants) { m.p.broken, m.p.readBreak = &Span{}, true; m.holders() }, "although it has read"},
		"two in effect": {func(m *mutants) {
			m.q.run = &run{begun: time.Second, ended: hour, cancelled: -1}
			m.p.run.ended = 2 * time.Second
			(&simulation{model: m.model, runs: []*caller{m.p, m.q}}).judgeRuns()
		}, "were both in effect for 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mutants{model: newModel(lease.Policy{TTL: 300 * time.Second, MaxAttempts: 3})}
				m.limits, m.maxRun, m.begun = perfect().limits, 24*hour, time.Now()
				m.r = m.create("a")
				for n, p := range []**caller{&m.p, &m.q, &m.ops} {
					*p = &caller{name: []string{"p", "q", "ops"}[n], on: &instance{}, analysis: "a", since: 1, task: &task{}}
				}
				m.write(m.p, take)
				m.p.run = &run{ctx: t.Context(), ended: -1, cancelled: -1}
				if c.do(m); c.want == "" && m.wrong != nil || !strings.Contains(strings.Join(m.wrong, "\n"), c.want) {
					t.Errorf("found %q, want %q", m.wrong, c.want)
				}
			})
		})
	}
}

// holders judges who holds the lock, as a search does after each step.
func (m *mutants) holders() {
	(&execution{model: m.model, rec: m.r, callers: []*caller{m.p, m.q}}).judgeHolders()
}
