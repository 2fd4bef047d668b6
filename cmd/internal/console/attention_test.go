package console_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// broken returns an analysis that failed ago, with this code and message.
func broken(id, code, message string, ago time.Duration) analysislock.Analysis {
	d := at(analysis(id, "FAILED"), ago)
	d.Lock.Finished, d.Error = true, &analysislock.Error{Code: code, Message: message}
	return d
}

func TestWhatFailedRecentlyIsALineForEachCause(t *testing.T) {
	const trace = "Traceback (most recent call last):\n  File \"a.py\", line %d\nKeyError: 'total'"
	source := newSource(analysis("ready", "READY"), at(analysis("late", "READY"), 9*time.Hour))
	for i := range 5 {
		source.put(broken(fmt.Sprint("trace", i), "exit_1", fmt.Sprintf(trace, i), time.Duration(i+1)*time.Minute))
	}
	exhausted := broken("exhausted", "attempts_exhausted", "attempt 10 was the last", time.Minute)
	uncertain := acting("act", "FAILED")
	uncertain.Error = &analysislock.Error{Code: "effect_uncertain"}
	exhausted.LastError = &analysislock.Error{Code: "http_503", Message: "<overloaded>"}
	for _, d := range []analysislock.Analysis{exhausted, broken("x1", "exit_1", "another", time.Hour), broken("no", "cancelled", "by me", time.Minute), uncertain} {
		source.put(d)
	}
	s, _ := writable(t, source)
	text := page(t, s, "/")
	var causes []string
	for _, line := range regexp.MustCompile(`<tr [^>]*class="cause".*</tr>`).FindAllString(text, -1) {
		causes = append(causes, regexp.MustCompile(`<[^>]*>`).ReplaceAllString(strings.ReplaceAll(line, "<span class=\"away\"> failed</span>", ""), ""))
	}
	got, want := strings.Join(causes, "|"), "5 exit_1 KeyError: &#39;total&#39; last: trace0, 1 min ago|1 http_503 &lt;overloaded&gt; last: exhausted, 1 min ago|1 exit_1 another last: x1, 1 h ago"
	if got != want {
		t.Errorf("the causes are %s\nwant %s", got, want)
	}
	has(t, text, "7 failed in the last 3 h: ", `href="/?state=FAILED&amp;code=http_503"`, `id="group-others"`)
	if strings.Index(text, `data-id="act"`) > strings.Index(text, `class="cause"`) {
		t.Error("a cause comes before the uncertain analysis, which only an operator can answer")
	}
	if first := ids(text)[0]; first != "act" {
		t.Errorf("the first row is %s, want the uncertain one", first)
	}
	has(t, rowOf(t, text, "act"), `data-group="uncertain"`, "1 side effect may have happened", `href="/analysis?id=act#answers"`)
	asked := source.pages[0]
	if asked.Since.IsZero() { // the list is read first
		asked = source.pages[1]
	}
	if since := storeNow().Add(-3 * time.Hour); asked.Status != "FAILED" || asked.Since.Sub(since).Abs() > time.Minute {
		t.Errorf("asked for %+v", asked)
	}
	for _, other := range []string{"/?state=FAILED", "/?after=1", "/?sort=id"} {
		hasNot(t, page(t, s, other), `class="cause"`, `id="group-attention"`)
	}

	for i := range 60 {
		source.put(broken(fmt.Sprint("many", i), fmt.Sprint("code", i), "m", time.Second))
	}
	text = page(t, s, "/")
	has(t, text, "50 or more failed in the last 3 h", ">45 more causes</a>")
	if n := strings.Count(text, `id="cause-link-`); n != 5 {
		t.Errorf("%d causes, want 5", n)
	}
}

// The page reads no further than the 50 that an operator has just cancelled.
func TestFailuresBehindManyCancelledOnesAreSaidToBePossible(t *testing.T) {
	source := newSource(broken("hidden", "exit_1", "m", time.Hour))
	for i := range 50 {
		source.put(broken(fmt.Sprint("cancelled", i), analysislock.Cancelled, "by me", time.Minute))
	}
	has(t, page(t, open(t, source, console.Options{}), "/"), `id="group-attention"`, `id="group-others"`,
		`more may have failed in the last 3 h: <a id="see-failures" href="/failures">`)
}

// What the list has read since is newer.
func TestWhatIsAnsweredOrRunsAgainNeedsNoAttention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(acting("act", "FAILED"), acting("other", "FAILED"), broken("failed", "exit_1", "m", time.Minute))
		server := open(t, source, console.Options{})
		has(t, page(t, server, "/"), `data-group="uncertain"`, `class="cause"`)
		again := acting("act", "PROCESSING")
		again.Lock = heldBy("act", "w", 9, time.Hour).Lock
		answered := acting("other", "FAILED")
		answered.OpenActs = 0
		source.put(again)
		source.put(answered)
		source.put(analysis("failed", "QUEUED"))
		time.Sleep(9 * time.Second)
		text := page(t, server, "/")
		hasNot(t, text, `data-group="uncertain"`, `class="cause"`, `id="group-attention"`)
		has(t, rowOf(t, text, "act"), `data-group="running"`)
		if n := source.calls("Uncertain"); n != 1 {
			t.Errorf("the uncertain ones were read %d times in 9 s, want once", n)
		}
	})
}

func TestAListWhoseFailuresCannotBeReadSaysSo(t *testing.T) {
	source := newSource(analysis("a", "READY"))
	source.errs["Uncertain"] = lease.ErrUnavailable
	text := page(t, open(t, source, console.Options{}), "/")
	has(t, text, `data-id="a"`, "Firestore does not answer. Nothing is known yet.</strong> Failures and uncertain side effects may be missing here.")
}

func TestARunningAnalysisWhoseWorkerIsSilentSaysSo(t *testing.T) {
	loud, silent := heldBy("loud", "w/1", 1, time.Hour), heldBy("silent", "w/2", 1, time.Hour)
	silent.Lock.HeartbeatAt = storeNow().Add(-4 * time.Minute)
	policy := lease.Policy{TTL: 5 * time.Minute, Heartbeat: 100 * time.Second, MaxAttempts: 10}
	text := page(t, open(t, newSource(loud, silent), console.Options{Lock: policy}), "/")
	has(t, rowOf(t, text, "silent"), "no heartbeat for", ">4 min<", `attempts">1 of 10<`)
	hasNot(t, rowOf(t, text, "loud"), "no heartbeat")
}

func TestTheListIsSortedByEachColumn(t *testing.T) {
	a, b, c := broken("a", "zz", "m", 3*time.Minute), analysis("b", "QUEUED"), heldBy("c", "w", 1, time.Hour)
	a.Attempts, b.Attempts, c.Attempts = 2, 3, 1
	a.CreatedAt, b.CreatedAt, c.CreatedAt = storeNow().Add(-time.Minute), storeNow().Add(-3*time.Minute), storeNow().Add(-2*time.Minute)
	a.StartedAt, c.StartedAt = a.UpdatedAt.Add(-2*time.Hour), storeNow().Add(-time.Hour)
	b.UpdatedAt, c.UpdatedAt = storeNow().Add(-2*time.Minute), storeNow().Add(-time.Minute)
	source := newSource(a, b, c)
	s := open(t, source, console.Options{Every: quick})
	for order, want := range map[string]string{
		"id": "a b c", "-id": "c b a", "state": "a c b", "-state": "b c a", "now": "b c a", "-now": "a c b", "attempts": "c a b", "-attempts": "b a c",
		"time": "b c a", "-time": "a c b", "age": "a c b", "-age": "b c a", "updated": "a b c", "-updated": "c b a",
	} {
		text := page(t, s, "/?sort="+order)
		if got := strings.Join(ids(text), " "); got != want {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
		hasNot(t, text, `class="group"`)
		direction := map[bool]string{true: "descending", false: "ascending"}[strings.HasPrefix(order, "-")]
		if n := strings.Count(text, ` aria-sort="`+direction+`"`); n != 1 {
			t.Errorf("by %s: %d columns are sorted", order, n)
		}
		all := order == "id" || order == "-updated"
		contains(t, text, all, []string{direction + ": everything, page by page"})
		contains(t, text, !all, []string{direction + ": only what is on this page"})
		has(t, text, `data-poll="/?sort=`+order+`"`, `id="unsorted" href="/?"`)
	}
	text := page(t, s, "/?state=QUEUED&sort=-age")
	has(t, text, `id="sort-age" href="/?sort=age&amp;state=QUEUED"`, `id="sort-id" href="/?sort=id&amp;state=QUEUED"`, `id="sort-attempts" href="/?sort=-attempts&amp;state=QUEUED"`, `name="sort" value="-age"`)

	// By its id, the index sorts all; filtered, only the page is sorted.
	source.pages = nil
	page(t, s, "/?sort=id&after=1")
	page(t, s, "/?sort=id&state=QUEUED")
	if want := []repo.Filter{{All: true}, {Status: "QUEUED"}}; fmt.Sprint(source.pages) != fmt.Sprint(want) {
		t.Errorf("read by %+v, want %+v", source.pages, want)
	}
	if w := ask(t, s, "GET", "/?sort=owner", ""); w.Code != 400 || !strings.Contains(w.Body.String(), "cannot be sorted like this") {
		t.Errorf("by an unknown column: %d %s", w.Code, w.Body)
	}
}

// Each minute of an open page reads them again; none waits for them.
func TestTheCodesToChooseFromAreReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "READY"))
		source.codes = []string{"exit_1", `"><b>`}
		server := open(t, source, console.Options{})
		text := polled(t, server, 30)
		has(t, text, `<datalist id="codes"><option value="exit_1"><option value="&#34;&gt;&lt;b&gt;"></datalist>`)
		if n := source.calls("Codes"); n != 1 {
			t.Errorf("read %d times in two minutes, want once", n)
		}
	})
}

func TestAListIsCalledByItsKindAndWhenItIsEmptyHasTheFirstCommand(t *testing.T) {
	kinds := []console.Kind{{Name: "analysis"}, {Name: "report", Root: "/kind/report"}}
	first := page(t, open(t, newSource(), console.Options{Kinds: kinds}), "/")
	has(t, first, "<h1>Analyses</h1>", "<title>Analyses", "taskguard submit --input")
	second := page(t, open(t, newSource(), console.Options{Kinds: kinds, Root: "/kind/report"}), "/")
	has(t, second, "<h1>report</h1>", "<title>report", `aria-label="report"`, ` aria-current="page">report</a>`, "taskguard submit --kind report --input")
	hasNot(t, second, "Analyses")
	only := page(t, open(t, newSource(), console.Options{Kinds: []console.Kind{{Name: "report"}}}), "/")
	has(t, only, "<h1>report</h1>", "taskguard submit --input")
	final := console.Options{Fields: repo.Fields{Final: []string{"ARCHIVED"}}}
	has(t, page(t, open(t, newSource(), final), "/?state=ARCHIVED"), "<option>FAILED</option><option selected>ARCHIVED</option>")
	has(t, page(t, open(t, newSource(), console.Options{}), "/?state=READY"), "Nothing matches.")
	hasNot(t, page(t, open(t, newSource(), console.Options{}), "/?state=READY"), "first-command")
}

func TestCrashesAreOneCauseWhicheverWorkerDied(t *testing.T) {
	source := newSource()
	for i := range 3 {
		source.put(broken(fmt.Sprint("crash", i), "crashed",
			fmt.Sprintf("the worker rev/%d ended during attempt %d and recorded no outcome", i, i+1), time.Minute))
	}
	text := page(t, open(t, source, console.Options{}), "/")
	if n := strings.Count(text, `id="cause-link-`); n != 1 {
		t.Errorf("%d causes, want 1", n)
	}
	has(t, text, "the worker ended during the run and recorded no outcome")
}

func TestARowSaysWhyItFailedAndNotThatItsAttemptsAreExhausted(t *testing.T) {
	spent := broken("spent", "attempts_exhausted", "attempt 10 was the last: x", time.Minute)
	spent.LastError = &analysislock.Error{Code: "http_503", Message: "overloaded " + strings.Repeat("y", 100)}
	text := rowOf(t, page(t, open(t, newSource(spent), console.Options{}), "/"), "spent")
	has(t, text, "<code>http_503</code> overloaded y", strings.Repeat("y", 100))
	hasNot(t, text, "attempts_exhausted")
}
