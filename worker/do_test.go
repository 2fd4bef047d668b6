package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// collection returns a collection as another program sees it.
func collection(t testing.TB, b *emulatortest.Backend, name string) *firestore.CollectionRef {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), b.Project, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	return client.Collection(name)
}

// fields reads a document; nil: there is none.
func fields(t testing.TB, doc *firestore.DocumentRef) map[string]any {
	t.Helper()
	snap, err := doc.Get(context.WithoutCancel(t.Context()))
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return snap.Data()
}

// checkRecord compares some fields of a document with want, where nil is a missing field.
func checkRecord(t testing.TB, doc *firestore.DocumentRef, want map[string]any) {
	t.Helper()
	got, some := fields(t, doc), map[string]any{}
	for name := range want {
		some[name] = got[name]
	}
	if diff := cmp.Diff(want, some); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// doWith is DoOutcome of one operation, without the rest of the outcome.
func doWith[T any](ctx context.Context, g *worker.Guard, key string, o worker.DoOptions, fn func(context.Context, worker.Job) (T, error)) (T, error) {
	out, err := worker.DoOutcome(ctx, g, "op", key, o, fn)
	return out.Value, err
}

var errBroken, errOwn = errors.New("broken"), errors.New("of the function")

// call is one call of Do for the same key.
type call struct {
	params any
	fn     func() (json.RawMessage, error)
	ran    bool // fn was called
	want   string
	err    string // a part of the error
	is     error  // in the error's tree
}

func returns(value string, err error) func() (json.RawMessage, error) {
	return func() (json.RawMessage, error) { return json.RawMessage(value), err }
}

func TestEveryCallOfDoHasTheResultOfTheFirst(t *testing.T) {
	permanent := &orchestrator.PermanentError{Code: "bad", Message: "no"}
	long := &orchestrator.PermanentError{Code: strings.Repeat("c", 65), Message: strings.Repeat("m", 4095) + "€"}
	bounded := "failed: " + strings.Repeat("c", 64) + ": " + strings.Repeat("m", 4095)
	large := `"` + strings.Repeat("x", 1<<20-100) + `"`
	done := call{fn: returns(`"again"`, nil), want: `"x"`}
	for name, calls := range map[string][]call{
		"a result": {{fn: returns(`{"b": 2.50, "a": ["x"]}`, nil), ran: true, want: `{"a":["x"],"b":2.5}`},
			{fn: returns(`"again"`, nil), want: `{"a":["x"],"b":2.5}`}},
		"a large integer":            {{fn: returns(`9007199254740993`, nil), ran: true, want: `9007199254740993`}, {fn: returns(`"again"`, nil), want: `9007199254740993`}},
		"parameters behind pointers": {{params: &struct{ A int }{1}, fn: returns(`"x"`, nil), ran: true, want: `"x"`}, {params: &struct{ A int }{1}, want: `"x"`}},
		"parameters later":           {{fn: returns(`"x"`, nil), ran: true, want: `"x"`}, {params: 1, want: `"x"`}},
		"no value":                   {{fn: returns("null", nil), ran: true, want: "null"}, {fn: returns(`"again"`, nil), want: "null"}},
		"an error":                   {{fn: returns("", errBroken), ran: true, err: "broken", is: errBroken}, {fn: returns(`"x"`, nil), ran: true, want: `"x"`}, done},
		"a panic":                    {{fn: func() (json.RawMessage, error) { panic("oh") }, ran: true, err: "panicked: oh"}, {fn: returns(`"x"`, nil), ran: true, want: `"x"`}, done},
		"a permanent error": {{fn: returns("", permanent), ran: true, err: "failed: bad: no", is: permanent},
			{fn: returns(`"again"`, nil), err: "failed: bad: no"}},
		"a permanent error without a code": {{fn: returns("", &orchestrator.PermanentError{Err: errBroken}), ran: true, err: "failed: analyzer_rejected: broken", is: errBroken},
			{err: "failed: analyzer_rejected: broken"}},
		"a permanent error that is too long": {{fn: returns("", long), ran: true, err: bounded, is: long}, {err: bounded}},
		"a permanent error with a value":     {{fn: returns(`"x"`, permanent), ran: true, want: `"x"`, err: "failed: bad: no"}, {err: "failed: bad: no"}},
		"a result that no document can hold": {{fn: returns("[[1]]", nil), ran: true, want: "[[1]]", err: "failed: result_invalid: "},
			{fn: returns(`"again"`, nil), err: "failed: result_invalid: "}},
		"a result too large beside the other fields": {{fn: returns(large, nil), ran: true, want: large, err: "failed: result_too_large: "},
			{fn: returns(`"again"`, nil), err: "failed: result_too_large: "}},
		"more failures than MaxAttempts": {{fn: returns("", errBroken), ran: true, err: "broken", is: errBroken}, {fn: returns("", errBroken), ran: true, err: "broken", is: errBroken},
			{fn: returns("", errBroken), ran: true, err: "broken", is: errBroken}, {fn: returns(`"again"`, nil), ran: true, want: `"again"`}},
		"other parameters": {{params: map[string]int{"a": 1, "b": 2}, fn: returns(`"x"`, nil), ran: true, want: `"x"`}, {params: struct{ A int }{1}, err: "other parameters", is: worker.ErrParams},
			{params: map[string]int{"b": 2, "a": 1}, want: `"x"`}, done},
		"parameters that JSON cannot hold": {{params: func() {}, err: "worker: do: encode the parameters: "}},
		"numbers written otherwise": {{params: json.RawMessage(`{"A": 1, "B": [100, -0.5, 0, "1.0", 1e999999999]}`), fn: returns(`"x"`, nil), ran: true, want: `"x"`},
			{params: json.RawMessage(`{"A": 1.0, "B": [1E+2, -50e-2, -0e5, "1.0", 1e999999999]}`), want: `"x"`},
			{params: json.RawMessage(`{"A": 1, "B": [100, -0.5, 0, "1", 1e999999999]}`), err: "other parameters", is: worker.ErrParams},
			{params: json.RawMessage(`{"A": 1, "B": [100, -0.5, 0, "1.0", 1e999999998]}`), err: "other parameters", is: worker.ErrParams},
			{params: json.RawMessage(`{"A": 1.00000000000000000001, "B": [100, -0.5, 0, "1.0", 1e999999999]}`), err: "other parameters", is: worker.ErrParams}},
		"fields in another order, of another type": {{params: struct {
			B int64
			A map[string]any
		}{9007199254740993, map[string]any{"x": "<"}}, fn: returns(`"x"`, nil), ran: true, want: `"x"`},
			{params: json.RawMessage(`{"A": {"x": "\u003c"}, "B": 9007199254740993}`), want: `"x"`},
			{params: map[string]any{"A": map[string]any{"x": "<"}, "B": 9007199254740992}, err: "other parameters", is: worker.ErrParams}},
	} {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
				q := worker.StartQueue(t) // Do books nothing in it
				g := open(t, b, func(o *worker.Options) { q.Use(o); o.Lock.MaxAttempts = 3 })
				var token int64 // of the last run
				for i, c := range calls {
					ran := false
					got, err := worker.DoOutcome(t.Context(), g, "op", "key", worker.DoOptions{Params: c.params}, func(context.Context, worker.Job) (json.RawMessage, error) {
						ran = true
						return c.fn()
					})
					if ran != c.ran || string(got.Value) != c.want {
						t.Errorf("call %d: ran = %v, result %s; want %v, %v", i, ran, got.Value, c.ran, c.want)
					}
					permanent, failed := errors.AsType[*orchestrator.PermanentError](err)
					replayed := !ran && (err == nil || failed)
					if got.Ran != ran || got.Replayed != replayed || ran && got.Token <= token || !ran && got.Token != map[bool]int64{true: token}[replayed] || errors.Is(err, worker.ErrNotRun) != (!ran && !replayed) {
						t.Errorf("call %d: %+v after token %d, %v", i, got, token, err)
					}
					if failed && !strings.HasSuffix(err.Error(), permanent.Code+": "+permanent.Message) {
						t.Errorf("call %d: %v has the code %s and the message %s", i, err, permanent.Code, permanent.Message)
					}
					token = max(token, got.Token)
					if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || c.is != nil && !errors.Is(err, c.is) {
						t.Errorf("call %d: error %v, want %q, %v", i, err, c.err, c.is)
					}
				}
				if tasks := q.Tasks(); len(tasks) > 0 {
					t.Errorf("tasks %v", tasks)
				}
			})
		})
	}
}

// Another call changes the record between the reading and the next commit of a call.
func TestARecordThatChangesBeforeItsRunIsReadAgain(t *testing.T) {
	for name, c := range map[string]struct {
		commit int    // before which the record changes: the first creates it, the second acquires it
		denied string // a method whose first call is refused
		change func(t *testing.T, other *worker.Guard, record *firestore.DocumentRef)
		ran    bool
		want   string
		err    error
	}{
		"created by the same call":              {1, "", func(t *testing.T, other *worker.Guard, _ *firestore.DocumentRef) { finish(t, other, "p", nil) }, false, "other", nil},
		"created by another call, which failed": {1, "", func(t *testing.T, other *worker.Guard, _ *firestore.DocumentRef) { finish(t, other, "q", errBroken) }, false, "", worker.ErrParams},
		"finished":                              {2, "", func(t *testing.T, other *worker.Guard, _ *firestore.DocumentRef) { finish(t, other, "p", nil) }, false, "other", nil},
		"failed": {2, "", func(t *testing.T, _ *worker.Guard, record *firestore.DocumentRef) {
			set(t, record, map[string]any{"status": "FAILED"})
		}, false, "", &worker.FailedError{}},
		"deleted": {2, "", func(t *testing.T, _ *worker.Guard, record *firestore.DocumentRef) {
			if _, err := record.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, true, "own", nil},
		"not readable": {denied: "/BatchGetDocuments", err: lease.ErrUnavailable},
		"not writable": {denied: "/Commit", err: lease.ErrUnavailable},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, reads, commits, ran := ahead(t), 0, 0, false
			other, record := open(t, b, nil), collection(t, b, "idempotency").Doc("op:key")
			g := open(t, b, func(o *worker.Options) {
				o.FirestoreOptions = b.Client(t, grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if strings.HasSuffix(m, "/Commit") {
						if commits++; c.denied == "/Commit" {
							return status.Error(codes.PermissionDenied, "denied")
						} else if commits == c.commit {
							c.change(t, other, record)
						}
					}
					return invoke(ctx, m, req, reply, cc, opts...)
				}), grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					if reads++; reads == 1 && strings.HasSuffix(m, c.denied) && c.denied != "" {
						return nil, status.Error(codes.PermissionDenied, "denied")
					}
					return open(ctx, d, cc, m, opts...)
				}))
			})
			got, err := doWith(t.Context(), g, "key", worker.DoOptions{Params: "p"}, func(context.Context, worker.Job) (string, error) {
				ran = true
				return "own", nil
			})
			failed, want := (*worker.FailedError)(nil), c.err
			if errors.As(c.err, &failed) && errors.As(err, &failed) {
				want = err
			}
			if got != c.want || ran != c.ran || !errors.Is(err, want) {
				t.Errorf("Do = %q, %v, ran: %v", got, err, ran)
			}
		})
	}
}

// finish makes another guard do the work of the key with these parameters and this error.
func finish(t *testing.T, g *worker.Guard, params string, failure error) {
	t.Helper()
	o := worker.DoOptions{Params: params}
	if _, err := doWith(t.Context(), g, "key", o, func(context.Context, worker.Job) (string, error) { return "other", failure }); !errors.Is(err, failure) {
		t.Error(err)
	}
}

func set(t *testing.T, doc *firestore.DocumentRef, record map[string]any) {
	t.Helper()
	if _, err := doc.Set(t.Context(), record, firestore.MergeAll); err != nil {
		t.Fatal(err)
	}
}

func TestDoRefusesWhatCannotBeDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g := open(t, b, func(o *worker.Options) { o.Lock.TTL = 2 * time.Hour })
		if _, err := worker.Do(t.Context(), g, "op", "text", func(context.Context, worker.Job) (string, error) { return "x", nil }); err != nil {
			t.Fatal(err)
		}
		records := collection(t, b, "idempotency")
		set(t, records.Doc("op:failed"), map[string]any{"status": "FAILED"})
		set(t, records.Doc("op:malformed"), map[string]any{"status": "QUEUED", "lockToken": "x"})
		const notCalled = "worker: the function was not called: "
		ended, end := context.WithCancelCause(t.Context())
		end(errBroken)
		for name, c := range map[string]struct {
			ctx context.Context //nolint:containedctx // of one call
			key string
			o   worker.DoOptions
			err string
			is  error
		}{
			"a stored result of another type": {key: "text", err: `worker: the stored result of "op:text" is no int: json: `},
			"a failure without a cause":       {key: "failed", err: "failed: "},
			"a malformed record":              {key: "malformed", err: notCalled + `repo: record "op:malformed": `, is: lease.ErrMalformed},
			"no key":                          {key: "", is: lease.ErrInvalidKey},
			"a key that is no id":             {key: "a/b", is: lease.ErrInvalidKey},
			"a key that fits without the op":  {key: strings.Repeat("k", 1498), err: notCalled + "lease: invalid key: the record id has 1498 bytes, at most 1497 ", is: lease.ErrInvalidKey},
			"a context that has ended":        {ctx: ended, key: "new", is: errBroken},
			"too short a time":                {key: "new", o: worker.DoOptions{Keep: time.Minute}, err: notCalled + "worker: do: the option Keep 1m0s is under 1h"},
			"a time that is the TTL":          {key: "new", o: worker.DoOptions{Keep: 2 * time.Hour}, err: notCalled + "worker: do: repo: Keep 2h0m0s is not longer than the TTL 2h0m0s"},
			"a collection that is none":       {key: "new", o: worker.DoOptions{Collection: "a/b"}, err: notCalled + `worker: do: `},
			"a run of more than a day":        {key: "new", o: worker.DoOptions{RunTimeout: 24*time.Hour + 1}, err: notCalled + "worker: do: the option RunTimeout 24h0m0.000000001s is not"},
			"a lock that could expire":        {key: "new", o: worker.DoOptions{Lock: lease.Policy{TTL: 10 * time.Second, Heartbeat: 5 * time.Second}}, err: notCalled + "worker: do: lease: TTL 10s is under 2 × heartbeat 5s"},
		} {
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			got, err := doWith(ctx, g, c.key, c.o, func(context.Context, worker.Job) (int, error) {
				t.Errorf("%s: the function was called", name)
				return 1, nil
			})
			if got != 0 || err == nil || !strings.HasPrefix(err.Error(), c.err) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%s: %d, error %v; want 0, %q %v", name, got, err, c.err, c.is)
			}
		}
		checkRecord(t, records.Doc("op:new"), map[string]any{"status": nil})
		// A kind's deliveries would not find what Do keeps, and the other way round.
		if _, err := g.Register(worker.Kind{Name: "a", Collection: "idempotency"}); err == nil || !strings.Contains(err.Error(), "the collection of records of Do") {
			t.Errorf("a kind in the collection of Do: %v", err)
		}
	})
}

// Each case ends a run of a minute after a second.
func TestACallThatEndsReleasesTheLock(t *testing.T) {
	deadline := func(t *testing.T, _ *worker.Guard) context.Context {
		t.Helper()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errBroken)
		t.Cleanup(cancel)
		return ctx
	}
	shutdown := func(t *testing.T, g *worker.Guard) context.Context {
		t.Helper()
		time.AfterFunc(time.Second, func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := g.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
		return t.Context()
	}
	released := map[string]any{"status": "QUEUED", "attempts": int64(0), "lockOwner": nil, "result": nil}
	for name, c := range map[string]struct {
		end     func(*testing.T, *worker.Guard) context.Context
		ignores bool // fn ignores the end of its context
		err     error
		want    map[string]any
	}{
		"the caller's context":             {deadline, false, errBroken, released},
		"Shutdown":                         {shutdown, false, worker.ErrStopping, released},
		"a function that ignores it":       {deadline, true, nil, map[string]any{"status": "READY", "attempts": int64(1), "lockOwner": nil, "result": "x"}},
		"Shutdown waits for such function": {shutdown, true, nil, map[string]any{"status": "READY", "attempts": int64(1), "lockOwner": nil, "result": "x"}},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g := opened(t, b, nil)
			ctx := c.end(t, g)
			work := g.MustRegister(worker.Kind{})
			got, err := worker.Do(ctx, g, "op", "key", func(ctx context.Context, _ worker.Job) (string, error) {
				if c.ignores {
					time.Sleep(5 * time.Second)
					return "x", nil
				}
				<-ctx.Done()
				return "", errOwn
			})
			if !errors.Is(err, c.err) || !c.ignores && !errors.Is(err, errOwn) || (got == "x") != c.ignores {
				t.Errorf("Do = %q, %v; want %v", got, err, c.err)
			}
			synctest.Wait() // for Shutdown
			checkRecord(t, collection(t, b, "idempotency").Doc("op:key"), c.want)
			if errors.Is(c.err, worker.ErrStopping) {
				if _, err := worker.Do(t.Context(), g, "op", "other", func(context.Context, worker.Job) (int, error) { return 0, nil }); !errors.Is(err, worker.ErrStopping) {
					t.Errorf("after Shutdown the error is %v", err)
				}
				if err := work.Book(t.Context(), "x"); !errors.Is(err, worker.ErrStopping) {
					t.Errorf("after Shutdown the error of Book is %v", err)
				}
			}
		})
	}
}

func TestARunOfDoThatPassesItsDeadline(t *testing.T) {
	for name, checkpoint := range map[string]bool{"without a checkpoint": false, "with a checkpoint": true} {
		worker.Subtest(t, name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			g, log := openLogged(t, b, func(o *worker.Options) {
				o.RunTimeout, o.StallTimeout = 10*time.Minute, time.Minute // StallTimeout is for kinds
			})
			runs := 0
			got, err := worker.Do(t.Context(), g, "op", "key", func(ctx context.Context, job worker.Job) (string, error) {
				if runs++; job.Resume != nil {
					return "from " + string(job.Resume), nil
				}
				if checkpoint {
					if err := job.Checkpoint(ctx, 7); err != nil {
						t.Error(err)
					}
				}
				<-ctx.Done()
				return "", fmt.Errorf("stopped: %w", errBroken)
			})
			record := collection(t, b, "idempotency").Doc("op:key")
			if failed := strings.Contains(log.String(), "msg=delivery"); failed == checkpoint {
				t.Errorf("logged as a failure: %v: %s", failed, log)
			}
			if checkpoint {
				if err != nil || got != "from 7" || runs != 2 {
					t.Errorf("Do = %q, %v after %d runs; want the second to continue", got, err, runs)
				}
				checkRecord(t, record, map[string]any{"status": "READY", "attempts": int64(1), "result": "from 7"})
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), `worker: do "op:key": the run took longer than RunTimeout, 10m0s, `) || !errors.Is(err, errBroken) || runs != 1 {
				t.Errorf("error %v after %d runs", err, runs)
			}
			checkRecord(t, record, map[string]any{"status": "QUEUED", "attempts": int64(1), "lockOwner": nil})
		})
	}
}

// The record is lost while fn runs: the late result is not stored.
func TestALateResultIsRefused(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		g, other := open(t, b, nil), open(t, b, nil)
		records := collection(t, b, "idempotency")
		for name, c := range map[string]struct {
			change func(key string, token int64) error
			err    error
			want   map[string]any
		}{
			"deleted and created anew": {func(key string, token int64) error {
				if _, err := records.Doc("op:" + key).Delete(t.Context()); err != nil {
					return err
				}
				_, err := worker.Do(t.Context(), other, "op", key, func(_ context.Context, job worker.Job) (string, error) {
					if job.LockToken <= token {
						t.Errorf("the token %d is not above %d, that of the deleted record", job.LockToken, token)
					}
					return "new", nil
				})
				return err
			}, lease.ErrLost, map[string]any{"status": "READY", "result": "new"}},
			"deleted": {func(key string, _ int64) error {
				_, err := records.Doc("op:" + key).Delete(t.Context())
				return err
			}, lease.ErrLost, map[string]any{"status": nil, "result": nil}},
			"taken": {func(key string, token int64) error {
				_, err := records.Doc("op:"+key).Set(t.Context(), map[string]any{"lockOwner": "other", "lockToken": token + 1}, firestore.MergeAll)
				return err
			}, lease.ErrLost, map[string]any{"status": "PROCESSING", "result": nil, "lockOwner": "other"}},
			"cancelled": {func(key string, token int64) error {
				_, err := records.Doc("op:"+key).Set(t.Context(), map[string]any{"status": "FAILED", "lockOwner": firestore.Delete, "lockToken": token + 1, "error": map[string]any{"code": "cancelled"}}, firestore.MergeAll)
				return err
			}, lease.ErrLost, map[string]any{"status": "FAILED", "result": nil}},
			"finished under its lock": {func(key string, _ int64) error {
				_, err := records.Doc("op:"+key).Set(t.Context(), map[string]any{"status": "FAILED", "error": map[string]any{"code": "theirs"}}, firestore.MergeAll)
				return err
			}, &worker.FailedError{Code: "theirs"}, map[string]any{"status": "FAILED", "result": nil, "lockOwner": nil}},
		} {
			got, err := worker.Do(t.Context(), g, "op", name, func(_ context.Context, job worker.Job) (string, error) { return "late", c.change(name, job.LockToken) })
			notStored, ok := errors.AsType[*worker.NotStoredError](err)
			if got != "late" || !ok || notStored.Value != "late" || errors.Is(err, worker.ErrNotRun) || !errors.Is(err, c.err) && !reflect.DeepEqual(notStored.Err, c.err) { //nolint:govet // a FailedError is compared as a whole
				t.Errorf("%s: Do = %q, %v; want %v", name, got, err, c.err)
			}
			checkRecord(t, records.Doc("op:"+name), c.want)
		}
		got, err := worker.Do(t.Context(), g, "op", "set", func(context.Context, worker.Job) (string, error) {
			_, err := records.Doc("op:set").Set(t.Context(), map[string]any{"status": "READY", "result": "theirs"}, firestore.MergeAll)
			return "dropped", err
		})
		if got != "theirs" || err != nil {
			t.Errorf("a result that another program has stored: Do = %q, %v", got, err)
		}
	})
}

// A commit is made, its reply is lost, and a third party changes the record before this call knows.
func TestALostReplyIsNoLeaveToOverwriteAThirdParty(t *testing.T) {
	for name, c := range map[string]struct {
		commit int // whose reply is lost: the second acquires the record, the third finishes it
		wait   time.Duration
		ran    bool
		want   string // of the call whose reply was lost
		err    error
	}{
		"of the acquisition": {2, time.Hour, false, "", worker.ErrNotRun},
		"of the finish":      {3, 0, true, "own", lease.ErrLost},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, commits, ran := ahead(t), 0, false
			other := open(t, b, nil)
			g := open(t, b, func(o *worker.Options) {
				o.FirestoreOptions = b.Client(t, grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					err := invoke(ctx, m, req, reply, cc, opts...)
					if commits++; err != nil || commits != c.commit || !strings.HasSuffix(m, "/Commit") {
						return err
					}
					time.Sleep(c.wait)
					theirs := context.WithoutCancel(ctx)
					if err := worker.Reset(theirs, other, "op", "key", worker.DoOptions{}); err != nil {
						t.Error(err)
					}
					finish(t, other, "", nil)
					return status.Error(codes.Unavailable, "lost")
				}))
			})
			got, err := doWith(t.Context(), g, "key", worker.DoOptions{}, func(context.Context, worker.Job) (string, error) {
				ran = true
				return "own", nil
			})
			checkRecord(t, collection(t, b, "idempotency").Doc("op:key"), map[string]any{"status": "READY", "result": "other", "lockOwner": nil})
			if ran != c.ran || got != c.want || !errors.Is(err, c.err) {
				t.Errorf("Do = %q, %v, ran: %v; want %q, %v", got, err, ran, c.want, c.err)
			}
		})
	}
}

func TestDoWithoutFirestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w, runs := ahead(t), &worker.Wall{}, 0
		g := open(t, b, func(o *worker.Options) { o.FirestoreOptions = w.Client(t, b) })
		do := func(then bool) (int, error) {
			return worker.Do(t.Context(), g, "op", "key", func(context.Context, worker.Job) (int, error) {
				runs++
				w.Up.Store(then)
				return runs, nil
			})
		}
		w.Up.Store(true)
		if got, err := do(true); got != 0 || !errors.Is(err, worker.ErrNotRun) || !errors.Is(err, lease.ErrUnavailable) || runs != 0 {
			t.Errorf("before the run: Do = %d, %v after %d runs", got, err, runs)
		}
		w.Up.Store(false)
		got, err := do(true)
		notStored, ok := errors.AsType[*worker.NotStoredError](err)
		if got != 1 || !ok || notStored.Value != 1 || errors.Is(err, worker.ErrNotRun) || !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("at the finish: Do = %d, %v; want 1, which is not stored", got, err)
		}
		w.Up.Store(false)
		var running *worker.RunningError
		if _, err := do(false); !errors.As(err, &running) {
			t.Fatalf("error %v while the lock is kept", err)
		}
		left := running.ExpiresAt.Sub(time.Now().Add(clockAhead))
		if left <= time.Second || running.RetryIn != time.Second {
			t.Errorf("%v, and by Firestore's clock the lock expires in %v", running, left)
		}
		time.Sleep(left - 1500*time.Microsecond)
		if _, err := do(false); !errors.As(err, &running) || running.RetryIn <= 0 || running.RetryIn > 2*time.Millisecond {
			t.Errorf("error %v just before the expiry", err)
		}
		time.Sleep(running.RetryIn)
		if got, err := do(false); got != 2 || err != nil {
			t.Errorf("Do = %d, %v; want a second run", got, err)
		}
	})
}

// Firestore does not answer when the failure is to be recorded: the next call runs the function again.
func TestAPermanentErrorThatIsNotRecordedIsNotFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := ahead(t), &worker.Wall{}
		g := open(t, b, func(o *worker.Options) { o.FirestoreOptions = w.Client(t, b) })
		for _, recorded := range []bool{false, true} {
			_, err := worker.Do(t.Context(), g, "op", fmt.Sprint(recorded), func(context.Context, worker.Job) (int, error) {
				w.Up.Store(!recorded)
				return 0, worker.Permanent("declined", "no funds", errBroken)
			})
			if final := errors.As(err, new(*worker.PermanentError)); final != recorded || !strings.Contains(err.Error(), "no funds") {
				t.Errorf("%v is permanent: %v, recorded: %v", err, final, recorded)
			}
			w.Up.Store(false)
		}
	})
}

func TestARecordIsKeptFromItsLastChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ahead(t)
		g, record := open(t, b, func(o *worker.Options) { o.MaxRunTime = 30 * time.Minute }), collection(t, b, "once").Doc("op:key") // of kinds
		kept := func() (expires time.Duration) {
			at, _ := fields(t, record)["expireAt"].(time.Time)
			return time.Until(at.Add(-clockAhead))
		}
		once := worker.DoOptions{Collection: "once", Keep: time.Hour}
		if _, err := doWith(t.Context(), g, "key", once, func(context.Context, worker.Job) (int, error) { return 0, errBroken }); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		time.Sleep(2 * time.Hour)
		_, err := doWith(t.Context(), g, "key", once, func(context.Context, worker.Job) (int, error) {
			time.Sleep(3 * time.Hour)
			if left := kept(); left < time.Hour-lease.DefaultTTL {
				t.Errorf("the record of a run may be deleted in %v", left)
			}
			return 1, nil
		})
		if left := kept(); err != nil || left.Round(time.Second) != time.Hour { // each commit is a microsecond later
			t.Errorf("the record is kept for %v, error %v; want 1 h", left, err)
		}
		record = collection(t, b, "once").Doc("op:default") // of the same collection, kept longer
		_, err = doWith(t.Context(), g, "default", worker.DoOptions{Collection: "once"}, one)
		if left := kept(); err != nil || left.Round(time.Second) != 24*time.Hour {
			t.Errorf("the record is kept for %v, error %v; want 24 h", left, err)
		}
	})
}

func TestDoTakesNoPlaceOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, emulatortest.Embedded(t), func(o *worker.Options) { o.MaxRuns = 1 })
		h := g.MustRegister(worker.Kind{Run: func(context.Context, worker.Job) (any, error) { return nil, nil }}).Handler()
		type caller struct{}
		if _, err := worker.Do(context.WithValue(t.Context(), caller{}, "a"), g, "op", "key", func(ctx context.Context, _ worker.Job) (int, error) {
			if ctx.Value(caller{}) != "a" {
				t.Error("the caller's values, such as its trace, are lost")
			}
			if code, answer := post(t, h, "/", `{"analysis_id":"none"}`); code != http.StatusNotFound {
				t.Errorf("%d %s, want 404", code, answer)
			}
			return 0, nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// A first call reads the record, reads Firestore's time, creates, reads, acquires, and finishes.
func TestDoOfAFinishedKeyIsOneRead(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		g := open(t, b, nil)
		for i, want := range []struct{ reads, commits int }{{3, 3}, {1, 0}, {1, 0}} {
			reads, commits, total := b.Calls.Count("BatchGetDocuments"), b.Calls.Count("Commit"), b.Calls.Total()
			got, err := doWith(t.Context(), g, "key", worker.DoOptions{Params: "p"}, func(context.Context, worker.Job) (int, error) { return i, nil })
			reads, commits, total = b.Calls.Count("BatchGetDocuments")-reads, b.Calls.Count("Commit")-commits, b.Calls.Total()-total
			if got != 0 || err != nil || reads != want.reads || commits != want.commits || total != reads+commits {
				t.Errorf("call %d: %d, %v; %d reads, %d commits of %d calls; want %+v", i, got, err, reads, commits, total, want)
			}
		}
	})
}

// A large result may take a hundred times its bytes as values: one at a time is decoded and committed.
func TestLargeResultsAreFinishedOneAtATime(t *testing.T) {
	for name, c := range map[string]struct {
		bytes    int           // of the result's JSON
		after    time.Duration // the calls are to end
		together int           // finishes at once
	}{
		"small": {64 << 10, time.Hour, 3}, "large": {64<<10 + 1, time.Hour, 1},
		"large, of calls that end": {64<<10 + 1, time.Second / 2, 3},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			b, finishing, most := ahead(t), atomic.Int64{}, atomic.Int64{}
			g := open(t, b, func(o *worker.Options) {
				o.FirestoreOptions = b.Client(t, grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if commit, ok := req.(*firestorepb.CommitRequest); ok && proto.Size(commit) > 60<<10 {
						defer finishing.Add(-1)
						most.Store(max(most.Load(), finishing.Add(1)))
						time.Sleep(time.Second)
					}
					return invoke(ctx, m, req, reply, cc, opts...)
				}))
			})
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			defer cancel()
			var calls sync.WaitGroup
			for key := range 3 {
				calls.Go(func() {
					_, err := worker.Do(ctx, g, "op", fmt.Sprint(key), func(context.Context, worker.Job) (string, error) {
						return strings.Repeat("x", c.bytes-2), nil // with its quotes
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			if calls.Wait(); most.Load() != int64(c.together) {
				t.Errorf("%d results at once, want %d", most.Load(), c.together)
			}
		})
	}
}
