package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/worker"
)

// stopAfter shuts g down after a time, and gives it so long. The test fails if something still runs then.
func stopAfter(t *testing.T, g *worker.Guard, after, grants time.Duration) {
	t.Helper()
	time.AfterFunc(after, func() { shutDown(t, g, grants) })
}

func shutDown(t *testing.T, g *worker.Guard, grants time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), grants)
	defer cancel()
	if err := g.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// quick is a lock whose loss is found within a second.
func quick(o *worker.Options) { o.Lock = lease.Policy{TTL: 10 * time.Second, Heartbeat: time.Second} }

// lasting is an act that takes d, unless its context ends.
func lasting(d time.Duration) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		select {
		case <-time.After(d):
			return 7, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// endless is an act that only ends with its context, and checks after how long.
func endless(t *testing.T, ended time.Duration) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		began := time.Now()
		value, err := lasting(time.Hour)(ctx)
		if got := time.Since(began); got != ended {
			t.Errorf("the act ended after %v, %v; want %v", got, err, ended)
		}
		return value, err
	}
}

// runToStop delivers job 1 to g until Shutdown has returned, and returns the document. The record has more fields.
func runToStop(t *testing.T, b *emulatortest.Backend, g *worker.Guard, record map[string]any,
	run func(context.Context, worker.Job) (any, error),
) map[string]any {
	t.Helper()
	doc := collection(t, b, "jobs").Doc("1")
	set(t, doc, record)
	post(t, g.MustRegister(jobs(run)).Handler(), "/tasks/job", `{"job_id":"1"}`)
	synctest.Wait() // for Shutdown
	return fields(t, doc)
}

// The process is stopped 300 ms after its act has begun, and the run goes on as if the act's time were all that it
// waits for. A later worker finds what is recorded.
func TestStop_EndsActsLast(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	stopping, lost, late := worker.ErrStopping, lease.ErrLost, context.DeadlineExceeded
	for name, c := range map[string]struct {
		stop  time.Duration // what the service gives to Shutdown; zero: it is not stopped
		takes time.Duration // the act
		lost  time.Duration // when another worker takes the lock; zero: never
		limit time.Duration // RunTimeout; zero: the default
		find  bool          // it is a Find, which finds the act of an earlier attempt
		ended time.Duration // when the act has ended
		err   error         // of the act
	}{
		"a Find that ends in time":    {stop: 8 * s, takes: 6200 * ms, find: true, ended: 6200 * ms},
		"an act that ends in time":    {stop: 8 * s, takes: 6200 * ms, ended: 6200 * ms},
		"an act without an end":       {stop: 8 * s, takes: time.Hour, ended: 6300 * ms, err: stopping},
		"a longer stop":               {stop: 30 * s, takes: time.Hour, ended: 28300 * ms, err: stopping},
		"a shorter stop":              {stop: 3 * s, takes: time.Hour, ended: 1300 * ms, err: stopping},
		"a stop without time":         {stop: s, takes: time.Hour, ended: 300 * ms, err: stopping},
		"the lock is lost meanwhile":  {stop: 8 * s, takes: time.Hour, lost: 2500 * ms, ended: 3 * s, err: lost},
		"the lock is lost, no stop":   {takes: time.Hour, lost: 500 * ms, ended: s, err: lost},
		"RunTimeout passes meanwhile": {stop: 8 * s, takes: time.Hour, limit: 2 * s, ended: 2 * s, err: late},
		"RunTimeout passes, no stop":  {takes: time.Hour, limit: 2 * s, ended: 2 * s, err: late},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g := opened(t, b, func(o *worker.Options) { quick(o); o.RunTimeout = c.limit })
			calls, told, record := 0, 300*ms, pending
			if c.find {
				record = withEffects(map[string]any{"charge": map[string]any{"state": "started", "token": 1}})
			}
			got := runToStop(t, b, g, record, func(ctx context.Context, job worker.Job) (any, error) {
				charge := func(acting context.Context) (int, error) {
					calls++
					began := time.Now()
					if c.stop > 0 {
						stopAfter(t, g, 300*ms, c.stop)
						context.AfterFunc(ctx, func() { told = time.Since(began) })
					}
					if c.lost > 0 {
						taken := map[string]any{"state": "RUNNING", "lockOwner": "other", "lockToken": 2}
						time.AfterFunc(c.lost, func() { set(t, collection(t, b, "jobs").Doc("1"), taken) })
					}

					charge, err := lasting(c.takes)(acting)
					if ended := time.Since(began).Round(100 * ms); ended != c.ended || !errors.Is(err, c.err) {
						t.Errorf("the act ended after %v, %v; want %v, %v", ended, err, c.ended, c.err)
					}
					return charge, err
				}
				if !c.find {
					return worker.Once(ctx, job, "charge", charge)
				}
				return worker.Once(ctx, job, "charge", acting(0, errBroken),
					worker.Find(func(ctx context.Context) (receipt int, found bool, err error) {
						receipt, err = charge(ctx)
						return receipt, true, err
					}))
			})
			if c.stop == 0 {
				shutDown(t, g, time.Minute)
			}

			if calls != 1 || told != 300*ms {
				t.Errorf("%d calls, and the run was told of the stop after %v", calls, told)
			}
			state, act := "PENDING", "started"
			switch {
			case c.err == nil:
				state, act = "DONE", "done"
			case errors.Is(c.err, lost):
				state = "RUNNING"
			}
			if got["state"] != state || charged(got)["state"] != act {
				t.Errorf("state %v, act %v; want %s, %s", got["state"], charged(got), state, act)
			}
		})
	}
}

// Firestore hangs while the act ends, until just before the end of the stop: the release then commits both.
func TestStop_ActUnrecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, wall := emulatortest.Embedded(t), &worker.Wall{}
		g := opened(t, b, func(o *worker.Options) { o.FirestoreOptions = wall.Client(t, b) })
		got := runToStop(t, b, g, pending, func(ctx context.Context, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "charge", func(ctx context.Context) (int, error) {
				stopAfter(t, g, 0, 8*time.Second)
				time.AfterFunc(time.Second, func() { wall.Up.Store(true) })
				time.AfterFunc(6900*time.Millisecond, func() { wall.Up.Store(false) })
				return lasting(5 * time.Second)(ctx)
			})
		})
		if act := charged(got)["state"]; got["state"] != "PENDING" || act != "done" {
			t.Errorf("state %v, act %v, want both committed", got["state"], act)
		}
		if got["openEffects"] != nil {
			t.Errorf("%v acts are open", got["openEffects"])
		}
	})
}

// The act of the run goes on after the stop, and then the run would do another.
func TestStop_NoActBegins(t *testing.T) {
	open, stopping := map[string]any{"state": "started", "token": 1}, worker.ErrStopping
	for name, c := range map[string]struct {
		record map[string]any // of the other act, by an earlier attempt
		inside bool           // the first act does the other, as a part of it
		calls  int            // of the other act and of its Find
		state  string
		err    error // of the other act
	}{
		"after the act":           {state: "PENDING", err: stopping},
		"nor is a provider asked": {record: open, state: "PENDING", err: stopping},
		"inside the act it does":  {inside: true, calls: 1, state: "DONE"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, calls := opened(t, b, nil), 0
			send := func(context.Context) (int, error) { //nolint:unparam // an act has an error
				calls++
				return 7, nil
			}
			find := worker.Find(func(context.Context) (int, bool, error) { calls++; return 7, true, nil })
			mail := func(ctx context.Context, job worker.Job) error {
				_, err := worker.Once(ctx, job, "mail", send, find)
				if !errors.Is(err, c.err) {
					t.Errorf("the mail: %v, want %v", err, c.err)
				}
				return err
			}
			record := map[string]any{"state": "PENDING", "lockToken": 1}
			if c.record != nil {
				record["effects"], record["openEffects"] = map[string]any{"mail": c.record}, 1
			}
			got := runToStop(t, b, g, record, func(ctx context.Context, job worker.Job) (any, error) {
				stopAfter(t, g, 300*time.Millisecond, 8*time.Second)
				charge, err := worker.Once(ctx, job, "charge", func(acting context.Context) (int, error) {
					charge, err := lasting(time.Second)(acting)
					if c.inside {
						err = errors.Join(err, mail(acting, job))
					}
					return charge, err
				})
				if err == nil && !c.inside {
					err = mail(ctx, job)
				}
				return charge, err
			})

			if calls != c.calls || got["state"] != c.state {
				t.Errorf("%d calls, want %d; state %v, want %s", calls, c.calls, got["state"], c.state)
			}
			_, mailed := got["effects"].(map[string]any)["mail"]
			if want := c.record != nil || c.inside; mailed != want {
				t.Errorf("the mail has a record: %v, want %v", mailed, want)
			}
		})
	}
}

// A caller of Do that ends wants no result: its act ends at once. The act of a run that is stopped with the process
// does not, although this run is the caller of Do.
func TestStop_ActInDo(t *testing.T) {
	for name, c := range map[string]struct {
		stopped bool
		ended   time.Duration
	}{
		"the caller's context": {false, 300 * time.Millisecond},
		"the caller's stop":    {true, 6300 * time.Millisecond},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			outer, inner := opened(t, b, nil), open(t, b, nil) // two, as the stop of inner would end the act too
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			charge := func(ctx context.Context, job worker.Job) (int, error) {
				return worker.Once(ctx, job, "charge", endless(t, c.ended))
			}
			_, _ = worker.Do(ctx, outer, "outer", "key", func(ctx context.Context, _ worker.Job) (int, error) {
				if c.stopped {
					stopAfter(t, outer, 300*time.Millisecond, 8*time.Second)
				} else {
					time.AfterFunc(300*time.Millisecond, cancel)
				}
				return worker.Do(ctx, inner, "inner", "key", charge)
			})
			synctest.Wait() // for Shutdown
			if !c.stopped {
				shutDown(t, outer, time.Minute)
			}
		})
	}
}

// A handler behind Idempotent ends as if there were no stop, with the acts that it has not begun yet.
func TestStop_Idempotent(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for name, c := range map[string]struct {
		handler time.Duration // until its act
		act     time.Duration
		ended   time.Duration
		answer  string
		again   string
	}{
		"in time":        {handler: s, act: s, ended: 2 * s, answer: "200 7", again: "200 replayed 7"},
		"without an end": {handler: time.Hour, ended: 6300 * ms, answer: "500 ", again: "200 7"},
		"without an act": {handler: s, act: time.Hour, ended: 6300 * ms, answer: "500 ", again: "500 "},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			stopped, other := opened(t, b, nil), open(t, b, nil)
			charges, wait := 0, c.handler
			charge := func(ctx context.Context) (int, error) { charges++; return lasting(c.act)(ctx) }
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				job, _ := worker.JobFromContext(r.Context())
				_, err := lasting(wait)(r.Context())
				if err == nil {
					_, err = worker.Once(r.Context(), job, "charge", charge)
				}
				if err != nil {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				_, _ = fmt.Fprint(w, 7)
			})
			o, began := worker.IdempotentOptions{Scope: account}, time.Now()
			stopAfter(t, stopped, 300*ms, 8*s)
			answer(t, stopped.Idempotent(o)(handler), order(t, "a", "x"), c.answer)
			if ended := time.Since(began); ended != c.ended {
				t.Errorf("answered after %v, want %v", ended, c.ended)
			}
			synctest.Wait() // for Shutdown
			wait = 0
			answer(t, other.Idempotent(o)(handler), order(t, "a", "x"), c.again)
			if charges != 1 {
				t.Errorf("%d charges, want one", charges)
			}
		})
	}
}
