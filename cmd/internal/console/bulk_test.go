package console_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// A bulk change takes all that a filter selects.
func TestBulk(t *testing.T) {
	t.Run("is offered for a filter that selects something", func(t *testing.T) {
		s, _ := writable(t, newSource(analysis("a", "QUEUED"), at(analysis("b", "FAILED"), 2*time.Hour)))
		for query, want := range map[string]string{
			"": "", "q=a": "", "since=1h&q=a": "", "state=READY": "requeue", "state=FAILED": "requeue",
			"state=QUEUED": "requeue cancel", "since=1h": "requeue cancel", "older=1h": "requeue cancel", "code=": "",
		} {
			text := page(t, s, "/?"+query)
			equal(t, query, listed(text, `href="/all/(\w+)\?`), want)
			contains(t, text, want != "", `href="/all/requeue?`+query+`"`)
		}
		nothing, _ := writable(t, newSource())
		hasNot(t, page(t, nothing, "/?state=QUEUED"), "/all/")
	})
	t.Run("is made after a dry run, with its times", func(t *testing.T) {
		s, h := writable(t, newSource())
		before := storeNow()
		h.bulk = console.Bulk{Before: before, Matched: 30, Changed: 20, Skipped: 9, Failed: 1}
		since, older := before.Add(-2*time.Hour), before.Add(-time.Hour)
		for verb, past := range map[string]string{"requeue": "requeued", "cancel": "cancelled"} {
			path := "/all/" + verb + "?code=c&older=1h&since=2h&state=QUEUED"
			text := page(t, s, path+"&after=x")
			has(t, text, `id="matched">30<`, `id="would">20<`, `id="skipped">9<`, `id="would-fail">1<`, `>2h<`, `>1h<`,
				past, "operator-1", `action="`+strings.ReplaceAll(path, "&", "&amp;")+`"`)
			h.want(t)
			equal(t, "dry run", h.filter, repo.Filter{Status: "QUEUED", Code: "c", Since: since, Before: older})
			has(t, post(t, s, path, hidden(t, text)).Body.String(), "20 "+past+", 9 skipped, 1 failed. 10 are left.")
			h.want(t, fmt.Sprint(verb, " up to 30 of QUEUED c before ", before.UnixMilli(), " by operator-1"))
			equal(t, "since", h.filter.Since.UnixMilli(), since.UnixMilli())
			equal(t, "before", h.filter.Before.UnixMilli(), older.UnixMilli())
		}
		for skipped, offered := range map[int64]bool{5: false, 4: true} { // they are READY
			h.bulk = console.Bulk{Before: before, Matched: 5, Changed: 5 - skipped, Skipped: skipped}
			contains(t, page(t, s, "/failures/requeue?code=c"), offered, "confirm-submit")
		}
	})
	t.Run("says of how many the change may have been made", func(t *testing.T) {
		s, h := writable(t, newSource())
		for unconfirmed, said := range map[int64]bool{0: false, 2: true} {
			h.bulk = console.Bulk{Before: storeNow(), Matched: 3, Failed: 3, Unconfirmed: unconfirmed}
			text := post(t, s, "/all/cancel?state=QUEUED", url.Values{"seen": {"7-3"}}).Body.String()
			contains(t, text, said, "2 of the failed may have been cancelled")
		}
	})
	t.Run("continues with the confirmed ones", func(t *testing.T) {
		s, h := writable(t, newSource())
		before := storeNow()
		h.bulk = console.Bulk{Before: before, Matched: 6234, Changed: 4997, Skipped: 3}
		const path = "/failures/requeue?code=a%26b"
		text := page(t, s, path)
		has(t, text, `id="matched">6,234<`, `id="would">4,997<`, "Of the first 5,000", "Requeue 6,234</button>",
			"Each is enqueued")
		h.want(t)
		for _, step := range []struct {
			bulk         console.Bulk
			result, more string
		}{
			{console.Bulk{Matched: 6300, Changed: 1200, Failed: 1}, "1 failed. 5,034 are left.", "other 5,034<"},
			{console.Bulk{Matched: 33, Changed: 30, Skipped: 3}, "3 skipped. 3 are left.", "other 3<"},
			{console.Bulk{Matched: 3, Changed: 3}, "3 requeued.", ""},
		} {
			h.bulk, h.bulk.Before = step.bulk, before
			text = post(t, s, path, hidden(t, text)).Body.String()
			has(t, text, step.result, step.more)
		}
		hasNot(t, text, "confirm-submit")
		of := fmt.Sprintf(" of FAILED a&b before %d by operator-1", before.UnixMilli())
		h.want(t, "requeue up to 5000"+of, "requeue up to 5000"+of, "requeue up to 3"+of)
	})
	t.Run("of failures takes one cause, or one message", func(t *testing.T) {
		source := failing()
		s, h := writable(t, source)
		h.bulk = console.Bulk{Before: storeNow(), Matched: 2, Changed: 2}
		links := found(page(t, s, "/failures"), `href="(/failures/requeue\?code=[^"]*&amp;headline=[^"]*)"`)
		equal(t, "links", len(links), 3) // one for each message, where there are several
		matched := func() (ids string) {
			for _, a := range source.failures[2].Newest {
				if h.match(&a) {
					ids += a.ID + " "
				}
			}
			return ids
		}
		first := html.UnescapeString(links[0])
		text := page(t, s, first)
		has(t, text, "Requeue 2</button>")
		equal(t, "the first message", matched(), "newest older ")
		post(t, s, first, hidden(t, text))
		equal(t, "changes", len(h.did), 1)
		equal(t, "the change of the first", matched(), "newest older ")
		equal(t, "one without an error", h.match(&analysislock.Analysis{}), false)

		page(t, s, "/failures/requeue?code=c&state=READY&since=1h&q=x")
		equal(t, "all of a cause", h.filter, repo.Filter{Status: "FAILED", Code: "c", Cause: true})
		equal(t, "matches messages", h.match != nil, false)
	})
	t.Run("needs a filter, and what was confirmed", func(t *testing.T) {
		s, h := writable(t, failing())
		code(t, "all are unlocked", get(t, s, "/all/unlock?state=QUEUED"), http.StatusNotFound)
		for _, path := range []string{
			"/failures/requeue", "/failures/requeue?code=", "/failures/requeue?code=%ff", "/failures/requeue?since=1h",
			"/all/requeue", "/all/cancel?q=a", "/all/cancel?state=QUEUED&q=a", "/all/cancel?since=tomorrow",
			"/all/requeue?after=x",
		} {
			code(t, path, get(t, s, path), http.StatusBadRequest)
			code(t, path, post(t, s, path, url.Values{"seen": {"7-7"}}), http.StatusBadRequest)
		}
		seen := fmt.Sprint(time.Now().UnixMilli(), "-5")
		for _, form := range []url.Values{
			{}, {"seen": {"7"}}, {"seen": {"7-0"}}, {"seen": {"0-7"}},
			{"seen": {seen}, "x": {strings.Repeat("x", 300<<10)}},
		} {
			code(t, fmt.Sprint(form["seen"]), post(t, s, "/failures/requeue?code=c", form), http.StatusConflict)
		}
		h.want(t)
		code(t, seen, post(t, s, "/failures/requeue?code=c", url.Values{"seen": {seen}}), http.StatusOK)
		equal(t, "changes", len(h.did), 1)
	})
}

// chosen is the form of a list in which these ids are selected.
func chosen(ids ...string) url.Values {
	form := url.Values{}
	for _, id := range ids {
		form.Add("id", url.QueryEscape(id))
	}
	return form
}

// hundred returns a source with a hundred failed analyses, and the form that selects them.
func hundred() (*memorySource, url.Values) {
	source, form := newSource(), url.Values{}
	for i := range 100 {
		id := fmt.Sprint("x", i)
		source.put(analysis(id, "FAILED"))
		form.Add("id", id)
	}
	return source, form
}

// several returns one analysis in each state that decides about a change.
func several() *memorySource {
	cancelled := ended("cancelled", "FAILED")
	cancelled.Error = problem(analysislock.Cancelled, "")
	return newSource(analysis("queued", "QUEUED"), analysis("a b&c", "QUEUED"), heldBy("held", "w/1", 3, time.Hour),
		ended("done", "READY"), cancelled, malformed("malformed", "QUEUED"), acting("uncertain", "FAILED"))
}

func TestSelected(t *testing.T) {
	t.Run("those that may be are changed, once they are confirmed", func(t *testing.T) {
		all := chosen("queued", "a b&c", "held", "done", "cancelled", "malformed", "uncertain", "missing", "a/b",
			"queued")
		for verb, tc := range map[string]struct{ change, past, button, left string }{
			"requeue": {
				change: "a b&c, cancelled, queued", past: "requeued", button: "Requeue 3", left: "held done uncertain",
			},
			"cancel": {
				change: "a b&c, held, queued", past: "cancelled", button: "Cancel 3", left: "done cancelled uncertain",
			},
		} {
			s, h := writable(t, several())
			path := "/selected/" + verb + "?state=QUEUED"
			text := post(t, s, path, all).Body.String()
			h.want(t) // nothing yet
			for _, id := range append(strings.Fields(tc.left), "malformed", "missing", "a/b") {
				item := listed(text, `<li data-id="`+id+`">.*</li>`)
				has(t, item, "left alone: ")
				hasNot(t, item, `name="id"`)
			}
			has(t, text, "selected twice", tc.button, "<bdi>operator-1</bdi>", `action="`+path+`"`,
				`href="/?state=QUEUED"`)
			contains(t, text, verb == "cancel", "<strong>1 runs now.</strong>", `class="main danger"`)
			contains(t, text, verb == "requeue", "Each is enqueued", "It runs.", "It has finished.", "Resolve that")

			text = post(t, s, path, hidden(t, text)).Body.String()
			has(t, text, `role="status">3 `+tc.past+".", `href="/?state=QUEUED"`)
			slices.Sort(h.did)
			var want []string
			for id := range strings.SplitSeq(tc.change, ", ") {
				want = append(want, verb+" "+id+" by operator-1")
			}
			h.want(t, want...)
		}
	})
	t.Run("one that has changed is left alone", func(t *testing.T) {
		source := newSource(analysis("a", "FAILED"), heldBy("b", "w/1", 3, time.Hour), analysis("c", "FAILED"))
		s, h := writable(t, source)
		form := hidden(t, post(t, s, "/selected/cancel", chosen("b")).Body.String())
		source.put(heldBy("b", "w/2", 4, time.Hour)) // another run
		has(t, post(t, s, "/selected/cancel", form).Body.String(), "0 cancelled, 1 to look at", "It has changed")

		form = hidden(t, post(t, s, "/selected/requeue", chosen("a", "c")).Body.String())
		source.put(analysis("a", "READY"))
		h.fail = lease.ErrConflict // of c: between the reading and the change
		text := post(t, s, "/selected/requeue", form).Body.String()
		equal(t, "changed since", strings.Count(text, "It has changed"), 2)
		h.want(t, "requeue c by operator-1")
		equal(t, "the change is made in", h.seen, analysislock.Seen{Status: "FAILED"})
	})
	t.Run("one that may have been changed is not counted", func(t *testing.T) {
		s, h := writable(t, newSource(analysis("a", "FAILED")))
		form := hidden(t, post(t, s, "/selected/requeue", chosen("a")).Body.String())
		h.fail = errors.Join(console.ErrUnconfirmed, lease.ErrUnavailable, lease.ErrConflict) // its last try conflicted
		text := post(t, s, "/selected/requeue", form).Body.String()
		has(t, text, "0 requeued, 1 to look at", "not confirmed, but may have been made")
	})
	t.Run("a change ends where the queue refuses, as it would refuse all", func(t *testing.T) {
		source, all := hundred()
		s, h := writable(t, source)
		form := hidden(t, post(t, s, "/selected/requeue", all).Body.String())
		h.fail = console.ErrNotBooked
		text := post(t, s, "/selected/requeue", form).Body.String()
		has(t, text, "could not be enqueued", "Not tried: ")
		wantFew(t, h, 20)
	})
	t.Run("a form has some ids, at most 200, and what was seen of each", func(t *testing.T) {
		s, h := writable(t, several())
		has(t, get(t, s, "/").Body.String(), `data-most="200"`) // the script says it before
		good := hidden(t, post(t, s, "/selected/requeue", chosen("queued")).Body.String()).Encode()
		large, longest := chosen(), chosen()
		for i := range 201 {
			large.Add("id", fmt.Sprint(i))
		}
		for i := range 200 {
			longest.Add("id", url.QueryEscape(fmt.Sprint(1000+i)+strings.Repeat("é", 748)))
			longest.Add("seen", "9223372036854775807-0123456789abcdef-stale-0123456789abcdef")
		}
		for name, tc := range map[string]struct {
			query, body string
			want        int
		}{
			"none":            {"", "", http.StatusBadRequest},
			"in the address":  {"?" + good, "", http.StatusBadRequest},
			"too many":        {"", large.Encode(), http.StatusBadRequest},
			"the longest ids": {"", longest.Encode(), http.StatusOK},
			"without an end":  {"", good + "&x=" + strings.Repeat("x", 2<<20), http.StatusBadRequest},
			"two for one":     {"", good + "&seen=x", http.StatusConflict},
			"a wrong filter":  {"?state=FAILD", good, http.StatusBadRequest},
			"not what's seen": {"", chosen("queued").Encode() + "&seen=x", http.StatusOK},
		} {
			w := ask(t, s, http.MethodPost, "/selected/requeue"+tc.query, tc.body, "Sec-Fetch-Site", "same-origin")
			code(t, name, w, tc.want)
		}
		code(t, "GET", get(t, s, "/selected/requeue?"+good), http.StatusBadRequest)
		h.want(t)
	})
	virtual(t, "changes outlive the page, a stop waits for those under way, and begins no other", func(t *testing.T) {
		source, all := hundred()
		h := &recorder{}
		work, stop := context.WithCancel(t.Context())
		defer stop()
		s := console.NewServer(work, source, console.Options{Operator: h, User: "operator-1"})
		form := hidden(t, post(t, s, "/selected/requeue", all).Body.String())
		h.during = func(ctx context.Context) {
			stop()
			time.Sleep(time.Second)
			ended, end := context.WithCancel(ctx)
			end()
			equal(t, "forms that a stop waits for", s.Drain(ended), 1)
			equal(t, "the change", ctx.Err(), nil)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		has(t, postIn(gone, s, "/selected/requeue", form).Body.String(), "Not tried: ")
		wantFew(t, h, 16)
	})
}

// wantFew checks that some changes were made: those that had begun.
func wantFew(t *testing.T, h *recorder, most int) {
	t.Helper()
	if n := len(h.did); n < 1 || n > most {
		t.Errorf("%d are changed, want 1 to %d", n, most)
	}
}
