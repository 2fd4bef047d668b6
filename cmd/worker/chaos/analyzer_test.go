package chaos

import (
	"encoding/json"
	"fmt"
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
	gone     <-chan struct{} // closed when its worker has hung up

	// guarded by the analyzer
	plan         time.Duration // how long it is to take
	began, ended time.Time     // ended is zero while it is live
	answered     bool          // and not cut off
}

// analyzer is the analyzer of all workers.
type analyzer struct {
	*httptest.Server
	// analyze does the work of a run, and answers its status. It is called
	// concurrently, and ends early when the run's worker is gone.
	analyze func(*run) int

	mu      sync.Mutex
	runs    []*run
	changed chan struct{} // closed, and made anew, when a run begins or ends
}

// stopped is the status of a run whose worker is to be gone by its end.
const stopped = 0

func newAnalyzer(t testing.TB, analyze func(*run) int) *analyzer {
	a := &analyzer{analyze: analyze, changed: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// spec is the ANALYZER of that worker.
func (a *analyzer) spec(worker int) string { return fmt.Sprintf("ANALYZER=%s/%d", a.URL, worker) }

// ServeHTTP answers with the run's token as its result.
func (a *analyzer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var job struct {
		AnalysisID string `json:"analysis_id"`
	}
	body, err := io.ReadAll(r.Body) // in full: only then does the end of its connection show
	token, noToken := strconv.ParseInt(r.Header.Get("X-Lock-Token"), 10, 64)
	number, noNumber := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil || noToken != nil || noNumber != nil || json.Unmarshal(body, &job) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	this := &run{analysis: job.AnalysisID, token: token, worker: number, gone: r.Context().Done(), began: time.Now()}
	a.change(func() { a.runs = append(a.runs, this) })
	status := a.analyze(this)
	a.change(func() {
		this.ended, this.answered = time.Now(), r.Context().Err() == nil
	})
	if status == stopped {
		return
	}
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"token":%d}`, token)
}

func (a *analyzer) change(what func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	what()
	close(a.changed)
	a.changed = make(chan struct{})
}

// of is a copy of the runs of an analysis so far, by token.
func (a *analyzer) of(id string) []run {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []run
	for _, r := range a.runs {
		if r.analysis == id {
			all = append(all, *r)
		}
	}
	slices.SortStableFunc(all, func(a, b run) int { return int(a.token - b.token) })
	return all
}

// live are copies of the runs that are live and fit.
func (a *analyzer) live(fits func(run) bool) []run {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []run
	for _, r := range a.runs {
		if r.ended.IsZero() && fits(*r) {
			all = append(all, *r)
		}
	}
	return all
}

// until waits until the runs of an analysis are as wanted.
func (a *analyzer) until(t testing.TB, id, what string, ok func([]run) bool) []run {
	t.Helper()
	hung := time.NewTimer(patience)
	defer hung.Stop()
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		if runs := a.of(id); ok(runs) {
			return runs
		}
		select {
		case <-changed:
		case <-hung.C:
			t.Fatalf("%s: never %s; runs: %+v", id, what, a.of(id))
		}
	}
}

// running waits for the first run of an analysis to begin.
func (a *analyzer) running(t testing.TB, id string) run {
	t.Helper()
	return a.until(t, id, "run", func(runs []run) bool { return len(runs) > 0 })[0]
}

// hold lets a live run go on until its worker is gone, or for that long. It is
// false if the run has ended.
func (a *analyzer) hold(r run, most time.Duration) (live bool) {
	a.change(func() {
		for _, other := range a.runs {
			if other.analysis == r.analysis && other.token == r.token && other.ended.IsZero() && other.left() > 0 {
				other.plan, live = time.Since(other.began)+most, true
			}
		}
	})
	return live
}

// over waits until a run has ended, or for that long.
func (a *analyzer) over(r run, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if len(a.live(func(l run) bool { return l.analysis == r.analysis && l.token == r.token })) == 0 {
			return
		}
	}
}

// planned works until the run's plan is over, which hold may put off.
func (a *analyzer) planned(r *run, plan time.Duration) {
	a.change(func() { r.plan = plan })
	for left := plan; left > 0 && !r.isGone(); {
		r.works(left)
		a.mu.Lock()
		if left = r.left(); left <= 0 {
			r.plan = 0 // from here on it is too late to hold it
		}
		a.mu.Unlock()
	}
}

// left is how much of the plan is; the caller holds the analyzer's mu.
func (r *run) left() time.Duration { return r.plan - time.Since(r.began) }

// works is how long it takes, or until the run's worker is gone.
func (r *run) works(d time.Duration) int {
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-end.C:
	case <-r.gone:
	}
	return http.StatusOK
}

func (r *run) isGone() bool {
	select {
	case <-r.gone:
		return true
	default:
		return false
	}
}
