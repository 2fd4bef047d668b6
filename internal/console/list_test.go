package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/console"
	"taskguard/lease/analysislock"
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
		source.put(at(analysis("a", "FAILED"), 0))
		source.put(at(analysis("c", "QUEUED"), 0))
		source.change(func() { delete(source.all, "b") })
		has(t, rowOf(t, polled(t, server, 1), "a"), ">FAILED<")
		text := polled(t, server, 7)
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
		want := func(what, calls string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for _, method := range []string{"Changes", "Page", "Active", "Count", "Oldest"} {
				got += fmt.Sprint(method, " ", source.calls(method), " ")
			}
			if got != calls {
				t.Errorf("%s: %s, want %s", what, got, calls)
			}
		}
		want("at first", "Changes 0 Page 0 Active 0 Count 0 Oldest 0 ")
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
		const minute = "Changes 15 Page 2 Active 4 Count 4 Oldest 4 "
		want("after a minute of twenty pages", minute)
		time.Sleep(time.Hour)
		want("after an hour without a page", minute)
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
		source := newSource(analysis("a", "QUEUED"), analysis("b", "FAILED"), analysis("odd", "ARCHIVED"))
		server := open(t, source, console.Options{Limit: 1})
		for _, query := range []string{"", "?state=FAILED", "?q=a", "?after=2"} {
			has(t, page(t, server, "/"+query), "All <b>3</b>", "<bdi>QUEUED</bdi> <b>1</b>", "<bdi>FAILED</bdi> <b>1</b>", "<bdi>READY</bdi> <b>0</b>")
		}
		source.change(func() { source.countErr = errOdd })
		time.Sleep(time.Minute)
		text := page(t, server, "/")
		has(t, text, `data-id="a"`, `data-live="static"`, "<bdi>FAILED</bdi></a>")
	})
}

// at returns d, updated ago.
func at(d console.Detail, ago time.Duration) console.Detail {
	d.UpdatedAt = storeNow().Add(-ago)
	return d
}

// waits returns an analysis whose next attempt begins after left.
func waits(id string, left time.Duration) console.Detail {
	d := analysis(id, "QUEUED")
	d.NextAttemptAt = storeNow().Add(left)
	d.LastError = &analysislock.Error{Code: "flaky"}
	return d
}

func TestTheFirstPageHasFirstThoseThatRunWaitOrAreStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, early := heldBy("late", "w/1", 1, time.Hour), heldBy("early", "w/1", 1, time.Hour)
		late.StartedAt, early.StartedAt = storeNow().Add(-time.Minute), storeNow().Add(-3*time.Minute)
		early.History = []analysislock.Attempt{{Token: 1, StartedAt: storeNow().Add(-2 * time.Minute)}}
		done := at(analysis("done", "READY"), time.Second)
		done.Lock.Finished, done.StartedAt = true, done.UpdatedAt.Add(-90*time.Second)
		source := newSource(at(late, time.Hour), at(early, 2*time.Hour), at(waits("soon", 3*time.Minute+time.Second/2), 3*time.Hour), at(waits("later", time.Hour), time.Minute), done, at(waits("past", -time.Hour), time.Hour), at(analysis("lost", "QUEUED"), 4*time.Hour))
		server := open(t, source, console.Options{Limit: 2, TTL: 10 * time.Minute})
		text := page(t, server, "/")
		if got, want := strings.Join(ids(text), " "), "early late soon later lost past done"; got != want {
			t.Errorf("listed are %s, want %s", got, want)
		}
		has(t, text, `id="group-running"`, `id="group-waiting"`, `id="group-stuck"`, `id="group-"`)
		has(t, rowOf(t, text, "early"), ">2 min</span>", "held")
		has(t, rowOf(t, text, "soon"), ">3 min 00 s</span>", "next attempt in", "flaky")
		has(t, rowOf(t, text, "lost"), "stuck", `data-overdue="true"`)
		has(t, rowOf(t, text, "done"), "1 min 30 s")
		has(t, text, `id="oldest"`, `created <span data-since`)
		// The other pages have the rest, each once.
		seen := ids(text)
		for next := `href="/(\?[^"]*)">Next page`; ; {
			link := regexp.MustCompile(next).FindStringSubmatch(text)
			if link == nil {
				break
			}
			text = page(t, server, "/"+html.UnescapeString(link[1]))
			has(t, text, `id="newest"`)
			hasNot(t, text, `class="group"`, `id="oldest"`)
			seen = append(seen, ids(text)...)
		}
		if slices.Sort(seen); strings.Join(seen, " ") != "done early late later lost past soon" {
			t.Errorf("the pages have %s", seen)
		}
		source.change(func() { source.activeErr = errOdd })
		time.Sleep(3 * time.Minute)
		has(t, page(t, server, "/"), "Which others run, wait or are stuck is not known now. Firestore does not answer.")
	})
}

// The analyses are read again only every half minute.
func TestAChangeIsShownAtOnceWhereItBelongs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(at(analysis("a", "QUEUED"), time.Minute), at(analysis("b", "QUEUED"), time.Hour))
		server := open(t, source, console.Options{})
		show := func(want ...string) {
			t.Helper()
			for i, query := range []string{"", "?state=QUEUED", "?state=READY"} {
				if got := strings.Join(ids(page(t, server, "/"+query)), " "); got != want[i] {
					t.Errorf("%q: listed are %q, want %q", query, got, want[i])
				}
			}
		}
		show("a b", "a b", "")
		for _, step := range []struct {
			put  console.Detail
			want []string
		}{
			{at(heldBy("b", "w/1", 1, time.Hour), 0), []string{"b a", "a", ""}},
			{at(waits("b", time.Hour), -4*time.Second), []string{"b a", "b a", ""}},
			{at(analysis("b", "READY"), -8*time.Second), []string{"b a", "a", "b"}},
			{at(analysis("a", "READY"), -12*time.Second), []string{"a b", "", "a b"}},
			{at(analysis("c", "QUEUED"), -16*time.Second), []string{"c a b", "c", "a b"}},
		} {
			source.put(step.put)
			time.Sleep(4 * time.Second)
			show(step.want...)
		}
		if n := source.calls("Page"); n != 3 {
			t.Errorf("all were read %d times", n)
		}
	})
}

func TestAPageWhoseAnalysesAreAllOnTheFirstPageSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(at(analysis("new", "READY"), 0), at(waits("waits", time.Hour), time.Minute), at(analysis("old", "READY"), time.Hour))
		server := open(t, source, console.Options{Limit: 1})
		for query, want := range map[string]string{"?after=1": "All of this page run, wait or are stuck: they are on the first page.<", "?after=3": "There are no more analyses.<"} {
			has(t, page(t, server, "/"+query), `<p class="note" id="empty">`+want)
		}
	})
}

func TestATimeThatCannotBeReadListsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := open(t, newSource(analysis("a", "READY"), heldBy("b", "w/1", 1, time.Hour)), console.Options{Limit: 1})
		for _, query := range []string{"since=1y", "older=1y", "since=90m&older=1y"} {
			text := page(t, server, "/?"+query)
			has(t, text, `role="alert">“1y” is no time: want 90m or 2026-01-31T12:00:00Z.<`, `value="1y"`, "READY</bdi> <b>1</b>")
			hasNot(t, text, "data-id=", "Next page")
		}
	})
}
