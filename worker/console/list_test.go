package console_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/console"
)

// polled asks for the list as an open page does, every 4 s, and returns the last answer.
func polled(t *testing.T, h http.Handler, times int) (text string) {
	t.Helper()
	for range times {
		time.Sleep(4 * time.Second)
		text = page(t, h, "/")
	}
	return text
}

func TestALaterPageShowsTheChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"), analysis("b", "READY"))
		server := open(t, source, console.Options{})
		has(t, page(t, server, "/"), `data-poll="/?"`, `data-live="static"`, `data-id="a"`, `data-id="b"`)
		source.put(analysis("a", "FAILED"))
		source.put(analysis("c", "QUEUED"))
		source.change(func() { delete(source.all, "b") })
		text := polled(t, server, 1)
		has(t, rowOf(t, text, "a"), ">FAILED<")
		if got := strings.Join(ids(text), " "); got != "a c" {
			t.Errorf("listed are %s, want a c", got)
		}
		has(t, page(t, server, "/analysis?id=a"), `data-poll="/analysis?id=a"`, `data-live="static"`)
		source.change(func() { delete(source.all, "a") })
		if w := ask(t, server, http.MethodGet, "/analysis?id=a", ""); w.Code != http.StatusNotFound {
			t.Errorf("a deleted one: %d", w.Code)
		}
	})
}

// No write marks the expiry of a lock.
func TestALockThatExpiresIsShownAsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := open(t, newSource(heldBy("a", "w/1", 1, 5*time.Second)), console.Options{})
		for _, want := range []string{"held", "held", "stale"} { // after 0, 4 and 8 s
			for _, target := range []string{"/", "/analysis?id=a"} {
				has(t, page(t, server, target), `data-lock="`+want+`"`)
			}
			time.Sleep(4 * time.Second)
		}
	})
}

func TestAllPagesShareTheReadsAndNothingIsReadWithoutAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"))
		server := open(t, source, console.Options{})
		want := func(what string, newest, counts, overdue int) {
			t.Helper()
			synctest.Wait()
			if n, c, o := source.calls("Newest"), source.calls("Count"), source.calls("Overdue"); n != newest || c != counts || o != overdue {
				t.Errorf("%s: read %d, counted %d, overdue %d times; want %d, %d, %d", what, n, c, o, newest, counts, overdue)
			}
		}
		want("at first", 0, 0, 0)
		var pages sync.WaitGroup
		for range 20 {
			pages.Go(func() {
				for range 15 {
					w := httptest.NewRecorder()
					r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", http.NoBody)
					server.ServeHTTP(w, r)
					if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `data-id="a"`) {
						t.Errorf("%d %s", w.Code, w.Body)
					}
					time.Sleep(4 * time.Second)
				}
			})
		}
		pages.Wait()
		want("after a minute of twenty pages", 15, 4, 2)
		time.Sleep(time.Hour)
		want("after an hour without a page", 15, 4, 2)
	})
}

// The holder may have renewed it since.
func TestALockStaysAsLastReadWhileTheStoreDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(heldBy("a", "w/1", 1, 3*time.Minute), analysis("b", "QUEUED"))
		server := open(t, source, console.Options{})
		source.change(func() { source.unavailable = true })
		text := page(t, server, "/")
		has(t, text, `id="filter-all"`, `id="empty" hidden`, "Firestore does not answer. Nothing is known yet.", `data-live="unavailable"`)
		hasNot(t, text, `data-id="a"`, "<b>")
		source.change(func() { source.unavailable = false })
		polled(t, server, 4)
		known := storeNow().UTC().Format("15:04:05 UTC")
		source.change(func() { source.unavailable = true })
		words := "Firestore does not answer. What is shown is as of " + known + "."
		hasNot(t, polled(t, server, 1), words) // one attempt may fail
		text = polled(t, server, 2)
		has(t, text, words, `data-live="unavailable"`)
		for range 5 {
			time.Sleep(time.Minute)
			text = page(t, server, "/?q=old")
			has(t, rowOf(t, page(t, server, "/"), "a"), `data-lock="held"`)
			has(t, text, words, "All</a>") // the numbers are unknown too
		}
		if n := source.calls("Get"); n > 0 {
			t.Errorf("read %d single analyses from a store that does not answer", n)
		}
		if w := ask(t, server, http.MethodGet, "/analysis?id=a", ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "Firestore does not answer.") {
			t.Errorf("one analysis: %d %s", w.Code, w.Body)
		}
		source.change(func() { source.unavailable = false; source.all["b"] = analysis("b", "READY") })
		text = polled(t, server, 1)
		has(t, text, `data-live="static"`, "READY")
		has(t, rowOf(t, text, "a"), `data-lock="stale"`)
	})
}

func TestTheNumbersOfTheStatesCountAllAnalyses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"), analysis("old", "FAILED"), analysis("odd", "ARCHIVED"))
		source.hidden = "old"
		server := open(t, source, console.Options{})
		text := page(t, server, "/")
		has(t, text, "All <b>3</b>", "<bdi>QUEUED</bdi> <b>1</b>", "<bdi>FAILED</bdi> <b>1</b>", "<bdi>READY</bdi> <b>0</b>")
		hasNot(t, text, `data-id="old"`)
		has(t, page(t, server, "/?state=FAILED"), `data-id="old"`) // although it is not among the latest
		has(t, page(t, server, "/?state=FAILED"), "Of this state, those among the latest 50 are listed, and up to 50 others.")
		has(t, page(t, server, "/?state=ARCHIVED"), "Of this state, those among the latest 50 are listed. <code>", `data-id="odd"`)
		source.change(func() { source.countErr = errOdd })
		time.Sleep(time.Minute)
		text = page(t, server, "/")
		has(t, text, `data-id="a"`, `data-live="static"`, "<bdi>FAILED</bdi></a>", "held <b>0</b>")
	})
}

func TestAStuckAnalysisIsListedAlthoughItIsNotAmongTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, newer := heldBy("stuck", "w/1", 1, -time.Hour), analysis("newer", "QUEUED")
		stuck.Updated = storeNow().Add(-time.Hour)
		source := newSource(stuck, newer)
		source.late, source.hidden = []console.Analysis{stuck.Analysis}, "stuck"
		server := open(t, source, console.Options{})
		for query, want := range map[string]string{"": "stuck newer", "?lock=stale": "stuck", "?state=PROCESSING": "stuck", "?q=STUCK": "stuck"} {
			text := page(t, server, "/"+query)
			if got := strings.Join(ids(text), " "); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
			has(t, text, `stale <b>1</b>`)
			hasNot(t, text, `id="missing"`)
		}
		source.change(func() { source.lateErr = &console.Refusal{Text: "an index is missing", Err: errOdd} })
		text := polled(t, server, 20)
		has(t, text, "Which analyses are stuck is not known now: Firestore refuses: an index is missing.")
		hasNot(t, text, `data-id="stuck"`)
		source.change(func() { source.lateErr, source.late = nil, nil })
		hasNot(t, polled(t, server, 10), `id="missing"`, `data-id="stuck"`)
	})
}

func TestAStuckAnalysisIsMarkedAndFirstUntilItIsUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits, held := analysis("waits", "QUEUED"), heldBy("held", "w/1", 1, time.Hour)
		source := newSource(analysis("new", "QUEUED"), waits, held)
		server := open(t, source, console.Options{})
		hasNot(t, page(t, server, "/"), "data-overdue", `class="stuck">stuck`)
		source.change(func() { source.late = []console.Analysis{waits.Analysis, held.Analysis} })
		time.Sleep(time.Minute)
		text := page(t, server, "/?lock=stuck")
		has(t, rowOf(t, text, "waits"), `data-overdue="true"`, `<span class="stuck">stuck</span>`)
		has(t, text, `href="/?lock=stuck"`, "stuck <b>2</b>")
		if got := strings.Join(ids(text), " "); got != "waits held" {
			t.Errorf("listed are %s", got)
		}
		waits.Updated = storeNow()
		source.put(waits)
		time.Sleep(4 * time.Second) // before those overdue are read again
		text = page(t, server, "/")
		hasNot(t, rowOf(t, text, "waits"), "stuck")
		has(t, text, "stuck <b>1</b>")
	})
}
