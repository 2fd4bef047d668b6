package console_test

import (
	"cmp"
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// failed returns an analysis that failed ago.
func failed(id string, ago time.Duration, code, message string) analysislock.Analysis {
	d := at(analysis(id, "FAILED"), ago)
	d.Error, d.ReadAt = &analysislock.Error{Code: code, Message: message}, storeNow()
	return d
}

// failing returns a source with 1,234 failures with the code a&b, 4 with another, 50 that are
// cancelled, and 3 with none of these codes.
func failing() *memorySource {
	const crash = "Traceback (most recent call last):\r\n  File \"x.py\"\n\traise E\nValueError: <b>the cause</b>\n"
	source := newSource()
	source.failed, source.left = 1291, 7
	older := failed("older", 3*time.Minute, "attempts_exhausted", "gave up after 3 attempts")
	older.LastError = &analysislock.Error{Code: "a&b", Message: crash}
	cancelled := failed("c", time.Hour, "cancelled", "cancelled by me")
	cancelled.Lock.FinishedBy = "operator"
	source.failures = []repo.Failure{
		{Code: "a", N: 4, Newest: []analysislock.Analysis{failed("plain", time.Hour, "a", "panic: x\n\nthe end\n")}},
		{Code: "cancelled", N: 50, Newest: []analysislock.Analysis{cancelled}},
		{Code: "a&b", N: 1234, Newest: []analysislock.Analysis{
			failed("newest", 2*time.Minute, "a&b", crash), failed("other", 3*time.Minute, "a&b", "\n another"), older, failed("mute", time.Hour, "a&b", ""),
		}},
	}
	return source
}

func TestTheFailuresAreGroupedByTheirCodeAndLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := failing()
		server, _ := writable(t, source)
		text := page(t, server, "/failures")
		has(t, text, `<code>a&amp;b</code> <b class="n">1,234</b></h3>`, `<h4>ValueError: &lt;b&gt;the cause&lt;/b&gt; <b class="n">2</b></h4>`, `<h4>another <b class="n">1</b></h4>`, "<h4>no message", "Requeue all 1,234…",
			`href="/analysis?id=newest"`, ">2 min ago</time>", "These are the messages of the last 4.", `href="/?state=FAILED&amp;code=a%26b"`, `href="/failures/requeue?code=a%26b"`,
			"<h4>panic: x ", "<pre>panic: x\n\nthe end</pre>", "Cancelled by operators", "3 more are FAILED with none of these codes. 7 more codes are left out")
		hasNot(t, text, `\n`, `\r`, `\t`, "id=older")
		order := regexp.MustCompile(`data-code="([^"]*)"|<h4>(\w+)`).FindAllString(text, -1)
		if got, want := strings.Join(order, " "), `data-code="a&amp;b" <h4>ValueError <h4>another <h4>no data-code="a" <h4>panic data-code="cancelled" <h4>cancelled`; got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
		has(t, page(t, open(t, newSource(), console.Options{}), "/failures"), `id="empty"`)
		hasNot(t, text, "data-poll") // nothing is read until the operator asks
		hasNot(t, page(t, open(t, source, console.Options{}), "/failures"), "/failures/requeue")

		shared := open(t, source, console.Options{})
		for range 20 {
			page(t, shared, "/failures")
			time.Sleep(time.Second)
		}
		if n := source.calls("Failures"); n != 2+2 {
			t.Errorf("read %d times, want every 16 s", n)
		}
		own := &source.failures[1]
		byCustomer := failed("own", time.Hour, "cancelled", "by the customer")
		byCustomer.Lock.FinishedBy = "w/1"
		own.Newest = append(own.Newest, byCustomer)
		time.Sleep(time.Minute)
		text = page(t, shared, "/failures")
		has(t, text, "<code>cancelled</code>")
		hasNot(t, text, "Cancelled by operators")
		fresh := open(t, source, console.Options{})
		source.change(func() { source.unavailable = true })
		has(t, page(t, fresh, "/failures"), "Firestore does not answer. Nothing is known yet.")
	})
}

func TestARequeueOfFailuresIsConfirmedWithItsNumberAndContinued(t *testing.T) {
	server, h := writable(t, failing())
	before := storeNow()
	h.bulk = console.Bulk{Before: before, Matched: 6234, Changed: 4997, Skipped: 3}
	const path = "/failures/requeue?code=a%26b"
	text := page(t, server, path)
	has(t, text, `id="matched">6,234<`, `id="would">4,997<`, `id="skipped">3<`, "Of the first 5,000", "Requeue 6,234</button>", "Each is enqueued", "operator-1")
	h.want(t)

	for _, step := range []struct {
		bulk         console.Bulk
		result, more string
	}{
		{console.Bulk{Matched: 6300, Changed: 1200, Skipped: 3, Failed: 1}, "1,200 requeued, 3 skipped, 1 failed. 5,034 are left.", "Requeue the other 5,034</button>"},
		{console.Bulk{Matched: 33, Changed: 30, Skipped: 3}, "30 requeued, 3 skipped. 3 are left.", "Requeue the other 3</button>"},
		{console.Bulk{Matched: 3, Changed: 3}, "3 requeued.", ""},
	} {
		h.bulk, h.bulk.Before = step.bulk, before
		text = post(t, server, path, hidden(t, text)).Body.String()
		has(t, text, step.result, step.more)
	}
	hasNot(t, text, "confirm-submit")
	const up = "requeue up to %d of FAILED a&b before %d by operator-1"
	at := before.UnixMilli()
	h.want(t, fmt.Sprintf(up, 5000, at), fmt.Sprintf(up, 5000, at), fmt.Sprintf(up, 3, at))
}

func TestFailuresOf_OneMessageAreRequeued(t *testing.T) {
	source := failing()
	server, h := writable(t, source)
	h.bulk = console.Bulk{Before: storeNow(), Matched: 2, Changed: 2}
	link := regexp.MustCompile(`href="(/failures/requeue\?code=[^"]*&amp;headline=[^"]*)"`)
	links := link.FindAllStringSubmatch(page(t, server, "/failures"), -1)
	if len(links) != 3 { // the other groups have one message each
		t.Fatalf("%q, want a link for each message of the group with three", links)
	}

	path := html.UnescapeString(links[0][1])
	text := page(t, server, path)
	has(t, text, "Requeue 2</button>", "with this code were read")
	matched := func() (ids []string) {
		for i := range source.failures[2].Newest {
			if a := &source.failures[2].Newest[i]; h.match(a) {
				ids = append(ids, a.ID)
			}
		}
		return ids
	}
	if got := matched(); !slices.Equal(got, []string{"newest", "older"}) {
		t.Errorf("the first message selects %q", got)
	}
	if post(t, server, path, hidden(t, text)); len(h.did) != 1 || !slices.Equal(matched(), []string{"newest", "older"}) {
		t.Errorf("the change selects %q, did %q", matched(), h.did)
	}
	if page(t, server, "/failures/requeue?code=a%26b"); h.match != nil {
		t.Error("a requeue of all matches messages")
	}
}

func TestAFailureIsGroupedByTheLineWithItsReason(t *testing.T) {
	const reason = "Error: boom"
	for name, message := range map[string]string{
		"a log first":     "python ended: loading\nTraceback (most recent call last):\n  File \"x.py\"\nKey" + reason + "\n\n",
		"a head cut":      "  File \"x.py\", line 1\n    f()\nNo colon: KeyError: x\nKey" + reason,
		"a cut in a line": "e 3, in f\n  File \"x.py\", line 1\nKey" + reason,
		"Node":            "Error: try again\n/app/x.js:3\n  throw new TypeError\n  ^\n\nKey" + reason + "\n    at f (/app/x.js:3)\n\nNode.js v22",
		"Node's code":     "node ended: node:fs:3\n\nError [ERR_X]: boom\n    at Error: f",
		"Java":            "loading\na.b.KeyException: boom\n\tat a.b",
		"the first line":  "panic: boom\nan Error: x\nError without a colon",
	} {
		want := map[string]string{"Node's code": "Error [ERR_X]: boom", "Java": "a.b.KeyException: boom", "the first line": "panic: boom"}[name]
		source := newSource()
		source.failures = []repo.Failure{{Code: "a", N: 1, Newest: []analysislock.Analysis{failed("x", time.Hour, "a", message)}}}
		has(t, page(t, open(t, source, console.Options{}), "/failures"), "<h4>"+cmp.Or(want, "Key"+reason)+" <b")
	}
}

// crashed returns an analysis with an attempt that crashed on each of instances, such as "rev/1 alone".
func crashed(id, status, code string, instances ...string) analysislock.Analysis {
	d := analysis(id, status)
	d.LastError = &analysislock.Error{Code: "crashed", Message: "its worker died"}
	if code != "" {
		d.Error = &analysislock.Error{Code: code}
	}
	for i, instance := range instances {
		owner, alone := strings.CutSuffix(instance, " alone")
		d.History = append(d.History, analysislock.Attempt{
			Number: i + 1, Owner: owner + "/9F2C", Outcome: "crashed", Alone: alone, EndedAt: storeNow(),
		})
	}
	return d
}

// The input killer took its neighbour with it twice, and then died alone twice.
func TestTheFailuresShowWhatCrashedWhereAndWhetherItRanAlone(t *testing.T) {
	neighbour := at(crashed("neighbour", "QUEUED", "", "rev/0", "rev/1", "rev/2"), 0) // updated last
	neighbour.NextAttemptAt = storeNow().Add(30*time.Second + 900*time.Millisecond)
	neighbour.History[0].Outcome = "retry"
	others := []analysislock.Analysis{
		analysis("new", "QUEUED"), crashed("ready", "READY", "", "rev/1"), crashed("refused", "FAILED", "too_large", "rev/1"),
		crashed("named", "QUEUED", ""), // its analyzer has this code too
	}
	source := newSource(append(others, neighbour,
		crashed("killer", "FAILED", "crashed", "rev/1", "rev/2", "rev/3 alone", "rev/4 alone"),
		crashed("exhausted", "FAILED", "attempts_exhausted", "rev/1"))...)

	text := page(t, open(t, source, console.Options{}), "/failures")
	section := regexp.MustCompile(`(?s)<section id="crashed".*</section>`).FindString(text)
	shown := regexp.MustCompile(`(?s)<li class="failure".*?</ul>`).FindAllString(section, -1)
	for i, item := range shown {
		item = regexp.MustCompile(`<[^>]*>|at <time.*?</time>`).ReplaceAllString(item, " ")
		shown[i] = strings.Join(strings.Fields(item), " ")
	}
	want := []string{
		"exhausted FAILED attempt 1 crashed on rev/1",
		"killer FAILED attempt 4 crashed on rev/4 , alone attempt 3 crashed on rev/3 , alone " +
			"attempt 2 crashed on rev/2 attempt 1 crashed on rev/1",
		"neighbour QUEUED next attempt in 30 s attempt 3 crashed on rev/2 attempt 2 crashed on rev/1",
	}
	if !slices.Equal(shown, want) {
		t.Errorf("shown are\n%s\nwant\n%s", strings.Join(shown, "\n"), strings.Join(want, "\n"))
	}
	if want := (repo.Filter{Code: "crashed"}); source.filter != want {
		t.Errorf("read by %+v, want %+v", source.filter, want)
	}
	has(t, section, `href="/analysis?id=killer"`, `href="/?code=crashed"`)
	has(t, text, `id="to-crashed" href="#crashed"`)
	none := page(t, open(t, newSource(others...), console.Options{}), "/failures")
	hasNot(t, none, "Workers that died", `id="others"`)
}

// Another page reads during each change, and its reading has the state from before.
func TestAChangeIsFollowedByANewReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, operator := failing(), &recorder{}
		source.put(analysis("x", "QUEUED"))
		server := open(t, source, console.Options{Operator: operator})

		operator.during = func(context.Context) {
			has(t, page(t, server, "/"), `data-state="QUEUED"`)
			source.put(analysis("x", "FAILED"))
		}
		confirmed(t, server, "cancel", "x")
		has(t, page(t, server, "/"), `data-state="FAILED"`)

		// A reading that began before a change ends after it.
		source.put(heldBy("y", "w/1", 3, time.Hour))
		source.change(func() { source.delay = 4 * time.Second })
		time.Sleep(time.Minute)
		go ask(t, server, http.MethodGet, "/", "")
		synctest.Wait()
		source.change(func() { source.delay = 0 })
		operator.during = func(context.Context) { source.put(analysis("y", "FAILED")) }
		confirmed(t, server, "cancel", "y")
		has(t, rowOf(t, page(t, server, "/"), "y"), ">FAILED<")

		const path = "/failures/requeue?code=a%26b"
		operator.during = nil
		page(t, server, "/failures")
		source.change(func() { source.failures = source.failures[:2] })
		page(t, server, path) // a dry run
		has(t, page(t, server, "/failures"), "1,234")

		operator.during = func(context.Context) {
			page(t, server, "/failures")
			source.change(func() { source.failures = source.failures[:1] })
		}
		post(t, server, path, url.Values{"seen": {"1-5"}})
		hasNot(t, page(t, server, "/failures"), "1,234", "Cancelled by operators")
	})
}

func TestAllThatAFilterSelectsAreChangedAfterADryRun(t *testing.T) {
	server, h := writable(t, newSource(analysis("a", "QUEUED"), at(analysis("b", "FAILED"), 2*time.Hour)))
	for query, want := range map[string]string{"": "", "q=a": "", "state=QUEUED": "requeue cancel", "state=READY": "requeue", "since=1h": "requeue cancel", "older=1h": "requeue cancel", "since=1h&q=a": ""} {
		text := page(t, server, "/?"+query)
		for _, verb := range []string{"requeue", "cancel"} {
			contains(t, text, strings.Contains(want, verb), []string{`href="/all/` + verb + `?` + strings.ReplaceAll(query, "&", "&amp;") + `"`})
		}
	}
	hasNot(t, page(t, open(t, newSource(analysis("a", "QUEUED")), console.Options{}), "/?state=QUEUED"), "/all/")
	nothing, _ := writable(t, newSource())
	hasNot(t, page(t, nothing, "/?state=QUEUED"), "/all/")

	before := storeNow()
	h.bulk = console.Bulk{Before: before, Matched: 30, Changed: 20, Skipped: 9, Failed: 1}
	filter := repo.Filter{Status: "QUEUED", Code: "c", Since: before.Add(-2 * time.Hour), Before: before.Add(-time.Hour)}
	const query = "?code=c&older=1h&since=2h&state=QUEUED"
	for verb, past := range map[string]string{"requeue": "requeued", "cancel": "cancelled"} {
		path := "/all/" + verb + query
		h.did = nil
		text := page(t, server, path+"&after=x")
		has(t, text, `id="matched">30<`, `id="would">20<`, `id="skipped">9<`, `id="would-fail">1<`, `>2h<`, `>1h<`, "Would be "+past, "operator-1", `action="/all/`+verb+`?code=c&amp;older=1h&amp;since=2h&amp;state=QUEUED"`)
		if h.want(t); h.filter != filter {
			t.Errorf("the dry run has %+v, want %+v", h.filter, filter)
		}
		w := post(t, server, path, hidden(t, text))
		has(t, w.Body.String(), "20 "+past+", 9 skipped, 1 failed. 10 are left.")
		h.want(t, fmt.Sprint(verb, " up to 30 of QUEUED c before ", before.UnixMilli(), " by operator-1"))
		filter.Since, filter.Before = filter.Since.Truncate(time.Millisecond), filter.Before.Truncate(time.Millisecond)
		if got := h.filter; !got.Since.Equal(filter.Since) || !got.Before.Equal(filter.Before) {
			t.Errorf("the change has %+v, want %+v, as the dry run", got, filter)
		}
		filter.Since, filter.Before = before.Add(-2*time.Hour), before.Add(-time.Hour)
	}
	if w := ask(t, server, http.MethodGet, "/all/unlock?state=QUEUED", ""); w.Code != http.StatusNotFound {
		t.Errorf("all are unlocked: %d", w.Code)
	}
	page(t, server, "/failures/requeue?code=c&state=READY&since=1h&q=x")
	if want := (repo.Filter{Status: "FAILED", Code: "c", Cause: true}); h.filter != want {
		t.Errorf("a requeue of failures takes %+v, want %+v", h.filter, want)
	}
	h.did = nil
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, path := range []string{
			"/failures/requeue", "/failures/requeue?code=", "/failures/requeue?code=%ff", "/failures/requeue?since=1h", "/all/requeue", "/all/cancel?q=a", "/all/cancel?state=QUEUED&q=a", "/all/cancel?since=tomorrow", "/all/requeue?after=x",
		} {
			if w := ask(t, server, method, path, "seen=7-7", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusBadRequest {
				t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	h.want(t)
}

func TestOnlyAConfirmedFormChangesAllThatAFilterSelects(t *testing.T) {
	server, h := writable(t, failing())
	const path = "/failures/requeue?code=c"
	seen := fmt.Sprint("seen=", time.Now().UnixMilli(), "-5")
	for body, want := range map[string]int{
		"x=y": http.StatusConflict, "seen=7": http.StatusConflict, "seen=7-0": http.StatusConflict, "seen=0-7": http.StatusConflict,
		seen + "&x=" + strings.Repeat("x", 300<<10): http.StatusConflict, seen: http.StatusOK,
	} {
		if w := ask(t, server, http.MethodPost, path, body, "Sec-Fetch-Site", "same-origin"); w.Code != want {
			t.Errorf("%.20s: %d %s, want %d", body, w.Code, w.Body, want)
		}
	}
	if len(h.did) != 1 {
		t.Errorf("did %q", h.did)
	}
	readOnly := open(t, failing(), console.Options{})
	for _, request := range []*httptest.ResponseRecorder{
		ask(t, server, http.MethodPost, path, seen, "Sec-Fetch-Site", "cross-site"), ask(t, server, http.MethodPost, path, seen),
		ask(t, readOnly, http.MethodGet, path, ""), ask(t, readOnly, http.MethodPost, path, seen, "Sec-Fetch-Site", "same-origin"),
	} {
		if request.Code != http.StatusForbidden {
			t.Errorf("%d %s", request.Code, request.Body)
		}
	}
	for skipped, offered := range map[int64]bool{5: false, 4: true} { // they are READY
		h.bulk = console.Bulk{Before: time.Now(), Matched: 5, Changed: 5 - skipped, Skipped: skipped}
		if text := page(t, server, path); strings.Contains(text, "confirm-submit") != offered {
			t.Errorf("%d skipped of 5: offered is %v", skipped, !offered)
		}
	}
}
