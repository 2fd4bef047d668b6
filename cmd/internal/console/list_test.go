package console_test

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// waits returns an analysis whose next attempt begins after left.
func waits(id string, left time.Duration) analysislock.Analysis {
	a := analysis(id, "QUEUED")
	a.NextAttemptAt, a.LastError = storeNow().Add(left), problem("flaky", "")
	return a
}

func TestList(t *testing.T) {
	virtual(t, "begins with what is stuck, then what waits and what runs", func(t *testing.T) {
		late, early := heldBy("after", "w/1", 1, time.Hour), heldBy("early", "w/1", 1, time.Hour)
		late.NextAttemptAt = storeNow().Add(2 * time.Hour) // as a worker in another language may leave it
		late.StartedAt, early.StartedAt = storeNow().Add(-time.Minute), storeNow().Add(-3*time.Minute)
		before, since := storeNow().Add(-time.Hour), storeNow().Add(-2*time.Minute)
		late.History = []analysislock.Attempt{{Token: 0, StartedAt: before}} // of a run before this one
		early.History = []analysislock.Attempt{{Token: 1, StartedAt: since}}
		done := at(ended("done", "READY"), time.Second)
		done.StartedAt = done.UpdatedAt.Add(-time.Second)
		server := open(t, newSource(done, at(late, time.Hour), at(early, 2*time.Hour),
			at(waits("soon", 3*time.Minute+time.Second/2), 3*time.Hour), at(waits("later", time.Hour), time.Minute),
			at(waits("past", -time.Hour), time.Hour), at(analysis("fresh", "QUEUED"), 90*time.Second),
			at(analysis("foreign", "ARCHIVED"), 5*time.Hour), at(analysis("lost", "QUEUED"), 4*time.Hour)),
			console.Options{Limit: 3})

		text := page(t, server, "/")
		equal(t, "listed", ids(text), "lost past soon later early after done fresh")
		equal(t, "groups", listed(text, `id="group-(\w*)"`), "attention waiting running others")
		for id, want := range map[string]string{
			"early": ">2 min</span>", "after": ">1 min</span>", "soon": ">3 min 00 s</span>", "done": `duration">1 s<`,
			"fresh": "waiting in the queue", "lost": `data-overdue="true"`,
		} {
			has(t, rowOf(t, text, id), want)
		}
		has(t, rowOf(t, text, "soon"), "next attempt in", "flaky")
		has(t, text, `id="oldest"`, `created <span data-since`)

		// The other pages have no groups, and all pages together have each analysis in its place.
		var seen []string
		for query := "?after=0"; query != ""; {
			text = page(t, server, "/"+query)
			has(t, text, `id="newest"`)
			hasNot(t, text, `class="group"`, `id="oldest"`)
			seen = append(seen, ids(text))
			query = html.UnescapeString(listed(text, `id="next" href="/(\?[^"]*)"`))
		}
		equal(t, "the pages", strings.Join(seen, " "), "done later fresh after past early soon lost foreign")
	})
	virtual(t, "judges a lock by the store's time, between two readings too", func(t *testing.T) {
		slow := newSource(heldBy("a", "w/1", 1, 5*time.Second))
		slow.delay = 3 * time.Second
		has(t, page(t, open(t, slow, console.Options{}), "/"), `data-lock="held"`) // the answer may be as old
		server := open(t, newSource(heldBy("a", "w/1", 1, 3*time.Second)), console.Options{})
		for _, want := range []string{"held", "stale"} { // after 0 and 4 s, before it is read again
			for _, target := range []string{"/", "/analysis?id=a"} {
				has(t, page(t, server, target), `data-lock="`+want+`"`)
			}
			time.Sleep(4 * time.Second)
		}
	})
	// Recovery has just found its task in the queue, and marked it.
	virtual(t, "shows no next attempt of a marked analysis", func(t *testing.T) {
		marked := at(waits("marked", 0), 0)
		text := page(t, open(t, newSource(marked), console.Options{}), "/")
		has(t, text, "waiting in the queue")
		hasNot(t, text, "next attempt in")
	})
	t.Run("shows the key of parked analyses, and reads each once", func(t *testing.T) {
		source := newSource(analysis("free", "QUEUED"))
		for n := range 3 {
			a := analysis(fmt.Sprint("p", n), "QUEUED")
			a.ParkedAt, a.Place = storeNow().Add(-3*time.Minute), fmt.Sprint("hash", n/2, " 1999")
			source.put(a)
		}
		done := ended("done", "READY")
		done.Key = "acme"
		source.put(done)
		server := open(t, source, console.Options{})
		list := page(t, server, "/")
		equal(t, "parked", strings.Count(list, "parked for"), 3)
		equal(t, "with a key", strings.Count(list, "key <bdi>&lt;acme&gt;</bdi>: 1 of 3"), 3)
		equal(t, "keys read", source.calls("KeyState"), 2)
		has(t, page(t, server, "/analysis?id=p1"), "&lt;acme&gt;: 1 of 3 run: r; 5 wait before it")
		hasNot(t, page(t, server, "/analysis?id=done")+page(t, server, "/analysis?id=free"), "acme")
	})
	virtual(t, "counts all analyses beside the states", func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"), analysis("b", "FAILED"), analysis("odd", "ARCHIVED"))
		var log bytes.Buffer
		server := open(t, source, console.Options{Limit: 1, Log: logTo(&log)})
		for _, query := range []string{"", "?state=FAILED", "?q=a", "?after=2"} {
			has(t, page(t, server, "/"+query), "All <b>3</b>", "</svg>QUEUED <b>1</b>", "</svg>FAILED <b>1</b>",
				"</svg>READY <b>0</b>")
		}
		source.change(func() { source.errs["Count"] = errOdd })
		text := polled(t, server, 20)
		equal(t, "log", listed(log.String(), `level=WARN .* (error=\w+)`), "error=odd")
		has(t, text, `data-id="a"`, `data-live="static"`, "</svg>FAILED</a>")
	})
}

func TestFilter(t *testing.T) {
	virtual(t, "is of the address, by the store's time", func(t *testing.T) {
		coded, held := analysis("a", "QUEUED"), heldBy("held", "w", 1, time.Hour)
		coded.LastError, held.LastError = problem("a&b", ""), problem("a&b", "")
		source := newSource(coded, analysis("b", "READY"), held)
		s := open(t, source, console.Options{Every: quick, Limit: 1})
		now := storeNow()
		for query, want := range map[string]repo.Filter{
			"":                     {},
			"?code=a%26b":          {Code: "a&b"},
			"?state=QUEUED":        {Status: "QUEUED"},
			"?code=c&state=FAILED": {Status: "FAILED", Code: "c"}, // as the commands do
			"?since=150m&older=1h": {Since: now.Add(-150 * time.Minute), Before: now.Add(-time.Hour)},
			"?q=al&state=READY":    {Prefix: "al", Status: "READY"},
		} {
			source.pages = nil
			text := page(t, s, "/"+query)
			equal(t, query, source.pages[0], want)
			has(t, text, `>All <b>3</b>`) // whatever is shown of it
			contains(t, text, query == "", `class="group"`)
			all := !strings.Contains(query, "state=") && !strings.Contains(query, "q=")
			contains(t, text, all, `aria-current="page">All`)
		}
		has(t, page(t, s, "/?q=al"), `name="q" type="search" value="al"`)
		hasNot(t, page(t, s, "/?q=al"), `id="oldest"`)
		has(t, page(t, s, "/?state=QUEUED&code=a%26b&since=2h&older=1m"),
			`id="next" href="/?after=1&amp;code=a%26b&amp;older=1m&amp;since=2h&amp;state=QUEUED"`)
		const query = `href="/?code=c&amp;since=2h&amp;state=READY"`
		has(t, page(t, s, "/?state=READY&code=c&since=2h&after=1"), `<option selected>READY</option>`,
			`data-filter="READY" `+query+` aria-current="page"`, `id="newest" `+query, `name="code" value="c"`,
			`data-poll="/?after=1&amp;code=c&amp;since=2h&amp;state=READY"`, `name="since" value="2h"`)
	})
	t.Run("with a value that no analysis has is refused before it is read", func(t *testing.T) {
		source := newSource(analysis("a", "READY"))
		server := open(t, source, console.Options{})
		long := strings.Repeat("x", 1501)
		for query, want := range map[string]string{
			"since=tomorrow": "“tomorrow” is no time", "older=tomorrow": "“tomorrow” is no time",
			"since=90m&older=-1h": "“-1h” is no time", "state=FAILD": "did you mean FAILED?",
			"code=%ff": "UTF-8", "state=%ff": "UTF-8", "code=a&code=%ff": "UTF-8", "after=%ff": "UTF-8",
			"code=" + long: "too long", "state=" + long: "too long", "q=" + long: "this id", "q=a%2Fb": "this id",
		} {
			w := get(t, server, "/?"+query)
			code(t, query[:min(30, len(query))], w, 400)
			has(t, w.Body.String(), want)
		}
		for i := range 33 {
			page(t, server, fmt.Sprint("/?state=READY&code=", long[2:], i%10, "&since=", i, "h"))
		}
		equal(t, "lists read", source.calls("Page"), 33)
		// Twice: with 32 readings all are forgotten, which bounds the memory.
		equal(t, "counts", source.calls("Count"), 10)
	})
}

func TestSharedReads(t *testing.T) {
	virtual(t, "all pages share them, and without a page there is none", func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"))
		server := open(t, source, console.Options{})
		want := func(what, calls string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for _, method := range []string{"Page", "Active", "Count", "Oldest", "Backlog"} {
				got += fmt.Sprint(method, " ", source.calls(method), " ")
			}
			equal(t, what, got, calls)
		}
		want("at first", "Page 0 Active 0 Count 0 Oldest 0 Backlog 0 ")
		for i := range 20 {
			go func() {
				time.Sleep(time.Duration(i) * time.Second / 5) // they do not ask at the same time
				for range 15 {
					has(t, page(t, server, "/"), `data-id="a"`)
					time.Sleep(4 * time.Second)
				}
			}()
		}
		time.Sleep(2 * time.Minute)
		const minute = "Page 10 Active 8 Count 20 Oldest 4 Backlog 2 " // five states are counted
		want("after a minute of twenty pages", minute)
		time.Sleep(time.Hour)
		want("after an hour without a page", minute)
	})
}

// hostileTexts must appear in pages only as text.
var hostileTexts = []string{
	`"><script>alert(1)</script>`, `'onmouseover='alert(1)`, "javascript:alert(1)", "\u202egpj.exe", "a\x00b\nc\x1b[2J",
	"🦊 <b>&amp;", "`${1}`{{.}}", strings.Repeat("é", 750), "a b+c%2F?d=e#f",
}

func TestMarkup_Hostile(t *testing.T) {
	source := newSource()
	for i, text := range hostileTexts {
		a := heldBy(text, "owner "+text, int64(i+1), time.Hour)
		a.Status = "state " + text
		a.Error, a.LastError = problem("code "+text, "message "+text), problem("last "+text, text)
		a.Input, a.Result = text, map[string]string{text: text}
		a.Progress = &analysislock.Progress{Message: "report " + text}
		a.History = []analysislock.Attempt{{Token: 1, Owner: text, Outcome: text, Code: text, Message: text}}
		acts := acting("act "+text, "FAILED")
		acts.Acts[text] = acts.Acts["charge"]
		source.put(a, acts)
		source.failures = append(source.failures, repo.Failure{Code: text, N: 1, Newest: []analysislock.Analysis{a}})
	}
	s, _ := writable(t, source)
	list := page(t, s, "/")
	pages := []string{list, page(t, s, "/failures")}
	for _, markup := range hostileTexts[:3] { // a field has all that the reader has typed
		q := url.QueryEscape(markup)
		pages = append(pages, page(t, s, "/?code="+q), get(t, s, "/?q="+q).Body.String())
	}
	for _, text := range hostileTexts {
		q := url.QueryEscape(text)
		resolve := "/resolve?id=act+" + q + "&name=" + q
		w := ask(t, s, http.MethodPost, resolve, hidden(t, page(t, s, resolve)).Encode()+"&answer=not_done",
			"Sec-Fetch-Site", "same-origin")
		code(t, "resolve "+text, w, http.StatusSeeOther)
		one := page(t, s, "/analysis?show=all&id="+q)
		has(t, one, `href="/analysis?id=`) // its own link
		pages = append(pages, one)
		for _, target := range []string{
			resolve, "/analysis?id=act+" + q, "/unlock?id=" + q, "/requeue?id=" + q, "/cancel?id=" + q,
			"/all/cancel?since=1h&code=" + q, "/analysis?id=no" + q, "/?state=" + q, "/?since=" + q,
		} {
			pages = append(pages, get(t, s, target).Body.String())
		}
	}
	for _, text := range pages {
		hasNot(t, strings.Replace(text, `<script type="module" src="/console.js"></script>`, "", 1), "<script", "<b>&",
			"\u202e", "\x00", "\x1b", `"'onmouse`, `href="javascript`, `action="javascript`)
	}
	equal(t, "rows", len(found(list, `<tr [^>]*data-id="`)), 2*len(hostileTexts))
	has(t, list, `\u202egpj.exe`, `a\x00b\nc\x1b[2J`, "🦊")
}

func TestMarkup_SimilarIDs(t *testing.T) {
	long := strings.Repeat("0123456789", 10)
	s := readOnly(t, analysis("a\u00a0b", "READY"), analysis(long+"-1", "READY"), analysis(long+"-2", "READY"))
	text := page(t, s, "/")
	has(t, text, `<bdi>a\u00a0b</bdi>`)
	for _, id := range []string{long + "-1", long + "-2"} {
		has(t, rowOf(t, text, id), `title="`+id+`"`, "<bdi>"+long[:12]+"…"+id[len(id)-23:]+"</bdi>")
	}
}
