package chaos

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// run is one run of an analysis, as the analyzer sees it.
type run struct {
	analysis string
	token    int64
	worker   int
	resumed  checkpoint      // that it was given
	begin    func(unit int)  // makes the program do a unit
	gone     <-chan struct{} // closed when its program has ended

	// guarded by the analyzer
	due          time.Time // when it is to end
	began, ended time.Time // ended is zero while it is live
	answered     bool      // and its program had not ended
	fails        bool
}

// analyzer directs the programs of all workers.
type analyzer struct {
	*httptest.Server
	units func(id string) int // of an analysis
	// analyze returns when a run has ended, and whether it succeeded. It is called
	// concurrently, and ends early when the run's program is gone.
	analyze func(*run) bool

	mu   sync.Mutex
	runs []*run
}

func newAnalyzer(t testing.TB, units func(id string) int, analyze func(*run) bool) *analyzer {
	a := &analyzer{units: units, analyze: analyze}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// ServeHTTP answers a program with a line for each unit, and with the run's token as its
// result if the run succeeds. The path is the number of the worker.
func (a *analyzer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var got job
	body, err := io.ReadAll(r.Body) // read in full, or the end of its connection would not be noticed
	number, noNumber := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil || noNumber != nil || json.Unmarshal(body, &got) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	lines, all := json.NewEncoder(w), a.units(got.Analysis)
	this := &run{
		analysis: got.Analysis, token: got.Token, worker: number, resumed: got.Checkpoint, gone: r.Context().Done(), began: time.Now(),
		begin: func(unit int) {
			_ = lines.Encode(order{Unit: unit, Of: all}) // a program that has ended does no unit
			_ = http.NewResponseController(w).Flush()
		},
	}
	a.locked(func() { a.runs = append(a.runs, this) })
	succeeded := a.analyze(this)
	a.locked(func() {
		this.ended, this.answered = time.Now(), r.Context().Err() == nil
		succeeded = succeeded && !this.fails
	})
	if succeeded {
		_ = lines.Encode(order{Result: map[string]int64{"token": got.Token}})
	}
}

func (a *analyzer) locked(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
}

// matching returns copies of the runs that match, by token.
func (a *analyzer) matching(matches func(*run) bool) (all []run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.runs {
		if matches(r) {
			all = append(all, *r)
		}
	}
	slices.SortStableFunc(all, func(a, b run) int { return int(a.token - b.token) })
	return all
}

// of returns the runs of an analysis so far.
func (a *analyzer) of(id string) []run {
	return a.matching(func(r *run) bool { return r.analysis == id })
}

// prolong makes a live run continue until its program has ended, at most for that
// long. It reports false if the run has ended.
func (a *analyzer) prolong(r run, most time.Duration) (live bool) {
	return a.change(r, func(live *run) { live.due = time.Now().Add(most) })
}

// fail makes a live run fail now. It reports false if the run has ended.
func (a *analyzer) fail(r run) (live bool) {
	return a.change(r, func(live *run) { live.due, live.fails = time.Now(), true })
}

func (a *analyzer) change(r run, change func(live *run)) (live bool) {
	a.locked(func() {
		for _, other := range a.runs {
			if other.is(r) && other.left() > 0 {
				change(other)
				live = true
			}
		}
	})
	return live
}

// is reports whether r is live and the run of that token.
func (r *run) is(other run) bool {
	return r.analysis == other.analysis && r.token == other.token && r.ended.IsZero()
}

// awaitEnd waits until a run has ended, at most for that long.
func (a *analyzer) awaitEnd(r run, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if len(a.matching(func(l *run) bool { return l.is(r) })) == 0 {
			return
		}
	}
}

// work takes that long, or as long as prolong says, or until the run's program has ended.
// It begins a unit at each unitTime until all are done.
func (a *analyzer) work(r *run, takes time.Duration) {
	began, unit, all := time.Now(), r.resumed.Unit, a.units(r.analysis)
	a.locked(func() { r.due = began.Add(takes) })
	for left := takes; left > 0; {
		select {
		case <-time.After(min(left, 10*time.Millisecond)):
			a.locked(func() { left = r.left() })
		case <-r.gone:
			return
		}
		for unit < all && time.Since(began) >= time.Duration(unit+1-r.resumed.Unit)*unitTime {
			unit++
			r.begin(unit)
		}
	}
}

// left returns how long the run still takes. The caller holds the analyzer's mu.
func (r *run) left() time.Duration { return time.Until(r.due) }
