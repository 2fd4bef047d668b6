package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// scenario is a load, with the faults that occur under it.
type scenario struct {
	n         int // analyses
	run       time.Duration
	places    int           // deliveries that the queue sends at once
	instances int           // of the worker
	recovered int           // analyses that one call of recovery finds at most
	over      time.Duration // in which the analyses are created, at random times; zero: 250 a second

	deaths time.Duration // the time between two deaths of instances; zero: none dies
	outage time.Duration // when Firestore becomes unavailable for an hour; zero: it does not
	purge  time.Duration // when the queue is purged; zero: it is not
	lose   int           // one of so many created tasks is lost; zero: none
}

// TestScale prints figures of docs/scale.md. A sample of a backlog has fewer analyses, and fewer
// places and analyses in a call of recovery in the same proportion. The rates of the queue, of
// recovery's marks and of Firestore's writes are always those of the whole.
func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip("takes minutes: make scale")
	}
	backlog := scenario{n: 2000, run: 20 * time.Minute, places: 100, instances: 50, recovered: 2000}
	with := func(change func(*scenario)) scenario {
		changed := backlog
		change(&changed)
		return changed
	}
	for _, tc := range []struct {
		name string
		scenario
	}{
		{"1,000,000 in a day: one hour", scenario{
			n: 1_000_000 / 24, over: time.Hour, run: time.Minute, places: 1000, instances: 100, recovered: 10_000,
		}},
		{"100,000 of 1 min at once: all", scenario{
			n: 100_000, run: time.Minute, places: 5000, instances: 50, recovered: 10_000,
		}},
		{"100,000 of 20 min at once: 1 of 50", with(func(s *scenario) { s.recovered = 200 })},
		{"10,000 at once, 10 % of the instances die each hour: 1 of 5", with(func(s *scenario) {
			s.deaths = 12 * time.Minute
		})},
		{"10,000 at once, Firestore unavailable from 1 h to 2 h: 1 of 5", with(func(s *scenario) {
			s.outage = time.Hour
		})},
		{"10,000 at once, the queue purged at 1 h: 1 of 5", with(func(s *scenario) { s.purge = time.Hour })},
		{"10,000 at once, 1 % of the tasks lost: 1 of 5", with(func(s *scenario) { s.lose = 100 })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			began := time.Now()
			synctest.Test(t, tc.simulate)
			_, _ = fmt.Fprintf(t.Output(), "%v of real time\n", time.Since(began).Round(time.Second))
		})
	}
}

// growingIndex limits the writes of all workers to those that Firestore accepts of values that
// grow: 500 a second. The others wait for a later second, as if Firestore answered slowly.
type growingIndex struct {
	mu                sync.Mutex
	demanded, written map[int64]int // by second
	longest           time.Duration // of a wait
}

func (x *growingIndex) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if commit, ok := req.(*firestorepb.CommitRequest); ok {
		time.Sleep(x.reserve(len(commit.GetWrites())))
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// reserve returns the wait for a second that has room for n writes.
func (x *growingIndex) reserve(n int) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	second := now.Unix()
	x.demanded[second] += n
	for x.written[second] >= 500 {
		second++
	}
	x.written[second] += n
	wait := max(0, time.Unix(second, 0).Sub(now))
	x.longest = max(x.longest, wait)
	return wait
}

// simulation is a scenario while it runs.
type simulation struct {
	scenario
	b     *emulatortest.Backend
	queue *CloudQueue
	index growingIndex
	keys  *repo.Concurrency // nil: there are none
	dial  []grpc.DialOption // to Firestore

	mu      sync.Mutex
	created []time.Time
	started map[string]time.Duration // from the creation to the first acquisition
	ready   map[string]int           // answers
	answers map[string]int           // by status and reason
	last    time.Time                // the last answer READY
}

// mortal is a worker that can die.
type mortal struct {
	*process
	load *simulation
	dead atomic.Bool
}

// atMost is recovery with a small limit.
type atMost struct {
	delivery.OrphanFinder
	limit int
}

// Orphaned finds no more than the limit.
func (a atMost) Orphaned(ctx context.Context, _ int) ([]lease.Cell[analysislock.Analysis], bool, error) {
	return a.OrphanFinder.Orphaned(ctx, a.limit)
}

// start starts an instance.
func (s *simulation) start(t *testing.T) *mortal {
	wall := &Wall{}
	a, err := repo.Open(t.Context(), s.b.Project, repo.Options{
		Policy:     lease.Policy{TTL: lease.DefaultTTL, MaxAttempts: 10},
		MaxRunTime: delivery.DefaultMaxRunTime, Concurrency: s.keys,
	}, wall.Client(t, s.b, s.dial...)...)
	must.OK(t, err)
	w := startWith(t, s.b, 10, s.analyze)
	w.unavailable = &wall.Up
	runner := w.runner
	runner.Locks, runner.Orphans, runner.Queue = a, atMost{a, cmp.Or(s.recovered, 10_000)}, s.queue.Queue
	runner.RetryMin, runner.RetryMax = delivery.DefaultMinRetry, delivery.DefaultMaxRetry
	runner.Log, runner.Telemetry = slog.New(slog.DiscardHandler), nil // they would grow
	if s.keys != nil {
		runner.Keys, runner.Oldest = a, nil
	}
	w.restart(CheckedByProxy())
	return &mortal{process: w, load: s}
}

func (s *simulation) analyze(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	i, err := strconv.Atoi(job.AnalysisID)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if _, again := s.started[job.AnalysisID]; !again {
		s.started[job.AnalysisID] = time.Since(s.created[i])
	}
	s.mu.Unlock()

	select {
	case <-time.After(s.run):
		return "done", nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// kill cuts the instance off from Firestore. It then answers 503, as Cloud Run does.
func (i *mortal) kill() {
	i.dead.Store(true)
	i.unavailable.Store(true)
	i.stop(delivery.ErrStopping)
}

func (i *mortal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	i.process.ServeHTTP(rec, r)
	if i.dead.Load() {
		i.load.count(reply{Code: http.StatusServiceUnavailable})
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}

	a := reply{Code: rec.Code}
	_ = json.Unmarshal(rec.Body.Bytes(), &a.Body) // an answer that is not JSON is not READY
	i.load.count(a)
	maps.Copy(w.Header(), rec.Header())
	w.WriteHeader(rec.Code)
}

func (s *simulation) count(a reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Body["status"] == "READY" && a.Body["acquired"] == true {
		s.ready[fmt.Sprint(a.Body["analysis_id"])]++
		s.last = time.Now()
	} else {
		s.answers[fmt.Sprint(a.Code, " ", cmp.Or[any](a.Body["reason"], "no answer"))]++
	}
}

// serve makes the queue call the instances, and no other.
func (s *simulation) serve(instances []*mortal) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.queue.workers = nil
	for _, i := range instances {
		s.queue.workers = append(s.queue.workers, i)
	}
}

// atRandom returns sorted times within a duration from now on.
func atRandom(n int, within time.Duration) []time.Time {
	now, random, times := time.Now(), rand.New(rand.NewPCG(1, 2)), make([]time.Time, n)
	for i := range times {
		times[i] = now.Add(time.Duration(random.Int64N(int64(within))))
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// atRate returns so many times a second from now on.
func atRate(n, rate int) []time.Time {
	now, times := time.Now(), make([]time.Time, n)
	for i := range times {
		times[i] = now.Add(time.Duration(i) * time.Second / time.Duration(rate))
	}
	return times
}

// submit submits the first n analyses at the times of their creation.
func (s *simulation) submit(t *testing.T, n int, input func(i int) any) {
	application := s.start(t).runner
	work := &Work{collection: collection{application.Locks.(*repo.Analyses), application}}
	var calls sync.WaitGroup
	for i, at := range s.created[:n] {
		time.Sleep(time.Until(at))
		calls.Go(func() {
			if _, err := work.submit(t.Context(), strconv.Itoa(i), input(i)); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}

// operate calls recovery each minute, and causes the faults, until all analyses are READY.
func (s *simulation) operate(t *testing.T, instances []*mortal) {
	began, minute := time.Now(), time.NewTicker(time.Minute)
	defer minute.Stop()
	death, purge := s.deaths, s.purge
	for ready := 0; ready < s.n; <-minute.C {
		passed := time.Since(began)
		if passed > 100*time.Hour {
			t.Fatalf("%d of %d are READY after %v", ready, s.n, passed)
		}
		if purge > 0 && passed >= purge {
			s.queue.purge()
			purge = 0
		}
		for _, i := range instances {
			i.unavailable.Store(s.outage > 0 && passed >= s.outage && passed < s.outage+time.Hour)
		}
		if s.deaths > 0 && passed >= death {
			instances[0].kill()
			instances = append(instances[1:], s.start(t))
			s.serve(instances)
			death += s.deaths
		}

		if _, err := instances[0].runner.Recover(t.Context()); err != nil && s.outage == 0 {
			t.Error(err)
		}
		s.mu.Lock()
		ready = len(s.ready)
		s.mu.Unlock()
	}
}

func newSimulation(t *testing.T, sc scenario, q *CloudQueue) *simulation {
	return &simulation{
		scenario: sc, b: emulatortest.Embedded(t), queue: q,
		index:   growingIndex{demanded: map[int64]int{}, written: map[int64]int{}},
		started: map[string]time.Duration{}, ready: map[string]int{}, answers: map[string]int{},
	}
}

func (sc scenario) simulate(t *testing.T) {
	s := newSimulation(t, sc, startLimited(t, cloudtasks.AsDocumented, int32(sc.places)))
	s.created = atRate(sc.n, 250)
	if sc.over > 0 {
		s.created = atRandom(sc.n, sc.over)
	}
	s.dial = []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.index.intercept)}
	s.queue.lose = sc.lose
	var instances []*mortal
	for range sc.instances {
		instances = append(instances, s.start(t))
	}
	s.serve(instances)
	began := time.Now()
	var submission sync.WaitGroup
	submission.Go(func() { s.submit(t, sc.n, func(int) any { return "input" }) })
	s.operate(t, instances)
	submission.Wait()
	must.OK(t, s.queue.Idle(t.Context()))
	s.report(t, began)
	s.check(t)
}

// report prints the figures of the scenario.
func (s *simulation) report(t *testing.T, began time.Time) {
	perAnalysis := func(n int) float64 { return float64(n) / float64(s.n) }
	starts := slices.Sorted(maps.Values(s.started))
	start := func(p int) time.Duration { return percentile(starts, p).Round(time.Second) }
	ideal := max(s.over+s.run, time.Duration(s.n)*s.run/time.Duration(s.places))
	stale, usage := 0, s.b.Server.Usage()
	for _, n := range s.answers {
		stale += n
	}

	out := func(format string, of ...any) { _, _ = fmt.Fprintf(t.Output(), format, of...) }
	out("%d analyses of %v, %d places; for each: ", s.n, s.run, s.places)
	out("CreateTask %.3f, GetTask %.2f, ", perAnalysis(len(s.queue.created)), perAnalysis(s.queue.asked))
	out("deliveries %.3f, ", perAnalysis(s.n+stale))
	out("reads %.2f, writes %.2f\n", perAnalysis(int(usage.Reads)), perAnalysis(int(usage.Writes)))
	out("answers other than READY %d: %v\n", stale, s.answers)
	out("to start p50 %v, p99 %v; drained in %v, ideal %v\n",
		start(50), start(99), s.last.Sub(began).Round(time.Second), ideal)
	most := func(bySecond map[int64]int) int { return slices.Max(slices.Collect(maps.Values(bySecond))) }
	out("writes in a second at most: demanded %d, written %d; the longest waited %v\n",
		most(s.index.demanded), most(s.index.written), s.index.longest.Round(time.Millisecond))
}

// check fails the test unless each analysis is READY once, and nothing is left.
func (s *simulation) check(t *testing.T) {
	for id, n := range s.ready {
		if n != 1 {
			t.Errorf("%s was answered READY %d times", id, n)
		}
	}
	w := s.start(t)
	n, err := w.runner.Locks.(*repo.Analyses).Count(t.Context(), repo.Filter{Status: "READY"})
	if err != nil || n != int64(s.n) {
		t.Errorf("%d are READY, %v; want %d", n, err, s.n)
	}
	time.Sleep(time.Hour)
	r, err := w.runner.Recover(t.Context())
	if err != nil || r != (delivery.Recovery{}) {
		t.Errorf("left is %+v, %v", r, err)
	}
	faults := s.deaths > 0 || s.outage > 0 || s.purge > 0 || s.lose > 0
	if created := len(s.queue.created); !faults && created*100 > s.n*105 {
		t.Errorf("%d calls of CreateTask for %d analyses", created, s.n)
	}
}
