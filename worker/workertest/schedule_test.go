package workertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/internal/testing/proof"
	"taskguard/worker"
)

// What no planted handler can show: a guard that breaks a promise, or an act that an operator answers.
func TestSchedule_Judge(t *testing.T) {
	type acts = map[string]int
	type writes = []proof.Write
	failed := func(code string) ending { return ending{"FAILED", code, ""} }
	ready, asked, open := ending{status: "READY"}, failed("effect_uncertain"), []string{"charge"}
	usual := acts{"b": 2, "a": 1}
	with := func(name string, n int) acts {
		counts := maps.Clone(usual)
		counts[name] = n
		return counts
	}
	acquire := func(by string, token int64) proof.Write {
		return proof.Write{Kind: proof.Acquire, By: by, Token: token}
	}
	release := func(by string) proof.Write { return proof.Write{Kind: proof.Release, By: by} }

	for name, c := range map[string]struct {
		end       ending
		uncertain []string
		counts    acts // nil: the schedule is the first, without a fault, so there is nothing to compare with
		asks      bool
		works     int
		o         Options
		fields    worker.Fields
		writes    writes
		want      string // in the problem; empty: there is none
	}{
		"as without a fault":         {end: ready, counts: usual},
		"one of two equal acts":      {end: ready, counts: with("b", 1), want: `"b" was done 1 times, want 2`},
		"three of two equal acts":    {end: ready, counts: with("b", 3), want: `"b" was done 3 times, want 2`},
		"another act":                {end: ready, counts: with("c", 1), want: `"c" was done 1 times, want 0`},
		"a PUT that is repeated":     {end: ready, counts: with("PUT p", 2)},
		"a DELETE that is repeated":  {end: ready, counts: with("DELETE d", 1)},
		"a PUTS that is repeated":    {end: ready, counts: with("PUTS", 1), want: `"PUTS" was done 1 times, want 0`},
		"an operator is asked":       {end: asked, uncertain: open, counts: acts{}},
		"asked, after a second act":  {end: asked, uncertain: open, counts: acts{"a": 2}, want: `"a" was done 2`},
		"asked without a fault":      {end: asked, uncertain: open, want: `whether act "charge" was done`},
		"asked about nothing":        {end: asked, want: "FAILED: effect_uncertain, want READY"},
		"lost with an open act":      {uncertain: open, counts: usual, want: "not finished"},
		"a client that is asked":     {uncertain: open, counts: acts{}, asks: true},
		"a client that is not":       {asks: true, want: "not finished"},
		"a replay":                   {asks: true, works: 2},
		"a second work that is lost": {works: 2, want: "not finished"},
		"not declined":               {end: ready, o: Options{Declines: "no"}, want: "READY, want FAILED: no"},
		"another refusal":            {end: failed("other"), o: Options{Declines: "no"}, want: "want FAILED: no"},
		"a refusal with an open act": {
			end: failed("no"), uncertain: open, counts: usual, o: Options{Declines: "no"}, want: `whether act "charge"`,
		},
		"a refusal by other words": {
			end: ending{"broken", "no", "m"}, o: Options{Declines: "no"}, fields: worker.Fields{Failed: "broken"},
		},
		"a write by another": {end: ready, writes: writes{acquire("p1", 7), release("p2")}, want: "p2 wrote release"},
		"a token that is skipped": {
			end: ready, want: "token 9 after token 7",
			writes: writes{acquire("p1", 7), release("p1"), acquire("p1", 9)},
		},
	} {
		s := &schedule{asks: c.asks, works: c.works, options: c.o, fields: c.fields}
		s.record = record{end: c.end, uncertain: c.uncertain, writes: c.writes}
		s.acts = &Acts{schedule: s, counts: c.counts}
		if c.counts != nil {
			s.base = &schedule{acts: &Acts{counts: usual}}
		}
		s.judge()
		got := strings.Join(s.wrong, " | ")
		if len(s.wrong) > 1 || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.want == "" && got != "" {
			t.Errorf("%s: %q, want no problem", name, got)
		}
	}
}

// Requests with one Idempotency-Key are one act, and an attempt that has lost its lock does none.
func TestActs_Record(t *testing.T) {
	charge, noKey := request{"POST /charges", "key", "bank", "42"}, request{name: "POST /charges"}
	for name, c := range map[string]struct {
		next         request
		token        int64 // of the next
		repeatable   bool
		wrong, again int // problems, in a schedule with a fault and without one
		acts         int
	}{
		"the same":        {next: charge, token: 2, again: 1, acts: 1},
		"another act":     {next: request{"POST /refunds", "key", "bank", "42"}, token: 2, wrong: 1, again: 1, acts: 1},
		"another body":    {next: request{"POST /charges", "key", "bank", "43"}, token: 2, wrong: 1, again: 1, acts: 1},
		"a new body":      {next: request{"POST /charges", "key", "bank", "43"}, token: 2, repeatable: true, acts: 1},
		"another host":    {next: request{"POST /charges", "key", "mail", "42"}, token: 2, acts: 2},
		"another key":     {next: request{"POST /charges", "key2", "bank", "42"}, token: 2, acts: 2},
		"without a key":   {next: noKey, token: 2, acts: 2},
		"repeatable":      {next: charge, token: 2, repeatable: true, acts: 1},
		"late":            {next: noKey, token: 1, wrong: 1, again: 1, acts: 2},
		"harmlessly late": {next: noKey, token: 1, repeatable: true, acts: 2},
	} {
		record := func(base *schedule) (wrong, total int) {
			s := &schedule{base: base, options: Options{Repeatable: func(string) bool { return c.repeatable }}}
			acts := &Acts{schedule: s, counts: map[string]int{}, tokens: map[string]int64{}}
			acts.requests = map[string]request{}
			acts.record(&process{schedule: s, token: 2}, charge)
			acts.record(&process{schedule: s, token: c.token}, c.next)
			return len(s.wrong), acts.total()
		}
		wrong, acts := record(&schedule{})
		again, _ := record(nil)
		if got, want := [...]int{wrong, again, acts}, [...]int{c.wrong, c.again, c.acts}; got != want {
			t.Errorf("%s: problems with and without a fault, and acts: %d, want %d", name, got, want)
		}
	}
}

// firstOf returns the schedule without a fault, which has run.
func firstOf(t *testing.T, work func(*schedule), o Options) *schedule {
	t.Helper()
	o.Worker = o.Worker.Filled()
	s := &schedule{options: o, work: work}
	s.run(t)
	return s
}

func TestSchedule_Shortest(t *testing.T) {
	first := firstOf(t, deliveries(charges(true), 42), Options{})
	both := first.with("", "p1 acquire 1: "+replyLost, "p1 act 1: "+crashAfter)
	both.run(t)
	all, got := both.faulty(), both.shortest(t).faulty()
	if len(all) != 2 || !slices.Equal(got, []string{"p1 act 1: " + crashAfter}) {
		t.Errorf("%q is reported as %q", all, got)
	}
}

func TestSchedule_FaultOf(t *testing.T) {
	// A fault that the step cannot have must not pass as if it had been tried.
	s := &schedule{plan: []string{"p1 act 1: crash aftr", "p1 act 2: crash after"}}
	wrong, right := s.faultOf(&step{kind: act, key: "p1 act 1"}), s.faultOf(&step{kind: act, key: "p1 act 2"})
	if wrong != "" || right != crashAfter {
		t.Errorf("faults %q and %q, want none and %q", wrong, right, crashAfter)
	}
	drawing := &schedule{draw: "1 1"}
	for n := range 200 { // each eighth step has one, until there are four
		next := &step{kind: act, key: fmt.Sprint("p1 act ", n)}
		next.fault = drawing.faultOf(next)
		drawing.steps = append(drawing.steps, next)
	}
	if n := len(drawing.faulty()); n != 4 {
		t.Errorf("200 steps have %d faults, want 4", n)
	}
}

// diary has what the runs and their acts do, and at which second.
type diary struct {
	mu    sync.Mutex
	begun time.Time
	runs  int
	lines []string
}

func (d *diary) begin() (run int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs++
	return d.runs
}

func (d *diary) add(run int, what string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%.0fs run %d %s %v", time.Since(d.begun).Seconds(), run, what, err))
}

// Each fault happens as it is named.
func TestSchedule_Faults(t *testing.T) {
	var d *diary
	work := deliveries(func(a *Acts) func(*worker.Guard) worker.Kind {
		d = &diary{begun: time.Now()}
		return simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
			run := d.begin()
			err := a.Do(ctx, "PUT x", func(ctx context.Context) error { d.add(run, "acts", ctx.Err()); return nil })
			if err != nil {
				time.Sleep(time.Minute)
				err = errors.Join(err, a.Do(ctx, "PUT y", func(context.Context) error { return errors.New("refused") }))
			}
			d.add(run, "ends", err)
			return 1, err
		})(a)
	}, 42)
	base := firstOf(t, work, Options{})
	for plan, want := range map[string]string{
		"p1 delivery 1: delivered twice":              `0s run 1 acts <nil>, 0s run 1 ends <nil> | p1 delivery 1  <- delivered twice, p2 delivery 1, p1 acquire 1, p1 act 1  PUT x, p2 book 1, p1 finish 1, p2 answer 1  OK, p1 answer 1  OK, p2 delivery 2, p2 answer 2  OK, p2 delivery 3, p2 answer 3  OK, `,
		"p1 delivery 1: SIGTERM":                      `0s run 1 acts <nil>, 0s run 1 ends <nil> | p1 delivery 1  <- SIGTERM, p1 answer 1  Internal Server Error, p2 delivery 1, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 1  OK, `,
		"p1 act 1: crash before":                      `302s run 2 acts <nil>, 302s run 2 ends <nil>, 362s run 1 ends rpc error: code = Aborted desc = workertest: the process is dead; context canceled | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x  <- crash before, p2 delivery 1, p2 book 1, p2 answer 1  OK, p2 delivery 2, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 2  OK, `,
		"p1 act 1: crash after":                       `0s run 1 acts <nil>, 302s run 2 acts <nil>, 302s run 2 ends <nil>, 362s run 1 ends rpc error: code = Aborted desc = workertest: the process is dead; context canceled | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x  <- crash after, p2 delivery 1, p2 book 1, p2 answer 1  OK, p2 delivery 2, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 2  OK, `,
		"p1 act 1: late, during the next run":         `301s run 1 acts <nil>, 301s run 2 acts <nil>, 301s run 2 ends <nil>, 361s run 1 ends context canceled; context canceled | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x  <- late, during the next run, p2 delivery 1, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 1  OK, p1 heartbeat 1  failed: DeadlineExceeded, p1 release 1  failed: FailedPrecondition, p1 book 1, p1 answer 1  OK, p2 delivery 2, p2 answer 2  OK, `,
		"p1 act 1: late, after the next run":          `301s run 2 acts <nil>, 301s run 2 ends <nil>, 600s run 1 acts <nil>, 660s run 1 ends context canceled; context canceled | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x  <- late, after the next run, p2 delivery 1, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 1  OK, p1 heartbeat 1  failed: DeadlineExceeded, p1 release 1  failed: FailedPrecondition, p1 book 1, p1 answer 1  OK, p2 delivery 2, p2 answer 2  OK, `,
		"p1 act 1: SIGTERM":                           `0s run 1 acts <nil>, 60s run 1 ends context canceled; context canceled, 302s run 2 acts <nil>, 302s run 2 ends <nil> | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x  <- SIGTERM, p2 delivery 1, p2 book 1, p2 answer 1  OK, p2 delivery 2, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 2  OK, `,
		"p1 act 1: reply lost; p1 book 1: reply lost": `0s run 1 acts <nil>, 60s run 1 ends rpc error: code = Unavailable desc = workertest: the reply is lost; refused, 95s run 2 acts <nil>, 95s run 2 ends <nil> | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x  <- reply lost, p1 act 2  PUT y  failed: Unknown, p1 release 1, p1 book 1  <- reply lost, p1 book 2  failed: AlreadyExists, p1 answer 1  OK, p1 delivery 2, p1 acquire 2, p1 act 3  PUT x, p1 finish 1, p1 answer 2  OK, `,
		"p1 finish 1: late, after the next run":       `0s run 1 acts <nil>, 0s run 1 ends <nil>, 301s run 2 acts <nil>, 301s run 2 ends <nil> | p1 delivery 1, p1 acquire 1, p1 act 1  PUT x, p1 finish 1  <- late, after the next run  failed: FailedPrecondition, p2 delivery 1, p2 acquire 1, p2 act 1  PUT x, p2 finish 1, p2 answer 1  OK, p1 answer 1  Service Unavailable, p2 delivery 2, p2 answer 2  OK, `,
	} {
		s := base.with("", strings.Split(plan, "; ")...)
		s.run(t)
		got := strings.ReplaceAll(strings.Join(d.lines, ", "), "\n", "; ") + " | "
		for _, step := range s.steps {
			got += strings.TrimSpace(strings.ReplaceAll(step.String()[14:], "  /internal/tasks/analysis", "")) + ", "
		}
		if got != want {
			t.Errorf("%s:\n%s, want\n%s", plan, got, want)
		}
	}
}

func TestSchedule_Draws(t *testing.T) {
	// The times may differ: the waits between the tries of a call are random.
	t.Run("the same on any number of processors", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
		base := firstOf(t, deliveries(charges(false), 42), Options{})
		for n := range 8 {
			var want []string
			for _, processors := range []int{1, 2, 8} {
				runtime.GOMAXPROCS(processors)
				s := base.with(fmt.Sprint(n))
				s.run(t)
				var got []string
				for _, step := range s.steps {
					got = append(got, step.key+" "+step.fault)
				}
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("schedule %d with %d processors is %q, want %q", n, processors, got, want)
				}
			}
		}
	})
	t.Run("others by another seed", func(t *testing.T) {
		drawn := func(seed uint64) (all []string) {
			base := firstOf(t, deliveries(charges(false), 42), Options{Seed: seed, Schedules: 45})
			schedules, single := base.faultySchedules()
			for _, s := range schedules[single:] {
				s.run(t)
				all = append(all, strings.Join(s.faulty(), "; "))
			}
			return all
		}
		first, second := drawn(1), drawn(2)
		if slices.Equal(first, second) || !slices.Equal(first, drawn(1)) {
			t.Errorf("seed 1 draws %q, and seed 2 %q; want others, and the same again", first, second)
		}
		if len(slices.Compact(first)) < 5 {
			t.Errorf("seed 1 draws %q, want several", first)
		}
	})
}
