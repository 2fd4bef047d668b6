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
	answered     bool      // and not cut off
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
	body, err := io.ReadAll(r.Body) // in full: only then does the end of its connection show
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

// where are copies of the runs that fit, by token.
func (a *analyzer) where(fits func(*run) bool) (all []run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.runs {
		if fits(r) {
			all = append(all, *r)
		}
	}
	slices.SortStableFunc(all, func(a, b run) int { return int(a.token - b.token) })
	return all
}

// of are the runs of an analysis so far.
func (a *analyzer) of(id string) []run {
	return a.where(func(r *run) bool { return r.analysis == id })
}

// hold lets a live run go on until its worker is gone, or for that long. It
// reports false if the run has ended.
func (a *analyzer) hold(r run, most time.Duration) (live bool) {
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

// over waits until a run has ended, or for that long.
func (a *analyzer) over(r run, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if len(a.where(func(l *run) bool { return l.is(r) })) == 0 {
			return
		}
	}
}

// work takes that long, which hold may put off, or until the run's worker is
// gone.
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

// left is how long the run still takes. The caller holds the analyzer's mu.
func (r *run) left() time.Duration { return time.Until(r.due) }
