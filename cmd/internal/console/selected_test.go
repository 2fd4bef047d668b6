package console_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// chosen is the form of a list in which these ids are selected.
func chosen(ids ...string) url.Values {
	form := url.Values{}
	for _, id := range ids {
		form.Add("id", url.QueryEscape(id))
	}
	return form
}

// fields returns the hidden fields of a page, in their order.
func fields(text string) url.Values {
	form := url.Values{}
	for _, found := range regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Add(found[1], html.UnescapeString(found[2]))
	}
	return form
}

// several returns one analysis in each state that decides about a change.
func several() *memorySource {
	done, cancelled := analysis("done", "READY"), analysis("cancelled", "FAILED")
	done.Lock.Finished, cancelled.Lock.Finished = true, true
	cancelled.Error = &analysislock.Error{Code: analysislock.Cancelled}
	malformed := analysis("malformed", "QUEUED")
	malformed.Malformed = errOdd
	return newSource(analysis("queued", "QUEUED"), analysis("a b&c", "QUEUED"), heldBy("held", "w/1", 3, time.Hour), done, cancelled, malformed, acting("uncertain", "FAILED"))
}

func TestSelectedAnalysesAreConfirmedAndOnlyThoseThatMayBeAreChanged(t *testing.T) {
	all := chosen("queued", "a b&c", "held", "done", "cancelled", "malformed", "uncertain", "missing", "a/b", "queued")
	for verb, tc := range map[string]struct {
		changed string
		left    map[string]string
	}{
		"requeue": {"a b&c cancelled queued", map[string]string{"held": "It runs. Cancel it first.", "done": "It has finished. You can requeue it on its page.", "uncertain": "side effect that may have happened"}},
		"cancel":  {"a b&c held queued", map[string]string{"done": "It has ended.", "cancelled": "It has ended.", "uncertain": "It has ended."}},
	} {
		s, h := writable(t, several())
		w := post(t, s, "/selected/"+verb+"?state=QUEUED", all)
		text := w.Body.String()
		h.want(t) // nothing yet
		reasons := map[string]string{"malformed": "cannot be read", "missing": "There is no analysis with this id.", "a/b": "No analysis can have this id."}
		for id, why := range tc.left {
			reasons[id] = why
		}
		for id, why := range reasons {
			item := regexp.MustCompile(`<li data-id="` + id + `">.*</li>`).FindString(text)
			has(t, item, "left alone: ", why)
			hasNot(t, item, `name="id"`)
		}
		has(t, text, "It is selected twice.", strings.ToUpper(verb[:1])+verb[1:]+" 3 selected?", "<bdi>operator-1</bdi>", `action="/selected/`+verb+`?state=QUEUED"`, `href="/?state=QUEUED"`)
		contains(t, text, verb == "cancel", []string{"<strong>1 runs now.</strong>", `class="main danger"`})
		contains(t, text, verb == "requeue", []string{"Each is enqueued"})

		w = post(t, s, "/selected/"+verb+"?state=QUEUED", fields(text))
		has(t, w.Body.String(), `role="status">3 `+map[string]string{"requeue": "requeued", "cancel": "cancelled"}[verb]+".", `href="/?state=QUEUED"`)
		var want []string
		for _, id := range []string{"a b&c", "cancelled", "held", "queued"} {
			if strings.Contains(" "+tc.changed+" ", " "+id+" ") {
				want = append(want, verb+" "+id+" by operator-1")
			}
		}
		slices.Sort(h.did)
		h.want(t, want...)
	}
}

func TestASelectedAnalysisThatHasChangedIsLeftAlone(t *testing.T) {
	source := newSource(analysis("a", "FAILED"), heldBy("b", "w/1", 3, time.Hour), analysis("c", "FAILED"))
	s, h := writable(t, source)
	form := fields(post(t, s, "/selected/cancel", chosen("b")).Body.String())
	source.put(heldBy("b", "w/2", 4, time.Hour)) // another run
	has(t, post(t, s, "/selected/cancel", form).Body.String(), "0 cancelled, 1 to look at", "It has changed since you looked.")

	form = fields(post(t, s, "/selected/requeue", chosen("a", "c")).Body.String())
	source.put(analysis("a", "READY"))
	h.fail = lease.ErrConflict // of c: between the reading and the change
	text := post(t, s, "/selected/requeue", form).Body.String()
	if n := strings.Count(text, "It has changed since you looked."); n != 2 {
		t.Errorf("%d have changed, want 2: %s", n, text)
	}
	h.want(t, "requeue c by operator-1")
	if want := (analysislock.Seen{Status: "FAILED"}); h.seen != want {
		t.Errorf("the change is made in %+v, want %+v", h.seen, want)
	}
}

// A worker's queue that refuses one delivery refuses all.
func TestAChangeOfTheSelectedEndsWhereTheQueueRefuses(t *testing.T) {
	var ids []string
	source := newSource()
	for i := range 100 {
		ids = append(ids, fmt.Sprint("x", i))
		source.put(analysis(ids[i], "FAILED"))
	}
	s, h := writable(t, source)
	form := fields(post(t, s, "/selected/requeue", chosen(ids...)).Body.String())
	h.fail = console.ErrNotBooked
	text := post(t, s, "/selected/requeue", form).Body.String()
	has(t, text, "could not be enqueued. Unlock it on its page", "Not tried: ")
	if n := len(h.did); n < 1 || n > 20 {
		t.Errorf("%d are changed, want that it ends with the first", n)
	}
}

func TestOnlyAFormOfThisConsoleChangesTheSelected(t *testing.T) {
	s, h := writable(t, several())
	good := fields(post(t, s, "/selected/requeue", chosen("queued")).Body.String())
	large := make([]string, 201)
	for i := range large {
		large[i] = fmt.Sprint(i)
	}
	longest := chosen()
	for i := range 200 {
		longest.Add("id", url.QueryEscape(fmt.Sprint(1000+i)+strings.Repeat("é", 748)))
		longest.Add("seen", "9223372036854775807-0123456789abcdef-stale-0123456789abcdef")
	}
	same := []string{"Sec-Fetch-Site", "same-origin"}
	for name, tc := range map[string]struct {
		query, body string
		header      []string
		want        int
	}{
		"cross-site":      {"", good.Encode(), []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"no proof":        {"", good.Encode(), nil, http.StatusForbidden},
		"none":            {"", "", same, http.StatusBadRequest},
		"in the address":  {"?" + good.Encode(), "", same, http.StatusBadRequest},
		"too many":        {"", chosen(large...).Encode(), same, http.StatusBadRequest},
		"the longest ids": {"", longest.Encode(), same, http.StatusOK},
		"without an end":  {"", good.Encode() + "&x=" + strings.Repeat("x", 2<<20), same, http.StatusBadRequest},
		"two for one":     {"", good.Encode() + "&seen=x", same, http.StatusConflict},
		"a wrong filter":  {"?state=FAILD", good.Encode(), same, http.StatusBadRequest},
		"not what's seen": {"", chosen("queued").Encode() + "&seen=x", same, http.StatusOK},
	} {
		if w := ask(t, s, http.MethodPost, "/selected/requeue"+tc.query, tc.body, tc.header...); w.Code != tc.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tc.want)
		}
	}
	if w := ask(t, s, http.MethodGet, "/selected/requeue?"+good.Encode(), ""); w.Code != http.StatusBadRequest {
		t.Errorf("GET: %d", w.Code)
	}
	h.want(t)

	reader := open(t, several(), console.Options{Every: quick})
	hasNot(t, page(t, reader, "/"), "checkbox", "/selected/", "<form id=\"selection\"")
	if w := post(t, reader, "/selected/requeue", good); w.Code != http.StatusForbidden {
		t.Errorf("without --write: %d", w.Code)
	}
}

// The operator leaves the page, and the changes under way are completed.
func TestAChangeOfTheSelectedOutlivesItsPage(t *testing.T) {
	s, h := writable(t, newSource(analysis("a", "FAILED")))
	form := fields(post(t, s, "/selected/requeue", chosen("a")).Body.String())
	h.during = func(ctx context.Context) {
		if ctx.Err() != nil {
			t.Error("it ends with its page")
		}
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	w := askIn(gone, s, "/selected/requeue", form)
	if h.want(t, "requeue a by operator-1"); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestAStopWaitsForTheChangesOfTheSelectedUnderWayAndBeginsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		source, h := newSource(), &recorder{}
		for i := range 100 {
			ids = append(ids, fmt.Sprint("x", i))
			source.put(analysis(ids[i], "FAILED"))
		}
		work, stop := context.WithCancel(t.Context())
		defer stop()
		s := console.NewServer(work, source, console.Options{Operator: h, User: "operator-1"})
		form := fields(post(t, s, "/selected/requeue", chosen(ids...)).Body.String())
		h.during = func(ctx context.Context) {
			stop()
			time.Sleep(time.Second)
			ended, end := context.WithCancel(ctx)
			end()
			if left := s.Drain(ended); left != 1 || ctx.Err() != nil {
				t.Errorf("a stop waits for %d forms; the change: %v", left, ctx.Err())
			}
		}
		has(t, post(t, s, "/selected/requeue", form).Body.String(), "Not tried: ")
		if n := len(h.did); n < 1 || n > 16 {
			t.Errorf("%d are changed, want those that had begun", n)
		}
	})
}
