package console_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

var (
	errOdd         = errors.New("odd")
	errUnavailable = fmt.Errorf("no connection: %w", lease.ErrUnavailable)
)

// memorySource has the documents in memory. Its clock is a day ahead of this machine's, so that the
// use of the wrong one is noticed.
type memorySource struct {
	worker.Documents // nil: no page calls the other methods

	mu          sync.Mutex
	all         map[string]analysislock.Analysis
	unavailable bool
	asked       map[string]int   // calls by method
	errs        map[string]error // of a method
	delay       time.Duration    // of each call of Page, Failures, Get and Summary
	pages       []repo.Filter    // of each Page, which compares its Code alone
	failures    []repo.Failure
	left        int   // groups of failures that are not in failures
	failed      int64 // more that are counted
	codes       []string
	backlog     repo.Backlog
}

func storeNow() time.Time { return time.Now().Add(24 * time.Hour) }

func newSource(all ...analysislock.Analysis) *memorySource {
	s := &memorySource{all: map[string]analysislock.Analysis{}, asked: map[string]int{}, errs: map[string]error{}}
	s.put(all...)
	return s
}

// change calls do with s locked.
func (s *memorySource) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *memorySource) put(all ...analysislock.Analysis) {
	s.change(func() {
		for _, a := range all {
			s.all[a.ID] = a
		}
	})
}

// breaks makes the store fail, or work again.
func (s *memorySource) breaks(unavailable bool) { s.change(func() { s.unavailable = unavailable }) }

// takes makes each call take so long.
func (s *memorySource) takes(delay time.Duration) { s.change(func() { s.delay = delay }) }

// calls returns how often a method was called.
func (s *memorySource) calls(method string) (n int) {
	s.change(func() { n = s.asked[method] })
	return n
}

// read returns the analyses to keep, as they are now, the last updated first.
func (s *memorySource) read(method string, keep func(*analysislock.Analysis) bool) (
	found []analysislock.Analysis, err error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[method]++
	if s.unavailable {
		return nil, errUnavailable
	}
	for _, a := range s.all {
		if a.ReadAt = storeNow(); keep == nil || keep(&a) {
			found = append(found, a)
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
	found, err = s.read("Page", func(a *analysislock.Analysis) bool { return f.Code == "" || a.HasCode(f.Code) })
	s.change(func() { s.pages = append(s.pages, f) })
	from, _ := strconv.Atoi(after)
	found = found[min(from, len(found)):]
	if len(found) > limit {
		found, next = found[:limit], strconv.Itoa(from+limit)
	}
	return found, next, storeNow(), err
}

// unfinished reports whether a worker has still to finish a.
func unfinished(a *analysislock.Analysis) bool {
	return a.Status == "QUEUED" || a.Status == "PROCESSING"
}

// Active lists an analysis as running and as waiting, if it is both.
func (s *memorySource) Active(_ context.Context, limit int) (
	running, waiting, stuck []analysislock.Analysis, at time.Time, err error,
) {
	all, err := s.read("Active", nil)
	for _, a := range all {
		held, waits := lease.Held(a.Lock, a.ReadAt), a.NextAttemptAt.After(a.ReadAt)
		if held {
			running = append(running, a)
		}
		if waits {
			waiting = slices.Insert(waiting, 0, a)
		}
		lost := unfinished(&a) && a.Malformed == nil && !held && !waits
		if lost && a.ReadAt.Sub(a.UpdatedAt) > 12*time.Minute {
			stuck = slices.Insert(stuck, 0, a)
		}
	}
	first := func(list []analysislock.Analysis) []analysislock.Analysis { return list[:min(limit, len(list))] }
	return first(running), first(waiting), first(stuck), storeNow(), err
}

func (s *memorySource) OldestUnfinished(context.Context) (oldest analysislock.Analysis, found bool, err error) {
	all, err := s.read("Oldest", unfinished)
	if len(all) == 0 {
		return oldest, false, err
	}
	created := func(a, b analysislock.Analysis) int { return a.CreatedAt.Compare(b.CreatedAt) }
	return slices.MinFunc(all, created), true, err
}

func (s *memorySource) Failures(ctx context.Context, limit int) ([]repo.Failure, int, error) {
	if err := s.wait(ctx); err != nil || limit != 50 {
		return nil, 0, errUnavailable
	}
	_, err := s.read("Failures", nil)
	return s.failures, s.left, err
}

func (s *memorySource) Uncertain(_ context.Context, limit int) ([]analysislock.Analysis, error) {
	found, err := s.read("Uncertain", func(a *analysislock.Analysis) bool {
		return a.OpenActs > 0 && !lease.Held(a.Lock, a.ReadAt)
	})
	return found[:min(limit, len(found))], err
}

func (s *memorySource) Codes(_ context.Context, limit int) (codes []string, err error) {
	_, err = s.read("Codes", nil)
	return s.codes[:min(limit, len(s.codes))], err
}

func (s *memorySource) Count(_ context.Context, f repo.Filter) (int64, error) {
	counted, err := s.read("Count", func(a *analysislock.Analysis) bool {
		return f.Status == "" || a.Status == f.Status
	})
	if f.Status == "FAILED" {
		return int64(len(counted)) + s.failed, err
	}
	return int64(len(counted)), err
}

// KeyState is of a key with three slots, of which one is taken.
func (s *memorySource) KeyState(_ context.Context, a *analysislock.Analysis, count bool) (repo.KeyState, error) {
	_, err := s.read("KeyState", nil)
	state := repo.KeyState{Key: "<acme>", Limit: 3, Running: []string{"r"}, Parked: !a.ParkedAt.IsZero()}
	if count {
		state.Before = new(int64(5))
	}
	return state, err
}

func (s *memorySource) Summary(ctx context.Context, id string) (analysislock.Analysis, error) {
	a, err := s.Get(ctx, id)
	a.Input, a.Result = nil, nil
	if errors.Is(err, lease.ErrMalformed) {
		err = nil
	}
	return a, err
}

func (s *memorySource) Get(ctx context.Context, id string) (none analysislock.Analysis, err error) {
	if err := s.wait(ctx); err != nil {
		return none, err
	}
	found, err := s.read("Get", func(a *analysislock.Analysis) bool { return a.ID == id })
	switch {
	case err != nil:
		return none, err
	case id == "a/b" || id == "":
		return none, lease.ErrInvalidKey
	case len(found) == 0:
		return none, lease.ErrNotFound
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

// begin returns what ends a change.
func (h *recorder) begin(ctx context.Context) (end func()) {
	if h.during != nil {
		h.during(ctx)
	}
	h.mu.Lock()
	return h.mu.Unlock
}

func (h *recorder) Change(ctx context.Context, c console.Change) (console.Delivery, error) {
	defer h.begin(ctx)()
	did := fmt.Sprint(c.Verb, " ", c.ID, " by ", c.Who)
	if c.Act != "" {
		did += fmt.Sprintf(": %s {%v %s}", c.Act, c.Answer.Done, c.Answer.Result)
	}
	h.did, h.seen = append(h.did, did), *c.Seen
	return console.Booked, h.fail
}

func (h *recorder) ChangeAll(
	ctx context.Context, verb console.Verb, w console.Which, who string, before time.Time, limit int, dryRun bool,
) (console.Bulk, error) {
	defer h.begin(ctx)()
	h.filter, h.match = w.Filter(cmp.Or(before, h.bulk.Before)), w.Match
	if !dryRun {
		what := fmt.Sprint(limit, " of ", h.filter.Status, " ", h.filter.Code, " before ", before.UnixMilli())
		h.did = append(h.did, fmt.Sprint(verb, " up to ", what, " by ", who))
	}
	return h.bulk, h.fail
}

// want compares what was done since the last call.
func (h *recorder) want(t *testing.T, did ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	equal(t, "done", strings.Join(h.did, "; "), strings.Join(did, "; "))
	h.did = nil
}

// quick makes each page read the analyses again.
const quick = time.Nanosecond

// open returns a console of source.
func open(t testing.TB, source console.Source, o console.Options) *console.Server {
	t.Helper()
	return console.NewServer(t.Context(), source, o)
}

// readOnly returns a console of these analyses that changes nothing and keeps no reading.
func readOnly(t testing.TB, all ...analysislock.Analysis) *console.Server {
	t.Helper()
	return open(t, newSource(all...), console.Options{Every: quick})
}

// writable returns a console that makes changes, and records them.
func writable(t testing.TB, source console.Source) (*console.Server, *recorder) {
	t.Helper()
	h := &recorder{}
	return open(t, source, console.Options{Operator: h, User: "operator-1", Books: true, Every: quick}), h
}

// virtual runs a subtest in virtual time.
func virtual(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// askIn makes a request, which ends with ctx, as a browser on this machine does. header has names and values in turn.
func askIn(
	ctx context.Context, h http.Handler, method, target, body string, header ...string,
) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
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

func ask(t testing.TB, h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return askIn(t.Context(), h, method, target, body, header...)
}

func get(t testing.TB, h http.Handler, target string) *httptest.ResponseRecorder {
	t.Helper()
	return ask(t, h, http.MethodGet, target, "")
}

// postIn sends a form as a page of the console does.
func postIn(ctx context.Context, h http.Handler, path string, form url.Values) *httptest.ResponseRecorder {
	return askIn(ctx, h, http.MethodPost, path, form.Encode(), "Sec-Fetch-Site", "same-origin")
}

func post(t testing.TB, h http.Handler, path string, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	return postIn(t.Context(), h, path, form)
}

// confirmed sends the form of a change's confirmation page.
func confirmed(t testing.TB, h http.Handler, verb, id string) *httptest.ResponseRecorder {
	t.Helper()
	path := "/" + verb + "?id=" + url.QueryEscape(id)
	return post(t, h, path, hidden(t, page(t, h, path)))
}

// page returns a page, and fails the test unless its status is 200.
func page(t testing.TB, h http.Handler, target string) string {
	t.Helper()
	w := get(t, h, target)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", target, w.Code, main(w.Body.String()))
	}
	return w.Body.String()
}

// main returns a page without its head.
func main(text string) string {
	_, shown, _ := strings.Cut(text, "</header>")
	return cmp.Or(shown, text)
}

// code fails unless w has this status code.
func code(t testing.TB, what string, w *httptest.ResponseRecorder, want int) {
	t.Helper()
	if w.Code != want {
		t.Errorf("%s: %d, want %d: %s", what, w.Code, want, main(w.Body.String()))
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got\n%v\nwant\n%v", what, got, want)
	}
}

// has fails unless text contains all parts.
func has(t testing.TB, text string, parts ...string) {
	t.Helper()
	contains(t, text, true, parts...)
}

// hasNot fails if text contains any of parts.
func hasNot(t testing.TB, text string, parts ...string) {
	t.Helper()
	contains(t, text, false, parts...)
}

func contains(t testing.TB, text string, want bool, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) != want {
			t.Errorf("%q: contained %v, want %v, in\n%s", part, !want, want, main(text))
		}
	}
}

// found returns what the group of pattern matches in text, or else all that pattern matches.
func found(text, pattern string) (all []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, match[len(match)-1])
	}
	return all
}

// listed returns the same in one line.
func listed(text, pattern string) string { return strings.Join(found(text, pattern), " ") }

// ids returns the ids of the rows, in their order.
func ids(text string) string { return listed(text, `<tr [^>]*data-id="([^"]*)"`) }

// words returns the text of markup.
func words(markup string) string {
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(markup, " ")
	return strings.Join(strings.Fields(html.UnescapeString(text)), " ")
}

// rowOf returns the row of an analysis.
func rowOf(t testing.TB, text, id string) string {
	t.Helper()
	row := regexp.MustCompile(`(?s)<tr [^>]*data-id="` + regexp.QuoteMeta(id) + `".*?</tr>`).FindString(text)
	if row == "" {
		t.Fatalf("no row of %s in\n%s", id, main(text))
	}
	return row
}

// hidden returns the hidden fields of the form on a confirmation page, in their order.
func hidden(t testing.TB, text string) url.Values {
	t.Helper()
	form := url.Values{}
	for _, field := range found(text, `<input type="hidden" (name="\w+" value="[^"]*)"`) {
		name, value, _ := strings.Cut(strings.TrimPrefix(field, `name="`), `" value="`)
		form.Add(name, html.UnescapeString(value))
	}
	if len(form) == 0 {
		t.Fatalf("no form in\n%s", main(text))
	}
	return form
}

// polled asks for the list as an open page does, every 4 s, and returns the last answer.
func polled(t *testing.T, h http.Handler, times int) (text string) {
	t.Helper()
	for range times {
		time.Sleep(4 * time.Second)
		text = page(t, h, "/")
	}
	return text
}

// analysis returns an analysis that was created in 1999, and updated five minutes ago.
func analysis(id, status string) analysislock.Analysis {
	created := time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)
	return at(analysislock.Analysis{ID: id, Status: status, CreatedAt: created}, 5*time.Minute)
}

// at returns a, updated ago.
func at(a analysislock.Analysis, ago time.Duration) analysislock.Analysis {
	a.UpdatedAt = storeNow().Add(-ago)
	return a
}

// heldBy returns an analysis whose lock expires in left.
func heldBy(id, owner string, token int64, left time.Duration) analysislock.Analysis {
	a := analysis(id, "PROCESSING")
	now := storeNow()
	a.Lock = lease.Lease{Owner: owner, Token: token, Attempts: 1, HeartbeatAt: now, ExpiresAt: now.Add(left)}
	a.Attempts = 1
	return a
}

// ended returns an analysis with that status that is finished.
func ended(id, status string) analysislock.Analysis {
	a := analysis(id, status)
	a.Lock.Finished = true
	return a
}

// malformed returns an analysis whose lock cannot be read.
func malformed(id, status string) analysislock.Analysis {
	a := analysis(id, status)
	a.Malformed = errOdd
	return a
}

// failed returns an analysis that failed ago.
func failed(id, code, message string, ago time.Duration) analysislock.Analysis {
	a := at(ended(id, "FAILED"), ago)
	a.Error, a.ReadAt = problem(code, message), storeNow()
	return a
}

func problem(code, message string) *analysislock.Error {
	return &analysislock.Error{Code: code, Message: message}
}

// acting returns an analysis with an uncertain act, charge, and one that is done.
func acting(id, status string) analysislock.Analysis {
	a := analysis(id, status)
	a.Lock.Token, a.OpenActs = 3, 1
	began := storeNow().Add(-2 * time.Hour)
	a.Acts = analysislock.Acts{
		"charge": {State: analysislock.ActStarted, Token: 2, At: began},
		"mail":   {State: analysislock.ActDone, Token: 2, At: storeNow(), Result: []byte(`"secret receipt"`)},
	}
	return a
}
