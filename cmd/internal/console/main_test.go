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
	"taskguard/repo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memorySource is a Source in memory. Its clock is a day ahead of this machine's clock, so that the
// use of the wrong clock is detected.
type memorySource struct {
	mu          sync.Mutex
	all         map[string]console.Detail
	unavailable bool
	asked       map[string]int // calls by method
	filters     []repo.Filter  // of the calls of Page
	delay       time.Duration  // of each call of Page, Failures and Get
	activeErr   error
	pageErr     error
	countErr    error
	failures    []repo.Failure
	backlog     repo.Backlog
	backlogErr  error
	failed      int64 // more that are counted
}

const ahead = 24 * time.Hour

func storeNow() time.Time { return time.Now().Add(ahead) }

func newSource(all ...console.Detail) *memorySource {
	s := &memorySource{all: map[string]console.Detail{}, asked: map[string]int{}}
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

func (s *memorySource) put(w console.Detail) { s.change(func() { s.all[w.ID] = w }) }

var errUnavailable = fmt.Errorf("no connection: %w", lease.ErrUnavailable)

// read returns those of the analyses that are kept, as they are now, the last updated first.
func (s *memorySource) read(method string, keep func(console.Detail) bool) (console.Listing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[method]++
	if s.unavailable {
		return console.Listing{}, errUnavailable
	}
	l := console.Listing{At: storeNow()}
	for id := range s.all {
		d := s.all[id]
		if d.ReadAt = l.At; keep(d) {
			l.All = append(l.All, d.Analysis)
		}
	}
	slices.SortFunc(l.All, func(a, b analysislock.Analysis) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.ID, b.ID))
	})
	return l, nil
}

func (s *memorySource) Backlog(_ context.Context, stuck int) (repo.Backlog, error) {
	l, err := s.read("Backlog", func(console.Detail) bool { return true })
	b := s.backlog
	b.At, b.Stuck = l.At, max(b.Stuck, int64(stuck))
	return b, cmp.Or(err, s.backlogErr)
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

func (s *memorySource) Page(ctx context.Context, f repo.Filter, after string, limit int) (console.Listing, error) {
	if err := s.wait(ctx); err != nil {
		return console.Listing{}, err
	}
	l, err := s.read("Page", func(d console.Detail) bool {
		code := d.Error != nil && d.Error.Code == f.Code || f.Status != "FAILED" && d.LastError != nil && d.LastError.Code == f.Code
		return strings.HasPrefix(d.ID, f.Prefix) && (f.Prefix != "" || (f.Status == "" || f.Status == d.Status) && (f.Code == "" || code) && !d.UpdatedAt.Before(f.Since) && (f.Before.IsZero() || d.UpdatedAt.Before(f.Before)))
	})
	s.change(func() { s.filters = append(s.filters, f) })
	from, _ := strconv.Atoi(after)
	l.All = l.All[min(from, len(l.All)):]
	if len(l.All) > limit {
		l.All, l.Next = l.All[:limit], strconv.Itoa(from+limit)
	}
	return l, cmp.Or(err, s.pageErr)
}

func (s *memorySource) Active(_ context.Context, limit int) (console.Listing, error) {
	l, err := s.read("Active", func(d console.Detail) bool { return lease.Held(d.Lock, storeNow()) })
	waiting, _ := s.read("Active", func(d console.Detail) bool { return d.NextAttemptAt.After(storeNow()) })
	stuck, _ := s.read("Stuck", func(d console.Detail) bool {
		return (d.Status == "QUEUED" || d.Status == "PROCESSING") && !lease.Held(d.Lock, storeNow()) && d.NextAttemptAt.Before(storeNow())
	})
	slices.Reverse(stuck.All)
	l.Stuck = min(limit, len(stuck.All))
	l.All = slices.Concat(l.All[:min(limit, len(l.All))], waiting.All[:min(limit, len(waiting.All))], stuck.All[:min(limit, len(stuck.All))])
	return l, cmp.Or(err, s.activeErr)
}

func (s *memorySource) Oldest(context.Context) ([]analysislock.Analysis, error) {
	l, err := s.read("Oldest", func(d console.Detail) bool { return d.Status == "QUEUED" || d.Status == "PROCESSING" })
	slices.SortFunc(l.All, func(a, b analysislock.Analysis) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return l.All[:min(1, len(l.All))], err
}

func (s *memorySource) Failures(ctx context.Context, limit int) ([]repo.Failure, error) {
	if err := s.wait(ctx); err != nil || limit != 50 {
		return nil, errUnavailable
	}
	_, err := s.read("Failures", func(console.Detail) bool { return false })
	return s.failures, err
}

func (s *memorySource) Count(_ context.Context, statuses []string) (console.Counts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked["Count"]++
	if s.unavailable {
		return nil, errUnavailable
	}
	if s.countErr != nil {
		return nil, s.countErr
	}
	counts := console.Counts{"": int64(len(s.all))}
	for _, status := range statuses {
		counts[status] = 0
	}
	for id := range s.all {
		if status := s.all[id].Status; slices.Contains(statuses, status) {
			counts[status]++
		}
	}
	counts["FAILED"] += s.failed
	return counts, nil
}

func (s *memorySource) Get(ctx context.Context, id string, contents bool) (console.Detail, error) {
	if err := s.wait(ctx); err != nil {
		return console.Detail{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked["Get"]++
	w, there := s.all[id]
	switch {
	case s.unavailable:
		return console.Detail{}, errUnavailable
	case id == "a/b" || id == "":
		return console.Detail{}, lease.ErrInvalidKey
	case !there:
		return console.Detail{}, lease.ErrNotFound
	case w.Malformed != nil && contents:
		return console.Detail{}, lease.ErrMalformed
	}
	w.ReadAt = storeNow()
	if !contents {
		w.Input, w.Result = nil, nil
	}
	return w, nil
}

// recorder is an Operator that records its calls.
type recorder struct {
	mu     sync.Mutex
	did    []string
	seen   analysislock.Seen         // of the last change
	during func(ctx context.Context) // nil: a change takes no time
	booked console.Delivery          // empty: Booked
	bulk   console.Bulk              // of the next ChangeAll
	filter repo.Filter               // of the last ChangeAll
	fail   error
}

func (h *recorder) Change(ctx context.Context, what console.Change, id, who string, seen analysislock.Seen) (console.Delivery, error) {
	if h.during != nil {
		h.during(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did, h.seen = append(h.did, string(what)+" "+id+" by "+who), seen
	return cmp.Or(h.booked, console.Booked), h.fail
}

func (h *recorder) ChangeAll(ctx context.Context, what console.Change, f func(time.Time) repo.Filter, who string, last console.Bulk, limit int, dryRun bool) (console.Bulk, error) {
	if h.during != nil {
		h.during(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.filter = f(cmp.Or(last.Before, h.bulk.Before))
	if !dryRun {
		h.did = append(h.did, fmt.Sprint(what, " up to ", limit, " of ", h.filter.Status, " ", h.filter.Code, " before ", last.Before.UnixMilli(), " by ", who, last.After))
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
	return open(t, source, console.Options{Operator: h, Identity: console.Everybody("operator-1"), Books: true, Every: quick}), h
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
func analysis(id, status string) console.Detail {
	return console.Detail{Analysis: analysislock.Analysis{ID: id, Status: status, CreatedAt: time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC), UpdatedAt: storeNow().Add(-5 * time.Minute)}}
}

// heldBy returns an analysis whose lock expires in left.
func heldBy(id, owner string, token int64, left time.Duration) console.Detail {
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
