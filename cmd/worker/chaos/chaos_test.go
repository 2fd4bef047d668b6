package chaos

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
	"taskguard/repo"
)

// size contains the sizes of a TestChaos.
type size struct {
	full                          bool
	duration                      time.Duration // of the faults; then all must be finished
	analyses, deliveries, workers int           // deliveries of each analysis
	ttl, runTimeout               time.Duration
	retryMax                      time.Duration
	every                         int // one commit of so many has a fault
	seed                          uint64
}

// sizeOf reads the environment.
func sizeOf(t *testing.T) size {
	t.Helper()
	s := size{
		duration: 4 * time.Second, analyses: 12, deliveries: 2, workers: 2, every: 3, seed: rand.Uint64(),
		ttl: 1500 * time.Millisecond, runTimeout: 2250 * time.Millisecond, retryMax: 5 * time.Second,
	}
	if v := os.Getenv("CHAOS"); v != "" && v != "0" {
		s.full, s.duration, s.deliveries, s.workers, s.every = true, 5*time.Minute, 5, 4, 8
		s.ttl, s.runTimeout, s.retryMax = 6*time.Second, 12*time.Second, 8*time.Second
	}

	var badDuration, badSeed error
	if v := os.Getenv("CHAOS_DURATION"); v != "" {
		s.duration, badDuration = time.ParseDuration(v)
	}
	if v := os.Getenv("CHAOS_SEED"); v != "" {
		s.seed, badSeed = strconv.ParseUint(v, 10, 64)
	}
	must.OK(t, errors.Join(badDuration, badSeed))
	if s.full {
		s.analyses = int(40 * s.duration.Minutes()) // what two busy cores finish
	}
	return s
}

// chaos is one TestChaos.
type chaos struct {
	size
	docs     *emulatortest.Backend // without the proxy, as another program
	proxy    *proxy                // between Firestore and its callers
	operator *repo.Analyses        // through the proxy: its writes belong to the history
	queue    *queue
	analyzer *httptest.Server
	journal  string // file name
	slots    []*slot
	began    time.Time
	// environment is what the workers have besides.
	environment []string

	mu      sync.Mutex
	counts  map[figure]int
	started int                  // workers
	commits map[int]string       // that workers run, by number
	runs    []*run               // all
	pauses  map[int][]proof.Span // of workers, by number
	stalls  []proof.Span         // when this machine stood still
	charges map[string]int       // at the provider, by analysis
	charged map[string]bool      // it was asked to
	denied  map[string]int       // the operator's answers that an analysis was not charged
	errs    []error              // of signals, starts and commands that should have worked
}

func newChaos(t *testing.T, size size) *chaos {
	t.Helper()
	c := &chaos{
		size: size, began: time.Now(), journal: filepath.Join(t.TempDir(), "journal"), counts: map[figure]int{},
		commits: map[int]string{}, pauses: map[int][]proof.Span{},
		charges: map[string]int{}, charged: map[string]bool{}, denied: map[string]int{},
	}
	var firestore string
	if size.full {
		firestore = emulatortest.Google(t)
	} else {
		firestore = emulatortest.Embedded(t).Listen(t)
	}
	c.docs, c.proxy = emulatortest.At(firestore), newProxy(t, firestore)
	c.analyzer = httptest.NewServer(c)
	t.Cleanup(c.analyzer.Close)

	through := emulatortest.At(must.Get(c.proxy.listen(operator))(t)).Client(t)
	c.operator = must.Get(repo.Open(t.Context(), c.docs.Project, repo.Options{}, through...))(t)

	c.queue = newQueue(t, c.duplicates())
	for range size.workers {
		c.slots = append(c.slots, &slot{})
	}
	c.queue.slots = c.slots
	return c
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

func (c *chaos) add(what figure) { c.locked(func() { c.counts[what]++ }) }

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
	c := newChaos(t, size)
	stop := c.begin(t)
	c.createAnalyses(t)
	c.injectFaults(t, nil)
	ended := c.since()
	c.awaitAll(t)
	t.Logf("%v of faults, %v until all was READY", ended.Round(time.Second), (c.since() - ended).Round(time.Second))
	c.drain(t)
	stop()
	c.judgeAll(t, expected)
}

// begin starts the workers, and what is done all the time beside them. stop ends everything.
func (c *chaos) begin(t *testing.T) (stop func()) {
	t.Helper()
	throughout, done := context.WithCancel(context.WithoutCancel(t.Context()))
	var others sync.WaitGroup
	stop = func() {
		done()
		others.Wait()
	}
	t.Cleanup(stop) // also after a failure
	for _, s := range c.slots {
		must.OK(t, c.startIn(s))
		others.Go(func() { c.keepRunning(throughout, s) })
	}
	for _, other := range []func(context.Context){c.recover, c.answerActs, c.requeueCrashed, c.watchMachine} {
		others.Go(func() { other(throughout) })
	}
	return stop
}

// awaitAll waits until all analyses are READY.
func (c *chaos) awaitAll(t *testing.T) {
	t.Helper()
	for i := range c.analyses {
		c.await(t, id(i), analysislock.Ready)
	}
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
			must.OK(t, c.queue.deliver(t.Context(), id(i), at+between(r, 0, c.ttl)))
		}
	}
}

func (c *chaos) create(t *testing.T, id string) {
	t.Helper()
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	c.docs.Put(t, id, map[string]any{"status": "QUEUED", "attempts": 0, "createdAt": now, "updatedAt": now})
}

func id(i int) string { return fmt.Sprintf("analysis-%03d", i) }

// duplicates makes the queue dispatch one delivery in ten twice.
func (c *chaos) duplicates() func(*cloudtaskspb.Task) []time.Duration {
	r, n := c.random("duplicates"), 0
	return func(*cloudtaskspb.Task) (again []time.Duration) {
		c.locked(func() {
			if n++; n%10 == 0 {
				c.counts[leasetest.DeliveredTwice]++
				again = []time.Duration{between(r, 0, c.ttl)}
			}
		})
		return again
	}
}

// recover calls recovery every two TTLs at one of the workers, as Cloud Scheduler does
// each minute. It books again what was not delivered within a TTL, which adds load to a slow
// machine.
func (c *chaos) recover(ctx context.Context) {
	r := c.random("recovery")
	client := http.Client{Timeout: 2 * c.ttl} // the worker may be paused
	for ; ctx.Err() == nil; pause(ctx, 2*c.ttl) {
		address := c.slots[r.IntN(len(c.slots))].worker().serving.Address
		if answer, err := client.Post("http://"+address+"/internal/tasks/recover", "", nil); err == nil {
			_ = answer.Body.Close()
			c.add(figure(fmt.Sprint("recoveries answered ", answer.StatusCode)))
		}
	}
}

// settleTime is how long the last analyses may take after the faults: several TTLs on
// a slow machine.
const settleTime = 10 * time.Minute

// await waits until the analysis has the status.
func (c *chaos) await(t *testing.T, id, status string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	for c.docs.Fields(t, id)["status"] != status {
		if pause(ctx, 100*time.Millisecond); ctx.Err() != nil {
			c.locked(func() { t.Logf("so far %v, answers %v, errors %v", c.counts, c.queue.answers(), c.errs) })
			t.Fatalf("%s is not %s after %v: %v", id, status, settleTime, c.docs.Fields(t, id))
		}
	}
}

// drain waits until the queue is empty.
func (c *chaos) drain(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	if err := c.queue.server.Idle(ctx); err != nil {
		t.Errorf("the queue is not empty: %v", err)
	}
	c.queue.close()
}
