package workertest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/proof"
	"taskguard/lease"
	"taskguard/worker"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

// service is what Run takes.
type service = func(*Acts) func(*worker.Guard) worker.Kind

// simple is a service whose processes have the Run.
func simple(run func(ctx context.Context, a *Acts, job worker.Job) (any, error)) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) { return run(ctx, a, job) }}
		}
	}
}

// charges charges within the act, or wrongly before it.
func charges(before bool) service {
	return simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
		charge := func(ctx context.Context) (string, error) { return "receipt", a.Do(ctx, "charge", nil) }
		if before {
			if _, err := charge(ctx); err != nil {
				return nil, err
			}
			charge = func(context.Context) (string, error) { return "receipt", nil }
		}
		return worker.Once(ctx, job, "charge", charge)
	})
}

// units does three units, and reports each after it, or wrongly before it.
func units(before bool) service {
	return simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
		done := 0
		if job.Resume != nil {
			if err := json.Unmarshal(job.Resume, &done); err != nil {
				return nil, err
			}
		}
		for ; done < 3; done++ {
			unit := func() error { return a.Do(ctx, fmt.Sprint("unit ", done+1), nil) }
			report := func() error { return job.Checkpoint(ctx, done+1) }
			steps := []func() error{unit, report}
			if before {
				slices.Reverse(steps)
			}
			for _, step := range steps {
				if err := step(); err != nil {
					return nil, err
				}
			}
		}
		return done, nil
	})
}

// balances writes a balance at a receiver that refuses an old token, and sends the token unless it
// forgets it.
func balances(forgets bool) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		client := a.Client(&fenced{})
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
				r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://bank.test/balance", strings.NewReader("42"))
				if err != nil {
					return nil, err
				}
				if !forgets {
					r.Header.Set("X-Lock-Token", strconv.FormatInt(job.LockToken, 10))
				}
				resp, err := client.Do(r)
				if err != nil {
					return nil, err
				}
				return resp.StatusCode, resp.Body.Close()
			}}
		}
	}
}

// fenced is a receiver that refuses a lower token than the highest.
type fenced struct {
	mu     sync.Mutex
	newest int64
}

func (f *fenced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	token, err := strconv.ParseInt(r.Header.Get("X-Lock-Token"), 10, 64)
	if f.newest = max(f.newest, token); err == nil && token < f.newest {
		w.WriteHeader(http.StatusConflict)
	}
}

// posts is a service whose runs send requests by post, which the receiver answers.
func posts(receiver http.Handler, run func(ctx context.Context, job worker.Job, post poster) error) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		client := a.Client(receiver)
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
				return 1, run(ctx, job, func(ctx context.Context, path, key, body string) (status int, err error) {
					return ask(ctx, client, http.MethodPost, path, key, body)
				})
			}}
		}
	}
}

type poster = func(ctx context.Context, path, key, body string) (status int, err error)

// refusal charges, and declines if the bank refuses, or wrongly for each answer but 200.
func refusal(each bool) func(context.Context, worker.Job, poster) error {
	return func(ctx context.Context, job worker.Job, post poster) error {
		_, err := worker.Once(ctx, job, "charge", func(ctx context.Context) (int, error) {
			status, err := post(ctx, "/charges", "", "")
			switch {
			case err != nil:
				return 0, err
			case status == http.StatusPaymentRequired, each && status != http.StatusOK:
				return 0, worker.NotDone(worker.Permanent("declined", "", nil))
			case status != http.StatusOK:
				return 0, errors.New("the bank does not say")
			}
			return status, nil
		})
		return err
	}
}

// inputKey makes an act with the input as its key.
func inputKey(ctx context.Context, job worker.Job, post poster) error {
	_, err := post(ctx, "/charges", string(job.Input), "")
	return err
}

// found returns what the search of the schedules with one fault reports.
func found(t *testing.T, work func(*schedule), o Options) string {
	t.Helper()
	o.Schedules = 1
	s := search(t, o, work)
	if s == nil {
		return "nothing"
	}
	return strings.Join(s.faulty(), "; ") + " | " + strings.Join(s.wrong, " | ")
}

func TestAPlantedFaultIsFoundByTheScheduleThatShowsIt(t *testing.T) {
	repeatable := Options{Repeatable: func(act string) bool { return strings.HasPrefix(act, "unit ") }}
	for name, tc := range map[string]struct {
		work service
		o    Options
		want string
	}{
		"a checkpoint that skips a unit": {units(true), repeatable,
			`p1 checkpoint 1: crash after | act "unit 1" was done 0 times, want 1`,
		},
		"a token that is not passed on": {balances(true), Options{},
			`p1 act 1: late, after the next run | an attempt that had lost the lock did act "PUT /balance" after a newer attempt did`,
		},
		"a Find without a key": {finds(true), Options{},
			`p1 act 1: late, after the next run | an attempt that had lost the lock did act "POST /charges" after a newer attempt did | act "POST /charges" was done 2 times, want 1`,
		},
		"an uncertain act that is taken for done": {simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
			_, err := worker.Once(ctx, job, "charge", func(ctx context.Context) (any, error) { return 1, a.Do(ctx, "charge", nil) })
			if uncertain := (*worker.UncertainError)(nil); errors.As(err, &uncertain) {
				err = nil
			}
			return 1, err
		}), Options{},
			`p1 marker 1: crash after | the work ends READY, but nothing says whether act "charge" was done | act "charge" was done 0 times, want 1`,
		},
		"another context after a fault": {simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
			err := a.Do(ctx, "PUT x", nil)
			if err != nil {
				_ = a.Do(context.Background(), "PUT undo", nil)
			}
			return 1, err
		}), Options{},
			`p1 act 1: crash before | workertest: an act has not the context of the run or of the request: "PUT undo"`,
		},
		"a failure without a fault": {simple(func(context.Context, *Acts, worker.Job) (any, error) {
			return nil, worker.Permanent("no_page", "", nil)
		}), Options{}, " | the work ends FAILED: no_page, want READY"},
		"a failure other than the declined": {simple(func(context.Context, *Acts, worker.Job) (any, error) {
			return nil, worker.Permanent("no_page", "none", nil)
		}), Options{Declines: "declined"}, " | the work ends FAILED: no_page: none, want FAILED: declined"},
		"an end that is not declined": {charges(false), Options{Declines: "declined"}, " | the work ends READY, want FAILED: declined"},
		"an error that is taken for a refusal": {posts(nil, func(ctx context.Context, job worker.Job, post poster) error {
			_, err := worker.Once(ctx, job, "charge", func(ctx context.Context) (int, error) {
				status, err := post(ctx, "/charges", "", "")
				if err != nil {
					err = worker.Permanent("declined", "no money", err)
				}
				return status, err
			})
			return err
		}), Options{}, `p1 act 1: reply lost | the work ends FAILED: declined: no money, but nothing says whether act "charge" was done`},
		"a status that is taken for a refusal": {posts(nil, refusal(true)), Options{},
			`p1 act 1: answered 504 | the work ends FAILED: declined, want READY`,
		},
		"no acts": {simple(func(context.Context, *Acts, worker.Job) (any, error) { return 1, nil }), Options{},
			" | no act was recorded: use Acts, or set Options.Acts to -1 if there is none",
		},
		"fewer acts than asked": {charges(false), Options{Acts: 2}, ` | 1 acts were done, want 2: ["charge"]`},
		"a key of each attempt": {posts(nil, func(ctx context.Context, job worker.Job, post poster) error {
			_, err := post(ctx, "/charges", fmt.Sprint(job.AnalysisID, job.Attempt), "")
			return err
		}), Options{}, `p1 acquire 1: crash after | act "POST /charges (key work1)" was done 0 times, want 1 | act "POST /charges (key work2)" was done 1 times, want 0`},
		"one key for two equal acts": {posts(nil, func(ctx context.Context, job worker.Job, post poster) error {
			_, err := post(ctx, "/mails", job.AnalysisID, "")
			if err == nil {
				_, err = post(ctx, "/mails", job.AnalysisID, "")
			}
			return err
		}), Options{},
			` | "POST /mails" and "POST /mails" have one Idempotency-Key, "work": the receiver does only the first`,
		},
		"an amount as a key": {posts(nil, inputKey), Options{},
			` | "POST /charges" and "POST /charges" have one Idempotency-Key, "42", in two works: the receiver does only the first`,
		},
		"another work that fails": {simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
			if job.AnalysisID == "other" {
				return nil, worker.Permanent("no", "", nil)
			}
			return 1, a.Do(ctx, "charge", nil)
		}), Options{}, " | the work ends FAILED: no, want READY"},
		"a step without a fault only": {simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
			if err := a.Do(ctx, "charge", nil); err != nil || a.schedule.base != nil {
				return 1, err
			}
			return ask(ctx, a.Client(nil), http.MethodGet, "/charges", "", "")
		}), Options{Repeatable: func(string) bool { return true }},
			" | the step of a fault did not happen: p1 act 2: crash before. A run must do the same steps each time",
		},
		"an act that gives up": {simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
			if err := a.Do(ctx, "PUT x", nil); err != nil {
				return nil, worker.Permanent("gone", "", nil)
			}
			return 1, nil
		}), Options{}, `p1 act 1: reply lost | the work ends FAILED: gone, want READY`},
		"no end": {simple(func(context.Context, *Acts, worker.Job) (any, error) { return nil, errors.New("not yet") }),
			Options{Worker: worker.Options{Lock: lease.Policy{MaxAttempts: 1000}}}, " | the work is not finished, and no delivery is left"},
		"a goroutine that is left": {simple(func(context.Context, *Acts, worker.Job) (any, error) {
			go func() { select {} }()
			return 1, nil
		}), Options{}, " | the handler has left a goroutine: deadlock: main bubble goroutine has exited but blocked goroutines remain"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				got := found(t, deliveries(tc.work, 42), tc.o)
				if got != tc.want {
					t.Errorf("it reports %q, want %q", got, tc.want)
				}
				plan, _, _ := strings.Cut(got, " | ")
				t.Setenv(variable, plan)
			}
		})
	}
}

// What no planted handler can show: a guard that breaks a promise, or an act that an operator answers.
func TestTheEndOfAScheduleIsJudged(t *testing.T) {
	failed := func(code string) ending { return ending{"FAILED", code, ""} }
	ready, asked, open := ending{status: "READY"}, failed("effect_uncertain"), []string{"charge"}
	write := func(kind proof.Kind, by string, token int64) proof.Write {
		return proof.Write{Kind: kind, By: by, Token: token}
	}
	for name, c := range map[string]struct {
		s      *schedule
		first  bool // a schedule without a fault
		counts map[string]int
		want   string
	}{
		"as without a fault":      {&schedule{record: record{end: ready}}, false, map[string]int{"b": 2, "a": 1}, ""},
		"one of two equal acts":   {&schedule{record: record{end: ready}}, false, map[string]int{"b": 1, "a": 1}, `act "b" was done 1 times, want 2`},
		"three of two equal acts": {&schedule{record: record{end: ready}}, false, map[string]int{"b": 3, "a": 1}, `act "b" was done 3 times, want 2`},
		"another act":             {&schedule{record: record{end: ready}}, false, map[string]int{"b": 2, "a": 1, "c": 1}, `act "c" was done 1 times, want 0`},
		"what may be repeated": {&schedule{record: record{end: ready}}, false,
			map[string]int{"b": 2, "a": 1, "PUT p": 2, "DELETE d": 1, "PUTS": 1}, `act "PUTS" was done 1 times, want 0`},
		"an operator is asked":       {&schedule{record: record{end: asked, uncertain: open}}, false, nil, ""},
		"asked, after a second act":  {&schedule{record: record{end: asked, uncertain: open}}, false, map[string]int{"a": 2}, `act "a" was done 2 times, want 1`},
		"asked without a fault":      {&schedule{record: record{end: asked, uncertain: open}}, true, nil, `the work ends FAILED: effect_uncertain, but nothing says whether act "charge" was done`},
		"asked about nothing":        {&schedule{record: record{end: asked}}, true, nil, `the work ends FAILED: effect_uncertain, want READY`},
		"lost with an open act":      {&schedule{record: record{uncertain: open}}, false, map[string]int{"b": 2, "a": 1}, "the work is not finished, and no delivery is left"},
		"a client that is asked":     {&schedule{record: record{uncertain: open}, asks: true}, false, nil, ""},
		"a client that is not":       {&schedule{asks: true}, true, nil, "the work is not finished, and no delivery is left"},
		"a replay":                   {&schedule{asks: true, works: 2}, true, nil, ""},
		"a second work that is lost": {&schedule{works: 2}, true, nil, "the work is not finished, and no delivery is left"},
		"a refusal with an open act": {&schedule{record: record{end: failed("no"), uncertain: open}, options: Options{Declines: "no"}}, false,
			map[string]int{"b": 2, "a": 1}, `the work ends FAILED: no, but nothing says whether act "charge" was done`},
		"a refusal by other words": {&schedule{record: record{end: ending{"broken", "no", "m"}}, options: Options{Declines: "no"}, fields: worker.Fields{Failed: "broken"}},
			true, nil, ""},
		"a write by another": {&schedule{record: record{end: ready, writes: []proof.Write{
			write(proof.Acquire, "p1", 7), write(proof.Release, "p2", 0)}}}, true, nil, `p2 wrote release to the lock of "p1"`},
		"a token that is skipped": {&schedule{record: record{end: ready, writes: []proof.Write{
			write(proof.Acquire, "p1", 7), write(proof.Release, "p1", 0), write(proof.Acquire, "p1", 9)}}}, true, nil, "p1 took token 9 after token 7"},
	} {
		s := c.s
		s.acts = &Acts{schedule: s, counts: map[string]int{}}
		maps.Copy(s.acts.counts, c.counts)
		if !c.first {
			s.base = &schedule{acts: &Acts{counts: map[string]int{"b": 2, "a": 1}}}
		}
		if s.judge(); strings.Join(s.wrong, " | ") != c.want {
			t.Errorf("%s: %q, want %q", name, s.wrong, c.want)
		}
	}
}

func TestRequestsWithOneKeyAreOneAct(t *testing.T) {
	charge := request{"POST /charges", "key", "bank", "42"}
	for name, c := range map[string]struct {
		next         request
		repeatable   bool
		wrong, again int // of the problems, in a schedule with a fault and without one
		counts       int // of the acts
	}{
		"the same":       {charge, false, 0, 1, 1},
		"another act":    {request{"POST /refunds", "key", "bank", "42"}, false, 1, 1, 1},
		"another body":   {request{"POST /charges", "key", "bank", "43"}, false, 1, 1, 1},
		"a new body":     {request{"POST /charges", "key", "bank", "43"}, true, 0, 0, 1},
		"another host":   {request{"POST /charges", "key", "mail", "42"}, false, 0, 0, 2},
		"another key":    {request{"POST /charges", "key2", "bank", "42"}, false, 0, 0, 2},
		"without a key":  {request{name: "POST /charges"}, false, 0, 0, 2},
		"an earlier run": {charge, true, 0, 0, 1},
	} {
		record := func(base *schedule) (wrong, total int) {
			s := &schedule{base: base, options: Options{Repeatable: func(string) bool { return c.repeatable }}}
			acts := &Acts{schedule: s, counts: map[string]int{}, tokens: map[string]int64{}, requests: map[string]request{}}
			acts.record(&process{schedule: s, token: 2}, charge)
			acts.record(&process{schedule: s, token: 2}, c.next)
			return len(s.wrong), acts.total()
		}
		wrong, counts := record(&schedule{})
		if again, _ := record(nil); wrong != c.wrong || again != c.again || counts != c.counts {
			t.Errorf("%s: %d and %d problems and %d acts, want %d, %d and %d", name, wrong, again, counts, c.wrong, c.again, c.counts)
		}
	}
}

// Two acts with one name: the guard refuses the second, or it is missing.
func TestTwoActsWithOneNameAreFound(t *testing.T) {
	mails := simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
		for n := range 2 {
			send := func(ctx context.Context) (int, error) { return n, a.Do(ctx, fmt.Sprint("mail ", n), nil) }
			if _, err := worker.Once(ctx, job, "mail", send); err != nil {
				return nil, err
			}
		}
		return "sent", nil
	})
	if got := found(t, deliveries(mails, 42), Options{Acts: 2}); !strings.Contains(got, `"mail`) {
		t.Errorf("it reports %q, want the act", got)
	}
}

func TestAScheduleIsReportedWithoutTheFaultsThatItDoesNotNeed(t *testing.T) {
	base := &schedule{options: Options{Worker: worker.Options{}.Filled()}, work: deliveries(charges(true), 42)}
	base.run(t)
	both := base.with("", "p1 acquire 1: "+replyLost, "p1 act 1: "+crashAfter)
	both.run(t)
	if all, got := both.faulty(), both.shortest(t).faulty(); len(all) != 2 || !slices.Equal(got, []string{"p1 act 1: " + crashAfter}) {
		t.Errorf("%q is reported as %q", all, got)
	}
}

// A fault that the step cannot have must not pass as if it had been tried.
func TestAFaultThatDoesNotExistIsNotMade(t *testing.T) {
	s := &schedule{plan: []string{"p1 act 1: crash aftr", "p1 act 2: crash after"}}
	wrong, right := s.faultOf(&step{kind: act, key: "p1 act 1"}), s.faultOf(&step{kind: act, key: "p1 act 2"})
	if wrong != "" || right != crashAfter {
		t.Errorf("faults %q and %q", wrong, right)
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

// schedules is the number for a handler without a fault. There are five such.
func schedules() int {
	if testing.Short() {
		return 1
	}
	return 200
}

func TestTheCorrectedHandlersPassAThousandSchedules(t *testing.T) {
	for name, tc := range map[string]struct {
		work service
		o    Options
	}{
		"an act": {charges(false), Options{}},
		"units":  {units(false), Options{Repeatable: func(string) bool { return true }}},
		"tokens": {balances(false), Options{}},
		"a Find": {finds(false), Options{}},
		"a refusal": {posts(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPaymentRequired)
		}), refusal(false)), Options{Declines: "declined", Schedules: 1}},
		"a charge": {posts(nil, refusal(false)), Options{Acts: 1, Schedules: 1}},
		"keys":     {posts(nil, inputKey), Options{Other: 43, Schedules: 1}},
		"reads": {simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
				if _, err := ask(ctx, a.Client(nil), method, "/charges", "", ""); err != nil {
					return nil, err
				}
			}
			return 1, nil
		}), Options{Acts: -1, Schedules: 1}},
		"none": {simple(func(context.Context, *Acts, worker.Job) (any, error) { return 1, nil }), Options{Acts: -1, Schedules: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.o.Schedules = cmp.Or(tc.o.Schedules, schedules())
			Run(t, tc.work, 42, tc.o)
		})
	}
}

// bank is a provider that charges once for a key, and finds the charge of an account.
type bank struct {
	mu      sync.Mutex
	charged map[string]bool // by path
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Method == http.MethodGet && !b.charged[r.URL.Path] {
		w.WriteHeader(http.StatusNotFound)
	}
	b.charged[r.URL.Path] = b.charged[r.URL.Path] || r.Method == http.MethodPost
}

// ask sends a request to the bank, and returns the status of its answer.
func ask(ctx context.Context, client *http.Client, method, path, key, body string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://bank.test"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// finds charges at the bank, and finds a charge of an earlier attempt. It may forget the key.
func finds(forgets bool) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		client := a.Client(&bank{charged: map[string]bool{}})
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
				key := job.Key("charge")
				if forgets {
					key = ""
				}
				charge := func(ctx context.Context) (int, error) { return ask(ctx, client, http.MethodPost, "/charges", key, "") }
				return worker.Once(ctx, job, "charge", charge, worker.Find(
					func(ctx context.Context) (int, bool, error) {
						status, err := ask(ctx, client, http.MethodGet, "/charges", "", "")
						return status, status == http.StatusOK, err
					}))
			}}
		}
	}
}

// orders is a handler that charges once for a key, or wrongly again for each try.
func orders(once bool, key string) func(*Acts) func(*worker.Guard) http.Handler {
	return func(a *Acts) func(*worker.Guard) http.Handler {
		client := a.Client(nil)
		return func(g *worker.Guard) http.Handler {
			order := func(w http.ResponseWriter, r *http.Request) {
				charge := func(ctx context.Context) (int, error) { return ask(ctx, client, http.MethodPost, "/charges", key, "") }
				act := func(ctx context.Context) (int, error) {
					job, _ := worker.JobFromContext(ctx)
					return worker.Once(ctx, job, "charge", charge)
				}
				if !once { // without a marker
					act = charge
				}
				if _, err := act(r.Context()); err != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}
			guarded := g.Idempotent(worker.IdempotentOptions{Scope: func(*http.Request) string { return "account" }})
			return guarded(http.HandlerFunc(order))
		}
	}
}

func order() *http.Request {
	r, err := http.NewRequest(http.MethodPost, "http://service.test/orders", strings.NewReader("42"))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Idempotency-Key", "key")
	return r
}

func TestRunAndRunHandlerFailTheirTest(t *testing.T) {
	if os.Getenv("PLANTED") != "" {
		t.Run("kind", func(t *testing.T) { Run(t, charges(true), 42, Options{Schedules: 1}) })
		t.Run("handler", func(t *testing.T) { RunHandler(t, orders(false, ""), order, Options{Schedules: 1}) })
		return
	}
	RunHandler(t, orders(true, ""), order, Options{Schedules: schedules()})
	const shared = ` | "POST /charges" and "POST /charges" have one Idempotency-Key, "42", in two works: the receiver does only the first`
	if got := found(t, requests(orders(true, "42"), order), Options{}); got != shared {
		t.Errorf("a handler with an amount as a key is reported as %q", got)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "PLANTED=1")
	out, err := cmd.CombinedOutput()
	text := regexp.MustCompile(`\n +`).ReplaceAllString(string(out), "\n")
	for name, act := range map[string]string{"kind": "charge", "handler": "POST /charges"} {
		tried := fmt.Sprintf("workertest: 1 acts; %d schedules with one fault, and 0 others\n", map[string]int{"kind": 34, "handler": 26}[name])
		next := map[string]string{"kind": "\n302.0", "handler": "\n31.0"}[name] // the time of a later step
		want := `act "` + act + `" was done 2 times, want 1` + "\nin the schedule: p1 act 1: crash after\n"
		repeat := fmt.Sprintf("\nrepeat it by WORKERTEST='p1 act 1: crash after' go test -run '^%s/%s$'", t.Name(), name)
		if err == nil || !strings.Contains(text, tried) || !strings.Contains(text, want) || !strings.Contains(text, next) || !strings.Contains(text, repeat) {
			t.Errorf("%v; lacks %q, %q or %q:\n%s", err, tried, want, repeat, text)
		}
	}
}

// diary has what the runs and their acts do, and at which second.
type diary struct {
	mu    sync.Mutex
	begun time.Time
	runs  int
	lines []string
}

func (d *diary) add(run int, what string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%.0fs run %d %s %v", time.Since(d.begun).Seconds(), run, what, err))
}

func TestEachFaultHappensAsItIsNamed(t *testing.T) {
	var d *diary
	work := deliveries(func(a *Acts) func(*worker.Guard) worker.Kind {
		d = &diary{begun: time.Now()}
		return simple(func(ctx context.Context, a *Acts, _ worker.Job) (any, error) {
			d.mu.Lock()
			d.runs++
			run := d.runs
			d.mu.Unlock()
			err := a.Do(ctx, "PUT x", func(ctx context.Context) error { d.add(run, "acts", ctx.Err()); return nil })
			if err != nil {
				time.Sleep(time.Minute)
				err = errors.Join(err, a.Do(ctx, "PUT y", func(context.Context) error { return errors.New("refused") }))
			}
			d.add(run, "ends", err)
			return 1, err
		})(a)
	}, 42)
	base := &schedule{options: Options{Worker: worker.Options{}.Filled()}, work: work}
	base.run(t)
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

// The times may differ: the waits between the tries of a call are random.
func TestAScheduleRepeatsOnAnyNumberOfProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	base := &schedule{options: Options{Worker: worker.Options{}.Filled()}, work: deliveries(units(false), 42)}
	base.run(t)
	for n := range 8 {
		var want []string
		for _, processors := range []int{1, 2, 8} {
			runtime.GOMAXPROCS(processors)
			var got []string
			s := base.with(fmt.Sprint(n))
			s.run(t)
			for _, step := range s.steps {
				got = append(got, step.key+" "+step.fault)
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("schedule %d with %d processors is %q, want %q", n, processors, got, want)
			}
			if drawn := strings.Join(s.faulty(), "; "); n == 1 && drawn != "p1 acquire 1: reply lost; p1 act 1: crash before; p2 book 1: crash before" {
				t.Errorf("schedule 1 has the faults %s", drawn)
			}
		}
	}
}

func TestAnotherSeedDrawsOtherFaults(t *testing.T) {
	drawn := func(seed uint64) (all []string) {
		o := Options{Worker: worker.Options{}.Filled(), Seed: seed, Schedules: 45}
		base := &schedule{options: o, work: deliveries(charges(false), 42)}
		base.run(t)
		schedules, single := base.faultySchedules()
		for _, s := range schedules[single:] {
			s.run(t)
			all = append(all, strings.Join(s.faulty(), "; "))
		}
		return all
	}
	first, second := drawn(1), drawn(2)
	if slices.Equal(first, second) || !slices.Equal(first, drawn(1)) || len(slices.Compact(first)) < 5 {
		t.Errorf("seed 1 draws %q, and seed 2 %q", first, second)
	}
}

func TestARigDeliversWhatIsSubmittedInABubbleAndOutside(t *testing.T) {
	work := func(t *testing.T) {
		t.Helper()
		done := 0
		kind := worker.Kind{Run: func(context.Context, worker.Job) (any, error) {
			done++
			return "done", nil
		}}
		rig := New(t)
		var log bytes.Buffer
		guard := rig.Guard(worker.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		work := guard.MustRegister(kind)
		rig.Mux.Handle("/", work.Handler())
		if s, err := work.Submit(t.Context(), "an-id", 42); err != nil || !s.Booked {
			t.Fatalf("Submit = %+v, %v", s, err)
		}
		if err := rig.Tasks.Idle(t.Context()); err != nil || done != 1 || !strings.Contains(log.String(), "outcome=ready") {
			t.Errorf("%d runs, %v, want one: %s", done, err, &log)
		}
	}
	work(t)
	synctest.Test(t, work)
}

// A unit test has the attempts of one job, which keep the rules of a document.
func TestAJobOfAUnitTestKeepsItsActs(t *testing.T) {
	first, calls := Job(t), 0
	once := func(job worker.Job, name string, err error) (int, error) {
		return worker.Once(t.Context(), job, name, func(context.Context) (int, error) { calls++; return calls, err })
	}
	lost := errors.New("the reply is lost")
	_, err := once(first, "charge", nil)
	_, unknown := once(first, "mail", lost)
	_, again := once(first, "charge", nil)
	refused, _ := errors.AsType[*worker.PermanentError](again)
	if err != nil || !errors.Is(unknown, lost) || refused == nil || refused.Code != "act_name_reused" {
		t.Errorf("%v, %v, %v", err, unknown, again)
	}

	second := Job(t, first)
	result, err := once(second, "charge", nil)
	_, uncertain := once(second, "mail", nil)
	if result != 1 || err != nil || !errors.As(uncertain, new(*worker.UncertainError)) || calls != 2 {
		t.Errorf("%d, %v, %v after %d calls", result, err, uncertain, calls)
	}
	if second.Attempt != 2 || second.LockToken <= first.LockToken || second.Key("a") != first.Key("a") {
		t.Errorf("%+v", second)
	}
	_, err = worker.Once(t.Context(), second, "large", func(context.Context) (string, error) { return strings.Repeat("x", 64<<10), nil })
	third := Job(t, second)
	_, replay := worker.Once(t.Context(), third, "large", func(context.Context) (string, error) { return "", nil })
	if kept, others := once(third, "charge", nil); kept != 1 || others != nil || !errors.As(err, new(*worker.NotStoredError)) || !errors.As(replay, new(*worker.ResultError)) {
		t.Errorf("%v, %v; the first act is %d, %v", err, replay, kept, others)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := worker.Once(ended, second, "late", func(context.Context) (int, error) { t.Error("it began"); return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
