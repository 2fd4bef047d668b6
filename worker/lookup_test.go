package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// Before, the record has this status, and a lock that expires in left.
func TestLookup(t *testing.T) {
	for name, c := range map[string]struct {
		status string // empty: there is no record
		left   time.Duration
		lookup string
		reset  string // empty: the next call runs
	}{
		"none":     {lookup: "not found", reset: "not found"},
		"ready":    {status: "READY", lookup: "replayed r"},
		"failed":   {status: "FAILED", lookup: "replayed failed : "},
		"released": {status: "QUEUED", lookup: "unfinished"},
		"crashed":  {status: "PROCESSING", left: -time.Second, lookup: "unfinished"},
		"running":  {status: "PROCESSING", left: time.Minute, lookup: "running 1s", reset: "running 1s"},
		"ending":   {status: "PROCESSING", left: time.Second / 4, lookup: "running 250ms", reset: "running 250ms"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, token := ahead(t), int64(0)
			g := open(t, b, nil)
			if c.status != "" {
				token = 5
				record := map[string]any{"status": c.status, "lockToken": token, "checkpoint": 7, "result": "r"}
				if c.left != 0 { // by Firestore's clock
					expires := time.Now().Add(clockAhead + c.left)
					record["lockOwner"], record["lockExpiresAt"] = "o", iso8601.Format(expires)
				}
				set(t, collection(t, b, "idempotency").Doc("op:key"), record)
			}
			commits := b.Calls.Count("Commit")
			out, err := worker.Lookup[string](t.Context(), g, "op", "key", worker.DoOptions{})
			if got := said(out, err); got != c.lookup || out.Token != token {
				t.Errorf("Lookup: %s with the token %d, want %s, %d", got, out.Token, c.lookup, token)
			}
			if n := b.Calls.Count("Commit") - commits; n > 0 {
				t.Errorf("Lookup makes %d commits", n)
			}

			reset := worker.Reset(t.Context(), g, "op", "key", worker.DoOptions{})
			if got := said(worker.Outcome[string]{}, reset); got != c.reset {
				t.Errorf("Reset: %s, want %s", got, c.reset)
			}
			if c.reset == "" {
				checkDo(t.Context(), t, g, "ran from  own", func(_ context.Context, job worker.Job) (string, error) {
					if job.LockToken <= 5 {
						t.Errorf("the token %d is not new", job.LockToken)
					}
					return "from " + string(job.Resume), errOwn
				})
			}
		})
	}
}

// oneWay is encoded in a way that encoding/json cannot decode again.
type oneWay struct {
	Name  string
	Cents cents
}

type cents int

func (c cents) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%d¢", c)) }

// It is not half decoded.
func TestDo_OtherType(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		made := oneWay{"card", 7}
		check := func(call string, got worker.Outcome[oneWay], err error, want worker.Outcome[oneWay]) {
			t.Helper()
			got.Token = 0
			wrong, ok := errors.AsType[*worker.ResultError](err)
			if !ok || got != want {
				t.Fatalf("%s: %+v, %v, want %+v and a ResultError", call, got, err, want)
			}
			if wrong.Record != "op:key" || wrong.Type != "worker_test.oneWay" {
				t.Errorf("%s: %+v", call, wrong)
			}
		}
		for call, want := range []worker.Outcome[oneWay]{{Value: made, Ran: true}, {Replayed: true}} {
			got, err := worker.DoOutcome(t.Context(), g, "op", "key", worker.DoOptions{}, returns(made, nil))
			check(fmt.Sprint("call ", call), got, err, want)
		}
		got, err := worker.Lookup[oneWay](t.Context(), g, "op", "key", worker.DoOptions{})
		check("Lookup", got, err, worker.Outcome[oneWay]{Replayed: true})
	})
}

// The options of one call do not apply to another in the same collection.
func TestDo_Options(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g := open(t, b, func(o *worker.Options) { o.Lock.TTL, o.RunTimeout = time.Hour, 2*time.Hour })
		own := worker.DoOptions{Lock: lease.Policy{TTL: 10 * time.Minute}, RunTimeout: 3 * time.Hour}
		for _, c := range []struct {
			key       string
			o         worker.DoOptions
			ttl, runs time.Duration
		}{
			{key: "own", o: own, ttl: 10 * time.Minute, runs: 3 * time.Hour},
			{key: "of the guard", ttl: time.Hour, runs: 2 * time.Hour},
		} {
			record, began := collection(t, b, "idempotency").Doc("op:"+c.key), time.Now()
			_, _ = doWith(t.Context(), g, c.key, c.o, func(ctx context.Context, _ worker.Job) (int, error) {
				text, _ := fields(t, record)["lockExpiresAt"].(string)
				expires, err := time.Parse(time.RFC3339, text)
				if left := time.Until(expires.Add(-clockAhead)); err != nil || left.Round(time.Second) != c.ttl {
					t.Errorf("%s: the lock expires in %v, want %v", c.key, left, c.ttl)
				}
				<-ctx.Done()
				return 0, errOwn
			})
			if took := time.Since(began).Round(time.Second); took != c.runs {
				t.Errorf("%s: the run took %v, want %v", c.key, took, c.runs)
			}
		}
	})
}

// Codes and reasons are the same as in the answers to deliveries.
func TestDo_Log(t *testing.T) {
	const secret = "s3cret"
	for want, err := range map[string]error{
		"":                     nil,
		"code=analyzer_failed": errors.New(secret),
		"code=declined":        worker.Permanent("declined", secret, nil),
	} {
		worker.Subtest(t, want, func(t *testing.T) {
			g, log := openLogged(t, emulatortest.Embedded(t), nil)
			_, _ = doWith(t.Context(), g, "key", worker.DoOptions{Params: secret}, returns[any](secret, err))
			got := log.String()
			named := strings.Count(got, "analysis_id=op:key kind=do")
			if named != strings.Count(want, "=") || !strings.Contains(got, want) {
				t.Errorf("want a line with %s:\n%s", want, got)
			}
			if strings.Contains(got, secret) || strings.Count(got, "\n") > 1 {
				t.Errorf("want at most one line, without values:\n%s", got)
			}
		})
	}
}

func TestDo_Uncertain(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		for _, want := range []string{"ran broken", "ran uncertain charge", "ran uncertain charge"} {
			checkDo(t.Context(), t, g, want, func(ctx context.Context, job worker.Job) (string, error) {
				return worker.Once(ctx, job, "charge", acting("", errBroken))
			})
		}
		if err := worker.Reset(t.Context(), g, "op", "key", worker.DoOptions{}); !errors.Is(err, worker.ErrUncertain) {
			t.Errorf("Reset: %v", err)
		}
		record := collection(t, b, "idempotency").Doc("op:key")
		checkRecord(t, record, map[string]any{"status": "QUEUED", "lockOwner": nil, "expireAt": nil})
	})
}

// recovered calls the recovery of g, and returns its answer and the lines that it has logged.
func recovered(t *testing.T, g *worker.Guard, log *emulatortest.Log) (answer, lines string) {
	t.Helper()
	before := len(log.String())
	_, answer = post(t, g.Recovery(), "/", "")
	return answer, log.String()[before:]
}

// Nobody else would report a record whose caller does not call again.
func TestRecovery_Uncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g, log := openLogged(t, b, nil)
		for _, doc := range []string{"idempotency/op:1", "idempotency/op:2", "others/op:1", "unused/op:1"} {
			name, id, _ := strings.Cut(doc, "/")
			set(t, collection(t, b, name).Doc(id), map[string]any{"status": "QUEUED", "openEffects": 1, "lockToken": 1})
		}
		check := func(others bool) {
			t.Helper()
			_, lines := recovered(t, g, log)
			const message = `level=WARN msg="acts of Do are uncertain" collection=`
			own, unused := message+"idempotency records=2\n", message+"unused"
			if !strings.Contains(lines, own) || strings.Contains(lines, unused) {
				t.Errorf("want two records of the default collection, and no collection that nobody uses:\n%s", lines)
			}
			if strings.Contains(lines, message+"others records=1\n") != others {
				t.Errorf("want those of others: %v\n%s", others, lines)
			}
		}
		check(false) // also without a call of Do
		_, err := worker.Lookup[int](t.Context(), g, "op", "new", worker.DoOptions{Collection: "others"})
		if !errors.Is(err, lease.ErrNotFound) {
			t.Error(err)
		}
		check(true)
	})
}

// No delivery could call the function of a record, so recovery finds and books none.
func TestRecovery_Records(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g := open(t, b, q.Use)
		g.MustRegister(worker.Kind{Name: "do", Collection: "idempotency"}).Handler()
		for _, status := range []string{"QUEUED", "PROCESSING"} {
			record := map[string]any{"status": status, "updatedAt": "1999-01-01T00:00:00.000Z"}
			set(t, collection(t, b, "idempotency").Doc("op:"+status), record)
		}
		checkPost(t, g.Recovery(), "/", "", http.StatusOK, `"found":0,"booked":0`)
		if tasks := q.Tasks(); len(tasks) > 0 {
			t.Errorf("booked %v", tasks)
		}
	})
}

// The process is killed after the charge, and the client never repeats its request. Only its own call
// could finish the record.
func TestRecovery_Abandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g, log := openLogged(t, b, nil)
		records := collection(t, b, "idempotency")
		charge := func(then error, want string) {
			t.Helper()
			checkDo(t.Context(), t, g, want, func(ctx context.Context, job worker.Job) (string, error) {
				receipt, err := worker.Once(ctx, job, "charge", acting("7", nil))
				checkRecord(t, records.Doc("op:key"), map[string]any{"expireAt": nil, "unfinishedEffects": int64(1)})
				return receipt, errors.Join(err, then)
			})
		}
		check := func(after time.Duration, abandoned int) {
			t.Helper()
			time.Sleep(after)
			answer, lines := recovered(t, g, log)
			var got struct{ Abandoned int }
			_ = json.Unmarshal([]byte(answer), &got)
			warned := strings.Contains(lines, `msg="records of Do are abandoned" collection=idempotency`)
			if got.Abandoned != abandoned || warned != (abandoned > 0) {
				t.Errorf("%s, want %d abandoned, logged:\n%s", answer, abandoned, lines)
			}
		}
		charge(errBroken, "ran 7 broken") // as a killed process leaves it, but for the lock
		check(lease.DefaultTTL+10*time.Minute-time.Second, 0)
		check(time.Second, 1)
		set(t, records.Doc("op:other"), fields(t, records.Doc("op:key")))
		set(t, records.Doc("op:no act"), map[string]any{"status": "QUEUED", "unfinishedEffects": 7})
		check(0, 2)
		others := worker.DoOptions{Collection: "others"}
		_, _ = worker.Lookup[int](t.Context(), g, "op", "none", others) // now recovery counts those too
		set(t, collection(t, b, "others").Doc("op:key"), fields(t, records.Doc("op:key")))
		check(0, 3)
		remove(t, collection(t, b, "others").Doc("op:key"))
		charge(nil, "ran 7")
		checkRecord(t, records.Doc("op:key"), map[string]any{"status": "READY", "unfinishedEffects": nil})
		if fields(t, records.Doc("op:key"))["expireAt"] == nil {
			t.Error("it does not expire")
		}
		check(0, 1)
	})
}
