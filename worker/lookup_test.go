package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

func TestTwoOperationsWithOneKeyAreTwoRecords(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		for _, operation := range []string{"charge", "refund", "charge"} {
			got, err := worker.Do(t.Context(), g, operation, "order:7", func(_ context.Context, job worker.Job) (string, error) {
				return "of " + job.AnalysisID, nil
			})
			if want := "of " + operation + ":order:7"; got != want || err != nil {
				t.Errorf("Do = %q, %v; want %q", got, err, want)
			}
		}
		// Otherwise the operation a:b with the key c would have the record of a with b:c.
		for _, operation := range []string{"", "a:b", "a/b", "1a", strings.Repeat("a", 101)} {
			if _, err := worker.Do(t.Context(), g, operation, "key", one); err == nil || !strings.Contains(err.Error(), "the operation ") {
				t.Errorf("operation %q: error %v", operation, err)
			}
		}
	})
}

// The record of each case but the first is in that state before.
func TestLookupReadsTheOutcomeAndResetOpensTheKey(t *testing.T) {
	notCalled := errors.New("the function is not called")
	crashed := func(expires time.Time) map[string]any {
		return map[string]any{"status": "PROCESSING", "lockOwner": "o", "lockToken": 5, "attempts": 1, "lockExpiresAt": expires.UTC().Format("2006-01-02T15:04:05.000Z")}
	}
	for name, c := range map[string]struct {
		record  func(now time.Time) map[string]any // now is Firestore's
		lookup  worker.Outcome[string]
		err     error
		reset   error
		running bool
	}{
		"none": {err: lease.ErrNotFound, reset: lease.ErrNotFound},
		"ready": {record: func(time.Time) map[string]any {
			return map[string]any{"status": "READY", "result": "r", "lockToken": 5}
		}, lookup: worker.Outcome[string]{Value: "r", Replayed: true, Token: 5}},
		"failed": {record: func(time.Time) map[string]any {
			return map[string]any{"status": "FAILED", "result": "old", "lockToken": 5, "error": map[string]any{"code": "c", "message": "m"}}
		}, lookup: worker.Outcome[string]{Replayed: true, Token: 5}, err: &worker.FailedError{Code: "c", Message: "m"}},
		"released": {record: func(time.Time) map[string]any {
			return map[string]any{"status": "QUEUED", "lockToken": 5, "checkpoint": 7}
		}, lookup: worker.Outcome[string]{Token: 5}, err: worker.ErrUnfinished},
		"crashed": {record: func(now time.Time) map[string]any { return crashed(now.Add(-time.Second)) }, lookup: worker.Outcome[string]{Token: 5}, err: worker.ErrUnfinished},
		"running": {record: func(now time.Time) map[string]any { return crashed(now.Add(time.Minute)) }, lookup: worker.Outcome[string]{Token: 5}, running: true},
		"ending":  {record: func(now time.Time) map[string]any { return crashed(now.Add(time.Second / 4)) }, lookup: worker.Outcome[string]{Token: 5}, running: true},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := ahead(t)
			g, doc, now := open(t, b, nil), collection(t, b, "idempotency").Doc("op:key"), time.Now().Add(clockAhead)
			if c.record != nil {
				set(t, doc, c.record(now))
			}
			held := func(err error) bool {
				running, ok := errors.AsType[*worker.RunningError](err)
				return ok && running.RetryIn > 0 && running.RetryIn <= min(time.Second, running.ExpiresAt.Sub(now)) && strings.HasSuffix(err.Error(), "try again in "+running.RetryIn.String())
			}

			commits := b.Calls.Count("Commit")
			got, err := worker.Lookup[string](t.Context(), g, "op", "key", worker.DoOptions{})
			if got != c.lookup || c.running != held(err) || !c.running && !errors.Is(err, c.err) && !reflect.DeepEqual(err, c.err) { //nolint:govet // a FailedError is compared as a whole
				t.Errorf("Lookup = %+v, %v; want %+v, %v", got, err, c.lookup, c.err)
			}
			if n := b.Calls.Count("Commit") - commits; n > 0 {
				t.Errorf("Lookup makes %d commits", n)
			}

			err = worker.Reset(t.Context(), g, "op", "key", worker.DoOptions{})
			if c.running != held(err) || !c.running && !errors.Is(err, c.reset) {
				t.Errorf("Reset: %v, want %v", err, c.reset)
			}
			if c.running || c.reset != nil {
				return
			}
			out, err := worker.DoOutcome(t.Context(), g, "op", "key", worker.DoOptions{}, func(_ context.Context, job worker.Job) (string, error) {
				if job.Resume != nil {
					t.Errorf("the run after Reset continues from %s", job.Resume)
				}
				return "new", notCalled
			})
			if !out.Ran || !errors.Is(err, notCalled) || out.Token <= 5 {
				t.Errorf("after Reset: %+v, %v", out, err)
			}
		})
	}
}

func TestLookupChecksTheParametersAndTheType(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		for key, end := range map[string]error{"key": nil, "failed": worker.Permanent("declined", "of the first call alone", nil)} {
			if _, err := doWith(t.Context(), g, key, worker.DoOptions{Params: 1}, func(context.Context, worker.Job) (string, error) { return "x", end }); (err != nil) != (end != nil) {
				t.Fatal(err)
			}
			if got, err := worker.Lookup[any](t.Context(), g, "op", key, worker.DoOptions{Params: 2}); !errors.Is(err, worker.ErrParams) || got != (worker.Outcome[any]{}) {
				t.Errorf("%s: other parameters: %+v, %v", key, got, err)
			}
			if got, err := worker.DoOutcome(t.Context(), g, "op", key, worker.DoOptions{Params: 2}, one); !errors.Is(err, worker.ErrParams) || !errors.Is(err, worker.ErrNotRun) || got != (worker.Outcome[int]{}) {
				t.Errorf("%s: Do with other parameters: %+v, %v", key, got, err)
			}
		}
		_, err := worker.Lookup[[]int](t.Context(), g, "op", "key", worker.DoOptions{})
		if wrong, ok := errors.AsType[*worker.ResultError](err); !ok || wrong.Record != "op:key" || wrong.Type != "[]int" || !errors.As(err, new(*json.UnmarshalTypeError)) {
			t.Errorf("another type: %v", err)
		}
	})
}

// oneWay is encoded in a way that encoding/json cannot decode again.
type oneWay struct {
	Name  string
	Cents cents
}

type cents int

func (c cents) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%d¢", c)) }

func TestAResultThatDoesNotDecodeIsNotHalfDecoded(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		made := oneWay{"card", 7}
		charge := func(context.Context, worker.Job) (oneWay, error) { return made, nil }
		for _, want := range []worker.Outcome[oneWay]{{Value: made, Ran: true}, {Replayed: true}} {
			got, err := worker.DoOutcome(t.Context(), g, "op", "key", worker.DoOptions{}, charge)
			got.Token = 0
			if !errors.As(err, new(*worker.ResultError)) || got != want {
				t.Errorf("got %+v, %v, want %+v and a ResultError", got, err, want)
			}
		}
		got, err := worker.Lookup[oneWay](t.Context(), g, "op", "key", worker.DoOptions{})
		if !errors.As(err, new(*worker.ResultError)) || got.Value != (oneWay{}) {
			t.Errorf("Lookup: %+v, %v, want no value and a ResultError", got, err)
		}
	})
}

// The options of one call do not apply to another in the same collection.
func TestEachCallOfDoHasItsOwnLockAndRunTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g, records := open(t, b, func(o *worker.Options) { o.Lock.TTL, o.RunTimeout = time.Hour, 2*time.Hour }), collection(t, b, "idempotency")
		for key, c := range map[string]struct {
			o         worker.DoOptions
			ttl, runs time.Duration
		}{
			"of the guard": {worker.DoOptions{}, time.Hour, 2 * time.Hour},
			"a lock":       {worker.DoOptions{Lock: lease.Policy{TTL: 10 * time.Second, MaxAttempts: 1}}, 10 * time.Second, 2 * time.Hour},
			"a run":        {worker.DoOptions{RunTimeout: time.Minute}, time.Hour, time.Minute},
			"a day":        {worker.DoOptions{RunTimeout: 24 * time.Hour}, time.Hour, 24 * time.Hour},
		} {
			for range 2 { // MaxAttempts has no effect
				began := time.Now()
				_, err := doWith(t.Context(), g, key, c.o, func(ctx context.Context, _ worker.Job) (int, error) {
					expires, err := time.Parse(time.RFC3339, fields(t, records.Doc("op:"+key))["lockExpiresAt"].(string))
					if left := time.Until(expires.Add(-clockAhead)); err != nil || left.Round(time.Second) != c.ttl {
						t.Errorf("%s: the lock expires in %v, want %v", key, left, c.ttl)
					}
					<-ctx.Done()
					return 0, errOwn
				})
				if took := time.Since(began).Round(time.Second); took != c.runs || !errors.Is(err, errOwn) {
					t.Errorf("%s: the run took %v, error %v; want %v", key, took, err, c.runs)
				}
			}
		}
	})
}

// Codes and reasons are the same as in the answers to deliveries.
func TestAFailureOfDoIsOneLineWithoutItsValues(t *testing.T) {
	const secret = "s3cret"
	for name, c := range map[string]struct {
		err  error
		want string // empty: no line
	}{
		"success":   {nil, ""},
		"a failure": {errors.New(secret), `outcome=retry duration_ms=1000 analysis_id=op:key kind=do lock_token=* code=analyzer_failed reason="the analyzer returned a *errors.errorString" attempt=1 `},
		"permanent": {&orchestrator.PermanentError{Code: "declined", Message: secret}, `outcome=failed duration_ms=1000 analysis_id=op:key kind=do lock_token=* code=declined attempt=1 `},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, log := openLogged(t, emulatortest.Embedded(t), nil)
			_, err := doWith(t.Context(), g, "key", worker.DoOptions{Params: secret}, func(context.Context, worker.Job) (any, error) {
				time.Sleep(time.Second)
				return secret, c.err
			})
			got := regexp.MustCompile(`lock_token=\d+`).ReplaceAllString(log.String(), "lock_token=*")
			lines := strings.Count(got, "\n")
			if (err == nil) != (c.err == nil) || strings.Contains(got, secret) || lines > 0 != (c.want != "") || lines > 1 || !strings.Contains(got, c.want) {
				t.Errorf("%s: %v, log %s; want one line with %q", name, err, got, c.want)
			}
		})
	}
}

func TestAnUncertainActReachesTheCallerOfDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, acts := emulatortest.Embedded(t), 0
		g := open(t, b, nil)
		for i := range 3 {
			out, err := worker.DoOutcome(t.Context(), g, "op", "key", worker.DoOptions{}, func(ctx context.Context, job worker.Job) (int, error) {
				return worker.Once(ctx, job, "charge", func(context.Context) (int, error) {
					acts++
					return 0, errBroken
				})
			})
			uncertain, ok := errors.AsType[*worker.UncertainError](err)
			if !out.Ran || ok != (i > 0) || ok && uncertain.Name != "charge" || i == 0 && !errors.Is(err, errBroken) {
				t.Errorf("call %d: %+v, %v", i, out, err)
			}
		}
		if err := worker.Reset(t.Context(), g, "op", "key", worker.DoOptions{}); !errors.Is(err, worker.ErrUncertain) {
			t.Errorf("Reset: %v", err)
		}
		checkRecord(t, collection(t, b, "idempotency").Doc("op:key"), map[string]any{"status": "QUEUED", "lockOwner": nil, "expireAt": nil})
		if acts != 1 {
			t.Errorf("the act was done %d times", acts)
		}
	})
}

// Nobody else would report a record whose caller does not call again.
func TestRecoveryReportsTheRecordsWithAnActThatMayHaveBeenDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g, log := openLogged(t, b, nil)
		now := time.Now().Add(clockAhead)
		record := func(collected, key string, expires time.Duration) {
			t.Helper()
			set(t, collection(t, b, collected).Doc("op:"+key), map[string]any{
				"status": "QUEUED", "openEffects": 1, "lockOwner": "o", "lockToken": 1, "lockExpiresAt": now.Add(expires),
			})
		}
		record("idempotency", "crashed", -time.Second)
		record("idempotency", "crashed too", -time.Hour)
		record("idempotency", "running", time.Hour)
		record("others", "crashed", -time.Second)
		record("unused", "crashed", -time.Second)
		set(t, collection(t, b, "idempotency").Doc("op:done"), map[string]any{"status": "READY", "openEffects": 0})

		recovery := g.Recovery()
		reports := func() (lines []string) {
			before := len(log.String())
			post(t, recovery, "/", "")
			for line := range strings.Lines(log.String()[before:]) {
				if _, after, found := strings.Cut(line, `level=WARN msg="acts of Do are uncertain" `); found {
					lines = append(lines, strings.TrimSpace(after))
				}
			}
			slices.Sort(lines)
			return lines
		}
		if got := reports(); !slices.Equal(got, []string{"collection=idempotency records=2"}) {
			t.Errorf("without a call of Do: %q, want those of the default collection", got)
		}
		for _, used := range []string{"", "others", "none"} {
			if _, err := worker.Lookup[int](t.Context(), g, "op", "new", worker.DoOptions{Collection: used}); !errors.Is(err, lease.ErrNotFound) {
				t.Error(err)
			}
		}
		if got, want := reports(), []string{"collection=idempotency records=2", "collection=others records=1"}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
	})
}

// The process is killed after the charge, and the client never repeats its request. Only its own call
// could finish the record.
func TestARecordWithAnActIsKeptAndReportedUntilItsCallerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g, record := open(t, b, nil), collection(t, b, "idempotency").Doc("op:key")
		charge := func(then error) error {
			_, err := worker.Do(t.Context(), g, "op", "key", func(ctx context.Context, job worker.Job) (int, error) {
				oneWay, err := worker.Once(ctx, job, "charge", func(context.Context) (int, error) { return 7, nil })
				checkRecord(t, record, map[string]any{"expireAt": nil, "unfinishedEffects": int64(1)})
				return oneWay, errors.Join(err, then)
			})
			return err
		}
		recovered := func(after time.Duration, abandoned int) {
			t.Helper()
			time.Sleep(after)
			other, log := openLogged(t, b, nil)
			_, err := worker.Lookup[int](t.Context(), other, "op", "x", worker.DoOptions{Collection: "others"}) // has another
			if !errors.Is(err, worker.ErrUnfinished) {
				t.Error(err)
			}
			_, answer := post(t, other.Recovery(), "/", "")
			var got struct{ Abandoned int }
			if err := json.Unmarshal([]byte(answer), &got); err != nil || got.Abandoned != abandoned+1 ||
				strings.Contains(log.String(), `msg="records of Do are abandoned" collection=idempotency records=1`) != (abandoned > 0) ||
				!strings.Contains(log.String(), "stuck=0 abandoned="+strconv.Itoa(abandoned+1)) {
				t.Errorf("%s, %v, want %d abandoned: %s", answer, err, abandoned, log)
			}
		}
		set(t, collection(t, b, "others").Doc("op:x"), map[string]any{
			"status": "QUEUED", "unfinishedEffects": 1, "effects": map[string]any{"charge": map[string]any{"state": "done"}},
		})
		if err := charge(errBroken); !errors.Is(err, errBroken) { // as a killed process leaves it, but for the lock
			t.Error(err)
		}
		released := fields(t, record)
		recovered(lease.DefaultTTL+10*time.Minute-time.Second, 0)
		recovered(time.Second, 1)
		released["lockOwner"], released["lockExpiresAt"] = "o", time.Now().Add(clockAhead+time.Hour)
		set(t, record, released)
		recovered(0, 0)
		set(t, collection(t, b, "idempotency").Doc("op:no act"), map[string]any{"status": "QUEUED", "unfinishedEffects": 7})
		recovered(time.Hour, 1)
		if err := charge(nil); err != nil {
			t.Error(err)
		}
		checkRecord(t, record, map[string]any{"status": "READY", "unfinishedEffects": nil})
		if fields(t, record)["expireAt"] == nil {
			t.Error("it does not expire")
		}
		recovered(time.Hour, 0)
	})
}
