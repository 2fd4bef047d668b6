package console_test

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
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

// No write marks the expiry of a lock.
func TestALockThatExpiresIsShownAsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newSource(heldBy("a", "w/1", 1, 5*time.Second))
		slow.delay = 3 * time.Second
		has(t, page(t, open(t, slow, console.Options{}), "/"), `data-lock="held"`) // the answer took 3 s, and may be as old
		server := open(t, newSource(heldBy("a", "w/1", 1, 3*time.Second)), console.Options{})
		for _, want := range []string{"held", "stale"} { // after 0 and 4 s, before it is read again
			for _, target := range []string{"/", "/analysis?id=a"} {
				has(t, page(t, server, target), `data-lock="`+want+`"`)
			}
			time.Sleep(4 * time.Second)
		}
	})
}

// Two of them have one key, so that it is read once.
func TestParkedAnalysesShowTheirKey(t *testing.T) {
	var all []analysislock.Analysis
	for n := range 3 {
		d := analysis(fmt.Sprint("p", n), "QUEUED")
		d.ParkedAt, d.Place = storeNow().Add(-3*time.Minute), fmt.Sprint("hash", n/2, " 1999")
		all = append(all, d)
	}
	finished := analysis("done", "READY")
	finished.Key, finished.Lock.Finished = "acme", true
	source := newSource(append(all, finished, analysis("free", "QUEUED"))...)
	server := open(t, source, console.Options{})

	list := page(t, server, "/")
	if n := strings.Count(list, "parked for"); n != 3 || source.calls("KeyState") != 2 {
		t.Errorf("%d are parked, and %d keys were read; want 3 and 2", n, source.calls("KeyState"))
	}
	if n := strings.Count(list, "key <bdi>&lt;acme&gt;</bdi>: 1 of 3 run"); n != 3 {
		t.Errorf("%d have a key, want 3", n)
	}
	has(t, page(t, server, "/analysis?id=p1"), "parked behind key &lt;acme&gt;: 1 of 3 run: r; 5 wait before it")
	for _, id := range []string{"done", "free"} {
		hasNot(t, page(t, server, "/analysis?id="+id), "acme")
	}
}

func TestAllPagesShareTheReadsAndNothingIsReadWithoutAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"))
		server := open(t, source, console.Options{})
		want := func(what, calls string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for _, method := range []string{"Page", "Active", "Count", "Oldest", "Backlog"} {
				got += fmt.Sprint(method, " ", source.calls(method), " ")
			}
			if got != calls {
				t.Errorf("%s: %s, want %s", what, got, calls)
			}
		}
		want("at first", "Page 0 Active 0 Count 0 Oldest 0 Backlog 0 ")
		var pages sync.WaitGroup
		for i := range 20 {
			pages.Go(func() {
				time.Sleep(time.Duration(i) * time.Second / 5) // they do not ask at the same time
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
		const minute = "Page 10 Active 24 Count 20 Oldest 4 Backlog 2 " // three lists, and five states
		want("after a minute of twenty pages", minute)
		time.Sleep(time.Hour)
		want("after an hour without a page", minute)
	})
}

// The holder may have renewed it since.
func TestALockStaysAsLastReadWhileTheStoreDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(heldBy("a", "w/1", 1, 3*time.Minute), analysis("b", "QUEUED"), heldBy("c", "w/1", 1, -time.Minute))
		server := open(t, source, console.Options{})
		source.change(func() { source.unavailable = true })
		text := page(t, server, "/")
		has(t, text, `id="filter-all"`, `id="empty" hidden`, "Firestore does not answer. Nothing is known yet.", `data-live="unavailable"`)
		hasNot(t, text, `data-id="a"`, "All <b>")
		source.change(func() { source.unavailable = false })
		hasNot(t, polled(t, server, 3), "unavailable") // read after 4 and 12 s

		known := storeNow().UTC().Format("15:04:05 UTC")
		source.change(func() { source.unavailable = true })
		words := "Firestore does not answer. What is shown is as of " + known
		has(t, polled(t, server, 2), words+".", `data-live="unavailable"`)
		for minutes := range 5 {
			time.Sleep(time.Minute)
			text = page(t, server, "/")
			has(t, rowOf(t, text, "a"), `data-lock="held"`)
			has(t, rowOf(t, text, "c"), `data-lock="stale"`)
			has(t, text, fmt.Sprint(words, ", ", minutes+1, " min ago."), "All</a>") // the numbers are unknown too
			hasNot(t, text, `id="oldest"`)
		}
		if w := ask(t, server, http.MethodGet, "/analysis?id=a", ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "Firestore does not answer.") {
			t.Errorf("one analysis: %d %s", w.Code, w.Body)
		}

		source.change(func() { source.unavailable = false; source.all["b"] = analysis("b", "READY") })
		text = polled(t, server, 3)
		has(t, text, `data-live="static"`, "READY")
		has(t, rowOf(t, text, "a"), `data-lock="stale"`)
	})
}

// took returns a page, and fails the test unless it took so long.
func took(t *testing.T, h http.Handler, target string, least, most time.Duration) string {
	t.Helper()
	began := time.Now()
	text := page(t, h, target)
	if got := time.Since(began); got < least || got > most {
		t.Errorf("%s took %s, want %s to %s", target, got, least, most)
	}
	return text
}

// It neither answers nor refuses.
func TestInAnOutageAPageIsAnsweredFromMemoryWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := failing()
		source.put(analysis("a", "QUEUED"))
		work, stop := context.WithCancel(t.Context())
		server := console.NewServer(work, source, console.Options{})
		for _, target := range []string{"/", "/failures"} {
			page(t, server, target)
		}
		source.change(func() { source.delay = time.Hour })
		time.Sleep(time.Minute)
		for i := range 30 {
			limit, why := 5*time.Second, "" // of the first pages, which find out
			if i > 4 {
				limit, why = time.Second, "Firestore does not answer. "
			}
			for target, want := range map[string]string{"/": `data-id="a"`, "/failures": "1,234"} {
				has(t, took(t, server, target, 0, limit), want, why+"What is shown is as of ")
			}
			time.Sleep(4 * time.Second)
		}

		// A page of which nothing is known waits 5 s in all, and holds up no other.
		var pages sync.WaitGroup
		for _, target := range []string{"/?code=x", "/?code=x", "/?state=READY", "/?q=b"} {
			pages.Go(func() { took(t, server, target, 5*time.Second, 5*time.Second) })
		}
		took(t, server, "/", 0, time.Second)
		pages.Wait()
		time.Sleep(10 * time.Minute)
		source.change(func() { source.delay = 500 * time.Millisecond })
		page(t, server, "/") // it learns in this order: the list, the counts, the failures
		time.Sleep(time.Second)
		hasNot(t, page(t, server, "/")+page(t, server, "/failures"), "does not answer")

		source.change(func() { source.delay = time.Hour })
		time.Sleep(time.Minute)
		page(t, server, "/")
		stop()
		if began, left := time.Now(), server.Drain(t.Context()); left > 0 || time.Since(began) > 0 {
			t.Errorf("a stop took %s, %d are left", time.Since(began), left)
		}
	})
}

func TestASlowAnswerOrOneErrorIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := failing()
		server := open(t, source, console.Options{})
		set := func(delay time.Duration, unavailable bool, pause time.Duration) {
			source.change(func() { source.delay, source.unavailable = delay, unavailable })
			time.Sleep(pause)
		}
		reloads := func() (text string, reload bool) {
			w := ask(t, server, http.MethodGet, "/failures", "")
			return w.Body.String(), w.Header().Get("Refresh") != ""
		}

		set(6*time.Second, false, 0)
		if text, reload := reloads(); !reload || !strings.Contains(text, "Firestore is still being read. Nothing is known yet.") {
			t.Errorf("reloads: %v, %s", reload, text)
		}
		time.Sleep(2 * time.Second)
		has(t, page(t, server, "/failures"), "1,234", "as of")
		set(1200*time.Millisecond, false, 2*time.Hour)
		hasNot(t, page(t, server, "/failures")+page(t, server, "/"), `id="missing"`, "unavailable")
		set(0, true, 20*time.Second)
		if text, reload := reloads(); reload || !strings.Contains(text, "Firestore does not answer. What is shown is as of ") {
			t.Errorf("reloads: %v, %s", reload, text)
		}
		set(0, false, 4*time.Second)
		hasNot(t, page(t, server, "/failures"), `id="missing"`)
		set(3*time.Second, false, 35*time.Second)
		took(t, server, "/failures", time.Second, time.Second) // its data are of the last 42 s
	})
}

func TestTheNumbersOfTheStatesCountAllAnalyses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"), analysis("b", "FAILED"), analysis("odd", "ARCHIVED"))
		var log bytes.Buffer
		server := open(t, source, console.Options{Limit: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for _, query := range []string{"", "?state=FAILED", "?q=a", "?after=2"} {
			has(t, page(t, server, "/"+query), "All <b>3</b>", "</svg>QUEUED <b>1</b>", "</svg>FAILED <b>1</b>", "</svg>READY <b>0</b>")
		}
		source.change(func() { source.errs["Count"] = errOdd })
		text := polled(t, server, 20)
		if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "error=odd") {
			t.Errorf("log: %s", &log)
		}
		has(t, text, `data-id="a"`, `data-live="static"`, "</svg>FAILED</a>")
	})
}

// at returns d, updated ago.
func at(d analysislock.Analysis, ago time.Duration) analysislock.Analysis {
	d.UpdatedAt = storeNow().Add(-ago)
	return d
}

// waits returns an analysis whose next attempt begins after left.
func waits(id string, left time.Duration) analysislock.Analysis {
	d := analysis(id, "QUEUED")
	d.NextAttemptAt = storeNow().Add(left)
	d.LastError = &analysislock.Error{Code: "flaky"}
	return d
}

func TestTheFirstPageHasFirstWhatIsStuckThenWhatWaitsAndWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, early := heldBy("after", "w/1", 1, time.Hour), heldBy("early", "w/1", 1, time.Hour)
		late.NextAttemptAt = storeNow().Add(2 * time.Hour) // as a worker in another language may leave it
		late.StartedAt, early.StartedAt = storeNow().Add(-time.Minute), storeNow().Add(-3*time.Minute)
		late.History = []analysislock.Attempt{{Token: 0, StartedAt: storeNow().Add(-time.Hour)}} // of a run before this one
		early.History = []analysislock.Attempt{{Token: 1, StartedAt: storeNow().Add(-2 * time.Minute)}}
		done := at(analysis("done", "READY"), time.Second)
		done.Lock.Finished, done.StartedAt = true, done.UpdatedAt.Add(-time.Second)
		source := newSource(at(late, time.Hour), at(early, 2*time.Hour), at(waits("soon", 3*time.Minute+time.Second/2), 3*time.Hour), at(waits("later", time.Hour), time.Minute), done,
			at(waits("past", -time.Hour), time.Hour), at(analysis("fresh", "QUEUED"), 90*time.Second), at(analysis("foreign", "ARCHIVED"), 5*time.Hour), at(analysis("lost", "QUEUED"), 4*time.Hour))
		server := open(t, source, console.Options{Limit: 3})

		text := page(t, server, "/")
		if got, want := strings.Join(ids(text), " "), "lost past soon later early after done fresh"; got != want {
			t.Errorf("listed are %s, want %s", got, want)
		}
		if groups := strings.Join(regexp.MustCompile(`id="group-\w*"`).FindAllString(text, -1), " "); groups != `id="group-attention" id="group-waiting" id="group-running" id="group-others"` {
			t.Errorf("the groups are %s", groups)
		}
		has(t, rowOf(t, text, "early"), ">2 min</span>", `data-lock="held"`)
		has(t, rowOf(t, text, "after"), ">1 min</span>")
		has(t, rowOf(t, text, "soon"), ">3 min 00 s</span>", "next attempt in", "flaky")
		has(t, rowOf(t, text, "fresh"), "waiting in the queue")
		has(t, rowOf(t, text, "lost"), "stuck", `data-overdue="true"`)
		has(t, rowOf(t, text, "done"), `duration">1 s<`)
		has(t, text, `id="oldest"`, `created <span data-since`)

		// The other pages have no groups, and all pages together have each analysis in its place.
		var seen []string
		for query := "?after=0"; ; {
			text = page(t, server, "/"+query)
			has(t, text, `id="newest"`)
			hasNot(t, text, `class="group"`, `id="oldest"`)
			seen = append(seen, ids(text)...)
			link := regexp.MustCompile(`href="/(\?[^"]*)">Next page`).FindStringSubmatch(text)
			if link == nil {
				break
			}
			query = html.UnescapeString(link[1])
		}
		if got, want := strings.Join(seen, " "), "done later fresh after past early soon lost foreign"; got != want {
			t.Errorf("the pages have %s, want %s", got, want)
		}
	})
}

func TestAPageNamesWhatFirestoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"))
		server := open(t, source, console.Options{})
		no := fmt.Errorf("x: %w", status.Error(codes.ResourceExhausted, "odd"))
		for _, tc := range []struct {
			active, page error
			want         string
		}{
			{no, nil, "Firestore refuses: a quota is used up (RESOURCE_EXHAUSTED). Nothing is known yet."},
			{nil, lease.ErrInvalidKey, "There can be no such id or page. Nothing is known yet."},
			{nil, nil, `data-live="static"`},
			{no, nil, "Firestore refuses: a quota is used up (RESOURCE_EXHAUSTED). What is shown is as of "},
			{nil, no, "Firestore refuses: a quota is used up (RESOURCE_EXHAUSTED). What is shown is as of "},
		} {
			source.change(func() { source.errs["Active"], source.errs["Page"] = tc.active, tc.page })
			time.Sleep(2 * time.Minute)
			text := page(t, server, "/")
			has(t, text, tc.want, "All <b>1</b>")
			if got := len(ids(text)); got != 1 && !strings.Contains(tc.want, "Nothing") {
				t.Errorf("%s: %d are listed", tc.want, got)
			}
		}
	})
}

func TestAValueThatNoAnalysisHasIsRefusedBeforeItIsRead(t *testing.T) {
	source := newSource(analysis("a", "READY"))
	server := open(t, source, console.Options{})
	long := strings.Repeat("x", 1501)
	for query, want := range map[string]string{
		"since=tomorrow": "“tomorrow” is no time", "older=tomorrow": "“tomorrow” is no time", "since=90m&older=-1h": "“-1h” is no time",
		"state=FAILD": "unknown status &#34;FAILD&#34;: want QUEUED, PROCESSING, READY or FAILED (did you mean FAILED?)", "state=DONE": "unknown status", "code=%ff": "not UTF-8", "state=%ff": "not UTF-8", "code=a&code=%ff": "not UTF-8", "after=%ff": "not UTF-8", "q=%ff": "not UTF-8", "since=%ff": "not UTF-8",
		"code=" + long: "too long", "state=" + long: "too long", "q=" + long: "No analysis can have this id", "q=a%2Fb": "No analysis can have this id",
	} {
		w := ask(t, server, http.MethodGet, "/?"+query, "")
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.40s: %d %s", query, w.Code, w.Body)
		}
	}
	for i := range 33 {
		page(t, server, fmt.Sprint("/?state=READY&code=", long[2:], i%10, "&since=", i, "h"))
	}
	if n := source.calls("Page"); n != 33 {
		t.Errorf("%d lists were read, want 33", n)
	}
	if n := source.calls("Count"); n != 10 { // with 32 readings all are forgotten, which bounds the memory
		t.Errorf("the totals were read %d times, want twice", n)
	}
}
