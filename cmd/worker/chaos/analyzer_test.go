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
	due          time.Time // when it is to end
	began, ended time.Time // ended is zero while it is live
	answered     bool      // and its worker had not hung up
}

// analyzer is the analyzer of all workers.
type analyzer struct {
	*httptest.Server
	// analyze does the work of a run and returns its status. It is called
	// concurrently, and ends early when the run's worker is gone.
	analyze func(*run) int

	mu   sync.Mutex
	runs []*run
}

func newAnalyzer(t testing.TB, analyze func(*run) int) *analyzer {
	a := &analyzer{analyze: analyze}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// ServeHTTP answers with the run's token as its result. The path is the number
// of the worker.
func (a *analyzer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var job struct {
		AnalysisID string `json:"analysis_id"`
	}
	body, err := io.ReadAll(r.Body) // read in full, or the end of its connection would not be noticed
	token, noToken := strconv.ParseInt(r.Header.Get("X-Lock-Token"), 10, 64)
	number, noNumber := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil || noToken != nil || noNumber != nil || json.Unmarshal(body, &job) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	this := &run{analysis: job.AnalysisID, token: token, worker: number, gone: r.Context().Done(), began: time.Now()}
	a.locked(func() { a.runs = append(a.runs, this) })
	status := a.analyze(this)
	a.locked(func() { this.ended, this.answered = time.Now(), r.Context().Err() == nil })
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"token":%d}`, token)
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

// prolong makes a live run continue until its worker has hung up, at most for that
// long. It reports false if the run has ended.
func (a *analyzer) prolong(r run, most time.Duration) (live bool) {
	a.locked(func() {
		for _, other := range a.runs {
			if other.is(r) && other.left() > 0 {
				other.due, live = time.Now().Add(most), true
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

// work takes that long, or as long as prolong says, or until the run's worker has hung
// up.
func (a *analyzer) work(r *run, takes time.Duration) {
	a.locked(func() { r.due = time.Now().Add(takes) })
	for left := takes; left > 0; {
		select {
		case <-time.After(min(left, 10*time.Millisecond)):
			a.locked(func() { left = r.left() })
		case <-r.gone:
			return
		}
	}
}

// left returns how long the run still takes. The caller holds the analyzer's mu.
func (r *run) left() time.Duration { return time.Until(r.due) }
