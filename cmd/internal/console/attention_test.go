package console_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

func TestAttention(t *testing.T) {
	t.Run("each cause of recent failures is a line, after what is uncertain", func(t *testing.T) {
		const trace = "Traceback (most recent call last):\n  File \"a.py\", line %d\nKeyError: 'total'"
		const died = "the worker rev/%d ended during attempt 1 and recorded no outcome"
		source := newSource(analysis("ready", "READY"))
		for i := range 5 {
			ago := time.Duration(i+1) * time.Minute
			source.put(failed(fmt.Sprint("trace", i), "exit_1", fmt.Sprintf(trace, i), ago))
		}
		for i := range 2 {
			ago := time.Duration(120+i) * time.Minute
			source.put(failed(fmt.Sprint("crash", i), "crashed", fmt.Sprintf(died, i), ago))
		}
		exhausted, act := failed("exhausted", "attempts_exhausted", "m", time.Minute), acting("act", "FAILED")
		exhausted.LastError, act.Error = problem("http_503", "<overloaded>"), problem("effect_uncertain", "")
		source.put(exhausted, act,
			failed("x1", "exit_1", "another", time.Hour), failed("no", "cancelled", "by me", time.Minute))
		s, _ := writable(t, source)

		text := page(t, s, "/")
		var causes []string
		for _, line := range found(text, `<tr [^>]*class="cause".*</tr>`) {
			causes = append(causes, words(line))
		}
		equal(t, "causes", strings.Join(causes, "\n"), `5 failed exit_1 KeyError: 'total' last: trace0 , 1 min ago
2 failed crashed the worker ended during the run and recorded no outcome last: crash0 , 2 h ago
1 failed http_503 <overloaded> last: exhausted , 1 min ago
1 failed exit_1 another last: x1 , 1 h ago`)
		has(t, text, "9 failed in the last 3 h: ", `href="/?state=FAILED&amp;code=http_503"`, `id="group-others"`)
		equal(t, "first row", found(text, `data-id="[^"]*"|class="cause"`)[0], `data-id="act"`)
		has(t, rowOf(t, text, "act"), `data-group="uncertain"`, "1 side effect", `href="/analysis?id=act#answers"`)
		has(t, rowOf(t, text, "exhausted"), "http_503")
		hasNot(t, rowOf(t, text, "exhausted"), "attempts_exhausted")

		source.pages = nil
		for _, other := range []string{"/?state=FAILED", "/?after=1", "/?sort=id"} {
			hasNot(t, page(t, s, other), `class="cause"`, `id="group-attention"`)
		}
		for i := range 60 {
			source.put(failed(fmt.Sprint("many", i), fmt.Sprint("code", i), "m", time.Second))
		}
		text = page(t, s, "/")
		has(t, text, "50 or more failed in the last 3 h", ">45 more causes</a>")
		equal(t, "lines", len(found(text, `id="cause-link-`)), 5)
		asked := source.pages[len(source.pages)-1] // after the list
		equal(t, "read", asked.Status, "FAILED")
		if late := asked.Since.Sub(storeNow().Add(-3 * time.Hour)); late.Abs() > time.Minute {
			t.Errorf("read since %s too late", late)
		}
	})
	t.Run("behind 50 that were just cancelled, there may be failures", func(t *testing.T) {
		source := newSource(failed("hidden", "exit_1", "m", time.Hour))
		for i := range 50 {
			source.put(failed(fmt.Sprint("cancelled", i), analysislock.Cancelled, "by me", time.Minute))
		}
		text := page(t, open(t, source, console.Options{}), "/")
		has(t, text, `id="group-attention"`, `id="group-others"`, "more may have failed", `href="/failures"`)
	})
	virtual(t, "what the list shows to run again or to be answered needs none", func(t *testing.T) {
		source := newSource(acting("act", "FAILED"), acting("other", "FAILED"))
		source.put(failed("failed", "exit_1", "m", time.Minute))
		server := open(t, source, console.Options{})
		has(t, page(t, server, "/"), `data-group="uncertain"`, `class="cause"`)
		again, answered := acting("act", "PROCESSING"), acting("other", "FAILED")
		again.Lock, answered.OpenActs = heldBy("act", "w", 9, time.Hour).Lock, 0
		source.put(again, answered, analysis("failed", "QUEUED"))
		time.Sleep(9 * time.Second)
		text := page(t, server, "/")
		hasNot(t, text, `data-group="uncertain"`, `class="cause"`, `id="group-attention"`)
		has(t, rowOf(t, text, "act"), `data-group="running"`)
		equal(t, "reads in 9 s", source.calls("Uncertain"), 1)
	})
	t.Run("a list says that its failures cannot be read", func(t *testing.T) {
		source := newSource(analysis("a", "READY"))
		source.errs["Uncertain"] = lease.ErrUnavailable
		has(t, page(t, open(t, source, console.Options{}), "/"), `data-id="a"`, `id="cause-problem"`, "does not answer")
	})
	t.Run("a row says that its worker is silent", func(t *testing.T) {
		silent := heldBy("silent", "w/2", 1, time.Hour)
		silent.Lock.HeartbeatAt = storeNow().Add(-4 * time.Minute)
		policy := lease.Policy{TTL: 5 * time.Minute, Heartbeat: 100 * time.Second, MaxAttempts: 10}
		source := newSource(heldBy("loud", "w/1", 1, time.Hour), silent)
		text := page(t, open(t, source, console.Options{Lock: policy}), "/")
		has(t, rowOf(t, text, "silent"), "no heartbeat for", ">4 min<", `attempts">1 of 10<`)
		hasNot(t, rowOf(t, text, "loud"), "no heartbeat")
	})
}

func TestSort(t *testing.T) {
	a, b, c := failed("a", "zz", "m", 3*time.Minute), analysis("b", "QUEUED"), heldBy("c", "w", 1, time.Hour)
	ago := func(minutes int) time.Time { return storeNow().Add(time.Duration(-minutes) * time.Minute) }
	a.Attempts, b.Attempts, c.Attempts = 2, 3, 1
	a.CreatedAt, b.CreatedAt, c.CreatedAt = ago(1), ago(3), ago(2)
	a.StartedAt, c.StartedAt = ago(123), ago(60)
	b.UpdatedAt, c.UpdatedAt = ago(2), ago(1)
	source := newSource(a, b, c)
	s := open(t, source, console.Options{Every: quick})
	for order, want := range map[string]string{
		"id": "a b c", "-id": "c b a", "state": "a c b", "-state": "b c a", "now": "b c a", "-now": "a c b",
		"attempts": "c a b", "-attempts": "b a c", "time": "b c a", "-time": "a c b", "age": "a c b", "-age": "b c a",
		"updated": "a b c", "-updated": "c b a",
	} {
		text := page(t, s, "/?sort="+order)
		equal(t, "by "+order, ids(text), want)
		hasNot(t, text, `class="group"`)
		direction := map[bool]string{true: "descending", false: "ascending"}[strings.HasPrefix(order, "-")]
		equal(t, "by "+order, listed(text, `aria-sort="(\w+)"`), direction)
		all := order == "id" || order == "-updated" // the indexes have these orders
		contains(t, text, all, "everything, page by page")
		contains(t, text, !all, "only what is on this page")
		has(t, text, `data-poll="/?sort=`+order+`"`, `id="unsorted" href="/?"`)
	}
	has(t, page(t, s, "/?state=QUEUED&sort=-age"), `id="sort-age" href="/?sort=age&amp;state=QUEUED"`,
		`id="sort-id" href="/?sort=id&amp;state=QUEUED"`, `id="sort-attempts" href="/?sort=-attempts&amp;state=QUEUED"`,
		`name="sort" value="-age"`)

	source.pages = nil
	page(t, s, "/?sort=id&after=1")
	page(t, s, "/?sort=id&state=QUEUED") // filtered, only the page is sorted
	equal(t, "reads", fmt.Sprint(source.pages), fmt.Sprint([]repo.Filter{{All: true}, {Status: "QUEUED"}}))
	code(t, "an unknown column", get(t, s, "/?sort=owner"), 400)
}

// Each minute of an open page reads them again; none waits for them.
func TestCodesToChoose(t *testing.T) {
	virtual(t, "are read once in two minutes", func(t *testing.T) {
		source := newSource(analysis("a", "READY"))
		source.codes = []string{"exit_1", `"><b>`}
		text := polled(t, open(t, source, console.Options{}), 30)
		has(t, text, `<datalist id="codes"><option value="exit_1"><option value="&#34;&gt;&lt;b&gt;"></datalist>`)
		equal(t, "reads", source.calls("Codes"), 1)
	})
}

func TestKinds(t *testing.T) {
	list := func(root, query string, kinds ...console.Kind) string {
		return page(t, open(t, newSource(), console.Options{Kinds: kinds, Root: root}), "/"+query)
	}
	one, two := console.Kind{Name: "analysis"}, console.Kind{Name: "report", Root: "/kind/report"}
	has(t, list("", "", one, two), "<h1>Analyses</h1>", "<title>Analyses", "taskguard submit --input")
	second := list("/kind/report", "", one, two)
	has(t, second, "<h1>report</h1>", "<title>report", `aria-label="report"`, ` aria-current="page">report</a>`,
		"--kind report")
	hasNot(t, second, "Analyses")
	has(t, list("", "", console.Kind{Name: "report"}), "<h1>report</h1>", "taskguard submit --input")
	hasNot(t, list("", "?state=READY"), "first-command")
	has(t, page(t, open(t, newSource(), console.Options{Program: "bin/tg"}), "/"), ">bin/tg submit --input")

	final := open(t, newSource(), console.Options{Fields: repo.Fields{Final: []string{"ARCHIVED"}}})
	has(t, page(t, final, "/?state=ARCHIVED"), "<option>FAILED</option><option selected>ARCHIVED</option>")
}
