package simulate

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/orchestrator"
)

// world is one run of one seed. Its mutex guards all that is in it, and is
// never held while time passes.
type world struct {
	dice  dice
	p     profile
	begun time.Time
	log   *slog.Logger
	store *store
	queue *queue
	slots []*slot
	over  chan struct{}  // closed when all is finished, or time is up
	going sync.WaitGroup // every goroutine
	// work replaces the drawn bodies if it is not nil.
	work orchestrator.AnalyzerFunc

	mu        sync.Mutex
	figures   figures
	wrong     []string
	told      []line
	owners    map[string]string // ordinals: owners are random
	tags      map[string]*tag
	history   map[string][]operation
	bodies    []*body
	acting    bool                     // an operator is at it
	underway  int                      // calls that have not reached the store
	crashed   time.Duration            // of the first worker; 0: none
	operating map[string]int           // acts of an operator, until their delivery is booked
	landed    map[string]time.Duration // when the last act landed whose operator had given up
}

type line struct {
	at   time.Duration
	text string
}

// run lets one seed happen and answers what came of it.
func run(t *testing.T, seed uint64, p profile, work orchestrator.AnalyzerFunc) *world {
	t.Helper()
	w := newWorld(seed, p, work)
	w.run(t)
	return w
}

func newWorld(seed uint64, p profile, work orchestrator.AnalyzerFunc) *world {
	return &world{
		dice: dice(seed), p: p, log: slog.New(slog.DiscardHandler), work: work,
		figures: figures{}, owners: map[string]string{}, tags: map[string]*tag{}, history: map[string][]operation{},
		operating: map[string]int{}, landed: map[string]time.Duration{},
	}
}

// run is in a bubble of its own.
func (w *world) run(t *testing.T) {
	t.Helper()
	defer w.named()()
	synctest.Test(t, func(*testing.T) {
		w.begun, w.over = time.Now(), make(chan struct{})
		w.happen()
	})
	w.overlaps()
	w.unheld()
	if len(w.wrong) == 0 { // else the checker might look for minutes for what is known
		w.linear()
	}
}

func (w *world) happen() {
	w.store = &store{w: w, records: map[string]*record{}}
	w.queue = &queue{w: w, names: map[string]time.Time{}, alias: map[string]string{}}
	for n := range w.p.workers {
		w.slots = append(w.slots, &slot{w: w, n: n})
		w.replace(w.slots[n])
	}
	w.going.Go(w.schedule)
	w.going.Go(w.disturb)
	w.going.Go(w.operate)
	for n, at := range w.p.arrivals {
		w.going.Go(func() { w.arrive(fmt.Sprintf("a%d", n), at) })
	}
	for ; !w.done(); time.Sleep(time.Second) {
		if w.now() > w.p.end+patience {
			w.mu.Lock()
			w.fail("not all is finished %v after the last fault: %q, %d tasks", patience, w.store.unfinished(), w.queue.pending("", nil))
			w.mu.Unlock()
			break
		}
	}
	w.mu.Lock() // duplicates are still on their way
	w.figures.most("longest until all is finished after the faults", w.now()-w.p.end)
	w.mu.Unlock()
	close(w.over)
	w.going.Wait()
	if len(w.wrong) == 0 {
		w.store.verdict()
	}
}

// patience is how long all may take to be finished once nothing goes wrong any
// more: the longest backoff, and what it may find itself behind.
const patience = 2 * time.Hour

// done: all is finished, or something is wrong already.
func (w *world) done() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wrong) > 0 {
		return true
	}
	return w.calm() && !w.acting && len(w.store.records) == len(w.p.arrivals) && w.underway == 0 && w.store.unfinished() == "" && w.queue.pending("", nil) == 0
}

// arrive is an API that creates an analysis and enqueues it, some of them twice,
// or not at all.
func (w *world) arrive(id string, at time.Duration) {
	r := w.dice.of("arrival", id)
	time.Sleep(at + r.between(0, time.Millisecond))
	w.store.create(id)
	if w.p.dispatch > 0 && r.chance(0.1) {
		w.count(neverQueued)
		return
	}
	w.queue.add("new-"+id, id, time.Time{}, w.p.deadline)
	if w.p.dispatch > 0 && r.chance(0.5) {
		w.pass(r.between(0, 2*w.p.policy.TTL))
		w.queue.add("again-"+id, id, time.Time{}, w.p.deadline)
	}
}

// disturb is what befalls workers at their times, and other writers.
func (w *world) disturb() {
	for n, m := range w.p.mishaps {
		if m.call == 0 {
			w.going.Go(func() {
				if w.pass(m.at) {
					w.befall(m, n)
				}
			})
		}
	}
	for n, at := range w.p.foreign {
		r := w.dice.of("foreign", n)
		id := fmt.Sprintf("a%d", r.IntN(len(w.p.arrivals)))
		if !w.pass(at - w.now() + r.between(0, time.Microsecond)) {
			return
		}
		w.store.touch(id)
	}
}

// schedule calls for recovery each minute, of whichever worker lives.
func (w *world) schedule() {
	for n := 0; w.pass(time.Minute + w.dice.of("minute", n).between(0, time.Millisecond)); n++ {
		first := w.dice.of("scheduler", n).IntN(len(w.slots))
		for k := range w.slots {
			if i := w.slots[(first+k)%len(w.slots)].instance(); i != nil && !i.isDead() {
				w.going.Go(func() { i.recover() })
				break
			}
		}
	}
}

func (w *world) now() time.Duration { return time.Since(w.begun) }

// pass lets time pass; false: all is over.
func (w *world) pass(d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.over:
		return false
	}
}

func (w *world) sent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underway++
}

// calm: nothing goes wrong any more.
func (w *world) calm() bool { return w.now() >= w.p.end }

func (w *world) count(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.figures[string(f)]++
}

// tell adds a line to the history. The mutex is held.
func (w *world) tell(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for owner, ordinal := range w.owners {
		text = strings.ReplaceAll(text, owner, ordinal)
	}
	w.told = append(w.told, line{w.now(), text})
}

// fail is told too. The mutex is held or not needed.
func (w *world) fail(format string, args ...any) {
	w.tell("WRONG: "+format, args...)
	w.accuse("%v: %s", w.now(), fmt.Sprintf(format, args...))
}

// transcript is the whole history, in an order of its own where goroutines
// spoke at one instant.
func (w *world) transcript() string {
	slices.SortStableFunc(w.told, func(a, b line) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return strings.Compare(a.text, b.text)
	})
	var s strings.Builder
	for _, l := range w.told {
		fmt.Fprintf(&s, "%16.9f  %s\n", l.at.Seconds(), l.text)
	}
	return s.String()
}
