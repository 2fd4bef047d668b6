package worker

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// tenancy is the load of many tenants, one of whom submits more than all others.
type tenancy struct {
	tenants, each int           // each of the others submits so many analyses, at random times
	over, run     time.Duration // within this time; each runs for so long
	parked        int           // so many of the last one are parked from the start, as their deliveries have left them
	flood, rate   int           // it submits so many more, at that rate a second, from floodBegins
	limit         int           // analyses of a tenant that run at a time
	places        int           // deliveries that a queue sends at once
	throttling    cloudtasks.Throttling
	ownQueue      bool // the flood has a queue of its own, which is throttled
}

const floodBegins = 30 * time.Second

func (load *tenancy) others() int { return load.tenants * load.each }

// tenancyFigures is what a tenancy has shown.
type tenancyFigures struct {
	starts, created []time.Duration // of each of the others: from its creation to its first acquisition
	sent            time.Duration   // when the last of the flood was delivered for the first time
	runs            int             // of the flood, that have begun
	recovery        int64           // reads while recovery ran, nearly all its own
	reads, writes   int64           // without these
	tasks           int             // calls of CreateTask
}

// between returns the starts of the others that were created in that time, sorted.
func (f *tenancyFigures) between(from, to time.Duration) (starts []time.Duration) {
	for i, created := range f.created {
		if from <= created && created < to {
			starts = append(starts, f.starts[i])
		}
	}
	slices.Sort(starts)
	return starts
}

func percentile(starts []time.Duration, p int) time.Duration { return starts[(len(starts)-1)*p/100] }

// TestScaleKeys compares how long the analyses of 999 tenants wait until they start, with and without the flood of
// one more. Time is virtual, so a slow machine does not change the figures.
func TestScaleKeys(t *testing.T) {
	load := tenancy{tenants: 99, each: 2, over: 4 * time.Minute, run: 20 * time.Second, limit: 3, places: 30}
	parked, size, rate, atOnce := 1600, 400, 4, 300
	if os.Getenv("SCALE") != "" {
		load = tenancy{tenants: 999, each: 1, over: 4 * time.Minute, run: time.Minute, limit: 3, places: 1000}
		parked, size, rate, atOnce = 80_000, 20_000, 250, 3_000
	}
	without := load.simulate(t)

	for _, tc := range []struct {
		name   string
		change func(*tenancy)
		during bool // also while the flood is delivered the others start as they do without it
		// Where the next of the flood has a slot, but its task waits behind others of the flood, each of these asks who
		// comes before it, and books that one again.
		reads, tasks int64 // of one that is parked
	}{
		{"submitted no faster than the queue sends", func(l *tenancy) {
			l.parked, l.flood, l.rate = parked, size, rate
		}, true, 3, 1},
		{"at once", func(l *tenancy) {
			l.flood, l.rate, l.throttling = atOnce, 1000, cloudtasks.AsDocumented
		}, false, 4 + int64(load.limit), 1 + int64(load.limit)},
		{"at once, in a queue of its own", func(l *tenancy) {
			l.flood, l.rate, l.ownQueue = atOnce, 1000, true
		}, true, 3, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			began, flooded := time.Now(), load
			tc.change(&flooded)
			with := flooded.simulate(t)
			for _, phase := range []struct {
				name     string
				from, to time.Duration
				alike    bool
			}{
				{"during", floodBegins, with.sent, tc.during},
				// The queue has sent what came behind the flood, too.
				{"after", with.sent + 30*time.Second, load.over, true},
			} {
				usual, starts := without.between(phase.from, phase.to), with.between(phase.from, phase.to)
				if len(starts) < 10 {
					t.Errorf("only %d of the others were created %s the flood", len(starts), phase.name)
					continue
				}
				for _, p := range []int{50, 99} {
					got, want := percentile(starts, p), percentile(usual, p)
					if phase.alike && got*10 > want*12 {
						t.Errorf("p%d to start %s the flood is %v, want 1.2 times %v at most", p, phase.name, got, want)
					}
				}
				const line = "%s: %d others start after p50 %v, p99 %v, at most %v; without it %v, %v, %v\n"
				_, _ = fmt.Fprintf(t.Output(), line,
					phase.name, len(starts), percentile(starts, 50), percentile(starts, 99), percentile(starts, 100),
					percentile(usual, 50), percentile(usual, 99), percentile(usual, 100))
			}
			flooded.checkCosts(t, &without, &with, tc.reads, tc.tasks)
			_, _ = fmt.Fprintf(t.Output(), "the %d are sent in %v; %v of real time\n",
				flooded.flood, (with.sent - floodBegins).Round(time.Second), time.Since(began).Round(time.Second))
		})
	}
}

// checkCosts checks what the flood has cost. A parked analysis costs its creation, a delivery that reads it and
// twice its key, and its parking. A run of the flood costs that, as much as a run of the others, and the reads when
// a run ends and when the next is woken. Until the woken one has the slot, the deliveries of a tenth of a second ask
// for it too.
func (load *tenancy) checkCosts(t *testing.T, without, with *tenancyFigures, readsOfOne, tasksOfOne int64) {
	t.Helper()
	others, runs, flood := int64(load.others()), int64(with.runs), int64(load.flood)
	ask := int64(1 + load.rate/10)
	reads, writes := with.reads-without.reads, with.writes-without.writes
	tasks := int64(with.tasks - without.tasks)
	for _, cost := range []struct {
		name      string
		got, most int64
	}{
		{"reads", reads, readsOfOne*flood + runs*(without.reads/others+8+ask)},
		{"writes", writes, 2*flood + runs*(without.writes/others+2)},
		{"calls of CreateTask", tasks, tasksOfOne*flood + runs*(1+ask)},
	} {
		if cost.got > cost.most {
			t.Errorf("the flood costs %d %s, want %d at most", cost.got, cost.name, cost.most)
		}
	}
	_, _ = fmt.Fprintf(t.Output(), "each of the flood costs %.2f reads, %.2f writes, %.2f tasks, and %d run; "+
		"recovery reads %d in a call\n", float64(reads)/float64(flood), float64(writes)/float64(flood),
		float64(tasks)/float64(flood), runs, with.recovery)
}

// simulate runs the load in virtual time, until the others have started.
func (load tenancy) simulate(t *testing.T) (figures tenancyFigures) {
	synctest.Test(t, func(t *testing.T) {
		others := load.others()
		s := newSimulation(t, scenario{n: others, run: load.run}, startLimited(t, load.throttling, int32(load.places)))
		s.keys = &repo.Concurrency{Fields: []string{"input.tenant"}, Limit: func(string) int { return load.limit }}
		s.dial = slowly
		var instances []*mortal
		for range 10 {
			instances = append(instances, s.start(t))
		}
		s.serve(instances)
		bulk := s.queue
		if load.ownQueue {
			bulk = startLimited(t, cloudtasks.AsDocumented, int32(load.places))
			bulk.workers = slices.Clone(s.queue.workers)
		}

		load.park(t, s)
		s.created = append(atRandom(others, load.over), make([]time.Time, load.flood+load.parked)...)
		before, began := s.b.Server.Usage(), time.Now()
		var submission sync.WaitGroup
		submission.Go(func() {
			s.submit(t, others, func(i int) any {
				return map[string]any{"tenant": fmt.Sprint("tenant ", i%load.tenants)}
			})
		})
		submission.Go(func() { load.submitFlood(t, s, bulk) })
		calls := int64(0)
		for time.Since(began) < load.over+load.run {
			time.Sleep(time.Minute)
			reads := s.b.Server.Usage().Reads
			if r, err := instances[0].runner.Recover(t.Context()); err != nil || r.Found > 0 {
				t.Errorf("recovery: %+v, %v", r, err)
			}
			figures.recovery += s.b.Server.Usage().Reads - reads
			calls++
		}
		submission.Wait()
		usage := s.b.Server.Usage()
		figures.reads, figures.writes = usage.Reads-before.Reads-figures.recovery, usage.Writes-before.Writes
		figures.recovery /= calls
		for _, i := range instances { // the flood has not ended
			i.kill()
		}

		bulk.mu.Lock()
		for _, d := range bulk.deliveries {
			if strings.HasPrefix(d.Task, "flood-") && d.Attempt == 0 {
				figures.sent = max(figures.sent, d.Started.Sub(began))
			}
		}
		figures.tasks = len(bulk.created)
		bulk.mu.Unlock()
		s.queue.mu.Lock()
		if load.ownQueue {
			figures.tasks += len(s.queue.created)
		}
		s.queue.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range others {
			took, started := s.started[strconv.Itoa(i)]
			if !started {
				t.Fatalf("%d of %d have started: %v", len(s.started), others, s.answers)
			}
			figures.starts = append(figures.starts, took)
			figures.created = append(figures.created, s.created[i].Sub(began))
		}
		figures.runs = len(s.started) - others
	})
	return figures
}

// slowly makes each call to Firestore take 10 ms longer.
var slowly = []grpc.DialOption{
	grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		time.Sleep(10 * time.Millisecond)
		return invoke(ctx, method, req, reply, conn, opts...)
	}),
	grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		time.Sleep(10 * time.Millisecond)
		return open(ctx, d, conn, method, opts...)
	}),
}

// submitFlood submits the analyses of one tenant in q. Their documents exist before, which is cheap.
func (load tenancy) submitFlood(t *testing.T, s *simulation, q *CloudQueue) {
	time.Sleep(floodBegins)
	first := load.others()
	times := s.created[first : first+load.flood]
	copy(times, atRate(load.flood, load.rate))
	for i, at := range times {
		id := strconv.Itoa(first + i)
		s.b.Put(t, id, map[string]any{
			"status": "QUEUED", "input": flood, "createdAt": at, "updatedAt": at, "bookedTask": "flood-" + id,
		})
	}
	for i, at := range times {
		time.Sleep(time.Until(at))
		id := strconv.Itoa(first + i)
		if _, err := q.Book(t.Context(), taskqueue.Task{Name: "flood-" + id, AnalysisID: id}); err != nil {
			t.Error(err)
		}
	}
}

// flood is the input of the analyses of one tenant.
var flood = map[string]any{"tenant": "flood"}

// park writes what is parked from the start, which was created one a second until now, and the record of its key.
func (load tenancy) park(t *testing.T, s *simulation) {
	key, now := analysislock.KeyID("flood"), time.Now()
	for i := range load.parked {
		at := iso8601.Format(now.Add(time.Duration(i-load.parked) * time.Second))
		s.b.Put(t, strconv.Itoa(load.others()+load.flood+i), map[string]any{
			"status": "QUEUED", "input": flood, "createdAt": at, "updatedAt": at,
			"parkedAt": at, "parkedFor": key + " " + at,
		})
	}
	if load.parked > 0 {
		keys := &emulatortest.Backend{Project: s.b.Project, Server: s.b.Server, Calls: &emulatortest.Calls{}}
		keys.Collection = "analysesKeys"
		keys.Put(t, key, map[string]any{"key": "flood", "waiting": true})
	}
}
