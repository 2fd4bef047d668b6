package worker_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"taskguard/worker"
	"taskguard/worker/workertest"
)

// keyed is a service, and what its runs did.
type keyed struct {
	*workertest.Rig
	work *worker.Work
	docs *firestore.Client

	lasts time.Duration         // of a run
	fails func(id string) error // of a run that has lasted so long; nil: none fails
	each  func(job worker.Job)  // is called when a run begins; nil: nothing is
	late  time.Duration         // of the deliveries that are not for a slot

	mu      sync.Mutex
	begun   []string
	running map[string]int
	most    map[string]int // of one tenant at a time
}

// serveKeyed starts a service for documents with input.tenant, whose runs take 10 s.
func serveKeyed(t *testing.T, k worker.Kind, o worker.Options, dial ...grpc.DialOption) *keyed {
	t.Helper()
	s := &keyed{Rig: workertest.New(t), lasts: 10 * time.Second, running: map[string]int{}, most: map[string]int{}}
	k.Run = func(ctx context.Context, job worker.Job) (any, error) {
		tenant := strings.TrimRight(job.AnalysisID, "0123456789")
		s.mu.Lock()
		s.begun = append(s.begun, job.AnalysisID)
		s.running[tenant]++
		s.most[tenant] = max(s.most[tenant], s.running[tenant])
		if s.each != nil {
			s.each(job)
		}
		lasts := s.lasts
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(lasts):
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running[tenant]--
		if s.fails != nil {
			return "done", s.fails(job.AnalysisID)
		}
		return "done", ctx.Err()
	}
	g := s.Guard(o, dial...)
	s.work = g.MustRegister(k)
	handler := s.work.Handler()
	s.Mux.HandleFunc("POST "+s.work.Path, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.Header.Get("X-CloudTasks-TaskName"), "-slot") {
			time.Sleep(s.late)
		}
		handler.ServeHTTP(w, r)
	})
	s.Mux.Handle("POST /internal/tasks/recover", g.Recovery())
	conn, err := s.Firestore.Dial()
	if err != nil {
		t.Fatal(err)
	}
	if s.docs, err = firestore.NewClient(t.Context(), "test-project", option.WithGRPCConn(conn)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.docs.Close() })
	return s
}

// submit submits documents tenant0 to tenantN-1, one a second.
func (s *keyed) submit(t *testing.T, tenant string, count int) {
	t.Helper()
	for n := range count {
		input := map[string]any{"padding": strings.Repeat("x", n%2*80_000)} // more than a decision reads at once
		if tenant != "free" {
			input["tenant"] = tenant
		}
		if _, err := s.work.Submit(t.Context(), fmt.Sprint(tenant, n), input); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

// ran returns the analyses in the order in which their runs began.
func (s *keyed) ran() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.begun)
}

// last sets how long a run lasts.
func (s *keyed) last(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lasts = d
}

// recovery makes one call of recovery, and returns its answer.
func (s *keyed) recovery() string {
	answer := httptest.NewRecorder()
	s.Mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/internal/tasks/recover", nil))
	return answer.Body.String()
}

// idle waits for the end of all tasks, and checks that all is READY and nothing is left of the keys.
func (s *keyed) idle(t *testing.T, count int) {
	t.Helper()
	if err := s.Tasks.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready, err := s.docs.Collection("analyses").Where("status", "==", "READY").Documents(t.Context()).GetAll()
	if err != nil || len(ready) != count {
		t.Errorf("%d are READY, %v; want %d", len(ready), err, count)
	}
	for _, d := range ready {
		for _, field := range []string{"parkedAt", "parkedFor"} {
			if v := d.Data()[field]; v != nil {
				t.Errorf("%s has %s %v", d.Ref.ID, field, v)
			}
		}
	}
	keys, err := s.docs.Collection("analysesKeys").Documents(t.Context()).GetAll()
	if err != nil || len(keys) != 0 {
		t.Errorf("%d keys are left, %v", len(keys), err)
	}
}

func TestKey(t *testing.T) {
	limit := func(key string) int { return map[string]int{"a": 1, "b": 2}[strings.ToLower(key)] }
	byFunc := func(fields map[string]any) string {
		input, _ := fields["input"].(map[string]any)
		tenant, _ := input["tenant"].(string)
		return strings.ToUpper(tenant)
	}
	for name, k := range map[string]worker.Kind{
		"as many as the limit of each key run at a time, in order": {KeyFields: []string{"input.tenant"}, KeyLimit: limit},
		"a function makes the key":                                 {KeyFields: []string{"status", "input.tenant"}, Key: byFunc, KeyLimit: limit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serveKeyed(t, k, worker.Options{})
				began := time.Now()
				var tenants sync.WaitGroup
				for _, tenant := range []string{"a", "b", "free"} {
					tenants.Go(func() { s.submit(t, tenant, 6) })
				}
				tenants.Wait()
				s.idle(t, 18)
				if took := time.Since(began); took > 70*time.Second {
					t.Errorf("took %v, want the time of six runs", took)
				}
				if s.most["a"] != 1 || s.most["b"] != 2 || s.most["free"] < 3 {
					t.Errorf("at a time ran %v, want one of a, two of b and all of free", s.most)
				}
				order := slices.DeleteFunc(s.ran(), func(id string) bool { return id[0] != 'a' })
				if !slices.IsSorted(order) {
					t.Errorf("ran in the order %q", order)
				}
			})
		})
	}
}

// The document of a parked analysis is deleted when its delivery is booked. That delivery finds nothing, so it cannot
// know the key: the next call of recovery books the next analysis.
func TestKey_DeletedAfterItsBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *keyed
		var deleted atomic.Bool
		s = serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant"}, grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption,
		) error {
			create, _ := req.(*cloudtaskspb.CreateTaskRequest)
			if strings.HasSuffix(create.GetTask().GetName(), "-slot") && deleted.CompareAndSwap(false, true) {
				if _, err := s.docs.Collection("analyses").Doc("a1").Delete(ctx); err != nil {
					t.Error(err)
				}
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}))
		s.submit(t, "a", 3)
		time.Sleep(time.Minute)
		if !deleted.Load() || !slices.Equal(s.ran(), []string{"a0"}) {
			t.Fatalf("deleted: %v, and ran %q; want only a0", deleted.Load(), s.ran())
		}
		if got := s.recovery(); !strings.Contains(got, `"found":0,"booked":1`) {
			t.Errorf("recovery answers %s, want the next one booked", got)
		}
		s.idle(t, 2)
	})
}

// An attempt keeps the slot for its next one with KeyHold, and without it if it was only interrupted: then the next
// analysis does not run between its halves.
func TestKey_InterruptedRunsKeepTheirSlot(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant", RunTimeout: 20 * time.Second})
			s.lasts, s.late = time.Minute, 300*time.Millisecond
			s.fails = func(string) error {
				if len(s.begun) > 1 {
					return nil
				}
				if fails {
					return errors.New("for now")
				}
				return context.DeadlineExceeded
			}
			s.each = func(job worker.Job) {
				s.lasts = 10 * time.Second
				if len(s.begun) == 1 && !fails {
					s.lasts = time.Minute
					_ = job.Checkpoint(t.Context(), 1)
				}
			}
			s.submit(t, "a", 3)
			s.idle(t, 3)
			want := []string{"a0", "a0", "a1", "a2"}
			if fails {
				want = []string{"a0", "a1", "a2", "a0"}
			}
			if !slices.Equal(s.ran(), want) {
				t.Errorf("fails: %v, and ran %q; want %q", fails, s.ran(), want)
			}
		})
	}
}

// An operator cancels or deletes an analysis that keeps its key for six hours: recovery frees the key.
func TestKey_EndOfOneThatHolds(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, s *keyed) error{
		"cancel": func(ctx context.Context, s *keyed) error {
			_, err := s.work.Operator().Cancel(ctx, "a0", "me", nil)
			return err
		},
		"delete": func(ctx context.Context, s *keyed) error {
			_, err := s.docs.Collection("analyses").Doc("a0").Delete(ctx)
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant", KeyHold: true})
			s.fails = func(id string) error {
				if id == "a0" {
					return worker.RetryAfter(errors.New("later"), 6*time.Hour)
				}
				return nil
			}
			s.submit(t, "a", 2)
			time.Sleep(time.Minute)
			if got := s.recovery(); !strings.Contains(got, `"booked":0`) {
				t.Errorf("%s: before it recovery answers %s, want nothing booked", name, got)
			}
			if err := end(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if got := s.recovery(); !strings.Contains(got, `"booked":1`) {
				t.Errorf("%s: recovery answers %s, want the next one booked", name, got)
			}
			time.Sleep(time.Minute)
			if want := []string{"a0", "a1"}; !slices.Equal(s.ran(), want) {
				t.Errorf("%s: ran %q, want %q", name, s.ran(), want)
			}
			_ = s.Tasks.Idle(t.Context())
		})
	}
}

// A worker died with the slot of its analysis, and an operator unlocks that: its next delivery takes over the slot.
func TestKey_UnlockedTakesOverItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant"})
		s.last(time.Hour)
		s.submit(t, "a", 1)
		synctest.Wait()
		s.last(time.Second)
		if _, err := s.work.Operator().Unlock(t.Context(), "a0", "me", nil, ""); err != nil {
			t.Fatal(err)
		}
		d, err := s.work.Run(t.Context(), "a0")
		if err != nil || d.Outcome != "ready" {
			t.Errorf("after the unlock: %+v, %v", d, err)
		}
	})
}

// A limit of zero or less pauses a key, also if an attempt was kept for its analysis: nothing begins. When the limit
// is back, recovery goes on in the same order. A limit over 1,000 is 1,000, and without KeyLimit it is 1, whatever
// Options say.
func TestKey_Limits(t *testing.T) {
	for _, paused := range []int{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			var limit atomic.Int64
			limit.Store(1)
			s := serveKeyed(t, worker.Kind{
				KeyFields: []string{"input.tenant"}, KeyHold: true, KeyLimit: func(string) int { return int(limit.Load()) },
			}, worker.Options{})
			s.fails = func(string) error {
				if len(s.begun) > 1 {
					return nil
				}
				limit.Store(int64(paused))
				return errors.New("for now")
			}
			s.submit(t, "a", 3)
			time.Sleep(time.Hour)
			if got := s.recovery(); !slices.Equal(s.ran(), []string{"a0"}) || !strings.Contains(got, `"booked":0`) {
				t.Errorf("with the limit %d ran %q, and recovery answered %s; want only a0", paused, s.ran(), got)
			}
			d, err := s.work.Operator().Summary(t.Context(), "a0")
			state, stateErr := s.work.Operator().KeyState(t.Context(), &d, false)
			if err != nil || stateErr != nil || !state.Paused || state.Limit != 0 {
				t.Errorf("with the limit %d the key is %+v, %v, %v; want it paused", paused, state, err, stateErr)
			}
			limit.Store(1)
			s.recovery()
			s.idle(t, 3)
			if want := []string{"a0", "a0", "a1", "a2"}; !slices.Equal(s.ran(), want) {
				t.Errorf("ran %q, want %q", s.ran(), want)
			}
		})
	}

	fields, two := []string{"input.tenant"}, worker.Options{KeyField: "input.other", KeyLimit: 2}
	for _, c := range []struct {
		want    int
		kind    worker.Kind
		options worker.Options
	}{
		{1, worker.Kind{KeyFields: fields}, worker.Options{}},
		{2, worker.Kind{KeyFields: fields}, two},
		{1000, worker.Kind{KeyFields: fields, KeyLimit: func(string) int { return 2000 }}, two},
		{2, worker.Kind{}, worker.Options{KeyField: "input.tenant", KeyLimit: 2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serveKeyed(t, c.kind, c.options)
			s.submit(t, "a", 1)
			synctest.Wait()
			d, err := s.work.Operator().Summary(t.Context(), "a0")
			state, stateErr := s.work.Operator().KeyState(t.Context(), &d, false)
			if err != nil || stateErr != nil || state.Limit != c.want {
				t.Errorf("the limit is %d, %v, %v; want %d", state.Limit, err, stateErr, c.want)
			}
			s.idle(t, 1)
		})
	}
}

// A kind that has a limit and no key would not be limited.
func TestKey_NeedsFields(t *testing.T) {
	run := func(context.Context, worker.Job) (any, error) { return "done", nil }
	for name, k := range map[string]worker.Kind{
		"a limit": {Run: run, KeyLimit: func(string) int { return 1 }}, "hold": {Run: run, KeyHold: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := workertest.New(t).Guard(worker.Options{})
			if _, err := g.Register(k); err == nil || !strings.Contains(err.Error(), "need KeyFields") {
				t.Errorf("%s without KeyFields: %v", name, err)
			}
		})
	}
}

// calls counts the calls of a service to Firestore and Cloud Tasks, by method.
type calls struct {
	mu    sync.Mutex
	count map[string]int
}

func (c *calls) add(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[path.Base(method)]++
}

func (c *calls) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			c.add(method)
			return invoke(ctx, method, req, reply, conn, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			c.add(method)
			return open(ctx, desc, conn, method, opts...)
		}),
	}
}

// callsOf returns the calls of the submission and the run of an analysis of the tenant.
func callsOf(t *testing.T, o worker.Options, tenant string, lasts time.Duration) (made map[string]int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{count: map[string]int{}}
		s := serveKeyed(t, worker.Kind{}, o, c.options()...)
		s.lasts = lasts
		s.submit(t, tenant, 1)
		if err := s.Tasks.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		made = c.count
	})
	return made
}

// What a key costs is counted at the connection.
func TestKey_Costs(t *testing.T) {
	for lasts, commits := range map[time.Duration]int{
		10 * time.Second:  2,
		350 * time.Second: 2 + 3, // three heartbeats
	} {
		none := callsOf(t, worker.Options{}, "a", lasts)
		if got := callsOf(t, worker.Options{KeyField: "input.tenant"}, "free", lasts); !maps.Equal(got, none) {
			t.Errorf("%v without the key costs %v, want %v, as without the setting", lasts, got, none)
		}
		want := maps.Clone(none)
		want["BatchGetDocuments"]++
		want["Commit"] += commits
		if got := callsOf(t, worker.Options{KeyField: "input.tenant"}, "a", lasts); !maps.Equal(got, want) {
			t.Errorf("%v with a key costs %v, want %v", lasts, got, want)
		}
	}
}

// A parking costs a write. The first of a key costs another, which says that somebody waits.
func TestKey_ParkingCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant"})
		s.submit(t, "b", 1)
		synctest.Wait()
		before := s.Firestore.Usage().Writes
		s.submit(t, "b", 3)
		if got, want := s.Firestore.Usage().Writes-before, int64(2+2+1); got != want { // the creations too
			t.Errorf("two that are parked cost %d writes, want %d", got, want)
		}
		s.idle(t, 3)
	})
}

// The end of a run wakes as many as slots are free. What that reads does not grow with the limit.
func TestKey_WakingCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant", KeyLimit: 20})
		s.lasts = time.Minute
		s.submit(t, "b", 45)
		time.Sleep(14500 * time.Millisecond) // until a moment before the end of the first
		before := s.Firestore.Usage().Reads
		time.Sleep(time.Second)
		if got := s.Firestore.Usage().Reads - before; len(s.ran()) != 21 || got > 6 {
			t.Errorf("the end of a run began %d others with %d reads, want 1 with at most 6", len(s.ran())-20, got)
		}
		s.idle(t, 45)
	})
}

// Why an analysis does not run: who has the slots of its key, and how many come before it.
func TestKey_State(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant", KeyLimit: 2})
		s.submit(t, "a", 5)
		s.submit(t, "b", 1)
		s.submit(t, "free", 1)
		synctest.Wait()

		operator := s.Guard(worker.Options{KeyField: "input.tenant"}).MustRegister(worker.Kind{}).Operator() // of another limit
		for id, want := range map[string]string{
			"a0": "key a: 2 of 2 run: a0, a1", "b0": "key b: 1 of 2 run: b0", "free0": "",
			"a2": "parked behind key a: 2 of 2 run: a0, a1; none waits before it",
			"a4": "parked behind key a: 2 of 2 run: a0, a1; 2 wait before it",
		} {
			d, err := operator.Summary(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if state, err := operator.KeyState(t.Context(), &d, true); state.String() != want || err != nil {
				t.Errorf("%s: %q, %v; want %q", id, state, err, want)
			}
			if state, err := operator.KeyState(t.Context(), &d, false); state.Before != nil || err != nil {
				t.Errorf("%s: %d are counted, %v", id, *state.Before, err)
			}
		}
		s.idle(t, 7)
	})
}

// A worker has died with the slot, and nobody will book the parked one: neither does recovery while the slot has
// not expired, and afterwards it does.
func TestKey_Recovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant"})

		const iso = "2006-01-02T15:04:05.000Z"
		id, past := fmt.Sprintf("%x", sha256.Sum256([]byte("a"))), time.Now().Add(-time.Hour).UTC()
		put := func(collection, id string, fields map[string]any) {
			if _, err := s.docs.Collection(collection).Doc(id).Create(t.Context(), fields); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 3 { // a0 was created last
			created := past.Add(time.Duration(-n) * time.Minute).Format(iso)
			put("analyses", fmt.Sprint("a", n), map[string]any{
				"status": "QUEUED", "input": map[string]any{"tenant": "a"}, "createdAt": created, "updatedAt": created,
				"parkedAt": past.Format(iso), "parkedFor": id + " " + created,
			})
		}
		slot := map[string]any{"analysis": "dead", "lockExpiresAt": time.Now().Add(2 * time.Minute).UTC().Format(iso)}
		put("analysesKeys", id, map[string]any{"key": "a", "waiting": true, "slots": map[string]any{"w/1": slot}})

		if got := s.recovery(); !strings.Contains(got, `"found":0,"booked":0`) {
			t.Errorf("with a slot that is held, recovery answers %s", got)
		}
		time.Sleep(3 * time.Minute)
		if got := s.recovery(); !strings.Contains(got, `"found":0,"booked":1`) {
			t.Errorf("with a free slot, recovery answers %s", got)
		}
		s.idle(t, 3)
		if want := []string{"a2", "a1", "a0"}; !slices.Equal(s.ran(), want) {
			t.Errorf("ran %q, want %q", s.ran(), want)
		}
	})
}

// A run whose slot is lost is cancelled at a heartbeat, as if its lock were lost, and runs again.
func TestKey_SlotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant"})
		s.lasts = 20 * time.Minute
		s.submit(t, "a", 1)
		id := fmt.Sprintf("%x", sha256.Sum256([]byte("a")))
		if _, err := s.docs.Collection("analysesKeys").Doc(id).Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.idle(t, 1)

		d, err := s.docs.Collection("analyses").Doc("a0").Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		history, _ := d.Data()["history"].([]any)
		if len(history) != 2 || len(s.ran()) != 2 || s.most["a"] != 1 {
			t.Fatalf("ran %q, at most %d at a time, with the history %v; want two runs", s.ran(), s.most["a"], history)
		}
		if first, _ := history[0].(map[string]any); first["outcome"] != "lock_lost" {
			t.Errorf("the first run ended with %v, want lock_lost", first)
		}
	})
}

// An analysis becomes a suspect after its slot is taken: the slot is free again when the delivery is answered.
func TestKey_SuspectAfterTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *keyed
		var crashed atomic.Bool
		s = serveKeyed(t, worker.Kind{}, worker.Options{KeyField: "input.tenant"}, grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption,
		) error {
			err := invoke(ctx, method, req, reply, conn, opts...)
			if strings.Contains(fmt.Sprint(req), "update:{name:") && strings.Contains(fmt.Sprint(req), "/analysesKeys/") &&
				crashed.CompareAndSwap(false, true) {
				attempt := func(n int) map[string]any {
					return map[string]any{"attempt": n, "token": n, "owner": fmt.Sprint("w/", n), "outcome": "crashed"}
				}
				_, err := s.docs.Collection("analyses").Doc("a0").Update(ctx, []firestore.Update{
					{Path: "attempts", Value: 2}, {Path: "lockToken", Value: 2},
					{Path: "history", Value: []any{attempt(1), attempt(2)}},
				})
				if err != nil {
					t.Error(err)
				}
			}
			return err
		}))
		s.submit(t, "a", 2)
		s.idle(t, 2)
		if want := []string{"a1", "a0"}; !crashed.Load() || !slices.Equal(s.ran(), want) {
			t.Errorf("crashed: %t, and ran %q; want %q", crashed.Load(), s.ran(), want)
		}
	})
}
