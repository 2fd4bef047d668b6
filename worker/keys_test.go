package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// As many as the limit of each key run at a time, in the order of their creation.
func TestKey(t *testing.T) {
	upper := func(fields map[string]any) string {
		input, _ := fields["input"].(map[string]any)
		tenant, _ := input["tenant"].(string)
		return strings.ToUpper(tenant)
	}
	limit := func(key string) int { return map[string]int{"a": 1, "b": 2}[strings.ToLower(key)] }
	for name, k := range map[string]worker.Kind{
		"of a field":    {KeyFields: []string{"input.tenant"}, KeyLimit: limit},
		"of a function": {KeyFields: []string{"status", "input.tenant"}, Key: upper, KeyLimit: limit},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			s, began := serveKeyed(t, k, worker.Options{}), time.Now()
			var tenants sync.WaitGroup
			for _, tenant := range []string{"a", "b", "free"} {
				tenants.Go(func() { s.submit(t, tenant, 6) })
			}
			tenants.Wait()
			s.idle(t, 18)
			if took := time.Since(began); took > 70*time.Second {
				t.Errorf("took %v, want the time of six runs", took)
			}
			if s.most["a"] != 1 || s.most["b"] != 2 {
				t.Errorf("at a time ran %v, want one of a and two of b", s.most)
			}
			if s.most["free"] < 3 {
				t.Errorf("at a time ran %v, want all of free", s.most)
			}
			order := slices.DeleteFunc(s.order(), func(id string) bool { return id[0] != 'a' })
			if !slices.IsSorted(order) {
				t.Errorf("ran in the order %q", order)
			}
		})
	}
}

// An interrupted run keeps its slot for the next one, so that the next analysis does not run between its halves. A
// failed one keeps it with KeyHold.
func TestKey_Hold(t *testing.T) {
	advances := func(ctx context.Context, job worker.Job) (any, error) {
		_ = job.Checkpoint(ctx, 1)
		return runs(time.Hour)(ctx, job)
	}
	held, passed := []string{"a0", "a0", "a1", "a2"}, []string{"a0", "a1", "a2", "a0"}
	for name, c := range map[string]struct {
		first runFunc
		hold  bool
		want  []string
	}{
		"continued":            {advances, false, held},
		"failed":               {failsOnce, false, passed},
		"failed, with KeyHold": {failsOnce, true, held},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			o := worker.Options{KeyField: "input.tenant", KeyHold: c.hold, RunTimeout: 20 * time.Second}
			s := serveKeyed(t, worker.Kind{Run: firstRun(c.first)}, o)
			s.late = 300 * time.Millisecond
			s.submit(t, "a", 3)
			s.idle(t, 3)
			s.checkOrder(t, c.want...)
		})
	}
}

// An analysis keeps its key for six hours, and ends otherwise: recovery frees the key.
func TestKey_HeldInVain(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *keyed){
		"cancelled": func(t *testing.T, s *keyed) {
			if _, err := s.work.Operator().Cancel(t.Context(), "a0", "me", nil); err != nil {
				t.Error(err)
			}
		},
		"deleted": func(t *testing.T, s *keyed) { s.docs.Delete(t, "a0") },
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			later := firstRun(func(context.Context, worker.Job) (any, error) {
				return nil, worker.RetryAfter(nil, 6*time.Hour)
			})
			s := serveKeyed(t, worker.Kind{Run: later}, worker.Options{KeyField: "input.tenant", KeyHold: true})
			s.submit(t, "a", 2)
			time.Sleep(time.Minute)
			s.recover(t, 0)
			end(t, s)
			s.recover(t, 1)
			time.Sleep(time.Minute)
			s.checkOrder(t, "a0", "a1")
			_ = s.Tasks.Idle(t.Context())
		})
	}
}

func TestKey_Limit(t *testing.T) {
	fields, two := []string{"input.tenant"}, worker.Options{KeyField: "input.other", KeyLimit: 2}
	for name, c := range map[string]struct {
		want    int
		kind    worker.Kind
		options worker.Options
	}{
		"the default is 1":                {1, worker.Kind{KeyFields: fields}, worker.Options{}},
		"the options' for a kind's field": {2, worker.Kind{KeyFields: fields}, two},
		"the options' for their field":    {2, worker.Kind{}, worker.Options{KeyField: "input.tenant", KeyLimit: 2}},
		"at most 1000": {
			1000, worker.Kind{KeyFields: fields, KeyLimit: func(string) int { return 2000 }}, two,
		},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			s := serveKeyed(t, c.kind, c.options)
			s.submit(t, "a", 1)
			synctest.Wait()
			if got := s.state(t, "a0", false).Limit; got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			s.idle(t, 1)
		})
	}

	for _, paused := range []int64{0, -1} { // also if the next attempt has kept the slot
		worker.Subtest(t, fmt.Sprint(paused, " pauses the key"), func(t *testing.T) {
			var limit atomic.Int64
			limit.Store(1)
			run := firstRun(func(ctx context.Context, job worker.Job) (any, error) {
				limit.Store(paused)
				return failsOnce(ctx, job)
			})
			s := serveKeyed(t, worker.Kind{
				KeyFields: fields, KeyHold: true, KeyLimit: func(string) int { return int(limit.Load()) }, Run: run,
			}, worker.Options{})
			s.submit(t, "a", 3)
			time.Sleep(time.Hour)
			s.recover(t, 0)
			s.checkOrder(t, "a0")
			if state := s.state(t, "a2", true); !state.Paused || *state.Before != 2 {
				t.Errorf("the key is %+v, want it paused", state)
			}
			if before := s.state(t, "a2", false).Before; before != nil {
				t.Errorf("%d are counted before it", *before)
			}
			limit.Store(1)
			s.recover(t, 1)
			s.idle(t, 3)
			s.checkOrder(t, "a0", "a0", "a1", "a2")
		})
	}
}

// callsOf returns the calls of the submission and the run of an analysis of the tenant.
func callsOf(t *testing.T, o worker.Options, tenant string, lasts time.Duration) (made map[string]int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{count: map[string]int{}}
		s := serveKeyed(t, worker.Kind{Run: runs(lasts)}, o, grpc.WithStatsHandler(c))
		s.submit(t, tenant, 1)
		must.OK(t, s.Tasks.Idle(t.Context()))
		made = c.count
	})
	return made
}

func TestKey_Costs(t *testing.T) {
	for lasts, commits := range map[time.Duration]int{
		10 * time.Second:  2,
		350 * time.Second: 2 + 3, // three heartbeats
	} {
		t.Run("a run of "+lasts.String(), func(t *testing.T) {
			none := callsOf(t, worker.Options{}, "a", lasts)
			if got := callsOf(t, byTenant, "free", lasts); !maps.Equal(got, none) {
				t.Errorf("without the key it costs %v, want %v, as without the setting", got, none)
			}
			want := maps.Clone(none)
			want["BatchGetDocuments"]++
			want["Commit"] += commits
			if got := callsOf(t, byTenant, "a", lasts); !maps.Equal(got, want) {
				t.Errorf("with a key it costs %v, want %v", got, want)
			}
		})
	}
	worker.Subtest(t, "a parking", func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, byTenant)
		s.submit(t, "b", 1)
		synctest.Wait()
		before := s.Firestore.Usage().Writes
		s.submit(t, "b", 3)
		// Two creations, two parkings, and once the key says that somebody waits.
		if got := s.Firestore.Usage().Writes - before; got != 2+2+1 {
			t.Errorf("two that are parked cost %d writes, want 5", got)
		}
		s.idle(t, 3)
	})
	worker.Subtest(t, "a waking does not grow with the limit", func(t *testing.T) {
		o := worker.Options{KeyField: "input.tenant", KeyLimit: 20}
		s := serveKeyed(t, worker.Kind{Run: runs(time.Minute)}, o)
		s.submit(t, "b", 45)
		time.Sleep(14500 * time.Millisecond) // until a moment before the end of the first
		before := s.Firestore.Usage().Reads
		time.Sleep(time.Second)
		if got := s.Firestore.Usage().Reads - before; len(s.order()) != 21 || got > 6 {
			t.Errorf("%d have begun after %d reads, want one more than 20 with at most 6", len(s.order()), got)
		}
		s.idle(t, 45)
	})
}

func TestKey_SlotLost(t *testing.T) {
	worker.Subtest(t, "recovery books what waits once a dead worker's slot has expired", func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{}, byTenant)
		past := time.Now().Add(-time.Hour)
		for n := range 3 { // a0 was created last
			created := iso8601.Format(past.Add(time.Duration(-n) * time.Minute))
			s.docs.Put(t, fmt.Sprint("a", n), map[string]any{
				"status": "QUEUED", "input": map[string]any{"tenant": "a"}, "createdAt": created, "updatedAt": created,
				"parkedAt": iso8601.Format(past), "parkedFor": keyID("a") + " " + created,
			})
		}
		slot := map[string]any{"analysis": "dead", "lockExpiresAt": iso8601.Format(time.Now().Add(2 * time.Minute))}
		s.keys.Put(t, keyID("a"), map[string]any{"key": "a", "waiting": true, "slots": map[string]any{"w/1": slot}})

		s.recover(t, 0)
		time.Sleep(3 * time.Minute)
		s.recover(t, 1)
		s.idle(t, 3)
		s.checkOrder(t, "a2", "a1", "a0")
	})
	worker.Subtest(t, "a run whose slot is lost is cancelled as if its lock were, and runs again", func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{Run: runs(20 * time.Minute)}, byTenant)
		s.submit(t, "a", 1)
		s.keys.Delete(t, keyID("a"))
		began := time.Now()
		s.idle(t, 1)

		if took := time.Since(began); took > 30*time.Minute {
			t.Errorf("two runs took %v, want that the first was cancelled", took)
		}
		s.checkOrder(t, "a0", "a0")
		history, _ := s.docs.Fields(t, "a0")["history"].([]any)
		if len(history) != 2 || s.most["a"] != 1 {
			t.Fatalf("at most %d at a time, with the history %v; want two runs", s.most["a"], history)
		}
		if first, _ := history[0].(map[string]any); first["outcome"] != "lock_lost" {
			t.Errorf("the first run ended with %v, want lock_lost", first)
		}
	})
	worker.Subtest(t, "after an unlock the next run takes over the slot", func(t *testing.T) {
		s := serveKeyed(t, worker.Kind{Run: firstRun(runs(time.Hour))}, byTenant)
		s.submit(t, "a", 1)
		synctest.Wait()
		if _, err := s.work.Operator().Unlock(t.Context(), "a0", "me", nil, ""); err != nil {
			t.Fatal(err)
		}
		if d, err := s.work.Run(t.Context(), "a0"); err != nil || d.Outcome != "ready" {
			t.Errorf("after the unlock: %+v, %v", d, err)
		}
	})
	worker.Subtest(t, "one that becomes a suspect after its slot is taken frees it", func(t *testing.T) {
		attempt := func(n int) map[string]any {
			return map[string]any{"attempt": n, "token": n, "owner": fmt.Sprint("w/", n), "outcome": "crashed"}
		}
		var s *keyed
		s = serveKeyed(t, worker.Kind{}, byTenant, afterKeySwap(func() {
			s.docs.Merge(t, "a0", map[string]any{
				"attempts": 2, "lockToken": 2, "history": []any{attempt(1), attempt(2)},
			})
		}))
		s.submit(t, "a", 2)
		s.idle(t, 2)
		s.checkOrder(t, "a1", "a0")
	})
}

// An alert is for starts that are late against somebody's will. A parked analysis waits on purpose, and is counted.
func TestKey_ParkedIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, reader := &emulatortest.Log{}, sdkmetric.NewManualReader()
		o := worker.Options{
			KeyField: "input.tenant", Log: slog.New(slog.NewJSONHandler(log, nil)),
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}
		s := serveKeyed(t, worker.Kind{}, o)
		s.late = 200 * time.Millisecond // so that a start is not at once
		s.submit(t, "a", 3)
		synctest.Wait()
		s.recover(t, 0)
		if got := worker.Counts(t, reader, "taskguard.parked"); got != ":2" {
			t.Errorf("the gauge has %q, want 2", got)
		}
		s.idle(t, 3)
		s.recover(t, 0)
		if got := worker.Counts(t, reader, "taskguard.parked"); got != ":0" {
			t.Errorf("the gauge has %q, want none", got)
		}

		started := slices.DeleteFunc(strings.Split(log.String(), "\n"), func(line string) bool {
			return !strings.Contains(line, `"time_to_start_ms"`)
		})
		if len(started) != 1 || !strings.Contains(started[0], `"analysis_id":"a0"`) {
			t.Errorf("the time to start is in %q, want only that of a0", started)
		}
		if got := worker.Counts(t, reader, "taskguard.analysis.start.duration"); !strings.HasPrefix(got, ":0.") {
			t.Errorf("the starts took %q, want less than a second", got)
		}
	})
}

// A misspelt field limits nothing: the process says so once, unless a run had a key.
func TestKey_NoneFound(t *testing.T) {
	for name, c := range map[string]struct{ keyed, free, want int }{
		"a hundred":                    {free: 101, want: 1},
		"fewer":                        {free: 99},
		"a hundred after one with key": {keyed: 1, free: 101},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			log := &emulatortest.Log{}
			o := worker.Options{KeyField: "input.tenant", Log: slog.New(slog.NewJSONHandler(log, nil))}
			s := serveKeyed(t, worker.Kind{Run: runs(time.Second)}, o)
			s.submit(t, "a", c.keyed)
			s.submit(t, "free", c.free)
			s.idle(t, c.keyed+c.free)
			if got := strings.Count(log.String(), "no analysis has a key"); got != c.want {
				t.Errorf("%d warnings, want %d", got, c.want)
			}
		})
	}
}
