package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
	"taskguard/worker"
)

func TestOnce_LaterAttempt(t *testing.T) {
	wrapped := fmt.Errorf("provider: %w", worker.NotDone(errDropped))
	for name, c := range map[string]struct {
		act   error // of the first attempt
		after error // of the first attempt, after the act
		find  []worker.Finder[int]
		want  string // after the second attempt
	}{
		"done, then a failure":       {after: errBroken, want: "1 charges, DONE, act done 1"},
		"not done":                   {act: worker.NotDone(errDropped), want: "2 charges, DONE, act done 2"},
		"not done, wrapped":          {act: wrapped, want: "2 charges, DONE, act done 2"},
		"not done, without a reason": {act: worker.NotDone(nil), want: "2 charges, DONE, act done 2"},
		"unknown, nobody to ask":     {act: errDropped, want: "1 charges, ERROR effect_uncertain, act started <nil>"},
		"unknown, found": {
			act: errDropped, find: []worker.Finder[int]{finds(7, true, nil)}, want: "1 charges, DONE, act done 7",
		},
		"unknown, not found": {
			act: errDropped, find: []worker.Finder[int]{finds(0, false, nil)}, want: "2 charges, DONE, act done 2",
		},
		"unknown, cannot be asked": {
			act: errDropped, find: []worker.Finder[int]{finds(0, false, errBroken)},
			want: "1 charges, PENDING, act started <nil>",
		},
		"uncertain by another run's act": {
			after: &worker.UncertainError{Key: "1", Name: "other"},
			want:  "1 charges, ERROR effect_uncertain, act done 1",
		},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			provider, attempt := &charges{err: c.act}, 0
			doc := runJob(t, b, g, 2, pending, func(ctx context.Context, job worker.Job) (any, error) {
				attempt++
				receipt, err := worker.Once(ctx, job, "charge", provider.charge, c.find...)
				if err == nil && attempt == 1 {
					err = c.after
				}
				return receipt, err
			})

			act := charged(doc)
			got := fmt.Sprintf("%d charges, %s, act %v %v", provider.n, ended(doc), act["state"], act["result"])
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if open := doc["openEffects"] == int64(1); open != (act["state"] == "started") {
				t.Errorf("openEffects %v of the act %v", doc["openEffects"], act)
			}
			alarm := strings.HasSuffix(got, "ERROR effect_uncertain, act started <nil>")
			alarms := strings.Count(lines.String(), "level=ERROR")
			named := strings.Count(lines.String(), "effects=[charge] effect_tokens=[1]") // of the attempt that began it
			if want := map[bool]int{true: 1}[alarm]; alarms != want || named != want {
				t.Errorf("%d ERROR lines, %d with the act:\n%s", alarms, named, lines)
			}
		})
	}
}

// checkReports wants one line for each act that is uncertain, with these words.
func checkReports(t *testing.T, log *emulatortest.Log, want ...string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(log.String()) {
		if _, act, found := strings.Cut(line, `msg="an act is uncertain"`); found {
			_, act, _ = strings.Cut(act, "kind=")
			act, _, _ = strings.Cut(act, " lock_token=")
			got = append(got, act)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("reported are %q, want %q:\n%s", got, want, log)
	}
}

// In each case no later attempt asks for the act, or only if a client calls again.
func TestOnce_Reported(t *testing.T) {
	worker.Subtest(t, "the last attempt has died during its act", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g, log := openLogged(t, b, nil)
		record := withEffects(map[string]any{"charge": map[string]any{"state": "started", "token": 10}})
		record["attempts"], record["openEffects"] = 10, 1 // so it is FAILED without a run
		runJob(t, b, g, 1, record, succeed)
		checkReports(t, log, "job analysis_id=1")
	})
	during := func(name string, theirs map[string]any, want ...string) {
		worker.Subtest(t, "the job is "+name+" during its act", func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, log := openLogged(t, b, nil)
			runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", func(ctx context.Context) (any, error) {
					theirs["lockToken"] = job.LockToken + 1
					set(t, collection(t, b, "jobs").Doc("1"), theirs)
					<-ctx.Done()
					return nil, nil // done, but not recorded
				})
			})
			checkReports(t, log, want...)
		})
	}
	cancelled := map[string]any{"state": "ERROR", "error": map[string]any{"code": "cancelled"}}
	during("cancelled", cancelled, "job analysis_id=1")
	during("taken", map[string]any{"lockOwner": "other"}) // its next run asks
	for _, hidden := range []bool{false, true} {
		worker.Subtest(t, fmt.Sprint("the act is of a call of Do, which hides it ", hidden), func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, log := openLogged(t, b, nil)
			charge := func(ctx context.Context, job worker.Job) (any, error) { //nolint:unparam // a run has a result
				_, err := worker.Once(ctx, job, "charge", acting(0, errBroken))
				if hidden {
					err = errors.New(err.Error())
				}
				return nil, err
			}
			attempts := 0
			job := runJob(t, b, g, 2, pending, func(ctx context.Context, _ worker.Job) (any, error) {
				if attempts++; attempts == 2 {
					checkReports(t, log) // nobody has asked yet
				}
				return worker.Do(ctx, g, "charge", "k", charge)
			})
			checkReports(t, log, "do analysis_id=charge:k")
			if got := ended(job); got != "PENDING" {
				t.Errorf("the job is %s, though the act is not its own", got)
			}
		})
	}
}

// No retry can help an act that cannot begin. So the run has failed, also if it ignores the error.
func TestOnce_Refused(t *testing.T) {
	const sixteen = "a b c d e f g h i j k l m n o p"
	begun := withEffects(map[string]any{"mail": map[string]any{"state": "started", "token": 1}})
	for name, c := range map[string]struct {
		acts   string         // each is done but for those with ! in front, which return NotDone
		record map[string]any // default: pending
		ends   error          // of the run, unless the act's
		want   string
	}{
		"a name for the second time":  {acts: "mail mail", want: "ERROR act_name_reused after mail"},
		"another error too":           {acts: "mail mail", ends: errBroken, want: "ERROR act_name_reused after mail"},
		"a name again, after NotDone": {acts: "!mail mail", want: "DONE after mail mail"},
		"an earlier attempt's name":   {acts: "mail mail", record: begun, want: "ERROR act_name_reused after "},
		"the 17th act":                {acts: sixteen + " q", want: "ERROR acts_full after " + sixteen},
		"no room":                     {acts: "mail", record: full(4000), want: "ERROR acts_full after "},
	} {
		for _, ignored := range []bool{false, true} {
			worker.Subtest(t, fmt.Sprintf("%s, ignored %v", name, ignored), func(t *testing.T) {
				var done []string
				doc := runAlone(t, 1, c.record, func(ctx context.Context, job worker.Job) (any, error) {
					for _, act := range strings.Fields(c.acts) {
						name, undone := strings.CutPrefix(act, "!")
						_, err := worker.Once(ctx, job, name, func(context.Context) (int, error) {
							done = append(done, name)
							if undone {
								return 0, worker.NotDone(errDropped)
							}
							return 1, nil
						}, finds(7, true, nil))
						refused := err != nil && !undone
						if refused && !ignored {
							return nil, err
						}
					}
					return nil, c.ends
				})
				if got := ended(doc) + " after " + strings.Join(done, " "); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	}
}

func TestOnce_Name(t *testing.T) {
	for name, code := range map[string]string{
		"":                      "act_name_invalid",
		"a/b":                   "act_name_invalid",
		strings.Repeat("a", 65): "act_name_invalid",
		"__x__":                 "act_name_invalid",
		"__x":                   "",
		"x__":                   "",
		strings.Repeat("a", 64): "",
	} {
		_, err := worker.Once(t.Context(), worker.Job{}, name, acting(1, nil))
		refused, _ := errors.AsType[*worker.PermanentError](err)
		if valid := errors.Is(err, worker.ErrNoGuard); valid != (code == "") {
			t.Errorf("%q: %v", name, err)
		}
		if refused != nil && refused.Code != code {
			t.Errorf("%q: %s, want %s", name, refused.Code, code)
		}
	}
}

func TestOnce_Costs(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		before := b.Server.Usage().Writes
		runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			for i := range 16 {
				if _, err := worker.Once(ctx, job, fmt.Sprint("act-", i), acting(1, nil)); err != nil {
					t.Error(err)
				}
			}
			return nil, nil
		})
		if n := b.Server.Usage().Writes - before; n != 1+2+2*16 {
			t.Errorf("%d writes; want 1 of the test, 2 of the lock, and 2 of each act", n)
		}
	})
}

// receipt returns a run whose act returns v. It counts the calls of the act.
func receipt[T any](v T) func(ctx context.Context, job worker.Job, calls *int) (any, error) {
	return func(ctx context.Context, job worker.Job, calls *int) (any, error) {
		return worker.Once(ctx, job, "charge", func(context.Context) (T, error) { *calls++; return v, nil })
	}
}

// The first attempt fails after the act. The first call returns what later ones return: the result from JSON.
func TestOnce_Result(t *testing.T) {
	type secret struct {
		ID     string
		Hidden string `json:"-"`
	}
	large, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	fits := strings.Repeat("x", 4<<10-len(`""`)) // the room that is kept for it
	for want, once := range map[string]func(ctx context.Context, job worker.Job, calls *int) (any, error){
		"[[1] [2 3]]":          receipt([][]int{{1}, {2, 3}}),
		"18446744073709551615": receipt(uint64(math.MaxUint64)),
		"map[:1 __x__:2]":      receipt(map[string]int{"": 1, "__x__": 2}),
		"{ch_7 }":              receipt(secret{"ch_7", "pin"}),
		large.String():         receipt(large),
		"1234567890123456.78":  receipt(json.Number("1234567890123456.78")),
		"<a>&\uFFFD":           receipt("<a>&\xff"),
		"<nil>":                receipt[*secret](nil),
		fits:                   receipt(fits),
	} {
		worker.Subtest(t, want[:min(len(want), 20)], func(t *testing.T) {
			var seen []string
			calls := 0
			doc := runAlone(t, 2, full(6000), func(ctx context.Context, job worker.Job) (any, error) {
				value, err := once(ctx, job, &calls)
				if seen = append(seen, fmt.Sprint(value)); len(seen) == 1 {
					err = errors.Join(err, errBroken)
				}
				return "done", err
			})
			if got := ended(doc); got != "DONE" || calls != 1 {
				t.Errorf("%s after %d calls", got, calls)
			}
			if !slices.Equal(seen, []string{want, want}) {
				t.Errorf("%q, want twice %s", seen, want)
			}
		})
	}
}

// The value is returned once, and the act is not repeated without it.
func TestOnce_ResultNotStored(t *testing.T) {
	for name, once := range map[string]func(ctx context.Context, job worker.Job, calls *int) (any, error){
		"no room for it":          receipt(strings.Repeat("x", 20<<10)),
		"over 64 KiB":             receipt(strings.Repeat("x", 64<<10)),
		"NaN":                     receipt(math.NaN()),
		"a channel in a variable": receipt[any](make(chan int)),
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			record, calls := pending, 0
			if name == "no room for it" {
				record = full(16 << 10)
			}
			var errs []error
			doc := runAlone(t, 2, record, func(ctx context.Context, job worker.Job) (any, error) {
				value, err := once(ctx, job, &calls)
				errs = append(errs, err)
				return value, err
			})
			if got := ended(doc); got != "ERROR effect_result_invalid" || calls != 1 {
				t.Errorf("%s after %d calls", got, calls)
			}
			lost, _ := errors.AsType[*worker.NotStoredError](errs[0])
			if lost == nil || lost.Value == nil {
				t.Errorf("the first attempt: %v", errs[0])
			}
			if err := errs[len(errs)-1]; len(errs) != 2 || !errors.As(err, new(*worker.ResultError)) {
				t.Errorf("the second attempt: %v", err)
			}
		})
	}
	worker.Subtest(t, "a type without JSON", func(t *testing.T) { // see TestEncodable
		calls := 0
		doc := runAlone(t, 2, pending, func(ctx context.Context, job worker.Job) (any, error) {
			return receipt(make(chan int))(ctx, job, &calls)
		})
		if got := ended(doc); got != "ERROR result_invalid" || calls != 0 {
			t.Errorf("%s after %d calls", got, calls)
		}
	})
}

// An operator has resolved the act with a result that the code does not expect.
func TestOnce_OtherType(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		effects := map[string]any{"charge": map[string]any{"state": "done", "token": 1, "result": `"ch_7"`}}
		charge := func(ctx context.Context, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "charge", acting(0, nil))
		}
		record := collection(t, b, "idempotency").Doc("op:key")
		set(t, record, map[string]any{"status": "QUEUED", "lockToken": 1, "effects": effects})
		_, err := worker.Do(t.Context(), g, "op", "key", charge)
		wrong, ok := errors.AsType[*worker.ResultError](err)
		if !ok || wrong.Record+" "+wrong.Type != "charge int" {
			t.Errorf("Do: %v", err)
		}
		checkRecord(t, record, map[string]any{"status": "QUEUED", "lockOwner": nil})
		if got := ended(runJob(t, b, g, 1, withEffects(effects), charge)); got != "ERROR effect_result_invalid" {
			t.Errorf("a job: %s", got)
		}
	})
}

// An act that was renamed is done twice. A run that continues from a checkpoint may have passed it.
func TestOnce_NotAskedFor(t *testing.T) {
	done, started := map[string]any{"state": "done", "result": "1"}, map[string]any{"state": "started"}
	for name, c := range map[string]struct {
		effects    map[string]any
		checkpoint any
		ends       bool   // the run says again that charge-1 was done
		err        error  // of the run, which asks for charge
		want       string // effects in the line; empty: no line
	}{
		"renamed":              {effects: map[string]any{"charge-1": done}, want: "[charge-1]"},
		"two of three":         {effects: map[string]any{"b": done, "a": done, "charge": done}, want: `"[a b]"`},
		"asked for":            {effects: map[string]any{"charge": done}},
		"said to be done":      {effects: map[string]any{"charge-1": done}, ends: true},
		"it fails":             {effects: map[string]any{"charge-1": done}, err: errBroken},
		"after a checkpoint":   {effects: map[string]any{"charge-1": done}, checkpoint: 5},
		"open, which is worse": {effects: map[string]any{"charge-1": started}},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			record := withEffects(c.effects)
			record["checkpoint"] = c.checkpoint
			runJob(t, b, g, 1, record, func(ctx context.Context, job worker.Job) (any, error) {
				_, err := worker.Once(ctx, job, "charge", acting(1, nil))
				if c.ends {
					err = errors.Join(err, job.End(ctx, "charge-1", true, 1))
				}
				return nil, errors.Join(err, c.err)
			})
			_, line, _ := strings.Cut(lines.String(), `msg="acts of an earlier attempt were not asked for"`)
			_, effects, _ := strings.Cut(line, " effects=")
			if got, _, _ := strings.Cut(effects, "\n"); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A job that no guard made has the constant key of all such jobs, and no marker.
func TestOnce_NoGuard(t *testing.T) {
	job, ok := worker.JobFromContext(t.Context())
	_, err := worker.Once(t.Context(), job, "charge", func(context.Context) (int, error) {
		t.Error("it acts")
		return 0, nil
	})
	if ok || !errors.Is(err, worker.ErrNoGuard) {
		t.Errorf("%v, %v", ok, err)
	}
	if err := job.Checkpoint(t.Context(), 1); !errors.Is(err, worker.ErrNoGuard) {
		t.Errorf("a checkpoint: %v", err)
	}
	checkPanic(t, "no guard", func() { job.Key("charge") })
}

// Two kinds, and a record of Do, may have documents with one id.
func TestOnce_Key(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		keys := map[string]bool{}
		note := func(_ context.Context, job worker.Job) (any, error) {
			keys[job.Key("charge")], keys[job.Key("refund")] = true, true
			return nil, nil
		}
		other := jobs(note)
		other.Name, other.Collection, other.Path = "refund", "refunds", "/tasks/refund"
		for _, kind := range []worker.Kind{jobs(note), other} {
			set(t, collection(t, b, kind.Collection).Doc("op:1"), pending)
			work := g.MustRegister(kind)
			post(t, work.Handler(), kind.Path, `{"job_id":"op:1","refund_id":"op:1"}`)
			if task := work.Operator().NewTask("op:1"); task != "" {
				t.Errorf("the task %s without a queue", task)
			}
			key, all := work.Operator().ActKey("op:1", "charge"), work.Operator().ActKey("op:1", "*")
			if !keys[key] || all != "" {
				t.Errorf("an operator's key, %s, is none of %v; for all acts it is %q", key, keys, all)
			}
		}
		if _, err := worker.Do(t.Context(), g, "op", "1", note); err != nil || len(keys) != 6 {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	})
}

// Another program has written to the field, or it is the application's own: the act may have been done.
func TestOnce_Damaged(t *testing.T) {
	const at = "2000-01-01T00:00:00.000Z"
	for name, effects := range map[string]any{
		"an act is a string":      map[string]any{"charge": "sepia"},
		"an act is null":          map[string]any{"charge": nil},
		"an act has no state":     map[string]any{"charge": map[string]any{"at": at, "result": "sepia"}},
		"an act is in capitals":   map[string]any{"charge": map[string]any{"at": at, "state": "DONE", "result": "1"}},
		"the field is no map":     "sepia",
		"the field has the names": []any{"charge"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			provider := &charges{}
			doc := runAlone(t, 1, withEffects(effects), func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", provider.charge)
			})
			if got := ended(doc); provider.n != 0 || got != "ERROR effect_uncertain" {
				t.Errorf("%d charges, %s", provider.n, got)
			}
			failure := fmt.Sprint(doc["error"])
			if strings.Contains(failure, "0001") || strings.Contains(failure, "sepia") {
				t.Errorf("the failure is %s, with a time that is none or with the field's value", failure)
			}
		})
	}
}

// The inner act was certainly not done; the outer one may have been, unless it returns NotDone too.
func TestNotDone(t *testing.T) {
	for want, outer := range map[int]func(error) error{
		1: func(err error) error { return fmt.Errorf("mail: %w", err) },
		2: worker.NotDone,
	} {
		withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
			acts := 0
			runJob(t, b, g, 2, pending, func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "ship", func(ctx context.Context) (int, error) {
					acts++
					_, err := worker.Once(ctx, job, "mail", acting(0, worker.NotDone(errDropped)))
					if !errors.Is(err, errDropped) {
						t.Errorf("the reason of the inner act is %v", err)
					}
					return 0, outer(err)
				})
			})
			if acts != want {
				t.Errorf("the outer act was done %d times, want %d", acts, want)
			}
		})
	}
}

// The context ends once the marker is committed, or while nobody knows that: a first attempt takes it back. An earlier
// attempt's request may still arrive, so there is always a record of it.
func TestOnce_NotBegun(t *testing.T) {
	earlier := map[string]any{"charge": map[string]any{"state": "started", "token": 1}}
	for name, c := range map[string]struct {
		effects any
		hangs   bool // the commit of the marker
		found   bool // the context ends once the earlier record is found
		token   any  // of the act afterwards; nil: there is none
	}{
		"the first attempt":                   {},
		"the first attempt, its commit hangs": {hangs: true},
		"a later attempt":                     {effects: earlier, token: int64(2)},
		"a later attempt, whose commit hangs": {effects: earlier, hangs: true, token: int64(1)},
		"a later attempt, before its Find":    {effects: earlier, found: true, token: int64(1)},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, provider := emulatortest.Embedded(t), &charges{}
			g, wall := openWalled(t, b)
			find := worker.Find(func(context.Context) (int, bool, error) {
				if c.found {
					t.Error("the provider is asked")
				}
				return 0, false, nil
			})
			doc := runJob(t, b, g, 1, withEffects(c.effects), func(ctx context.Context, job worker.Job) (any, error) {
				ended, end := context.WithCancel(ctx)
				if wall.Up.Store(c.hangs); c.hangs {
					time.AfterFunc(time.Second, end)
					defer wall.Up.Store(false)
				} else {
					marker, _ := job.Reporter.(orchestrator.Marker)
					job.Reporter = endsOnceBegun{marker, job.Reporter, c.found, end}
				}
				_, err := worker.Once(ended, job, "charge", provider.charge, find)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want the cause of the context", err)
				}
				return nil, err
			})
			if act := charged(doc); act["token"] != c.token || provider.n != 0 {
				t.Errorf("%d charges; the record %v, want the token %v", provider.n, act, c.token)
			}
		})
	}
}

// endsOnceBegun calls end once an act has begun, or is found, as a SIGTERM may.
type endsOnceBegun struct {
	orchestrator.Marker
	orchestrator.Reporter

	found bool
	end   func()
}

func (e endsOnceBegun) Begin(ctx context.Context, name string, again bool) (*orchestrator.Act, error) {
	act, err := e.Marker.Begin(ctx, name, again)
	if (act != nil) == e.found {
		e.end()
	}
	return act, err
}

func TestOnce_Done(t *testing.T) {
	check := func(t *testing.T, document map[string]any, want string) {
		t.Helper()
		if act := charged(document); act["state"] != "done" || act["result"] != want {
			t.Errorf("the act is %v", act)
		}
	}
	worker.Subtest(t, "after its call has ended", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := worker.Do(ctx, open(t, b, nil), "op", "key", func(ctx context.Context, job worker.Job) (int, error) {
			receipt, err := worker.Once(ctx, job, "charge", func(context.Context) (int, error) {
				time.Sleep(2 * time.Second)
				return 7, nil
			})
			if receipt != 7 || err != nil {
				t.Errorf("Once = %d, %v", receipt, err)
			}
			return receipt, errBroken
		})
		if !errors.Is(err, errBroken) {
			t.Error(err)
		}
		check(t, fields(t, collection(t, b, "idempotency").Doc("op:key")), "7")
	})
	worker.Subtest(t, "it stays done", func(t *testing.T) {
		check(t, runAlone(t, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			first, undone := job.End(ctx, "charge", true, 1), job.End(ctx, "charge", false, nil)
			second := job.End(ctx, "charge", true, 2)
			if err := errors.Join(first, second); err != nil || undone == nil {
				t.Errorf("done, and done again: %v; not done: %v", err, undone)
			}
			return nil, nil
		}), "1")
	})
}

// A paused worker, whose lock another has taken, must not act: its marker is not committed.
func TestOnce_Superseded(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		provider := &charges{}
		runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			taken := map[string]any{"lockOwner": "other", "lockToken": job.LockToken + 1}
			set(t, collection(t, b, "jobs").Doc("1"), taken)
			_, err := worker.Once(ctx, job, "charge", provider.charge)
			if err == nil || provider.n != 0 {
				t.Errorf("%d charges, %v", provider.n, err)
			}
			return nil, err
		})
	})
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) { // its marker cannot be removed
		runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			_, err := worker.Once(ctx, job, "charge", func(context.Context) (int, error) {
				taken := map[string]any{"lockOwner": "other", "lockToken": job.LockToken + 1}
				set(t, collection(t, b, "jobs").Doc("1"), taken)
				return 0, worker.NotDone(errDropped)
			})
			if !errors.Is(err, errDropped) || !errors.Is(err, worker.ErrLost) {
				t.Errorf("%v, want that it was not done, and why its marker stays", err)
			}
			return nil, err
		})
	})
}
