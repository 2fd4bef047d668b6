package workertest

import (
	"cmp"
	"context"
	"fmt"
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

// Options configures Run and RunHandler. The zero value is ready to use.
type Options struct {
	// Worker is for the Guard of each process. The connections are replaced.
	Worker worker.Options
	// Schedules is the number of schedules. All those with one fault are tried, even if they are more.
	// Each other one has up to four faults, which Seed draws. Zero: 200.
	Schedules int
	Seed      uint64 // of the faults that are drawn: the same Seed draws the same
	// Repeatable reports whether an act may be done again, and late, because its receiver does it once,
	// or because that is harmless. It is called concurrently. Nil: none may.
	Repeatable func(act string) bool
}

// variable of the environment names the one schedule to run.
const variable = "WORKERTEST"

// Run runs a kind of work on one input, in many schedules, and fails t with each problem that it finds;
// see the documentation of the package. service is called at the beginning of a schedule, and start for
// each process: the Run that start returns must not use what another start has made. Several schedules
// run at once, each in a testing/synctest bubble. A run must end when its context does.
func Run(t *testing.T, service func(acts *Acts) (start func() worker.Kind), input any, o Options) {
	t.Helper()
	run(t, o, deliveries(service, input))
}

// limit is the longest time of a schedule.
const limit = 24 * time.Hour

// deliveries returns the work of a kind: to submit it, and to wait until the queue is empty.
func deliveries(service func(*Acts) func() worker.Kind, input any) func(*schedule) {
	return func(s *schedule) {
		start := service(s.acts)
		kind := start()
		s.fields = kind.Fields
		s.open = func(g *worker.Guard) http.Handler { return g.Handler(start()) }

		ctx, cancel := context.WithTimeout(s.t.Context(), limit)
		defer cancel()
		if _, err := worker.Submit(ctx, s.rig.Guard(s.options.Worker), kind, "work", input); err != nil {
			s.t.Fatal(err)
		}
		for range 2 { // a delivery beside those of the queue may book another
			_ = s.rig.Tasks.Idle(ctx) // else the work is not finished
			s.extra.Wait()
		}
	}
}

// RunHandler is like Run, for an HTTP handler that uses [worker.Guard.Idempotent] or [worker.Do]. Its
// client repeats the request each 30 s until the answer is below 500 and not 409.
func RunHandler(t *testing.T, service func(acts *Acts) (start func(*worker.Guard) http.Handler),
	request func() *http.Request, o Options,
) {
	t.Helper()
	run(t, o, requests(service, request))
}

// requests returns the work of a handler: to repeat the request until it is answered.
func requests(service func(*Acts) func(*worker.Guard) http.Handler, request func() *http.Request) func(*schedule) {
	return func(s *schedule) {
		s.open = service(s.acts)
		for range 40 {
			resp, err := s.RoundTrip(request())
			if err == nil && resp.StatusCode != http.StatusConflict && resp.StatusCode < http.StatusInternalServerError {
				break
			}
			time.Sleep(30 * time.Second)
		}
		s.extra.Wait()
	}
}

// search is a search of the schedules of one work that show a problem.
type search struct {
	options Options
	work    func(*schedule) // opens the service, and does the work
	base    *schedule       // without a fault; nil: it has not run yet
}

// run searches, and fails the test with what it finds.
func run(t *testing.T, o Options, work func(*schedule)) {
	t.Helper()
	o.Worker, o.Schedules = o.Worker.Filled(), cmp.Or(o.Schedules, 200)
	s := &search{options: o, work: work}
	for _, found := range s.all(t) {
		faulty := strings.Join(found.faulty(), "; ")
		t.Errorf("workertest: %s\nin the schedule %s\n%srepeat it by %s='%s' go test -run '^%s$'",
			strings.Join(found.wrong, "\n"), faulty, found.lines(), variable, faulty, t.Name())
	}
}

// all runs the schedules, and returns those that show a problem.
func (s *search) all(t *testing.T) []*schedule {
	base := (&schedule{search: s}).run(t)
	if len(base.wrong) > 0 {
		return []*schedule{base}
	}
	s.base = base
	if text := os.Getenv(variable); text != "" {
		only := (&schedule{search: s, plan: parse(text)}).run(t)
		t.Logf("workertest: the schedule %s\n%s", text, only.lines())
		return problems(t, []*schedule{only})
	}

	var single, drawn []*schedule
	for _, step := range base.steps {
		for _, fault := range faults(step.kind) {
			single = append(single, &schedule{search: s, plan: map[string]string{step.key: fault}})
		}
	}
	for n := len(single); n < s.options.Schedules; n++ {
		drawn = append(drawn, &schedule{search: s, draw: fmt.Sprint(s.options.Seed, " ", n)})
	}
	t.Logf("workertest: %d schedules with one fault, and %d others", len(single), len(drawn))
	if found := problems(t, single); len(found) > 0 {
		return found
	}
	return problems(t, drawn)
}

// maxFound limits the schedules that a test reports.
const maxFound = 5

// problems runs schedules, and returns those that have a problem which none before it has. Of those
// whose faults are drawn, it returns the first, without the faults that the problem does not need.
func problems(t *testing.T, all []*schedule) (found []*schedule) {
	var running sync.WaitGroup
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, s := range all {
		running.Go(func() {
			turns <- struct{}{}
			s.run(t)
			<-turns
		})
	}
	running.Wait()

	known := map[string]bool{}
	for _, s := range all {
		if slices.ContainsFunc(s.wrong, func(problem string) bool { return !known[problem] }) {
			if found = append(found, s); s.draw != "" {
				return []*schedule{s.shortest(t)}
			} else if len(found) == maxFound {
				break
			}
		}
		for _, problem := range s.wrong {
			known[problem] = true
		}
	}
	return found
}

// shortest leaves out each fault without which the schedule has a problem too.
func (s *schedule) shortest(t *testing.T) *schedule {
	for n := 0; n < len(s.faulty()); n++ {
		fewer := strings.Join(slices.Delete(s.faulty(), n, n+1), "; ")
		if shorter := (&schedule{search: s.search, plan: parse(fewer)}).run(t); len(shorter.wrong) > 0 {
			s, n = shorter, -1
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
