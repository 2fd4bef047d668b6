package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/http"
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
	doc, h := collection(t, b, "jobs").Doc("1"), g.MustRegister(jobs(run)).Handler()
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

// An application may have its own field effects. The error names the field, as nobody began the act.
func TestOnce_EffectsOfTheApplication(t *testing.T) {
	for name, effects := range map[string]any{
		"no map": "sepia", "an act of the same name": map[string]any{"charge": "sepia"},
	} {
		b, c := emulatortest.Embedded(t), &charges{}
		record := map[string]any{"state": "PENDING", "effects": effects}
		document := runJob(t, b, open(t, b, nil), 1, record, func(ctx context.Context, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "charge", c.charge)
		})
		failure := fmt.Sprint(document["error"])
		if c.n != 0 || !strings.Contains(failure, "effect_uncertain") || !strings.Contains(failure, "rename yours") {
			t.Errorf("%s: %d charges, and the failure is %s; want none, and the reason", name, c.n, failure)
		}
		if strings.Contains(failure, "0001") || strings.Contains(failure, "sepia") {
			t.Errorf("%s: the failure is %s, with a time that is none or with the field's value", name, failure)
		}
	}
}

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
		"done, then a failure":         {after: errBroken, charges: 1, status: "READY", state: "done", result: "1"},
		"surely not done":              {act: worker.NotDone(errDropped), charges: 2, status: "READY", state: "done", result: "2"},
		"not done, wrapped":            {act: fmt.Errorf("provider: %w", worker.NotDone(errDropped)), charges: 2, status: "READY", state: "done", result: "2"},
		"not done, without a reason":   {act: worker.NotDone(nil), charges: 2, status: "READY", state: "done", result: "2"},
		"unknown, nobody to ask":       {act: errDropped, charges: 1, status: "FAILED", code: "effect_uncertain", state: "started", open: int64(1)},
		"unknown, found":               {act: errDropped, find: []worker.Finder[int]{found}, charges: 1, status: "READY", state: "done", result: "7"},
		"unknown, not found":           {act: errDropped, find: []worker.Finder[int]{lost}, charges: 2, status: "READY", state: "done", result: "2"},
		"unknown, cannot be asked":     {act: errDropped, find: []worker.Finder[int]{broken}, charges: 1, status: "QUEUED", state: "started", open: int64(1)},
		"unknown, and the run is over": {after: &worker.UncertainError{Key: "1", Name: "other"}, charges: 1, status: "FAILED", code: "effect_uncertain", state: "done", result: "1"},
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

// In each case no later attempt asks for the act, or only if a client calls again.
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
		}, ` effects=[charge] effect_tokens=[946684800000002] kind=do analysis_id=charge:k lock_token=946684800000003`},
		"of Do, whose function hides it": {func(ctx context.Context, g *worker.Guard, _ *firestore.DocumentRef, _ worker.Job) (any, error) {
			return worker.Do(ctx, g, "charge", "k", func(ctx context.Context, job worker.Job) (any, error) {
				_, err := worker.Once(ctx, job, "charge", unknown)
				return nil, errors.New(err.Error())
			})
		}, ` effects=[charge] effect_tokens=[946684800000002] kind=do analysis_id=charge:k lock_token=946684800000003`},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			doc := collection(t, b, "jobs").Doc("1")
			set(t, doc, map[string]any{"state": "PENDING"})
			h := g.MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) { return tc.run(ctx, g, doc, job) })).Handler()
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

// No retry can help an act that cannot begin. So the run has failed, also if it ignores the error.
func TestAnActThatCannotBeginFailsItsRun(t *testing.T) {
	none := worker.Find(func(context.Context) (int, bool, error) { return 0, false, nil })
	found := worker.Find(func(context.Context) (int, bool, error) { return 7, true, nil })
	for name, tc := range map[string]struct {
		acts string // each "name" or "name:error"
		find []worker.Finder[int]
		more map[string]any // of the record
		code string         // empty: it becomes READY
		done string
		ends error // of the run, unless the act's
	}{
		"one name":                       {acts: "mail mail", code: "act_name_reused", done: "mail"},
		"one name, with Find":            {acts: "mail mail", find: []worker.Finder[int]{found}, code: "act_name_reused", done: "mail"},
		"one name, the first is unknown": {acts: "mail:broken mail", find: []worker.Finder[int]{none}, code: "act_name_reused", done: "mail"},
		"one name, and another error":    {acts: "mail mail", ends: errBroken, code: "act_name_reused", done: "mail"},
		"a name that another begins":     {acts: "mail mail-1 mai", done: "mail mail-1 mai"},
		"again after NotDone":            {acts: "mail:not mail", done: "mail mail"},
		"found from an earlier attempt": {acts: "mail mail", find: []worker.Finder[int]{found}, code: "act_name_reused",
			more: map[string]any{"lockToken": 1, "effects": map[string]any{"mail": map[string]any{"state": "started", "token": 1}}}},
		"not found, begun again": {acts: "mail", find: []worker.Finder[int]{none}, done: "mail",
			more: map[string]any{"lockToken": 1, "effects": map[string]any{"mail": map[string]any{"state": "started", "token": 1}}}},
		"16":               {acts: "a b c d e f g h i j k l m n o p", done: "a b c d e f g h i j k l m n o p"},
		"17":               {acts: "a b c d e f g h i j k l m n o p q", code: "acts_full", done: "a b c d e f g h i j k l m n o p"},
		"no room":          {acts: "mail", more: map[string]any{"theirs": strings.Repeat("x", 1<<20-4000)}, code: "acts_full"},
		"not a name":       {acts: "a/b"},
		"a reserved name":  {acts: "__x__"},
		"close to the one": {acts: "__x _x__", done: "__x _x__"},
	} {
		for _, ignored := range []bool{false, true} {
			worker.Subtest(t, fmt.Sprintf("%s, ignored %v", name, ignored), func(t *testing.T) {
				b := emulatortest.Embedded(t)
				var done []string
				set(t, collection(t, b, "jobs").Doc("1"), tc.more)
				got := runJob(t, b, open(t, b, nil), 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
					for _, act := range strings.Fields(tc.acts) {
						name, fault, _ := strings.Cut(act, ":")
						_, err := worker.Once(ctx, job, name, func(context.Context) (int, error) {
							done = append(done, name)
							return 1, map[string]error{"not": worker.NotDone(errDropped), "broken": errBroken}[fault]
						}, tc.find...)
						if err != nil && fault == "" && !ignored && tc.code != "" {
							return nil, err
						}
					}
					return nil, tc.ends
				})
				failure, _ := got["error"].(map[string]any)
				if state := map[bool]string{true: "DONE", false: "ERROR"}[tc.code == ""]; got["state"] != state {
					t.Errorf("state %v, want %s", got["state"], state)
				}
				if code, _ := failure["code"].(string); code != tc.code || strings.Join(done, " ") != tc.done {
					t.Errorf("error %v after %q, want %s after %q", failure, done, tc.code, tc.done)
				}
			})
		}
	}
}

func TestAnActCostsTwoWrites(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		before := b.Server.Usage().Writes
		runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			for i := range 16 {
				if _, err := worker.Once(ctx, job, fmt.Sprint("act-", i), (&charges{}).charge); err != nil {
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

// The first attempt fails after the act. The first call returns what later ones return.
func TestTheResultOfAnActIsKeptAsJSON(t *testing.T) {
	type secret struct {
		ID     string
		Hidden string `json:"-"`
	}
	type broken struct{ Reply chan int }
	type list struct {
		Next   *list
		Any    any
		At     time.Time
		Number *big.Int
		Secret chan int `json:"-"`
		_      func()
	}
	large, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	for name, tc := range map[string]struct {
		once   func(ctx context.Context, job worker.Job, calls *int) (any, error)
		more   map[string]any // of the record
		calls  int
		first  string // in the value or the error of the first attempt
		second string // in the second attempt; empty: the same as first
		code   string // of the document's error
	}{
		"an array in an array": {once: receipt([][]int{{1}, {2, 3}}), calls: 1, first: "[[1] [2 3]]"},
		"a large integer":      {once: receipt(uint64(math.MaxUint64)), calls: 1, first: "18446744073709551615"},
		"odd names":            {once: receipt(map[string]int{"": 1, "__x__": 2}), calls: 1, first: "map[:1 __x__:2]"},
		"a field without JSON": {once: receipt(secret{"ch_7", "pin"}), calls: 1, first: "{ch_7 }"},
		"a big.Int":            {once: receipt(large), calls: 1, first: large.String()},
		"a decimal":            {once: receipt(json.Number("1234567890123456.78")), calls: 1, first: "1234567890123456.78"},
		"markup":               {once: receipt("<a>&\xff"), calls: 1, first: "<a>&\uFFFD"},
		"nothing":              {once: receipt[*secret](nil), calls: 1, first: "<nil>"},
		"NaN":                  {once: receipt(math.NaN()), calls: 1, first: "unsupported value: NaN", second: "was not stored: json: unsupported value: NaN", code: "effect_result_invalid"},
		"over 64 KiB": {once: receipt(strings.Repeat("x", 64<<10)), calls: 1, first: "no room for the result", second: "was not stored: there is no room",
			code: "effect_result_invalid"},
		"no room for it": {once: receipt(strings.Repeat("x", 20<<10)), more: map[string]any{"theirs": strings.Repeat("x", 1<<20-16<<10)}, calls: 1,
			first: "no room for the result", second: "was not stored: there is no room", code: "effect_result_invalid"},
		"room for it":             {once: receipt(strings.Repeat("x", 4<<10-2)), more: map[string]any{"theirs": strings.Repeat("x", 1<<20-6000)}, calls: 1, first: "xxx"},
		"a channel":               {once: receipt(make(chan int)), first: "cannot be stored", code: "result_invalid"},
		"a function":              {once: receipt(func() {}), first: "cannot be stored", code: "result_invalid"},
		"a complex number":        {once: receipt(1i), first: "cannot be stored", code: "result_invalid"},
		"a pointer to a channel":  {once: receipt(&broken{}), first: "cannot be stored", code: "result_invalid"},
		"a function in a list":    {once: receipt(struct{ Items []struct{ F func() } }{}), first: "cannot be stored", code: "result_invalid"},
		"complex numbers in maps": {once: receipt(map[string]complex128{}), first: "cannot be stored", code: "result_invalid"},
		"a map by numbers":        {once: receipt(map[float64]int{}), first: "cannot be stored", code: "result_invalid"},
		"a map by times":          {once: receipt(map[time.Time]int{{}: 7}), calls: 1, first: "7"},
		"a list of itself":        {once: receipt(&list{}), calls: 1, first: "{<nil> <nil> 0001-01-01 00:00:00 +0000 UTC <nil> <nil>"},
		"a channel in a variable": {once: receipt[any](make(chan int)), calls: 1, first: "unsupported type: chan int", second: "was not stored", code: "effect_result_invalid"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			var seen []string
			calls := 0
			set(t, collection(t, b, "jobs").Doc("1"), tc.more)
			got := runJob(t, b, open(t, b, nil), 2, pending, func(ctx context.Context, job worker.Job) (any, error) {
				value, err := tc.once(ctx, job, &calls)
				if seen = append(seen, fmt.Sprint(value)); err != nil {
					seen[len(seen)-1] = err.Error()
				}
				if lost, ok := errors.AsType[*worker.NotStoredError](err); ok && (errors.As(err, new(*worker.PermanentError)) || lost.Value == nil) {
					t.Errorf("the error %#v has no value, or is permanent", err)
				}
				if err == nil && len(seen) == 1 {
					err = errBroken
				}
				return "done", err
			})

			failure, _ := got["error"].(map[string]any)
			if code, _ := failure["code"].(string); code != tc.code || calls != tc.calls || (charged(got) != nil) != (calls > 0) {
				t.Errorf("%v after %d calls, record %v", failure, calls, charged(got))
			}
			if tc.calls > 0 && tc.second == "" && (len(seen) != 2 || seen[0] != seen[1]) {
				t.Errorf("later calls return another value: %q", seen)
			}
			if text := strings.Join(seen, "\n"); strings.Contains(text, "rpc error") || strings.Contains(text, "orchestrator: ") || strings.Count(seen[0], `"charge"`) > 1 {
				t.Errorf("%s: want no text of the store, no package inside, and the act's name once", text)
			}
			if !strings.Contains(seen[0], tc.first) || !strings.Contains(seen[len(seen)-1], tc.second) {
				t.Errorf("%q, want %q, then %q", seen, tc.first, tc.second)
			}
		})
	}
}

// An act that was renamed is done twice. A run that continues from a checkpoint may have passed it.
func TestAnActThatIsNotAskedForIsReported(t *testing.T) {
	done := map[string]any{"state": "done", "token": 1, "result": "1"}
	for name, tc := range map[string]struct {
		effects    map[string]any
		checkpoint any
		ask        string
		err        error
		want       string // effects in the line; empty: no line
	}{
		"renamed":              {map[string]any{"charge": done}, nil, "charge-1", nil, "[charge]"},
		"two of three":         {map[string]any{"b": done, "a": done, "charge": done}, nil, "charge", nil, `"[a b]"`},
		"asked for":            {map[string]any{"charge": done}, nil, "charge", nil, ""},
		"it fails":             {map[string]any{"charge": done}, nil, "charge-1", errBroken, ""},
		"after a checkpoint":   {map[string]any{"charge": done}, 5, "charge-1", nil, ""},
		"open, which is worse": {map[string]any{"charge": map[string]any{"state": "started", "token": 1}}, nil, "charge-1", nil, ""},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, lines := openLogged(t, b, nil)
			record := map[string]any{"state": "PENDING", "lockToken": 1, "effects": tc.effects, "checkpoint": tc.checkpoint}
			runJob(t, b, g, 1, record, func(ctx context.Context, job worker.Job) (any, error) {
				_, err := worker.Once(ctx, job, tc.ask, (&charges{}).charge)
				return nil, errors.Join(err, tc.err)
			})
			line := `level=WARN msg="acts of an earlier attempt were not asked for" analysis_id=1 lock_token=2 effects=` + tc.want
			if n := strings.Count(lines.String(), "not asked for"); n != min(1, len(tc.want)) || tc.want != "" && !strings.Contains(lines.String(), line) {
				t.Errorf("want %q in\n%s", line, lines)
			}
		})
	}
}

// A job that no guard made has the constant key of all such jobs, and no marker.
func TestWithoutAGuardNoActBegins(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		provider := &charges{}
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			job, ok := worker.JobFromContext(r.Context())
			_, err := worker.Once(r.Context(), job, "charge", provider.charge)
			if ok || !errors.Is(err, worker.ErrNoGuard) {
				t.Errorf("%v, %v", ok, err)
			}
			checkPanic(t, "no guard made this job", func() { job.Key("charge") })
			if err := job.Checkpoint(r.Context(), 1); !errors.Is(err, worker.ErrNoGuard) {
				t.Errorf("a checkpoint: %v", err)
			}
		})
		optional := g.Idempotent(worker.IdempotentOptions{Optional: true, Scope: func(*http.Request) string { return "a" }})
		for _, h := range []http.Handler{handler, optional(handler)} {
			post(t, h, "/charges", "{}")
		}
		if provider.n != 0 {
			t.Errorf("%d charges", provider.n)
		}
	})
}

// Two kinds, and a record of Do, may have documents with one id.
func TestTheKeyOfAnActIsThatOfItsCollection(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		keys := map[string]bool{}
		note := func(_ context.Context, job worker.Job) (any, error) {
			keys[job.Key("charge")] = true
			keys[job.Key("refund")] = true
			return nil, nil
		}
		other := jobs(note)
		other.Name, other.Collection, other.Path = "refund", "refunds", "/tasks/refund"
		for _, kind := range []worker.Kind{jobs(note), other} {
			set(t, collection(t, b, kind.Collection).Doc("op:1"), pending)
			work := g.MustRegister(kind)
			post(t, work.Handler(), kind.Path, `{"job_id":"op:1","refund_id":"op:1"}`)
			if key := work.Operator().ActKey("op:1", "charge"); !keys[key] || work.Operator().ActKey("op:1", "*") != "" {
				t.Errorf("an operator's key, %s, is none of %v", key, keys)
			}
		}
		if _, err := worker.Do(t.Context(), g, "op", "1", note); err != nil || len(keys) != 6 {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	})
}

// Another program has written to the document. The act may have been done.
func TestADamagedRecordIsNotTakenForNone(t *testing.T) {
	for name, effects := range map[string]any{
		"a string":            map[string]any{"charge": "done"},
		"an array":            map[string]any{"charge": []any{map[string]any{"state": "done"}}},
		"null":                map[string]any{"charge": nil},
		"no state":            map[string]any{"charge": map[string]any{"token": 1, "result": "1"}},
		"another state":       map[string]any{"charge": map[string]any{"state": "DONE", "token": 1, "result": "1"}},
		"a state of a number": map[string]any{"charge": map[string]any{"state": 1, "token": "x", "result": "1"}},
		"all: a string":       "charge",
		"all: an array":       []any{"charge"},
		"all: a number":       1,
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			provider := &charges{}
			got := runJob(t, b, open(t, b, nil), 1, map[string]any{"state": "PENDING", "lockToken": 5, "effects": effects}, func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", provider.charge)
			})
			if failure, _ := got["error"].(map[string]any); provider.n != 0 || failure["code"] != "effect_uncertain" {
				t.Errorf("%d charges, error %v", provider.n, failure)
			}
		})
	}
}

// The inner act was certainly not done; the outer one may have been, unless it returns NotDone too.
func TestNotDoneCountsForTheActThatReturnsIt(t *testing.T) {
	for want, outer := range map[int]func(error) error{
		1: func(err error) error { return fmt.Errorf("mail: %w", err) },
		2: worker.NotDone,
	} {
		synctest.Test(t, func(t *testing.T) {
			b, acts := emulatortest.Embedded(t), 0
			h := open(t, b, nil).MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "ship", func(ctx context.Context) (int, error) {
					acts++
					_, err := worker.Once(ctx, job, "mail", func(context.Context) (int, error) { return 0, worker.NotDone(errDropped) })
					if !errors.Is(err, errDropped) {
						t.Errorf("the reason of the inner act is %v", err)
					}
					return 0, outer(err)
				})
			})).Handler()
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
	reserve := strings.Repeat(" ", 4096)
	before := map[string]any{"state": "started", "token": int64(1), "at": "1999-01-01T00:00:00.000Z", "reserve": reserve}
	for name, c := range map[string]struct {
		earlier, want map[string]any // the record
		marked        bool           // the context ends once the marker is committed
	}{
		"the first attempt":         {},
		"a later attempt":           {earlier: before, want: before},
		"the first attempt, marked": {marked: true},
		"a later attempt, marked":   {before, map[string]any{"state": "started", "token": int64(6), "at": "2000-01-01T00:00:00.000Z", "reserve": reserve}, true},
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

func (e endsOnceBegun) Begin(ctx context.Context, name string, again bool) (*orchestrator.Act, error) {
	act, err := e.Marker.Begin(ctx, name, again)
	if act == nil {
		e.end()
	}
	return act, err
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
		effects := map[string]any{"charge": map[string]any{"state": "done", "token": 1, "result": `"ch_7"`}}
		set(t, job, map[string]any{"state": "PENDING", "lockToken": 1, "effects": effects})
		set(t, record, map[string]any{"status": "QUEUED", "lockToken": 1, "effects": effects})

		_, err := worker.Do(t.Context(), g, "op", "key", charge)
		wrong, ok := errors.AsType[*worker.ResultError](err)
		if !ok || wrong.Record != "charge" || wrong.Type != "int" {
			t.Fatalf("Do: %v", err)
		}
		checkRecord(t, record, map[string]any{"status": "QUEUED", "lockOwner": nil})

		work := g.MustRegister(jobs(func(ctx context.Context, job worker.Job) (any, error) { return charge(ctx, job) }))
		post(t, work.Handler(), "/tasks/job", `{"job_id":"1"}`)
		checkRecord(t, job, map[string]any{"state": "ERROR", "error": map[string]any{"code": "effect_result_invalid", "message": wrong.Error()}})
	})
}

// Ten attempts would not make the name better.
func TestAnActWithoutAValidNameIsAPermanentFailure(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		got := runJob(t, b, g, 1, pending, func(ctx context.Context, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "a/b", func(context.Context) (int, error) { t.Error("the act is done"); return 0, nil })
		})
		if failure, _ := got["error"].(map[string]any); got["state"] != "ERROR" || failure["code"] != "act_name_invalid" {
			t.Errorf("the document is %v", got)
		}
	})
}

// The call ends during the act: the result is recorded, and returned, all the same.
func TestAnActThatEndsAfterItsCallIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g := open(t, b, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := worker.Do(ctx, g, "op", "key", func(ctx context.Context, job worker.Job) (int, error) {
			receipt, err := worker.Once(ctx, job, "charge", func(context.Context) (int, error) { time.Sleep(2 * time.Second); return 7, nil })
			if receipt != 7 || err != nil {
				t.Errorf("Once = %d, %v", receipt, err)
			}
			return receipt, errors.Join(err, errBroken)
		})
		act, _ := fields(t, collection(t, b, "idempotency").Doc("op:key"))["effects"].(map[string]any)["charge"].(map[string]any)
		if !errors.Is(err, errBroken) || act["state"] != "done" || act["result"] != "7" {
			t.Errorf("%v; the act is %v", err, act)
		}
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
		if act["state"] != "done" || act["result"] != "1" {
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
