package worker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/repo"
)

// tenancy is the load of many tenants for an hour, one of whom submits more than all others.
type tenancy struct {
	tenants, each int // each tenant submits so many analyses of one minute at random times
	flood, rate   int // the last one submits so many more, at that rate a second; they begin after ten minutes
	limit         int // analyses of a tenant that run at a time; zero: there are no keys
	places        int // deliveries that the queue sends at once
	throttling    cloudtasks.Throttling
}

// tenancyFigures is what a tenancy has shown.
type tenancyFigures struct {
	starts        []time.Duration // from the creation to the first acquisition, of the others, sorted
	runs          int             // of the flood, that have begun
	recovery      int64           // reads while recovery ran, nearly all its own
	reads, writes int64           // without these
	tasks         int             // calls of CreateTask
}

func (f *tenancyFigures) percentile(p int) time.Duration { return f.starts[(len(f.starts)-1)*p/100] }

// One tenant with a flood delays the others little, and what is parked costs little.
func TestScaleKeys(t *testing.T) {
	load := tenancy{tenants: 20, each: 20, flood: 400, rate: 40, limit: 3, places: 40}
	if os.Getenv("SCALE") != "" {
		load = tenancy{tenants: 1000, each: 10, flood: 100_000, rate: 100, limit: 3, places: 500}
	}
	began, usual := time.Now(), load
	usual.flood = 0
	without, with := usual.simulate(t), load.simulate(t)

	for _, p := range []int{50, 99} {
		if limit := without.percentile(p) * 12 / 10; with.percentile(p) > limit {
			t.Errorf("p%d to start is %v, want %v at most", p, with.percentile(p), limit)
		}
	}
	// One of the flood costs a creation, a delivery that looks twice for a slot, and its parking. Those that run cost
	// as much as the others beside that, and the looks of a run that ends and of one that is woken.
	others, runs, flood := int64(len(without.starts)), int64(with.runs), int64(load.flood)
	reads, writes := with.reads-without.reads, with.writes-without.writes
	if most := 3*flood + runs*(without.reads/others+8); reads > most {
		t.Errorf("the flood costs %d reads, want %d at most", reads, most)
	}
	if most := 2*flood + runs*(without.writes/others+2); writes > most {
		t.Errorf("the flood costs %d writes, want %d at most", writes, most)
	}
	tasks := with.tasks - without.tasks
	if most := load.flood + with.runs + 2*load.limit; tasks > most {
		t.Errorf("the flood made %d tasks, want %d at most: one each, and another for each run", tasks, most)
	}

	out := func(format string, args ...any) { _, _ = fmt.Fprintf(t.Output(), format+"\n", args...) }
	for name, f := range map[string]tenancyFigures{"without": without, "with": with} {
		out("%s the %d of one tenant: the others start after p50 %v, p99 %v, at most %v; recovery reads %d",
			name, load.flood, f.percentile(50), f.percentile(99), f.percentile(100), f.recovery)
	}
	out("the flood: %d reads, %d writes, %d tasks, %d runs; %v of real time",
		reads, writes, tasks, with.runs, time.Since(began).Round(time.Second))
}

// simulate runs the load in virtual time, until the others have ended.
func (load tenancy) simulate(t *testing.T) (figures tenancyFigures) {
	synctest.Test(t, func(t *testing.T) {
		others := load.tenants * load.each
		s := &simulation{
			scenario: scenario{n: others, run: time.Minute, recovered: 10_000}, b: emulatortest.Embedded(t),
			queue: startLimited(t, load.throttling, int32(load.places)), created: make([]time.Time, others+load.flood),
			started: map[string]time.Duration{}, ready: map[string]int{}, answers: map[string]int{},
		}
		var instances []*mortal
		for range load.places / 20 {
			instances = append(instances, load.start(t, s))
		}
		s.serve(instances)
		began := time.Now()
		var submission sync.WaitGroup
		submission.Go(func() { load.submit(t, s, load.start(t, s).runner) })
		for time.Since(began) < 80*time.Minute {
			time.Sleep(time.Minute)
			before := s.b.Server.Usage().Reads
			if r, err := instances[0].runner.Recover(t.Context()); err != nil || r.Found > 0 {
				t.Errorf("recovery: %+v, %v", r, err)
			}
			figures.recovery += s.b.Server.Usage().Reads - before
		}
		submission.Wait()
		usage := s.b.Server.Usage()
		figures.reads, figures.writes = usage.Reads-figures.recovery, usage.Writes
		for _, i := range instances { // the flood has not ended
			i.kill()
		}

		s.queue.mu.Lock()
		figures.tasks = len(s.queue.created)
		s.queue.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		for id, took := range s.started {
			if i, err := strconv.Atoi(id); err == nil && i < others {
				figures.starts = append(figures.starts, took)
			}
		}
		figures.runs = len(s.started) - len(figures.starts)
		slices.Sort(figures.starts)
		if len(figures.starts) != others {
			t.Fatalf("%d of %d have started: %v", len(figures.starts), others, s.answers)
		}
	})
	return figures
}

// start starts an instance whose calls to Firestore take 10 ms.
func (load tenancy) start(t *testing.T, s *simulation) *mortal {
	slow := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		time.Sleep(10 * time.Millisecond)
		return invoke(ctx, method, req, reply, conn, opts...)
	})
	w := startWith(t, s.b, 10, s.analyze, slow)
	runner := w.runner
	runner.Queue, runner.Orphans = s.queue.Queue, atMost{runner.Orphans, s.recovered}
	if load.limit > 0 {
		wall := &Wall{}
		w.unavailable = &wall.Up
		keyed, err := repo.Open(t.Context(), s.b.Project, repo.Options{
			Policy: lease.Policy{TTL: lease.DefaultTTL, MaxAttempts: 10}, MaxRunTime: delivery.DefaultMaxRunTime,
			Concurrency: &repo.Concurrency{Fields: []string{"input.tenant"}, Limit: func(string) int { return load.limit }},
		}, wall.Client(t, s.b, slow)...)
		if err != nil {
			t.Fatal(err)
		}
		runner.Locks, runner.Orphans, runner.Keys = keyed, atMost{keyed, s.recovered}, keyed
	}
	runner.RetryMin, runner.RetryMax = delivery.DefaultMinRetry, delivery.DefaultMaxRetry
	runner.Log, runner.Telemetry, runner.Oldest = slog.New(slog.DiscardHandler), nil, nil
	w.restart(CheckedByProxy())
	return &mortal{process: w, load: s}
}

// submit creates the analyses: those of the others first by number, then the flood.
func (load tenancy) submit(t *testing.T, s *simulation, application *delivery.Runner) {
	work := &Work{collection: collection{application.Locks.(*repo.Analyses), application}}
	began, random := time.Now(), rand.New(rand.NewPCG(1, 2))
	order := make([]int, len(s.created))
	for i := range s.created {
		order[i] = i
		s.created[i] = began.Add(time.Duration(random.Int64N(int64(time.Hour))))
		if flood := i - load.tenants*load.each; flood >= 0 {
			s.created[i] = began.Add(10*time.Minute + time.Duration(flood)*time.Second/time.Duration(load.rate))
		}
	}
	slices.SortFunc(order, func(a, b int) int { return s.created[a].Compare(s.created[b]) })

	var calls sync.WaitGroup
	for _, i := range order {
		time.Sleep(time.Until(s.created[i]))
		tenant := "flood"
		if i < load.tenants*load.each {
			tenant = fmt.Sprint("tenant ", i%load.tenants)
		}
		calls.Go(func() {
			if _, err := work.submit(t.Context(), strconv.Itoa(i), map[string]any{"tenant": tenant}); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}
