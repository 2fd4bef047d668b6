package console_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// acting returns an analysis with an uncertain act, charge, and a finished act.
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
