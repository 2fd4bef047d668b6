package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/worker"
)

// The function of the first call returns value and err, and later ones return 7. The third call replays the second.
func TestDo_Outcome(t *testing.T) {
	errPanic := errors.New("oh")
	long := worker.Permanent(strings.Repeat("c", 65), strings.Repeat("m", 4095)+"€", nil)
	cut := "failed " + strings.Repeat("c", 64) + ": " + strings.Repeat("m", 4095)
	large := `"` + strings.Repeat("x", 1<<20-100) + `"` // too large beside the other fields
	for name, c := range map[string]struct {
		value string
		err   error
		first string // see said; without the reason of a failure that Firestore makes
		again string
	}{
		"a result":   {value: `{"b": 2.50}`, first: `ran {"b":2.5}`, again: `replayed {"b":2.5}`},
		"an integer": {value: "9007199254740993", first: "ran 9007199254740993", again: "replayed 9007199254740993"},
		"no value":   {value: "null", first: "ran null", again: "replayed null"},
		"an error":   {err: errBroken, first: "ran broken", again: "ran 7"},
		"a panic":    {err: errPanic, first: "ran panicked: oh", again: "ran 7"},
		"a permanent error": {
			value: `"x"`, err: worker.Permanent("bad", "no", errBroken),
			first: `ran "x" failed bad: no broken`, again: "replayed failed bad: no",
		},
		"a permanent error without a code": {
			err:   worker.Permanent("", "", errBroken),
			first: "ran failed analyzer_rejected: broken broken", again: "replayed failed analyzer_rejected: broken",
		},
		"a permanent error that is too long": {err: long, first: "ran " + cut, again: "replayed " + cut},
		"a result that no document can hold": {
			value: "[[1]]", first: "ran [[1]] not stored failed result_invalid:",
			again: "replayed failed result_invalid:",
		},
		"a result that is too large": {
			value: large, first: "ran " + large + " not stored failed result_too_large:",
			again: "replayed failed result_too_large:",
		},
	} {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
				q := worker.StartQueue(t)
				g := open(t, b, func(o *worker.Options) { q.Use(o); o.Lock.MaxAttempts = 1 }) // both for kinds only
				var token int64
				for i, want := range []string{c.first, c.again, strings.Replace(c.again, "ran", "replayed", 1)} {
					out, err := worker.DoOutcome(t.Context(), g, "op", "key", worker.DoOptions{},
						func(context.Context, worker.Job) (json.RawMessage, error) {
							switch {
							case i > 0:
								return json.RawMessage("7"), nil
							case errors.Is(c.err, errPanic):
								panic(errPanic)
							}
							return json.RawMessage(c.value), c.err
						})
					got := said(out, err)
					if strings.HasSuffix(want, ":") {
						got = got[:min(len(got), len(want))]
					}
					if got != want {
						t.Errorf("call %d: %s, want %s", i, got, want)
					}
					if newer := out.Token > token; newer != out.Ran || out.Token < token {
						t.Errorf("call %d: token %d after %d", i, out.Token, token)
					}
					token = out.Token
				}
				if tasks := q.Tasks(); len(tasks) > 0 {
					t.Errorf("tasks %v", tasks)
				}
			})
		})
	}
}

func TestDo_Params(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		call := func(key string, params any, end error, want string) {
			t.Helper()
			o := worker.DoOptions{Params: params}
			out, err := worker.DoOutcome(t.Context(), g, "op", key, o, returns("x", end))
			if got := said(out, err); got != want {
				t.Errorf("%s with %v: %s, want %s", key, params, got, want)
			}
		}
		declined := worker.Permanent("declined", "no", nil)
		call("done", 1, nil, "ran x")
		call("done", 2, nil, "not run params")
		call("done", nil, nil, "replayed x")
		call("failed", 1, declined, "ran x failed declined: no")
		call("failed", 2, nil, "not run params") // the failure is of the first call alone
		call("failed", 1, nil, "replayed failed declined: no")
		call("later", nil, nil, "ran x")
		call("later", 1, nil, "replayed x")
		for _, key := range []string{"done", "failed"} {
			out, err := worker.Lookup[any](t.Context(), g, "op", key, worker.DoOptions{Params: 2})
			if !errors.Is(err, worker.ErrParams) || out != (worker.Outcome[any]{}) {
				t.Errorf("Lookup of %s: %+v, %v", key, out, err)
			}
		}
	})
}

// Another program changes the record between the reading and the next commit of a call.
func TestDo_Overtaken(t *testing.T) {
	for name, c := range map[string]struct {
		commit int  // before which it does so: the first creates the record, the second acquires it
		delete bool // else it finishes the record
		want   string
	}{
		"created":  {commit: 1, want: "replayed other"},
		"finished": {commit: 2, want: "replayed other"},
		"deleted":  {commit: 2, delete: true, want: "ran own"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := ahead(t)
			other, record := open(t, b, nil), collection(t, b, "idempotency").Doc("op:key")
			g := openAround(t, b, func(made commit) error {
				switch {
				case made.number != c.commit:
				case c.delete:
					remove(t, record)
				default:
					finish(t, other)
				}
				return made.send()
			})
			checkDo(t.Context(), t, g, c.want, returns("own", nil))
		})
	}
}

func TestDo_Refused(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		records := collection(t, b, "idempotency")
		check := func(ctx context.Context, operation, key string, o worker.DoOptions, want string) {
			t.Helper()
			out, err := worker.DoOutcome(ctx, g, operation, key, o, returns("ran", nil))
			got := fmt.Sprint(said(out, err), ": ", err)
			if !strings.HasPrefix(got, "not run") || !strings.Contains(got, want) {
				t.Errorf("%s, want %s", got, want)
			}
		}
		ctx, none := t.Context(), worker.DoOptions{}
		set(t, records.Doc("op:malformed"), map[string]any{"status": "QUEUED", "lockToken": "x"})
		check(ctx, "op", "malformed", none, "not run malformed")
		check(ctx, "op", "a/b", none, "not run invalid key")
		check(ctx, "op", strings.Repeat("k", 1498), none, "not run invalid key") // too long with op:
		check(ctx, "a:b", "new", none, "operation")                              // it has two parts
		ended, end := context.WithCancelCause(ctx)
		end(errBroken)
		check(ended, "op", "new", none, "not run broken")
		for want, o := range map[string]worker.DoOptions{
			"parameters": {Params: func() {}},
			"Keep":       {Keep: time.Hour - 1},
			"TTL 2h":     {Keep: 2 * time.Hour, Lock: lease.Policy{TTL: 2 * time.Hour}},
			"TTL 10s":    {Lock: lease.Policy{TTL: 10 * time.Second, Heartbeat: 5 * time.Second}},
			"RunTimeout": {RunTimeout: 24*time.Hour + 1},
			"a/b":        {Collection: "a/b"},
		} {
			check(ctx, "op", "new", o, want)
		}
		checkRecord(t, records.Doc("op:new"), map[string]any{"status": nil})
		// A kind's deliveries would not find what Do keeps.
		if _, err := g.Register(worker.Kind{Name: "a", Collection: "idempotency"}); err == nil {
			t.Error("a kind has the collection of Do")
		}
	})
}

// A run of a minute is ended after a second, by its caller or by the process.
func TestDo_Stopped(t *testing.T) {
	released := map[string]any{"status": "QUEUED", "attempts": int64(0), "lockOwner": nil, "result": nil}
	finished := map[string]any{"status": "READY", "attempts": int64(1), "lockOwner": nil, "result": "x"}
	for name, c := range map[string]struct {
		shutdown bool // of the guard; else the caller's context ends
		ignores  bool // the function ignores the end of its context
		want     string
		record   map[string]any
	}{
		"by the caller":            {want: "ran broken own", record: released},
		"by the caller, in vain":   {ignores: true, want: "ran x", record: finished},
		"by Shutdown":              {shutdown: true, want: "ran stopping own", record: released},
		"by Shutdown, which waits": {shutdown: true, ignores: true, want: "ran x", record: finished},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g := opened(t, b, nil)
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			stop := func() { shutDown(t, g, 10*time.Second) }
			if !c.shutdown {
				defer stop()
				stop = func() { end(errBroken) }
			}
			time.AfterFunc(time.Second, stop)
			checkDo(ctx, t, g, c.want, func(ctx context.Context, _ worker.Job) (string, error) {
				if c.ignores {
					time.Sleep(5 * time.Second)
					return "x", nil
				}
				<-ctx.Done()
				return "", errOwn
			})
			synctest.Wait() // for Shutdown
			checkRecord(t, collection(t, b, "idempotency").Doc("op:key"), c.record)
			if c.shutdown {
				checkDo(t.Context(), t, g, "not run stopping", returns("x", nil))
			}
		})
	}
}

func TestDo_RunTimeout(t *testing.T) {
	for checkpoint, want := range map[bool]string{false: "ran broken", true: "ran from 7"} {
		worker.Subtest(t, fmt.Sprint("with a new checkpoint ", checkpoint), func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, log := openLogged(t, b, func(o *worker.Options) {
				o.RunTimeout, o.StallTimeout = 10*time.Minute, time.Minute // StallTimeout is for kinds
			})
			began := time.Now()
			err := doError(t.Context(), t, g, want, func(ctx context.Context, job worker.Job) (string, error) {
				if job.Resume != nil {
					return "from " + string(job.Resume), nil
				}
				if checkpoint {
					_ = job.Checkpoint(ctx, 7)
				}
				<-ctx.Done()
				return "", errBroken
			})
			if took := time.Since(began).Round(time.Minute); took != 10*time.Minute {
				t.Errorf("it took %v", took)
			}
			if named := strings.Contains(fmt.Sprint(err), "RunTimeout"); named == checkpoint {
				t.Errorf("the error names the option %v: %v", named, err)
			}
			if failed := strings.Contains(log.String(), "msg=delivery"); failed == checkpoint {
				t.Errorf("logged as a failure %v: %s", failed, log)
			}
			status := map[bool]string{false: "QUEUED", true: "READY"}[checkpoint]
			checkRecord(t, collection(t, b, "idempotency").Doc("op:key"),
				map[string]any{"status": status, "attempts": int64(1), "lockOwner": nil})
		})
	}
}

// Another program changes the record while the function runs: its late result is not stored.
func TestDo_LateResult(t *testing.T) {
	for name, c := range map[string]struct {
		change map[string]any // nil: it is deleted, and another call makes it anew
		want   string
		result any // in the record
	}{
		"made anew": {nil, "ran late not stored lost", "other"},
		"failed":    {map[string]any{"status": "FAILED"}, "ran replayed late not stored failed : ", nil},
		"finished":  {map[string]any{"status": "READY", "result": "theirs"}, "ran replayed theirs", "theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
				g, other := open(t, b, nil), open(t, b, nil)
				record := collection(t, b, "idempotency").Doc("op:key")
				checkDo(t.Context(), t, g, c.want, func(_ context.Context, job worker.Job) (string, error) {
					if c.change != nil {
						set(t, record, c.change)
						return "late", nil
					}
					remove(t, record)
					finish(t, other)
					if token, _ := fields(t, record)["lockToken"].(int64); token <= job.LockToken {
						t.Errorf("the token %d is not above %d, that of the deleted record", token, job.LockToken)
					}
					return "late", nil
				})
				checkRecord(t, record, map[string]any{"result": c.result, "lockOwner": nil})
			})
		})
	}
}

func TestDo_Unavailable(t *testing.T) {
	worker.Subtest(t, "the record cannot be created", func(t *testing.T) {
		denied := status.Error(codes.PermissionDenied, "denied")
		g := openAround(t, emulatortest.Embedded(t), func(commit) error { return denied })
		checkDo(t.Context(), t, g, "not run unavailable", returns("x", nil))
	})
	worker.Subtest(t, "the lock is kept until it expires", func(t *testing.T) {
		g, wall := openWalled(t, ahead(t))
		then := true // whether Firestore hangs after the run
		fn := func(context.Context, worker.Job) (string, error) {
			wall.Up.Store(then)
			return "x", nil
		}
		wall.Up.Store(true)
		checkDo(t.Context(), t, g, "not run unavailable", fn)
		wall.Up.Store(false)
		checkDo(t.Context(), t, g, "ran x not stored unavailable", fn)
		wall.Up.Store(false)
		then = false

		var running *worker.RunningError
		if err := doError(t.Context(), t, g, "not run running 1s", fn); !errors.As(err, &running) {
			t.Fatal(err)
		}
		left := running.ExpiresAt.Sub(time.Now().Add(clockAhead)) // by Firestore's clock
		if left <= time.Second || left > lease.DefaultTTL {
			t.Errorf("the lock expires in %v", left)
		}
		time.Sleep(left - 1500*time.Microsecond)
		if err := doError(t.Context(), t, g, "not run running 0s", fn); !errors.As(err, &running) {
			t.Fatal(err)
		}
		time.Sleep(running.RetryIn)
		checkDo(t.Context(), t, g, "ran x", fn)
	})
	worker.Subtest(t, "a permanent error that is not recorded is not final", func(t *testing.T) {
		g, wall := openWalled(t, ahead(t))
		err := doError(t.Context(), t, g, "ran unavailable", func(context.Context, worker.Job) (string, error) {
			wall.Up.Store(true)
			return "", worker.Permanent("declined", "no funds", errBroken)
		})
		if !strings.Contains(err.Error(), "no funds") {
			t.Errorf("%v, want the reason of the function", err)
		}
		wall.Up.Store(false)
	})
}

func TestDo_Keep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g := open(t, b, func(o *worker.Options) { o.MaxRunTime = 30 * time.Minute }) // of kinds
		once := worker.DoOptions{Collection: "once", Keep: time.Hour}
		kept := func(key string) time.Duration {
			at, _ := fields(t, collection(t, b, "once").Doc("op:"+key))["expireAt"].(time.Time)
			return time.Until(at.Add(-clockAhead)).Round(time.Second) // each commit is a microsecond later
		}
		_, _ = doWith(t.Context(), g, "key", once, returns(0, errBroken))
		time.Sleep(2 * time.Hour)
		_, err := doWith(t.Context(), g, "key", once, func(context.Context, worker.Job) (int, error) {
			time.Sleep(3 * time.Hour)
			if left := kept("key"); left < time.Hour-lease.DefaultTTL {
				t.Errorf("the record of a run may be deleted in %v", left)
			}
			return 1, nil
		})
		if left := kept("key"); err != nil || left != time.Hour {
			t.Errorf("the record is kept for %v, error %v; want 1 h", left, err)
		}
		_, err = doWith(t.Context(), g, "default", worker.DoOptions{Collection: "once"}, one)
		if left := kept("default"); err != nil || left != 24*time.Hour {
			t.Errorf("the record is kept for %v, error %v; want 24 h", left, err)
		}
	})
}

func TestDo_TakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, emulatortest.Embedded(t), func(o *worker.Options) { o.MaxRuns = 1 })
		h := g.MustRegister(worker.Kind{Run: succeed}).Handler()
		type caller struct{}
		ctx := context.WithValue(t.Context(), caller{}, "a")
		checkDo(ctx, t, g, "ran a", func(ctx context.Context, _ worker.Job) (string, error) {
			if code, answer := post(t, h, "/", `{"analysis_id":"none"}`); code != http.StatusNotFound {
				t.Errorf("a delivery is answered %d %s, want 404", code, answer)
			}
			return fmt.Sprint(ctx.Value(caller{})), nil // such as its trace
		})
	})
}

// A first call reads the record, reads Firestore's time, creates, reads, acquires, and finishes.
func TestDo_Costs(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		g := open(t, b, nil)
		for i, want := range []string{"3 reads, 3 commits of 6 calls", "1 reads, 0 commits of 1 calls"} {
			reads, commits, total := b.Calls.Count("BatchGetDocuments"), b.Calls.Count("Commit"), b.Calls.Total()
			_, err := doWith(t.Context(), g, "key", worker.DoOptions{Params: "p"}, one)
			reads, commits = b.Calls.Count("BatchGetDocuments")-reads, b.Calls.Count("Commit")-commits
			got := fmt.Sprintf("%d reads, %d commits of %d calls", reads, commits, b.Calls.Total()-total)
			if got != want || err != nil {
				t.Errorf("call %d: %s, %v; want %s", i, got, err, want)
			}
		}
	})
}

// A large result may take a hundred times its bytes as values: one at a time is decoded and committed.
func TestDo_LargeResult(t *testing.T) {
	for bytes, together := range map[int]int64{64 << 10: 3, 64<<10 + 1: 1} {
		worker.Subtest(t, fmt.Sprint(bytes, " bytes"), func(t *testing.T) {
			finishing, most := atomic.Int64{}, atomic.Int64{}
			g := openAround(t, ahead(t), func(made commit) error {
				if made.bytes > 60<<10 {
					defer finishing.Add(-1)
					most.Store(max(most.Load(), finishing.Add(1)))
					time.Sleep(time.Second)
				}
				return made.send()
			})
			var calls sync.WaitGroup
			result := strings.Repeat("x", bytes-len(`""`))
			for key := range 3 {
				calls.Go(func() {
					if _, err := worker.Do(t.Context(), g, "op", fmt.Sprint(key), returns(result, nil)); err != nil {
						t.Error(err)
					}
				})
			}
			if calls.Wait(); most.Load() != together {
				t.Errorf("%d results at once, want %d", most.Load(), together)
			}
		})
	}
}
