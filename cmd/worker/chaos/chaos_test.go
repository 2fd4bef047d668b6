package chaos

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/repo"
)

// size is how much chaos there is.
type size struct {
	full                          bool
	duration                      time.Duration // of the faults; then all have to be finished
	analyses, deliveries, workers int           // deliveries of each analysis
	ttl                           time.Duration
	every                         int // so many commits come to one fault
	seed                          uint64
}

// sizeOf reads the environment.
func sizeOf(t *testing.T) size {
	t.Helper()
	s := size{duration: 4 * time.Second, analyses: 12, deliveries: 2, workers: 2, ttl: 1500 * time.Millisecond, every: 3, seed: rand.Uint64()}
	if v := os.Getenv("CHAOS"); v != "" && v != "0" {
		s.full, s.duration, s.analyses, s.deliveries, s.workers, s.ttl, s.every = true, 5*time.Minute, 200, 5, 4, 3*time.Second, 8
	}
	read := func(name string, parse func(string) error) {
		if v := os.Getenv(name); v != "" {
			if err := parse(v); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	number := func(to *int) func(string) error {
		return func(v string) (err error) {
			*to, err = strconv.Atoi(v)
			return err
		}
	}
	read("CHAOS_DURATION", func(v string) (err error) { s.duration, err = time.ParseDuration(v); return err })
	read("CHAOS_ANALYSES", number(&s.analyses))
	read("CHAOS_DELIVERIES", number(&s.deliveries))
	read("CHAOS_WORKERS", number(&s.workers))
	read("CHAOS_SEED", func(v string) (err error) { s.seed, err = strconv.ParseUint(v, 10, 64); return err })
	if s.workers < 2 || s.analyses < 1 || s.deliveries < 1 {
		t.Fatal("CHAOS_WORKERS: one must be left while another is paused; CHAOS_ANALYSES, CHAOS_DELIVERIES: at least 1")
	}
	return s
}

// chaos is one TestChaos.
type chaos struct {
	*stage
	size
	store    *store
	operator *repo.Analyses
	places   []*place

	mu     sync.Mutex
	counts map[string]int
	losses map[string]int            // of locks, by analysis
	pauses map[int][]interval        // of workers, by number
	breaks map[acquisition]time.Time // when the operator unlocked it
	stalls []interval                // of this machine, as the test has felt them
	errs   []error                   // of what was done to it, which should have worked
}

// acquisition is one of an analysis's.
type acquisition struct {
	analysis string
	token    int64
}

type interval struct{ from, to time.Time }

// watchMachine notes when this machine stands still, until ctx ends: then a
// worker may be late too.
func (c *chaos) watchMachine(ctx context.Context) {
	const tick = 5 * time.Millisecond
	for before := time.Now(); ctx.Err() == nil; {
		time.Sleep(tick)
		now := time.Now()
		if now.Sub(before) > 2*tick {
			c.mu.Lock()
			c.stalls = append(c.stalls, interval{before.Add(tick), now})
			c.mu.Unlock()
		}
		before = now
	}
}

func (c *chaos) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

func (c *chaos) check(err error) {
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.errs = append(c.errs, err)
	}
}

// random is a stream of choices of its own for each name.
func (s size) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

func TestChaos(t *testing.T) {
	t.Parallel()
	size := sizeOf(t)
	t.Logf("CHAOS_SEED=%d: %+v", size.seed, size)
	c := &chaos{size: size, store: newStore(t, size.full), counts: map[string]int{}, losses: map[string]int{}, pauses: map[int][]interval{}, breaks: map[acquisition]time.Time{}}
	c.stage = newStageOn(t, c.store.host, nil)
	c.analyzer.analyze = c.analyze
	c.operator = newOperator(t, c.stage)
	c.queue = newQueue(t, c.duplicates())
	c.queue.front.delay = c.delays()
	t.Cleanup(c.end)
	for range size.workers {
		p := &place{}
		c.places = append(c.places, p)
		if err := c.fill(p); err != nil {
			t.Fatal(err)
		}
		c.queue.front.join(p.number, p.process.address)
	}
	c.populate(t)
	c.proxy.script(c.faults())

	began := time.Now()
	during, over := context.WithTimeout(t.Context(), size.duration)
	defer over()
	throughout, done := context.WithCancel(t.Context())
	defer done()
	var watchers sync.WaitGroup
	watchers.Go(func() { c.recover(throughout) })
	watchers.Go(func() { c.sample(throughout) })
	watchers.Go(func() { c.watchMachine(throughout) })
	c.rage(during)
	c.proxy.script(nil)
	raged := time.Since(began)
	c.settle(t)
	done()
	watchers.Wait()
	t.Logf("%v of faults, %v until all was quiet", raged.Round(time.Second), (time.Since(began) - raged).Round(time.Second))
	for _, p := range c.places {
		if code := p.process.terminated(); code != 0 {
			t.Errorf("worker %d: exit %d at the end: %s", p.number, code, p.process.stderr.String())
		}
		c.harvest(p.process)
	}
	c.verdict(t)
}

// rage returns when all who do harm have ended, and nothing is paused.
func (c *chaos) rage(ctx context.Context) {
	var all sync.WaitGroup
	for i := 0; i+1 < len(c.places); i += 2 {
		end := i + 2
		if end == len(c.places)-1 {
			end++
		}
		places := c.places[i:end]
		all.Go(func() { c.harmWorkers(ctx, places, c.random(fmt.Sprint("workers ", i))) })
	}
	all.Go(func() { c.harmStore(ctx, c.random("store")) })
	all.Wait()
}

// populate makes the analyses and their deliveries, spread over three quarters
// of the time.
func (c *chaos) populate(t *testing.T) {
	t.Helper()
	r := c.random("deliveries")
	for i := range c.analyses {
		c.create(t, id(i), nil)
		at := time.Duration(i) * c.duration * 3 / 4 / time.Duration(c.analyses)
		for range c.deliveries {
			if err := c.queue.deliver(t.Context(), id(i), at+some(r, 0, c.ttl)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func id(i int) string { return fmt.Sprintf("analysis-%03d", i) }

// analyze takes longer than a TTL in the first run of every third analysis and
// in a third of the others, several TTLs in the first of one of ten, and fails
// for now in one of twenty. After an unlock it takes a TTL, in which the run
// before it has heartbeats to do harm with.
func (c *chaos) analyze(this *run) int {
	r := c.random(fmt.Sprint(this.analysis, this.token))
	plan := some(r, 50*time.Millisecond, c.ttl/3)
	if r.IntN(3) == 0 || this.token == 1 && strings.ContainsAny(this.analysis[len(this.analysis)-1:], "0369") {
		plan = some(r, c.ttl*5/4, c.ttl*5/2)
	}
	if this.token == 1 && strings.HasSuffix(this.analysis, "0") {
		plan = some(r, c.ttl*5, c.ttl*8)
	}
	c.mu.Lock()
	_, follows := c.breaks[acquisition{this.analysis, this.token - 1}]
	c.mu.Unlock()
	if follows {
		plan = c.ttl
	}
	c.analyzer.planned(this, plan)
	if r.IntN(20) == 0 {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// duplicates is the queue's: one delivery in ten comes twice.
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
		return []time.Duration{some(r, 0, c.ttl)}
	}
}

// delays is the front's: one delivery in ten comes late.
func (c *chaos) delays() func() time.Duration {
	r := c.random("delays")
	n := 0
	return func() time.Duration {
		if n++; n%10 != 0 {
			return 0
		}
		return some(r, c.ttl/20, c.ttl)
	}
}
