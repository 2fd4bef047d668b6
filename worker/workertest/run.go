package workertest

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/worker"
)

// Options configures Run. The zero value is ready to use.
type Options struct {
	// Worker is for the Guard of each process. The connections are replaced.
	Worker worker.Options
	// Schedules is the number of schedules. All those with one fault are tried, even if they are more.
	// Each other one has up to four faults, which Seed draws. Zero: 200.
	Schedules int
	Seed      uint64 // of the faults that are drawn: the same Seed draws the same
	// Repeatable reports whether an act may be done again, and late, because its receiver does it once,
	// or because that is harmless. Nil: none may.
	Repeatable func(act string) bool
	// Check is called at the end of each schedule, unless an act is uncertain, with the result that the
	// document has. Its error is reported. It is called concurrently for several schedules. Nil: none.
	Check func(result any, acts *Acts) error
}

// variable of the environment has the one schedule that is to be run.
const variable = "WORKERTEST"

// subject is what all schedules of a test run.
type subject struct {
	options Options
	work    func(*schedule) // opens the service, does the work, and sets the end
	base    *schedule       // without a fault; nil: it has not run yet
}

// id is that of the document.
const id = "work"

// Run does the work of a kind on one input, again and again, in virtual time on embedded servers. In
// each schedule another fault happens at another step, as the package's
// documentation describes. It fails t if ...
func Run(t *testing.T, service func(acts *Acts) (start func() worker.Kind), input any, o Options) {
	t.Helper()
	run(t, o, kind(service, input))
}

// kind returns the work of a kind on an input.
func kind(service func(*Acts) func() worker.Kind, input any) func(*schedule) {
	return func(s *schedule) {
		start := service(s.acts)
		k := start()
		s.fields = k.Fields
		s.open = func(g *worker.Guard) http.Handler { return g.Handler(start()) }
		s.submit(k, input)
	}
}

// limit is the longest time of a schedule.
const limit = 24 * time.Hour

// submit submits the work, and waits until nothing is left in the queue.
func (s *schedule) submit(k worker.Kind, input any) {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	g, err := worker.Open(ctx, s.rig.options(s.options.Worker))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = g.Shutdown(context.WithoutCancel(ctx)) }()
	operator, err := g.Operator(k)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := worker.Submit(ctx, g, k, id, input); err != nil {
		s.t.Fatal(err)
	}

	for range 2 { // a delivery beside those of the queue may have booked another
		if err := s.rig.Tasks.Idle(ctx); err != nil {
			break
		}
		s.extra.Wait()
	}
	d, err := operator.Analyses.Get(ctx, id)
	if err != nil {
		s.t.Fatal(err)
	}
	switch {
	case d.Error != nil:
		s.end = fmt.Sprintf("%s with code %s", d.Status, d.Error.Code)
	case d.Finished():
		s.end = d.Status
	}
	s.result = d.Result
}

// run runs all schedules of the work, or the one that the environment names, and fails the test.
func run(t *testing.T, o Options, work func(*schedule)) {
	t.Helper()
	for _, s := range search(t, o, work) {
		t.Errorf("workertest: %s\nin the schedule %s\n%srepeat it by %s='%s' go test -run '^%s$'",
			strings.Join(s.wrong, "\n"), s, s.lines(), variable, s, t.Name())
	}
}

// search runs the schedules, and returns those that show a problem.
func search(t *testing.T, o Options, work func(*schedule)) []*schedule {
	t.Helper()
	o.Worker, o.Schedules = o.Worker.Filled(), cmp.Or(o.Schedules, 200)
	subject := &subject{options: o, work: work}
	base := (&schedule{subject: subject}).run(t)
	if len(base.wrong) > 0 {
		t.Fatalf("workertest: without a fault: %s\n%s", strings.Join(base.wrong, "\n"), base.lines())
	}
	subject.base = base
	if text := os.Getenv(variable); text != "" {
		s := (&schedule{subject: subject, plan: parse(text)}).run(t)
		t.Logf("workertest: the schedule %s\n%s", text, s.lines())
		return problems(t, []*schedule{s})
	}

	single, drawn := base.single(), base.drawn()
	drawn = drawn[min(len(drawn), len(single)):]
	t.Logf("workertest: %d schedules with one fault, and %d others", len(single), len(drawn))
	runAll(t, single)
	if found := problems(t, single); len(found) > 0 {
		return found
	}
	runAll(t, drawn)
	return problems(t, drawn)
}

// single returns the schedules with one fault at one of the steps.
func (s *schedule) single() (all []*schedule) {
	for _, step := range s.steps {
		for _, fault := range faultsOf(step.kind) {
			all = append(all, &schedule{subject: s.subject, plan: map[string]string{step.key: fault}})
		}
	}
	return all
}

// drawn returns schedules whose faults are drawn.
func (s *schedule) drawn() (all []*schedule) {
	for n := range s.options.Schedules {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, s.options.Seed, n) // a hash does not fail
		all = append(all, &schedule{subject: s.subject, draw: cmp.Or(h.Sum64(), 1)})
	}
	return all
}

// runAll runs the schedules, several at once.
func runAll(t *testing.T, all []*schedule) {
	next := make(chan *schedule)
	var running sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for s := range next {
				s.run(t)
			}
		})
	}
	for _, s := range all {
		next <- s
	}
	close(next)
	running.Wait()
}

// problems returns the schedules that have failed, each only with the problems that none before it
// shows. Of the schedules with several faults, it returns the first.
func problems(t *testing.T, all []*schedule) (found []*schedule) {
	known := map[string]bool{}
	for _, s := range all {
		s.wrong = slices.DeleteFunc(s.wrong, func(problem string) bool { return known[problem] })
		if len(s.wrong) == 0 {
			continue
		}
		if s.draw != 0 {
			return []*schedule{s.shortest(t)}
		}
		for _, problem := range s.wrong {
			known[problem] = true
		}
		found = append(found, s)
	}
	return found
}

// shortest leaves out each fault without which the schedule fails too.
func (s *schedule) shortest(t *testing.T) *schedule {
	for n := 0; n < len(s.faults) && len(s.faults) > 1; {
		fewer := strings.Join(slices.Delete(slices.Clone(s.faults), n, n+1), "; ")
		shorter := (&schedule{subject: s.subject, plan: parse(fewer)}).run(t)
		if len(shorter.wrong) > 0 {
			s, n = shorter, 0
		} else {
			n++
		}
	}
	return s
}

// parse reads the faults of a schedule.
func parse(text string) map[string]string {
	plan := map[string]string{}
	for part := range strings.SplitSeq(text, "; ") {
		key, fault, _ := strings.Cut(part, ": ")
		plan[key] = fault
	}
	return plan
}

// lines returns the steps, one a line.
func (s *schedule) lines() string {
	var text strings.Builder
	for _, step := range s.steps {
		text.WriteString(step.line + "\n")
	}
	return text.String()
}
