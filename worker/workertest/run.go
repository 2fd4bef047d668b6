package workertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/internal/testing/proof"
	"taskguard/worker"
)

// Options configures Run and RunHandler. The zero value is ready to use.
type Options struct {
	// Worker is for the Guard of each process. The connections are replaced. Each crash costs an attempt:
	// with a low Lock.MaxAttempts, the work may end FAILED, which is reported.
	Worker worker.Options
	// Declines is the code of the error with which the work must end FAILED, to test that your Run
	// declines it. Empty: the work must end READY.
	Declines string
	// Acts is the number of acts that the work does without a fault. Zero: one or more, or, with
	// Declines, any number. Negative: none.
	Acts int
	// Other is the input of another work, for Run. Its acts must not have the Idempotency-Keys of the
	// first one. Nil: the same input, in a document with another id.
	Other any
	// Schedules is the number of schedules. All those with one fault are tried, even if they are more.
	// Each other one has up to four faults, which Seed draws. Zero: 200.
	Schedules int
	Seed      uint64 // of the faults that are drawn: the same Seed draws the same
	// Repeatable reports whether an act may be done again, or late, or only after a fault, because its
	// receiver does it once, or because that is harmless. It is called concurrently. Nil: none may.
	Repeatable func(act string) bool
}

// variable of the environment names the one schedule to run.
const variable = "WORKERTEST"

// noFault stands for a schedule without a fault.
const noFault = "without a fault"

// Run runs a kind of work on one input, in many schedules, and fails t with the first that shows a problem;
// see the documentation of the package. service is called at the beginning of a schedule, and start for
// each process, with its Guard: the Run that start returns must not use what another start has made.
// Several schedules run at once, each in a testing/synctest bubble. A run must end when its context does.
func Run(t *testing.T, service func(acts *Acts) (start func(*worker.Guard) worker.Kind), input any, o Options) {
	t.Helper()
	run(t, o, deliveries(service, input))
}

// deliveries returns the work of a kind: to submit it, and to wait until the queue is empty.
func deliveries(service func(*Acts) func(*worker.Guard) worker.Kind, input any) func(*schedule) {
	return func(s *schedule) {
		start, client := service(s.acts), s.rig.Guard(s.options.Worker)
		work := client.MustRegister(start(client))
		s.fields, s.keys = work.Fields, work.Collection+"Keys"
		s.open = func(g *worker.Guard) http.Handler {
			mux := http.NewServeMux()
			mux.Handle(work.Path, g.MustRegister(start(g)).Handler())
			mux.Handle(recovery, g.Recovery())
			return mux
		}

		ctx, cancel := context.WithTimeout(s.t.Context(), 24*time.Hour)
		defer cancel()
		for id, given := "work", input; s.next(); id = "other" {
			if other := s.options.Other; s.works > 1 && other != nil {
				given = other
			}
			if _, err := work.Submit(ctx, id, given); err != nil {
				s.t.Fatal(err)
			}
			for range 2 { // an extra delivery may book another
				_ = s.rig.Tasks.Idle(ctx) // else the work is not finished
				s.extra.Wait()
			}
			s.wake(ctx)
		}
	}
}

// recovery is the path of recovery in each process.
const recovery = "/internal/tasks/recover"

// wake calls recovery each minute while the work is not finished, for an hour at most, if it was parked behind its
// concurrency key. Its delivery was answered then, so nothing else wakes it unless another run of the key ends.
func (s *schedule) wake(ctx context.Context) {
	for n := 0; n < 60 && s.sleeps(); n++ {
		time.Sleep(time.Minute)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, target+recovery, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		_, _ = s.deliver(r) // the process may die: the next call repeats it
		_ = s.rig.Tasks.Idle(ctx)
		s.extra.Wait()
	}
}

// sleeps reports whether the work was parked and is not finished.
func (s *schedule) sleeps() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end == ending{} && slices.ContainsFunc(s.writes, isPark)
}

// isPark reports whether a write parks the work behind its key.
func isPark(w proof.Write) bool { return w.Kind == proof.Park }

// RunHandler is like Run, for an HTTP handler that uses [worker.Guard.Idempotent] or [worker.Do]. Its
// client sends what request returns, up to 40 times, each 30 s, until the answer is below 500 and not 409.
func RunHandler(t *testing.T, service func(acts *Acts) (start func(*worker.Guard) http.Handler),
	request func() *http.Request, o Options,
) {
	t.Helper()
	run(t, o, requests(service, request))
}

// requests returns the work of a handler: to repeat the request until it is answered.
func requests(service func(*Acts) func(*worker.Guard) http.Handler, request func() *http.Request) func(*schedule) {
	return func(s *schedule) {
		s.open, s.asks = service(s.acts), true
		for s.next() {
			for range 40 {
				r := request()
				if key := r.Header.Get("Idempotency-Key"); s.works > 1 && key != "" {
					r.Header.Set("Idempotency-Key", key+"-other")
				}
				w, err := s.deliver(r)
				if err == nil && w.Code != http.StatusConflict && w.Code < http.StatusInternalServerError {
					break
				}
				time.Sleep(30 * time.Second)
			}
			s.extra.Wait()
		}
	}
}

// run searches, and fails the test with what it finds.
func run(t *testing.T, o Options, work func(*schedule)) {
	t.Helper()
	if found := search(t, o, work); found != nil {
		t.Error(found.report(t.Name()))
	}
}

// search runs the schedules, and returns the first that shows a problem; nil: none does.
func search(t *testing.T, o Options, work func(*schedule)) *schedule {
	t.Helper()
	o.Worker, o.Schedules = o.Worker.Filled(), cmp.Or(o.Schedules, 200)
	base, pair := &schedule{options: o, work: work}, &schedule{options: o, work: work, pair: true}
	if base.run(t); len(base.wrong) > 0 {
		return base
	}
	switch n := base.acts.total(); {
	case n == 0 && o.Acts == 0 && o.Declines == "":
		base.fail("no act was recorded: use Acts, or set Options.Acts to -1 if there is none")
		return base
	case o.Acts != 0 && n != max(0, o.Acts):
		base.fail("%d acts were done, want %d: %q", n, max(0, o.Acts), slices.Sorted(maps.Keys(base.acts.counts)))
		return base
	}
	if pair.run(t); len(pair.wrong) > 0 {
		return pair
	}

	if text := os.Getenv(variable); text != "" {
		return base.repeat(t, text)
	}

	all, single := base.faultySchedules()
	t.Logf("workertest: %d acts; %d schedules with one fault, and %d others", base.acts.total(), single, len(all)-single)
	runAll(t, all)
	for _, s := range all[:single] {
		if len(s.faulty()) == 0 {
			s.fail("the step of a fault did not happen: %s. A run must do the same steps each time", s.plan[0])
			return s
		}
	}
	n := slices.IndexFunc(all, func(s *schedule) bool { return len(s.wrong) > 0 })
	if n < 0 {
		return nil
	}
	return all[n].shortest(t)
}

// faultySchedules returns the schedules with one fault, and how many these are, and then those whose faults
// are drawn.
func (s *schedule) faultySchedules() (all []*schedule, single int) {
	for _, step := range s.steps {
		for _, fault := range faults(step.kind) {
			all = append(all, s.with("", step.key+": "+fault))
		}
	}
	single = len(all)
	for n := single; n < s.options.Schedules; n++ {
		all = append(all, s.with(fmt.Sprint(s.options.Seed, " ", n)))
	}
	return all, single
}

// repeat runs the one schedule that the variable names, and returns it if it has a problem.
func (s *schedule) repeat(t *testing.T, text string) *schedule {
	t.Helper()
	var plan []string
	if text != noFault {
		plan = strings.Split(text, "; ")
	}
	only := s.with("", plan...)
	only.run(t)
	if len(only.faulty()) < len(plan) {
		t.Errorf("workertest: %s=%q has a step that does not happen, or a fault that it cannot have", variable, text)
	}
	if len(only.wrong) > 0 {
		return only
	}
	t.Log(only.report(t.Name()))
	return nil
}

// runAll runs schedules, several at once.
func runAll(t *testing.T, all []*schedule) {
	var running errgroup.Group
	running.SetLimit(runtime.GOMAXPROCS(0))
	for _, s := range all {
		running.Go(func() error {
			s.run(t) // which ends the goroutine if it fails t
			return nil
		})
	}
	_ = running.Wait() // no error
}

// shortest leaves out each fault without which the schedule has a problem too.
func (s *schedule) shortest(t *testing.T) *schedule {
	for n := 0; n < len(s.faulty()); n++ {
		shorter := s.with("", slices.Delete(s.faulty(), n, n+1)...)
		if shorter.run(t); len(shorter.wrong) > 0 {
			s, n = shorter, -1
		}
	}
	return s
}

// report returns the report of a test of that name.
func (s *schedule) report(test string) string {
	var text strings.Builder
	faulty := cmp.Or(strings.Join(s.faulty(), "; "), noFault)
	fmt.Fprintf(&text, "workertest: %s\nin the schedule: %s\n", strings.Join(s.wrong, "\n"), faulty)
	for _, step := range s.steps {
		text.WriteString(step.String())
	}
	fmt.Fprintf(&text, "repeat it by %s='%s' go test -run '^%s$'", variable, faulty, regexp.QuoteMeta(test))
	return text.String()
}
