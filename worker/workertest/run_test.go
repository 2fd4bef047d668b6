package workertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/worker"
)

// checkFound checks what the search of the schedules with one fault reports: the faults of the schedule, and
// a problem that has the words. So does the repetition of that schedule.
func checkFound(t *testing.T, work func(*schedule), o Options, want string) {
	t.Helper()
	faults, words, _ := strings.Cut(want, " | ")
	o.Schedules = 1
	for range 2 {
		s := search(t, o, work)
		if s == nil {
			t.Fatal("it reports nothing")
		}
		plan, problem := strings.Join(s.faulty(), "; "), strings.Join(s.wrong, " | ")
		if plan != faults || !strings.Contains(problem, words) {
			t.Errorf("in the schedule %q it reports %q, want %q and %q", plan, problem, faults, words)
		}
		t.Setenv(variable, plan)
	}
}

// A planted fault is found by the schedule that shows it.
func TestRun_Finds(t *testing.T) {
	takenForDone := simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
		charge := func(ctx context.Context) (int, error) { return 1, a.Do(ctx, "charge", nil) }
		_, err := worker.Once(ctx, job, "charge", charge)
		if errors.As(err, new(*worker.UncertainError)) {
			err = nil
		}
		return 1, err
	})
	otherContext := simple(func(_ context.Context, a *Acts, _ worker.Job) (any, error) {
		return 1, a.Do(context.Background(), "charge", nil)
	})
	otherSteps := simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
		if err := a.Do(ctx, "charge", nil); err != nil || a.schedule.base != nil {
			return 1, err
		}
		return ask(ctx, a.Client(nil), http.MethodGet, nil)
	})
	goroutine := simple(func(context.Context, *Acts, worker.Job) (any, error) {
		go func() { select {} }()
		return 1, nil
	})
	attemptKey := asks(nil, func(ctx context.Context, job worker.Job, client *http.Client) error {
		_, err := ask(ctx, client, http.MethodPost, withKey(fmt.Sprint(job.AnalysisID, job.Attempt)))
		return err
	})
	declines, repeatable := asks(nil, refusal(true)), Options{Repeatable: func(string) bool { return true }}
	manyTries := Options{Worker: worker.Options{Lock: lease.Policy{MaxAttempts: 1000}}}

	for name, c := range map[string]struct {
		work service
		o    Options
		want string // the faults of the schedule, and words of the problem
	}{
		"an uncertain act that is taken for done": {
			takenForDone, Options{}, `p1 marker 1: crash after | nothing says whether act "charge" was done`,
		},
		"another context":                      {otherContext, Options{}, " | has not the context"},
		"a status that is taken for a refusal": {declines, Options{}, "p1 act 1: answered 504 | FAILED: declined"},
		"a key of each attempt": {
			attemptKey, Options{}, `p1 acquire 1: crash after | (key work1)" was done 0 times`,
		},
		"an amount as a key":          {asks(nil, inputKey), Options{}, ` | Idempotency-Key, "42", in two works`},
		"no acts":                     {failing(nil), Options{}, " | no act was recorded"},
		"fewer acts than asked":       {charges(false), Options{Acts: 2}, ` | 1 acts were done, want 2: ["charge"]`},
		"a step without a fault only": {otherSteps, repeatable, " | did not happen: p1 act 2: crash before"},
		"no end":                      {failing(errors.New("not yet")), manyTries, " | not finished"},
		"a goroutine that is left":    {goroutine, Options{}, " | has left a goroutine"},
	} {
		t.Run(name, func(t *testing.T) { checkFound(t, deliveries(c.work, 42), c.o, c.want) })
	}
}

// schedules is the number for a handler without a fault.
func schedules() int {
	if testing.Short() {
		return 1
	}
	return 200
}

func TestRun_Passes(t *testing.T) {
	refuses := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPaymentRequired)
	})
	reads := simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			if _, err := ask(ctx, a.Client(nil), method, nil); err != nil {
				return nil, err
			}
		}
		return 1, nil
	})
	for name, c := range map[string]struct {
		work service
		o    Options
	}{
		"an act":    {charges(false), Options{}},
		"a refusal": {asks(refuses, refusal(false)), Options{Declines: "declined", Schedules: 1}},
		"keys":      {asks(nil, inputKey), Options{Other: 43, Schedules: 1}},
		"reads":     {reads, Options{Acts: -1, Schedules: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Schedules = cmp.Or(c.o.Schedules, schedules())
			Run(t, c.work, 42, c.o)
		})
	}
	t.Run("a handler", func(t *testing.T) { RunHandler(t, orders(true), order, Options{Schedules: schedules()}) })
}

func TestRun_Key(t *testing.T) {
	customer := map[string]any{"customer": "acme"}
	t.Run("recovery wakes what is parked", func(t *testing.T) {
		resumed := time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC) // the time of a bubble begins ten minutes earlier
		paused := func() int {
			if time.Now().Before(resumed) {
				return 0
			}
			return 2
		}
		Run(t, keyed(paused), customer, Options{Schedules: 1})
	})
	t.Run("a key that stays paused is reported", func(t *testing.T) {
		checkFound(t, deliveries(keyed(func() int { return 0 }), customer), Options{}, " | parked behind its key")
	})
}

// Run and RunHandler fail their test with a report, here in a process of its own.
func TestRun_Report(t *testing.T) {
	if os.Getenv("PLANTED") != "" {
		t.Run("kind", func(t *testing.T) { Run(t, charges(true), 42, Options{Schedules: 1}) })
		t.Run("handler", func(t *testing.T) { RunHandler(t, orders(false), order, Options{Schedules: 1}) })
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "PLANTED=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the process succeeds")
	}
	for _, want := range []string{
		"workertest: 1 acts; 34 schedules with one fault, and 0 others", "1 acts; 26 schedules with one fault",
		`act "charge" was done 2 times, want 1`, `act "POST /charges" was done 2 times, want 1`,
		"in the schedule: p1 act 1: crash after\n", "302.0", " 31.0", // a later step of each
		"WORKERTEST='p1 act 1: crash after' go test -run '^TestRun_Report/kind$'",
		"WORKERTEST='p1 act 1: crash after' go test -run '^TestRun_Report/handler$'",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not report %q:\n%s", want, out)
		}
	}
}
