package proof

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/orchestrator"
	"taskguard/worker/taskqueue"
)

// simulation is one run of one seed.
type simulation struct {
	*model
	seed  seed
	p     profile
	slots []*slot
	over  chan struct{}             // closed when all is finished, or time is up
	going sync.WaitGroup            // all goroutines
	work  orchestrator.AnalyzerFunc // replaces the drawn runs if it is not nil

	runs      []*party
	underway  int                      // calls that have not reached the store
	acting    bool                     // an operator is at work
	crashedAt time.Duration            // the last crash; 0: none
	operating map[string]int           // acts of an operator, until their delivery is booked
	landed    map[string]time.Duration // when the last act landed that its operator had given up
}

func newSimulation(s seed, p profile, work orchestrator.AnalyzerFunc) *simulation {
	w := &simulation{
		model: newModel(p.policy), seed: s, p: p, work: work,
		operating: map[string]int{}, landed: map[string]time.Duration{},
	}
	w.skew, w.queueSkew, w.onFirst = p.storeSkew, p.queueSkew, w.report
	return w
}

// report prints the seed, at once: the test may last, or be ended from outside.
func (w *simulation) report(what string) {
	fmt.Fprintf(os.Stderr, "SIMULATE_SEED=%d go test ./worker/proof -run TestManySeeds -v\n\t%s\n", uint64(w.seed), what)
}

// slow is how long, by the real clock, a seed may take unreported: it takes
// milliseconds.
const slow = 20 * time.Second

// simulate runs the seed in a bubble of its own.
func (w *simulation) simulate(t *testing.T) *simulation {
	t.Helper()
	alarm := time.AfterFunc(slow, func() { w.report("is still running after " + slow.String()) })
	defer func() {
		alarm.Stop()
		if p := recover(); p != nil {
			w.report("has panicked")
			panic(p)
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w.begun, w.over = time.Now(), make(chan struct{})
		w.happen()
	})
	w.judgeRuns()
	w.judgeUnheld()
	return w
}

func (w *simulation) happen() {
	for n := range w.p.workers {
		w.slots = append(w.slots, &slot{n: n})
		w.replace(w.slots[n])
	}
	w.going.Go(w.schedule)
	w.going.Go(w.disturb)
	w.going.Go(w.operate)
	for n, at := range w.p.arrivals {
		w.going.Go(func() { w.arrive(fmt.Sprintf("a%d", n), at) })
	}
	for ; !w.done(); time.Sleep(time.Second) {
		if w.since() > w.p.end+patience {
			w.locked(func() { w.fail("not all is finished %v after the last fault: %q", patience, w.unfinished()) })
			break
		}
	}
	w.locked(func() { w.figures.most("longest until all is finished after the faults", w.since()-w.p.end) })
	close(w.over)
	w.going.Wait() // duplicates are still on their way
}

// patience is how long all may take to be finished once nothing goes wrong any
// more: the longest backoff, and what may be ahead of it.
const patience = 2 * time.Hour

// done reports whether all is finished, or something is wrong already.
func (w *simulation) done() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wrong) > 0 || w.quiet() && !w.acting && w.underway == 0 &&
		len(w.records) == len(w.p.arrivals) && w.unfinished() == nil && w.pending("", nil) == 0
}

func (w *simulation) unfinished() (ids []string) {
	for id, r := range w.records {
		if !r.doc.Lock.Finished {
			ids = append(ids, id)
		}
	}
	return ids
}

// arrive is an API that creates an analysis and enqueues it, some of them twice,
// or not at all.
func (w *simulation) arrive(id string, at time.Duration) {
	r := w.seed.of("arrival", id)
	time.Sleep(at + r.between(0, time.Millisecond))
	w.locked(func() { w.create(id) })
	if w.p.dispatch > 0 && r.chance(0.1) {
		w.locked(func() { w.count("tasks never enqueued") })
		return
	}
	w.add(taskqueue.Task{Name: "new-" + id, AnalysisID: id, Deadline: w.p.deadline}, nil)
	if w.p.dispatch > 0 && r.chance(0.5) {
		w.pass(r.between(0, 2*w.p.policy.TTL))
		w.add(taskqueue.Task{Name: "again-" + id, AnalysisID: id, Deadline: w.p.deadline}, nil)
	}
}

// disturb makes the incidents happen that have a time, and other programs write
// other fields of the records.
func (w *simulation) disturb() {
	for n, m := range w.p.incidents {
		if m.call == 0 {
			w.going.Go(func() {
				if w.pass(m.at) {
					w.happens(m, n)
				}
			})
		}
	}
	for n, at := range w.p.foreign {
		r := w.seed.of("foreign", n)
		id := w.any(r)
		if !w.pass(at - w.since() + r.between(0, time.Microsecond)) {
			return
		}
		w.locked(func() {
			if r := w.records[id]; r != nil {
				r.rev++
				w.count("foreign writes")
			}
		})
	}
}

func (w *simulation) any(r *draws) string { return fmt.Sprintf("a%d", r.IntN(len(w.p.arrivals))) }

// schedule calls for recovery each minute, of whichever worker lives.
func (w *simulation) schedule() {
	for n := 0; w.pass(time.Minute + w.seed.of("minute", n).between(0, time.Millisecond)); n++ {
		first := w.seed.of("scheduler", n).IntN(len(w.slots))
		w.locked(func() {
			for k := range w.slots {
				if i := w.slots[(first+k)%len(w.slots)].current; i != nil {
					w.going.Go(func() { w.recover(i) })
					break
				}
			}
		})
	}
}

// operate is an operator who at times unlocks or requeues, and books a delivery,
// whatever the outcome.
func (w *simulation) operate() {
	for n, at := range w.p.operators {
		r := w.seed.of("operator", n)
		id, act := w.any(r), pick(r, Unlock, Requeue)
		if !w.pass(at - w.since()) {
			return
		}
		p := &party{name: fmt.Sprintf("operator/%d", n), operates: act, analysis: id}
		there := false
		w.locked(func() {
			if there = w.records[id] != nil; there {
				w.operating[id]++
				w.acting = true
			}
		})
		if !there {
			continue
		}
		c, ctx := &client{simulation: w}, p.context(context.Background())
		var err error
		if act == Unlock {
			_, err = w.ledger(c).Unlock(ctx, id, nil)
		} else {
			_, err = w.ledger(c).Requeue(ctx, id, nil)
		}
		w.locked(func() {
			p.answered = true
			w.note("%s: %s %s: %v", p, act, id, err)
		})
		book := taskqueue.Task{Name: fmt.Sprintf("operator-%d", n), AnalysisID: id, Deadline: w.p.deadline}
		if _, err := c.Book(ctx, book); err != nil {
			panic(err)
		}
		w.locked(func() {
			w.acting = false
			w.operating[id]--
		})
	}
}

// pass lets time pass. It reports false if all is over.
func (w *simulation) pass(d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.over:
		return false
	}
}

// quiet reports whether nothing goes wrong any more.
func (w *simulation) quiet() bool { return w.since() >= w.p.end }

func (m *model) locked(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

// judgeRuns wants that no two runs of an analysis were in effect at once. A run
// is, until it ends or is cancelled, while its process does not stand still, and
// while it is not one whose lock was broken and that cannot know it yet.
func (w *simulation) judgeRuns() {
	effect := func(p *party) []Span {
		until := p.run.ended
		if c := p.run.cancelled; c >= 0 {
			until = min(until, c)
		}
		excuses := p.run.pauses
		if p.broken != nil {
			excuses = append(excuses, *p.broken)
		}
		return Span{p.run.begun, until}.Without(excuses...)
	}
	for n, a := range w.runs {
		for _, b := range w.runs[n+1:] {
			if a.analysis == b.analysis {
				if both := Overlap(effect(a), effect(b)); both > 0 {
					w.fail("%s and %s ran in effect for %v at once", a, b, both)
				}
			}
		}
	}
}

// dispatchTime is how long a dispatch may take, from the booking to the lock.
const dispatchTime = 5 * time.Second

// judgeUnheld measures, where one crash is all that goes wrong, for how long an
// unfinished analysis had no living worker after it.
func (w *simulation) judgeUnheld() {
	if !w.p.single || w.crashedAt == 0 {
		return
	}
	bound := w.p.policy.TTL + time.Minute + dispatchTime
	for id, r := range w.records {
		free := r.created // since when nobody has held it
		for _, s := range r.states[1:] {
			if s.lock.Owner == "" {
				free = s.at
				continue
			}
			if s.by.token == s.lock.Token && free >= 0 && s.at >= w.crashedAt {
				if free == r.created && free < w.crashedAt {
					w.count("first acquired after a crash")
				}
				gap := s.at - max(free, w.crashedAt)
				w.figures.most("longest unheld after a single crash", gap)
				if gap > bound {
					w.fail("%s: unheld for %v after a crash, want at most %v", id, gap, bound)
				}
			}
			if free = -1; s.by.on.crashed { // held until the crash
				free = s.by.on.died
			}
		}
	}
}

// transcript is the trace, in an order of its own where goroutines spoke at one
// instant.
func (w *simulation) transcript() string {
	slices.SortStableFunc(w.trace, func(a, b line) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return strings.Compare(a.text, b.text)
	})
	var s strings.Builder
	for _, l := range w.trace {
		fmt.Fprintf(&s, "%16.9f  %s\n", l.at.Seconds(), l.text)
	}
	return s.String()
}

func (w *simulation) reportTo(t *testing.T) {
	t.Helper()
	for _, wrong := range w.wrong {
		t.Error(wrong)
	}
}

// SIMULATE_SEEDS is the number of seeds, and SIMULATE_SEED=n replays one, with
// its trace.
func TestManySeedsLoseNothingAndFinishEachOnce(t *testing.T) {
	if one := os.Getenv("SIMULATE_SEED"); one != "" {
		n, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatalf("SIMULATE_SEED=%q is not a seed", one)
		}
		w := newSimulation(seed(n), seed(n).profile(), nil)
		w.traced = true
		w.simulate(t)
		fmt.Printf("%+v\n%s%s", w.p, w.transcript(), w.figures)
		w.reportTo(t)
		return
	}
	const enough = 3 // failing seeds
	var failing atomic.Int64
	var mu sync.Mutex
	all := figures{}
	t.Run("seed", func(t *testing.T) {
		for n := range number(t, "SIMULATE_SEEDS", longOrShort(600, 150)) {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				if failing.Load() >= enough {
					t.Skip("enough seeds have failed")
				}
				p := seed(n).profile()
				w := newSimulation(seed(n), p, nil).simulate(t)
				if w.reportTo(t); t.Failed() {
					failing.Add(1)
				}
				mu.Lock()
				defer mu.Unlock()
				all.add(w.figures)
				all["seeds"]++
				all.most("largest clock skew", max(p.storeSkew, -p.storeSkew, p.queueSkew, -p.queueSkew))
			})
		}
	})
	if os.Getenv("SIMULATE_SEEDS") != "" {
		fmt.Printf("figures:\n%s", all) // -v would print each seed as well
	}
	if n := failing.Load(); n > 0 {
		t.Fatalf("%d seeds failed of the %d that were run", n, all["seeds"])
	}
	if names := all.missing(expectedFigures); names != nil {
		t.Errorf("never happened, so nothing is proved: %q", names)
	}
}

func TestASeedHappensTheSameEachTimeOnAnyNumberOfProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, s := range []seed{0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13} {
		var first []string
		for _, n := range []int{1, 2, 8} {
			runtime.GOMAXPROCS(n)
			w := newSimulation(s, s.profile(), nil)
			w.traced = true
			got := strings.Split(w.simulate(t).transcript(), "\n")
			if first == nil {
				first = got
			}
			for i := range min(len(got), len(first)) {
				if got[i] != first[i] {
					t.Errorf("seed %d with %d processors, line %d:\n%s\nwant\n%s", s, n, i, got[i], first[i])
					break
				}
			}
			if len(got) != len(first) {
				t.Errorf("seed %d with %d processors: %d lines, want %d", s, n, len(got), len(first))
			}
		}
	}
}
