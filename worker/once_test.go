package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
	"taskguard/worker"
)

var errDropped = errors.New("connection dropped")

// charges is a provider that counts the charges it was asked for.
type charges struct {
	n   int
	err error // of the next charge, which is made all the same
}

func (c *charges) charge(context.Context) (int, error) {
	c.n++
	err := c.err
	c.err = nil
	return c.n, err
}

// runJob serves so many deliveries of jobs/1 with this record, and returns the document.
func runJob(t *testing.T, b *emulatortest.Backend, g *worker.Guard, deliveries int, record map[string]any, run func(context.Context, worker.Job) (any, error)) map[string]any {
	t.Helper()
	doc, h := collection(t, b, "jobs").Doc("1"), g.Handler(jobs(run))
	set(t, doc, record)
	for range deliveries {
		post(t, h, "/tasks/job", `{"job_id":"1"}`)
	}
	return fields(t, doc)
}

// charged returns the act of a document.
func charged(document map[string]any) map[string]any {
	effects, _ := document["effects"].(map[string]any)
	act, _ := effects["charge"].(map[string]any)
	return act
}

var pending = map[string]any{"state": "PENDING"}

func TestAnActIsNotRepeatedByALaterAttempt(t *testing.T) {
	lost := worker.Find(func(context.Context) (int, bool, error) { return 0, false, nil })
	found := worker.Find(func(context.Context) (int, bool, error) { return 7, true, nil })
	broken := worker.Find(func(context.Context) (int, bool, error) { return 0, false, errBroken })

	for name, c := range map[string]struct {
		act     error // of the first attempt
		after   error // of the first attempt, after the act
		find    []worker.Finder[int]
		charges int
		status  string // after the second attempt
		code    string
		state   any // of the act then; nil: no record
		result  any
		open    any
	}{
		"done, then a failure":         {after: errBroken, charges: 1, status: "READY", state: "done", result: int64(1)},
		"surely not done":              {act: worker.NotDone(errDropped), charges: 2, status: "READY", state: "done", result: int64(2)},
		"not done, wrapped":            {act: fmt.Errorf("provider: %w", worker.NotDone(errDropped)), charges: 2, status: "READY", state: "done", result: int64(2)},
		"not done, without a reason":   {act: worker.NotDone(nil), charges: 2, status: "READY", state: "done", result: int64(2)},
		"unknown, nobody to ask":       {act: errDropped, charges: 1, status: "FAILED", code: "effect_uncertain", state: "started", open: int64(1)},
		"unknown, found":               {act: errDropped, find: []worker.Finder[int]{found}, charges: 1, status: "READY", state: "done", result: int64(7)},
		"unknown, not found":           {act: errDropped, find: []worker.Finder[int]{lost}, charges: 2, status: "READY", state: "done", result: int64(2)},
		"unknown, cannot be asked":     {act: errDropped, find: []worker.Finder[int]{broken}, charges: 1, status: "QUEUED", state: "started", open: int64(1)},
		"unknown, and the run is over": {after: &worker.UncertainError{Key: "1", Name: "other"}, charges: 1, status: "FAILED", code: "effect_uncertain", state: "done", result: int64(1)},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			provider, attempt := &charges{err: c.act}, 0
			got := runJob(t, b, g, 2, pending, func(ctx context.Context, job worker.Job) (any, error) {
				attempt++
				receipt, err := worker.Once(ctx, job, "charge", provider.charge, c.find...)
				if err == nil && attempt == 1 {
					err = c.after
				}
				return receipt, err
			})

			failure, _ := got["error"].(map[string]any)
			act := charged(got)
			words := map[string]any{"READY": "DONE", "FAILED": "ERROR", "QUEUED": "PENDING"}
			if provider.n != c.charges || got["state"] != words[c.status] || act["state"] != c.state ||
				act["result"] != c.result || got["openEffects"] != c.open {
				t.Errorf("%d charges, state %v, act %v, openEffects %v; want %+v", provider.n, got["state"], act, got["openEffects"], c)
			}
			if c.code != "" && (failure["code"] != c.code || !strings.Contains(lines.String(), "outcome=failed status=200 ")) {
				t.Errorf("error %v, want code %s, and a line of the failure: %s", failure, c.code, lines)
			}
			if alarms := strings.Count(lines.String(), "level=ERROR"); (alarms == 1) != (c.open != nil && c.status == "FAILED") || alarms > 1 {
				t.Errorf("%d ERROR lines:\n%s", alarms, lines)
			}
		})
	}
}

// The last attempt has died during its act, so the next delivery records FAILED without a run.
func TestAnActOfTheLastAttemptIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g, lines := openLogged(t, b, nil)
		runJob(t, b, g, 1, map[string]any{
			"state": "RUNNING", "attempts": 10, "lockToken": 10, "openEffects": 1,
			"effects": map[string]any{"charge": map[string]any{"state": "started", "token": 10, "at": time.Now()}},
		}, succeed)
		if got := lines.String(); strings.Count(got, `level=ERROR msg="an act is uncertain" kind=job analysis_id=1 lock_token=11`) != 1 {
			t.Errorf("the log does not report the act:\n%s", got)
		}
	})
}

// In each case no later attempt asks for the act by itself, or only if a client calls again.
func TestAnActThatIsLeftOpenIsReported(t *testing.T) {
	unknown := func(context.Context) (any, error) { return nil, errBroken }
	for name, tc := range map[string]struct {
		run  func(ctx context.Context, g *worker.Guard, doc *firestore.DocumentRef, job worker.Job) (any, error)
		line string // after the message
	}{
		"cancelled": {func(ctx context.Context, _ *worker.Guard, doc *firestore.DocumentRef, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "charge", func(ctx context.Context) (any, error) {
				_, err := doc.Set(ctx, map[string]any{"state": "ERROR", "error": map[string]any{"code": "cancelled"}, "lockToken": job.LockToken + 1}, firestore.MergeAll)
				<-ctx.Done()
				return nil, err
			})
		}, ` kind=job analysis_id=1 lock_token=1`},
		"of a call of Do": {func(ctx context.Context, g *worker.Guard, _ *firestore.DocumentRef, _ worker.Job) (any, error) {
			return worker.Do(ctx, g, "charge", "k", func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", unknown)
			})
		}, ` effects=[charge] kind=do analysis_id=charge:k lock_token=946684800000003`},
		"of Do, whose function hides it": {func(ctx context.Context, g *worker.Guard, _ *firestore.DocumentRef, _ worker.Job) (any, error) {
			return worker.Do(ctx, g, "charge", "k", func(ctx context.Context, job worker.Job) (any, error) {
				_, err := worker.Once(ctx, job, "charge", unknown)
				return nil, errors.New(err.Error())
			})
		}, ` effects=[charge] kind=do analysis_id=charge:k lock_token=946684800000003`},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			doc := collection(t, b, "jobs").Doc("1")
			set(t, doc, map[string]any{"state": "PENDING"})
			h := g.Handler(jobs(func(ctx context.Context, job worker.Job) (any, error) { return tc.run(ctx, g, doc, job) }))
			post(t, h, "/tasks/job", `{"job_id":"1"}`)
			if name != "cancelled" { // nobody has asked yet
				if fields(t, doc)["state"] == "ERROR" || strings.Contains(lines.String(), "an act is uncertain") {
					t.Errorf("%v\n%s", fields(t, doc), lines)
				}
				time.Sleep(time.Hour)
				post(t, h, "/tasks/job", `{"job_id":"1"}`)
			}
			if got := lines.String(); strings.Count(got, `msg="an act is uncertain"`) != 1 || !strings.Contains(got, `msg="an act is uncertain"`+tc.line) {
				t.Errorf("the log does not report the act once with %q:\n%s", tc.line, got)
			}
			if name != "cancelled" && fields(t, doc)["state"] == "ERROR" {
				t.Error("the job has failed, though the act is not its own")
			}
		})
	}
}

func TestTheLimitsOfActsAreKeptBeforeTheAct(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		var problems []error
		act := func(ctx context.Context, job worker.Job, name, result string) (called bool) {
			_, err := worker.Once(ctx, job, name, func(context.Context) (string, error) { called = true; return result, nil })
			problems = append(problems, err)
			return called
		}
		before := b.Server.Usage().Writes
		got := runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			for i := range 16 {
				if !act(ctx, job, fmt.Sprintf("act-%02d", i), "x") || problems[i] != nil {
					t.Errorf("act %d: %v", i, problems[i])
				}
			}
			if act(ctx, job, "one-more", "") || act(ctx, job, "a/b", "") {
				t.Error("an act was done without a marker")
			}
			return nil, nil
		})
		if got["state"] != "DONE" || got["openEffects"] != nil {
			t.Errorf("state %v, openEffects %v", got["state"], got["openEffects"])
		}
		if n := b.Server.Usage().Writes - before; n != 1+2+2*16 {
			t.Errorf("%d writes; want 1 of the test, 2 of the lock, and 2 of each act", n)
		}
	})
}

// The inner act was surely not done; of the outer one nobody knows, unless it returns NotDone too.
func TestNotDoneCountsForTheActThatReturnsIt(t *testing.T) {
	for want, outer := range map[int]func(error) error{
		1: func(err error) error { return fmt.Errorf("mail: %w", err) },
		2: worker.NotDone,
	} {
		synctest.Test(t, func(t *testing.T) {
			b, acts := emulatortest.Embedded(t), 0
			h := open(t, b, nil).Handler(jobs(func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "ship", func(ctx context.Context) (int, error) {
					acts++
					_, err := worker.Once(ctx, job, "mail", func(context.Context) (int, error) { return 0, worker.NotDone(errDropped) })
					if !errors.Is(err, errDropped) {
						t.Errorf("the reason of the inner act is %v", err)
					}
					return 0, outer(err)
				})
			}))
			set(t, collection(t, b, "jobs").Doc("1"), map[string]any{"state": "PENDING"})
			post(t, h, "/tasks/job", `{"job_id":"1"}`)
			post(t, h, "/tasks/job", `{"job_id":"1"}`)
			if acts != want {
				t.Errorf("the outer act was done %d times, want %d", acts, want)
			}
		})
	}
}

// An act that has not begun leaves no marker of its attempt, and the marker of an earlier one.
func TestAnActThatCouldNotBeginIsNotUncertain(t *testing.T) {
	lost := worker.Find(func(context.Context) (int, bool, error) { return 0, false, nil })
	before := map[string]any{"state": "started", "token": int64(1), "at": "1999-01-01T00:00:00.000Z"}
	for name, c := range map[string]struct {
		earlier, want map[string]any // the record
		marked        bool           // the context ends once the marker is committed
	}{
		"the first attempt":         {},
		"a later attempt":           {earlier: before, want: before},
		"the first attempt, marked": {marked: true},
		"a later attempt, marked":   {before, map[string]any{"state": "started", "token": int64(6), "at": "2000-01-01T00:00:00.000Z"}, true},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g := open(t, b, nil)
			provider, record := &charges{}, map[string]any{"state": "PENDING", "lockToken": 5}
			if c.earlier != nil {
				record["effects"], record["openEffects"] = map[string]any{"charge": c.earlier}, 1
			}
			got := runJob(t, b, g, 1, record, func(ctx context.Context, job worker.Job) (any, error) {
				ended, end := context.WithCancel(ctx)
				job.Reporter = endsOnceBegun{job.Reporter.(orchestrator.Marker), job.Reporter, end} //nolint:forcetypeassert // the guard's
				if !c.marked {
					end()
				}
				_, err := worker.Once(ended, job, "charge", provider.charge, lost)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want the cause of the context", err)
				}
				return nil, err
			})
			if diff := cmp.Diff(c.want, charged(got)); diff != "" || provider.n != 0 {
				t.Errorf("%d charges; the record (-want +got):\n%s", provider.n, diff)
			}
		})
	}
}

// endsOnceBegun calls end once an act has begun, as a SIGTERM may.
type endsOnceBegun struct {
	orchestrator.Marker
	orchestrator.Reporter

	end func()
}

func (e endsOnceBegun) Begin(ctx context.Context, name string, again bool) (*orchestrator.Effect, error) {
	effect, err := e.Marker.Begin(ctx, name, again)
	if effect == nil {
		e.end()
	}
	return effect, err
}

// An operator has resolved the act with a result that the code does not expect.
func TestAResultOfAnotherTypeIsAPermanentFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g := open(t, b, nil)
		charge := func(ctx context.Context, job worker.Job) (int, error) {
			return worker.Once(ctx, job, "charge", func(context.Context) (int, error) { t.Error("the act is repeated"); return 0, nil })
		}
		job, record := collection(t, b, "jobs").Doc("1"), collection(t, b, "idempotency").Doc("op:key")
		effects := map[string]any{"charge": map[string]any{"state": "done", "token": 1, "result": "ch_7"}}
		set(t, job, map[string]any{"state": "PENDING", "lockToken": 1, "effects": effects})
		set(t, record, map[string]any{"status": "QUEUED", "lockToken": 1, "effects": effects})

		_, err := worker.Do(t.Context(), g, "op", "key", charge)
		wrong, ok := errors.AsType[*worker.ResultError](err)
		if !ok || wrong.Record != "charge" || wrong.Type != "int" {
			t.Fatalf("Do: %v", err)
		}
		checkRecord(t, record, map[string]any{"status": "QUEUED", "lockOwner": nil})

		post(t, g.Handler(jobs(func(ctx context.Context, job worker.Job) (any, error) { return charge(ctx, job) })), "/tasks/job", `{"job_id":"1"}`)
		checkRecord(t, job, map[string]any{"state": "ERROR", "error": map[string]any{"code": "effect_result_invalid", "message": wrong.Error()}})
	})
}

func TestAnActThatIsDoneStaysDone(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		act := charged(runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			first, undone := job.End(ctx, "charge", true, 1), job.End(ctx, "charge", false, nil)
			if second := job.End(ctx, "charge", true, 2); first != nil || undone == nil || second != nil {
				t.Errorf("done: %v, not done: %v, done again: %v", first, undone, second)
			}
			return nil, nil
		}))
		if act["state"] != "done" || act["result"] != int64(1) {
			t.Errorf("the act is %v", act)
		}
	})
}

// A paused worker, whose lock another has taken, must not act: its marker is not committed.
func TestASupersededRunDoesNotBeginAnAct(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		provider := &charges{}
		runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			set(t, collection(t, b, "jobs").Doc("1"), map[string]any{
				"lockOwner": "other", "lockToken": job.LockToken + 1,
				"lockExpiresAt": time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000Z"),
			})
			_, err := worker.Once(ctx, job, "charge", provider.charge)
			if err == nil {
				t.Error("the act began")
			}
			return nil, err
		})
		if provider.n != 0 {
			t.Errorf("%d charges", provider.n)
		}
	})
}
