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

// Each process is stopped 300 ms after its act has begun, and the run goes on as if the act's time were all
// that it waits for. A later worker finds what is recorded.
func TestAStopEndsAnActLast(t *testing.T) {
	for name, c := range map[string]struct {
		stop  time.Duration // what the service gives to Shutdown; zero: it is not stopped
		takes time.Duration // the act
		lost  time.Duration // when another worker takes the lock; zero: never
		limit time.Duration // RunTimeout; zero: the default
		ended time.Duration // when the act has ended
		err   error         // of the act
		state string        // of the document
		act   any           // its state
	}{
		"an act of a second":          {stop: 8 * time.Second, takes: time.Second, ended: time.Second, state: "DONE", act: "done"},
		"an act that ends in time":    {stop: 8 * time.Second, takes: 6200 * time.Millisecond, ended: 6200 * time.Millisecond, state: "DONE", act: "done"},
		"an act without an end":       {stop: 8 * time.Second, takes: time.Hour, ended: 6300 * time.Millisecond, err: worker.ErrStopping, state: "PENDING", act: "started"},
		"a longer stop":               {stop: 30 * time.Second, takes: time.Hour, ended: 28300 * time.Millisecond, err: worker.ErrStopping, state: "PENDING", act: "started"},
		"a shorter stop":              {stop: 3 * time.Second, takes: time.Hour, ended: 1300 * time.Millisecond, err: worker.ErrStopping, state: "PENDING", act: "started"},
		"a stop without time":         {stop: time.Second, takes: time.Hour, ended: 300 * time.Millisecond, err: worker.ErrStopping, state: "PENDING", act: "started"},
		"the lock is lost meanwhile":  {stop: 8 * time.Second, takes: time.Hour, lost: 2500 * time.Millisecond, ended: 3 * time.Second, err: lease.ErrLost, state: "RUNNING", act: "started"},
		"the lock is lost, no stop":   {takes: time.Hour, lost: 500 * time.Millisecond, ended: time.Second, err: lease.ErrLost, state: "RUNNING", act: "started"},
		"RunTimeout passes, no stop":  {takes: time.Hour, limit: 2 * time.Second, ended: 2 * time.Second, err: context.DeadlineExceeded, state: "PENDING", act: "started"},
		"RunTimeout passes meanwhile": {stop: 8 * time.Second, takes: time.Hour, limit: 2 * time.Second, ended: 2 * time.Second, err: context.DeadlineExceeded, state: "PENDING", act: "started"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g := opened(t, b, func(o *worker.Options) { quick(o); o.RunTimeout = c.limit })
			doc := collection(t, b, "jobs").Doc("1")
			set(t, doc, pending)
			calls, told := 0, 300*time.Millisecond
			h := g.MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", func(acting context.Context) (int, error) {
					calls++
					began := time.Now()
					if c.stop > 0 {
						stopAfter(t, g, 300*time.Millisecond, c.stop)
						context.AfterFunc(ctx, func() { told = time.Since(began) })
					}
					if c.lost > 0 {
						time.AfterFunc(c.lost, func() {
							set(t, doc, map[string]any{"state": "RUNNING", "lockOwner": "other", "lockToken": job.LockToken + 1})
						})
					}

					charge, err := lasting(c.takes)(acting)
					if ended := time.Since(began).Round(100 * time.Millisecond); ended != c.ended || !errors.Is(err, c.err) {
						t.Errorf("the act ended after %v, %v; want %v, %v", ended, err, c.ended, c.err)
					}
					return charge, err
				})
			})).Handler()
			post(t, h, "/tasks/job", `{"job_id":"1"}`)
			synctest.Wait() // for Shutdown
			if c.stop == 0 {
				shutDown(t, g, time.Minute)
			}

			got := fields(t, doc)
			if told != 300*time.Millisecond {
				t.Errorf("the run was told of the stop after %v", told)
			}
			if calls != 1 || got["state"] != c.state || charged(got)["state"] != c.act {
				t.Errorf("%d calls, state %v, act %v; want one, %s, %v", calls, got["state"], charged(got), c.state, c.act)
			}
		})
	}
}

// Firestore hangs while the act ends, until just before the end of the stop: the release then commits both.
func TestAnActThatCannotBeRecordedDoesNotHoldUpAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, wall := emulatortest.Embedded(t), &worker.Wall{}
		g := opened(t, b, func(o *worker.Options) { o.FirestoreOptions = wall.Client(t, b) })
		h := g.MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "charge", func(ctx context.Context) (int, error) {
				stopAfter(t, g, 0, 8*time.Second)
				time.AfterFunc(time.Second, func() { wall.Up.Store(true) })
				time.AfterFunc(6900*time.Millisecond, func() { wall.Up.Store(false) })
				return lasting(5 * time.Second)(ctx)
			})
		})).Handler()
		doc := collection(t, b, "jobs").Doc("1")
		set(t, doc, pending)
		post(t, h, "/tasks/job", `{"job_id":"1"}`)
		synctest.Wait() // for Shutdown
		if got := fields(t, doc); got["state"] != "PENDING" || charged(got)["state"] != "done" || got["openEffects"] != nil {
			t.Errorf("state %v, act %v", got["state"], charged(got))
		}
	})
}

// The act of the run goes on after the stop, and then the run would do another.
func TestAfterAStopNoActBegins(t *testing.T) {
	for name, c := range map[string]struct {
		record map[string]any // of the other act, by an earlier attempt
		inside bool           // the first act does the other, as a part of it
		calls  int            // of the other act and of its Find
	}{
		"after the act":           {},
		"nor is a provider asked": {record: map[string]any{"state": "started", "token": 1, "at": time.Now()}},
		"inside the act it does":  {inside: true, calls: 1},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, calls := opened(t, b, nil), 0
			find := worker.Find(func(context.Context) (int, bool, error) { calls++; return 7, true, nil })
			mail := func(ctx context.Context, job worker.Job) error {
				_, err := worker.Once(ctx, job, "mail", func(context.Context) (int, error) { calls++; return 7, nil }, find)
				if (err == nil) != c.inside || err != nil && !errors.Is(err, worker.ErrStopping) {
					t.Errorf("the mail: %v", err)
				}
				return err
			}
			h := g.MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) {
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
			})).Handler()

			doc, record := collection(t, b, "jobs").Doc("1"), map[string]any{"state": "PENDING", "lockToken": 1}
			if c.record != nil {
				record["effects"], record["openEffects"] = map[string]any{"mail": c.record}, 1
			}
			set(t, doc, record)
			post(t, h, "/tasks/job", `{"job_id":"1"}`)
			synctest.Wait() // for Shutdown

			got := fields(t, doc)
			mailed, _ := got["effects"].(map[string]any)["mail"].(map[string]any)
			want := map[bool]string{true: "DONE", false: "PENDING"}[c.inside]
			if calls != c.calls || got["state"] != want || (mailed == nil) != (c.record == nil && !c.inside) {
				t.Errorf("%d calls, want %d; state %v, want %s; the mail is %v", calls, c.calls, got["state"], want, mailed)
			}
		})
	}
}

// A caller of Do that ends wants no result: its act ends at once. So does not the act of a run that is stopped
// with the process, although this run is the caller of Do.
func TestAnActInDoEndsWithItsCaller(t *testing.T) {
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
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			_, _ = worker.Do(ctx, outer, "outer", "key", func(ctx context.Context, _ worker.Job) (int, error) {
				if c.stopped {
					stopAfter(t, outer, 300*time.Millisecond, 8*time.Second)
				} else {
					time.AfterFunc(300*time.Millisecond, func() { cancel(errBroken) })
				}
				return worker.Do(ctx, inner, "inner", "key", func(ctx context.Context, job worker.Job) (int, error) {
					return worker.Once(ctx, job, "charge", func(ctx context.Context) (int, error) {
						began := time.Now()
						_, err := lasting(time.Hour)(ctx)
						if ended := time.Since(began); ended != c.ended {
							t.Errorf("the act ended after %v, %v; want %v", ended, err, c.ended)
						}
						return 0, err
					})
				})
			})
			synctest.Wait() // for Shutdown
			if !c.stopped {
				shutDown(t, outer, time.Minute)
			}
		})
	}
}

// A handler behind Idempotent ends as if there were no stop, with the acts that it has not begun yet.
func TestAStopEndsAnIdempotentHandlerLast(t *testing.T) {
	for name, c := range map[string]struct {
		handler time.Duration // until its act
		act     time.Duration
		ended   time.Duration
		answer  string
		again   string
	}{
		"in time":        {handler: time.Second, act: time.Second, ended: 2 * time.Second, answer: "200 7", again: "200 replayed 7"},
		"without an end": {handler: time.Hour, ended: 6300 * time.Millisecond, answer: "500 ", again: "200 7"},
		"without an act": {handler: time.Second, act: time.Hour, ended: 6300 * time.Millisecond, answer: "500 ", again: "500 "},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			stopped, other := opened(t, b, nil), open(t, b, nil)
			charges, wait := 0, c.handler
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				job, _ := worker.JobFromContext(r.Context())
				_, err := lasting(wait)(r.Context())
				if err == nil {
					_, err = worker.Once(r.Context(), job, "charge", func(ctx context.Context) (int, error) { charges++; return lasting(c.act)(ctx) })
				}
				if err != nil {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				_, _ = fmt.Fprint(w, 7)
			})
			o, began := worker.IdempotentOptions{Scope: account}, time.Now()
			stopAfter(t, stopped, 300*time.Millisecond, 8*time.Second)
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
