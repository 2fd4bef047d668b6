package console_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
	"taskguard/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memorySource has the documents in memory. Its clock is a day ahead of this machine's clock, so that the
// use of the wrong clock is detected.
type memorySource struct {
	worker.Documents // nil: no page calls the other methods

	mu          sync.Mutex
	all         map[string]analysislock.Analysis
	unavailable bool
	asked       map[string]int   // calls by method
	delay       time.Duration    // of each call of Page, Failures and Summary
	errs        map[string]error // of a method
	failures    []repo.Failure
	codes       []string
	left        int // groups of failures
	backlog     repo.Backlog
	failed      int64         // more that are counted
	filter      repo.Filter   // of the last Page
	pages       []repo.Filter // of each Page, which compares its Code alone
}

const ahead = 24 * time.Hour

func storeNow() time.Time { return time.Now().Add(ahead) }

func newSource(all ...analysislock.Analysis) *memorySource {
	s := &memorySource{all: map[string]analysislock.Analysis{}, asked: map[string]int{}, errs: map[string]error{}}
	for i := range all {
		s.all[all[i].ID] = all[i]
	}
	return s
}

// change calls do with s locked.
func (s *memorySource) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// calls returns how often a method was called.
func (s *memorySource) calls(method string) (n int) {
	s.change(func() { n = s.asked[method] })
	return n
}

func (s *memorySource) put(w analysislock.Analysis) { s.change(func() { s.all[w.ID] = w }) }

var errUnavailable = fmt.Errorf("no connection: %w", lease.ErrUnavailable)

// read returns those of the analyses that are kept, as they are now, the last updated first.
func (s *memorySource) read(method string, keep func(*analysislock.Analysis) bool) (found []analysislock.Analysis, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[method]++
	if s.unavailable {
		return nil, errUnavailable
	}
	for id := range s.all {
		d := s.all[id]
		if d.ReadAt = storeNow(); keep == nil || keep(&d) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b analysislock.Analysis) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.ID, b.ID))
	})
	return found, s.errs[method]
}

// wait takes as long as the store does, or until ctx ends.
func (s *memorySource) wait(ctx context.Context) error {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return errUnavailable
	}
}

func (s *memorySource) ActKey(id, act string) string { return orchestrator.ActKey("s", id, act) }

func (s *memorySource) Now(context.Context) (time.Time, error) {
	_, err := s.read("Now", nil)
	return storeNow(), err
}

func (s *memorySource) Backlog(_ context.Context, stuck int) (repo.Backlog, error) {
	_, err := s.read("Backlog", nil)
	b := s.backlog
	b.At, b.Stuck = storeNow(), max(b.Stuck, int64(stuck))
	return b, err
}

func (s *memorySource) Page(ctx context.Context, f repo.Filter, after string, limit int) (
	found []analysislock.Analysis, next string, at time.Time, err error,
) {
	if err := s.wait(ctx); err != nil {
		return nil, "", at, err
	}
	found, err = s.read("Page", func(d *analysislock.Analysis) bool {
		return f.Code == "" || d.HasCode(f.Code)
	})
	s.change(func() { s.filter, s.pages = f, append(s.pages, f) })
	from, _ := strconv.Atoi(after)
	found = found[min(from, len(found)):]
	if len(found) > limit {
		found, next = found[:limit], strconv.Itoa(from+limit)
	}
	return found, next, storeNow(), err
}

func (s *memorySource) Active(_ context.Context, limit int) (running, waiting, stuck []analysislock.Analysis, at time.Time, err error) {
	for list, keep := range map[*[]analysislock.Analysis]func(*analysislock.Analysis) bool{
		&running: func(d *analysislock.Analysis) bool { return lease.Held(d.Lock, d.ReadAt) },
		&waiting: func(d *analysislock.Analysis) bool { return d.NextAttemptAt.After(d.ReadAt) },
		&stuck: func(d *analysislock.Analysis) bool {
			return d.ReadAt.Sub(d.UpdatedAt) > 12*time.Minute && unfinished(d)
		},
	} {
		if *list, err = s.read("Active", keep); err != nil {
			return nil, nil, nil, at, err
		}
		if list != &running {
			slices.Reverse(*list)
		}
		*list = (*list)[:min(limit, len(*list))]
	}
	return running, waiting, stuck, storeNow(), nil
}

// unfinished reports whether d is QUEUED or PROCESSING, and waits for nothing.
func unfinished(d *analysislock.Analysis) bool {
	return (d.Status == "QUEUED" || d.Status == "PROCESSING") && d.Malformed == nil && !lease.Held(d.Lock, d.ReadAt) && d.NextAttemptAt.Before(d.ReadAt)
}

func (s *memorySource) OldestUnfinished(context.Context) (oldest analysislock.Analysis, found bool, err error) {
	all, err := s.read("Oldest", func(d *analysislock.Analysis) bool { return d.Status == "QUEUED" || d.Status == "PROCESSING" })
	if len(all) == 0 {
		return oldest, false, err
	}
	return slices.MinFunc(all, func(a, b analysislock.Analysis) int { return a.CreatedAt.Compare(b.CreatedAt) }), true, err
}

func (s *memorySource) Failures(ctx context.Context, limit int) ([]repo.Failure, int, error) {
	if err := s.wait(ctx); err != nil || limit != 50 {
		return nil, 0, errUnavailable
	}
	_, err := s.read("Failures", nil)
	return s.failures, s.left, err
}

func (s *memorySource) Uncertain(_ context.Context, limit int) ([]analysislock.Analysis, error) {
	found, err := s.read("Uncertain", func(d *analysislock.Analysis) bool { return d.OpenActs > 0 && !lease.Held(d.Lock, d.ReadAt) })
	return found[:min(limit, len(found))], err
}

func (s *memorySource) Codes(_ context.Context, limit int) (codes []string, err error) {
	_, err = s.read("Codes", nil)
	return s.codes[:min(limit, len(s.codes))], err
}

func (s *memorySource) Count(_ context.Context, f repo.Filter) (int64, error) {
	counted, err := s.read("Count", func(d *analysislock.Analysis) bool { return f.Status == "" || d.Status == f.Status })
	if f.Status == "FAILED" {
		return int64(len(counted)) + s.failed, err
	}
	return int64(len(counted)), err
}

// KeyState is of a key with three slots, of which one is taken.
func (s *memorySource) KeyState(_ context.Context, d *analysislock.Analysis, count bool) (repo.KeyState, error) {
	_, err := s.read("KeyState", nil)
	state := repo.KeyState{Key: "<acme>", Limit: 3, Running: []string{"r"}, Parked: !d.ParkedAt.IsZero()}
	if count {
		state.Before = new(int64(5))
	}
	return state, err
}

func (s *memorySource) Summary(ctx context.Context, id string) (analysislock.Analysis, error) {
	d, err := s.Get(ctx, id)
	d.Input, d.Result = nil, nil
	if errors.Is(err, lease.ErrMalformed) {
		err = nil
	}
	return d, err
}

func (s *memorySource) Get(ctx context.Context, id string) (d analysislock.Analysis, err error) {
	if err := s.wait(ctx); err != nil {
		return d, err
	}
	found, err := s.read("Get", func(d *analysislock.Analysis) bool { return d.ID == id })
	switch {
	case err != nil:
		return d, err
	case id == "a/b" || id == "":
		return d, lease.ErrInvalidKey
	case len(found) == 0:
		return d, lease.ErrNotFound
	case found[0].Malformed != nil:
		return found[0], lease.ErrMalformed
	}
	return found[0], nil
}

// recorder is an Operator that records its calls.
type recorder struct {
	mu     sync.Mutex
	did    []string
	seen   analysislock.Seen         // of the last change
	during func(ctx context.Context) // nil: a change takes no time
	bulk   console.Bulk              // of the next ChangeAll
	filter repo.Filter               // of the last ChangeAll
	match  func(*analysislock.Analysis) bool
	fail   error
}

func (h *recorder) Change(ctx context.Context, c console.Change) (console.Delivery, error) {
	if h.during != nil {
		h.during(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	did := fmt.Sprint(c.Verb, " ", c.ID, " by ", c.Who)
	if c.Act != "" {
		did += fmt.Sprintf(": %s {%v %s}", c.Act, c.Answer.Done, c.Answer.Result)
	}
	h.did, h.seen = append(h.did, did), *c.Seen
	return console.Booked, h.fail
}

func (h *recorder) ChangeAll(ctx context.Context, what console.Verb, w console.Which, who string, before time.Time, limit int, dryRun bool) (console.Bulk, error) {
	if h.during != nil {
		h.during(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.filter, h.match = w.Filter(cmp.Or(before, h.bulk.Before)), w.Match
	if !dryRun {
		h.did = append(h.did, fmt.Sprint(what, " up to ", limit, " of ", h.filter.Status, " ", h.filter.Code, " before ", before.UnixMilli(), " by ", who))
	}
	return h.bulk, h.fail
}

func (h *recorder) want(t *testing.T, did ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.did, did) {
		t.Errorf("did %q, want %q", h.did, did)
	}
}

// quick makes each page read the analyses again.
const quick = time.Nanosecond

// open returns a console of source.
func open(t testing.TB, source console.Source, o console.Options) *console.Server {
	t.Helper()
	return console.NewServer(t.Context(), source, o)
}

// writable returns a console that makes changes, and records them.
func writable(t testing.TB, source console.Source) (*console.Server, *recorder) {
	t.Helper()
	h := &recorder{}
	return open(t, source, console.Options{Operator: h, User: "operator-1", Books: true, Every: quick}), h
}

// ask makes a request as a browser on this machine does. header has names and values in turn.
func ask(t testing.TB, h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	r.Host = "localhost:8590"
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// askIn sends a form of this console, in a request that ends with ctx.
func askIn(ctx context.Context, h http.Handler, target string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// page returns a page, and fails the test unless its status is 200.
func page(t testing.TB, h http.Handler, target string) string {
	t.Helper()
	w := ask(t, h, http.MethodGet, target, "")
	if w.Code != http.StatusOK {
		_, shown, _ := strings.Cut(w.Body.String(), "</header>")
		t.Fatalf("%s: %d %s", target, w.Code, shown)
	}
	return w.Body.String()
}

// has fails unless text contains all parts.
func has(t testing.TB, text string, parts ...string) {
	t.Helper()
	contains(t, text, true, parts)
}

// hasNot fails if text contains any of parts.
func hasNot(t testing.TB, text string, parts ...string) {
	t.Helper()
	contains(t, text, false, parts)
}

func contains(t testing.TB, text string, want bool, parts []string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) != want {
			_, shown, _ := strings.Cut(text, "</header>")
			t.Errorf("%q: contained %v, want %v, in\n%s", part, !want, want, cmp.Or(shown, text))
		}
	}
}

// rowOf returns the row of an analysis.
func rowOf(t testing.TB, text, id string) string {
	t.Helper()
	row := regexp.MustCompile(`(?s)<tr [^>]*data-id="` + regexp.QuoteMeta(id) + `".*?</tr>`).FindString(text)
	if row == "" {
		t.Fatalf("no row of %s in\n%s", id, text)
	}
	return row
}

// ids returns the ids of the rows, in their order.
func ids(text string) (all []string) {
	for _, found := range regexp.MustCompile(`<tr [^>]*data-id="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// analysis returns an analysis with that status.
func analysis(id, status string) analysislock.Analysis {
	return analysislock.Analysis{ID: id, Status: status, CreatedAt: time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC), UpdatedAt: storeNow().Add(-5 * time.Minute)}
}

// heldBy returns an analysis whose lock expires in left.
func heldBy(id, owner string, token int64, left time.Duration) analysislock.Analysis {
	w := analysis(id, "PROCESSING")
	w.Lock = lease.Lease{Owner: owner, Token: token, Attempts: 1, HeartbeatAt: storeNow(), ExpiresAt: storeNow().Add(left)}
	w.Attempts = 1
	return w
}

// hidden returns the hidden fields of the form on a confirmation page.
func hidden(t testing.TB, text string) url.Values {
	t.Helper()
	form := url.Values{}
	for _, found := range regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Set(found[1], found[2])
	}
	if len(form) != 1 {
		t.Fatalf("no form in\n%s", text)
	}
	return form
}

var errOdd = errors.New("odd")
