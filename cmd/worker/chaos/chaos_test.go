package chaos

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/proof"
	"taskguard/repo"
)

// size contains the sizes of a TestChaos.
type size struct {
	full                          bool
	duration                      time.Duration // of the faults; then all must be finished
	analyses, deliveries, workers int           // deliveries of each analysis
	ttl, runTimeout               time.Duration
	retryMin, retryMax            time.Duration
	every                         int // one commit of so many has a fault
	seed                          uint64
}

// sizeOf reads the environment.
func sizeOf(t *testing.T) size {
	t.Helper()
	s := size{duration: 4 * time.Second, analyses: 12, deliveries: 2, workers: 2, ttl: 1500 * time.Millisecond, runTimeout: 2250 * time.Millisecond, retryMin: 4 * time.Second, retryMax: 5 * time.Second, every: 3, seed: rand.Uint64()}

	if v := os.Getenv("CHAOS"); v != "" && v != "0" {
		s.full, s.duration, s.analyses, s.deliveries, s.workers, s.every = true, 5*time.Minute, 200, 5, 4, 8
		s.ttl, s.runTimeout, s.retryMax = 3*time.Second, 6*time.Second, 8*time.Second
	}

	var badDuration, badSeed error
	if v := os.Getenv("CHAOS_DURATION"); v != "" {
		s.duration, badDuration = time.ParseDuration(v)
	}
	if v := os.Getenv("CHAOS_SEED"); v != "" {
		s.seed, badSeed = strconv.ParseUint(v, 10, 64)
	}
	if err := errors.Join(badDuration, badSeed); err != nil {
		t.Fatal("CHAOS_DURATION, CHAOS_SEED: ", err)
	}
	return s
}

// chaos is one TestChaos.
type chaos struct {
	*system
	size
	signalStore func(syscall.Signal) error
	operator    *repo.Analyses
	slots       []*slot
	began       time.Time

	mu      sync.Mutex
	counts  map[string]int
	ends    map[int]ending             // of workers, by number
	pauses  map[int][]proof.Span       // of workers, by number
	breaks  map[acquisition]proof.Span // from when the operator unlocked it, until its trust has ended
	traps   map[acquisition]trap       // for the booking of the next attempt
	acts    map[string][]proof.ActStep // at the provider, by analysis
	stalls  []proof.Span               // when this machine stood still
	longest time.Duration              // that a repeated unit had waited for its commit
	errs    []error                    // of signals, starts and commands that should have worked
}

// acquisition names one acquisition of an analysis.
type acquisition struct {
	analysis string
	token    int64
}

// watchMachine records when this machine stands still, until ctx ends: at such times
// a worker may be late too.
func (c *chaos) watchMachine(ctx context.Context) {
	const tick = 5 * time.Millisecond
	for before := c.since(); ctx.Err() == nil; {
		time.Sleep(tick)
		now := c.since()
		if now-before > 2*tick {
			c.locked(func() { c.stalls = append(c.stalls, proof.Span{From: before + tick, Until: now}) })
		}
		before = now
	}
}

func (c *chaos) since() time.Duration { return time.Since(c.began) }

func (c *chaos) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func (c *chaos) add(what string) { c.locked(func() { c.counts[what]++ }) }

func (c *chaos) check(err error) {
	if err != nil {
		c.locked(func() { c.errs = append(c.errs, err) })
	}
}

// random returns the random choices for one purpose.
func (s size) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

// between returns a duration from least to most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

func TestChaos(t *testing.T) {
	t.Parallel()
	size := sizeOf(t)
	t.Logf("CHAOS_SEED=%d: %+v", size.seed, size)

	c := &chaos{size: size, began: time.Now(), counts: map[string]int{}, ends: map[int]ending{}, pauses: map[int][]proof.Span{}, breaks: map[acquisition]proof.Span{}, traps: map[acquisition]trap{}, acts: map[string][]proof.ActStep{}}

	host, signal := newFirestore(t, size.full)
	c.system, c.signalStore = newSystem(t, host, newAnalyzer(t, c.units, c.analyze)), signal
	c.analyzer.Config.Handler = c.provider(c.analyzer)
	host, err := c.proxy.listen(operator) // the operator's unlocks belong to the history
	check(t, err)
	if c.operator, err = repo.Open(t.Context(), c.docs.Project, repo.Options{}, emulatortest.At(host).Client(t)...); err != nil {
		t.Fatal(err)
	}

	c.queue = newQueue(t, c.duplicates())
	c.queue.delay = c.delays()
	c.queue.proxy.script(c.bookings())
	for n := range size.workers {
		p := &slot{n: n}
		c.slots = append(c.slots, p)
		t.Cleanup(func() {
			if p.process != nil {
				p.process.end()
			}
		})
		check(t, c.startIn(p))
	}
	c.createAnalyses(t)
	c.proxy.script(c.faults())

	began := time.Now()
	during, over := context.WithTimeout(t.Context(), size.duration)
	defer over()
	throughout, done := context.WithCancel(t.Context())
	defer done()
	var watchers sync.WaitGroup
	watchers.Go(func() { c.recover(throughout) })
	watchers.Go(func() { c.answerActs(throughout) })
	watchers.Go(func() { c.watchMachine(throughout) })
	c.injectFaults(during)
	c.proxy.script(nil)
	faulty := time.Since(began)
	c.settle(t)
	done()
	watchers.Wait()
	t.Logf("%v of faults, %v until all was quiet", faulty.Round(time.Second), (time.Since(began) - faulty).Round(time.Second))
	for _, p := range c.slots {
		c.check(p.process.terminate())
	}
	c.judgeAll(t)
}

// createAnalyses creates the analyses and their deliveries, spread over three quarters
// of the duration.
func (c *chaos) createAnalyses(t *testing.T) {
	t.Helper()
	r := c.random("deliveries")
	for i := range c.analyses {
		c.create(t, id(i))
		at := time.Duration(i) * c.duration * 3 / 4 / time.Duration(c.analyses)
		for range c.deliveries {
			check(t, c.queue.deliver(t.Context(), id(i), at+between(r, 0, c.ttl)))
		}
	}
}

func id(i int) string { return fmt.Sprintf("analysis-%03d", i) }

// units returns how many units of work an analysis has. They take at least two
// RUN_TIMEOUTs for one analysis of ten, longer than a TTL for half of the others, and less
// for the rest.
func (c *chaos) units(id string) int {
	r := c.random(id)
	takes := between(r, unitTime, c.ttl/3)
	switch last := id[len(id)-1:]; {
	case last == "0":
		takes = between(r, c.runTimeout*2, c.runTimeout*3)
	case last == "3" || last == "6" || last == "9", r.IntN(3) == 0:
		takes = between(r, c.ttl*5/4, c.ttl*5/2)
	}
	return int(takes / unitTime)
}

// analyze does the units that are left; one run of eight fails after half of them. After
// an unlock it takes at least one TTL, in which the heartbeats of the run before it are due.
func (c *chaos) analyze(this *run) (succeeds bool) {
	takes := time.Duration(c.units(this.analysis)-this.resumed.Unit) * unitTime
	if succeeds = c.random(fmt.Sprint(this.analysis, this.token)).IntN(8) != 0; !succeeds {
		takes /= 2
	}
	c.locked(func() {
		if _, follows := c.breaks[acquisition{this.analysis, this.token - 1}]; follows {
			takes = max(takes, c.ttl)
		}
	})
	c.analyzer.work(this, takes)
	return succeeds
}

// duplicates makes the queue dispatch one delivery in ten twice.
func (c *chaos) duplicates() func(*cloudtaskspb.Task) []time.Duration {
	var mu sync.Mutex
	r := c.random("duplicates")
	n := 0
	return func(*cloudtaskspb.Task) []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%10 != 0 {
			return nil
		}
		c.add("duplicates")
		return []time.Duration{between(r, 0, c.ttl)}
	}
}

// delays makes the queue dispatch one delivery in ten late.
func (c *chaos) delays() func() time.Duration {
	r := c.random("delays")
	n := 0
	return func() time.Duration {
		if n++; n%10 != 0 {
			return 0
		}
		return between(r, c.ttl/20, c.ttl)
	}
}

// recover calls recovery every two TTLs at one of the workers, as Cloud Scheduler does
// each minute. It books again what was not delivered within a TTL, which adds load to a slow
// machine.
func (c *chaos) recover(ctx context.Context) {
	r := c.random("recovery")
	for ; ctx.Err() == nil; pause(ctx, 2*c.ttl) {
		try, cancel := context.WithTimeout(ctx, 2*c.ttl) // the worker may be paused
		if post(try, c.slots[r.IntN(len(c.slots))].address(), "/internal/tasks/recover", "").is(http.StatusOK, `"found"`) {
			c.add("recoveries")
		}
		cancel()
	}
}

// logState logs what each worker answers about an analysis that is not READY, and to recovery.
func (c *chaos) logState(t *testing.T, id string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*c.ttl)
	defer cancel()
	c.locked(func() { t.Logf("so far %v, answers %v, errors %v", c.counts, c.queue.counts, c.errs) })
	for _, p := range c.slots {
		t.Logf("worker %d: recovery %s", p.number, post(ctx, p.address(), "/internal/tasks/recover", ""))
		t.Logf("worker %d: delivery %s", p.number, post(ctx, p.address(), "/internal/tasks/analysis", fmt.Sprintf(`{"analysis_id":%q}`, id)))
	}
	t.Logf("%s is now %v", id, c.docs.Fields(t, id))
}

// settleTime is how long the last analyses may take after the faults: several TTLs on
// a slow machine.
const settleTime = 3 * time.Minute

// settle returns when every analysis is READY and the queue is empty, or fails.
func (c *chaos) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	for i := range c.analyses {
		for c.docs.Fields(t, id(i))["status"] != "READY" {
			if pause(ctx, 100*time.Millisecond); ctx.Err() != nil {
				c.logState(t, id(i))
				t.Fatalf("%s is not READY after %v: %v", id(i), settleTime, c.docs.Fields(t, id(i)))
			}
		}
	}
	if err := c.queue.server.Idle(ctx); err != nil {
		t.Errorf("the queue is not empty: %v", err)
	}
	c.queue.close()
}
