package console_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

func TestEachStateIsShownByItsName(t *testing.T) {
	failed := analysis("d", "FAILED")
	failed.Error = &analysislock.Error{Code: "too_large", Message: "the result is too large\n\tby 5"}
	s := open(t, newSource(analysis("a", "QUEUED"), heldBy("b", "w/1", 7, time.Hour), analysis("c", "READY"), failed, analysis("e", "PAUSED"), analysis("f", "")), console.Options{Every: quick})
	text := page(t, s, "/")
	for id, state := range map[string]string{"a": "QUEUED", "b": "PROCESSING", "c": "READY", "d": "FAILED", "e": "PAUSED", "f": "no status"} {
		kind := cmp.Or(map[string]string{"PAUSED": "other", "no status": "none"}[state], strings.ToLower(state))
		has(t, rowOf(t, text, id), ">"+state+"</bdi>", `data-state="`+state+`"`, `class="state `+kind+`"`)
		has(t, page(t, s, "/analysis?id="+id), ">"+state+"</bdi>")
	}
	has(t, rowOf(t, text, "d"), "too_large")
	has(t, rowOf(t, text, "d"), "the result is too large</span>")
	text = page(t, s, "/analysis?id=d")
	has(t, text, "too_large", "<pre>the result is too large\n    by 5</pre>")
	if order := regexp.MustCompile(`id="(fact-state|errors|timeline|fact-lock)"`).FindAllString(text, -1); strings.Join(order, "") != `id="fact-state"id="errors"id="timeline"id="fact-lock"` {
		t.Errorf("the order is %s", order)
	}
}

func TestALockIsJudgedByTheStoresClock(t *testing.T) {
	stale := heldBy("stale", "w/2", 8, -time.Minute)
	done := analysis("done", "READY")
	done.Lock = lease.Lease{Owner: "w/3", Finished: true, FinishedBy: "w/3"}
	done.LastError = &analysislock.Error{Code: "flaky"}
	stale.LastError = done.LastError
	failed := analysis("failed", "FAILED")
	failed.Lock.Finished, failed.LastError, failed.Error = true, done.LastError, &analysislock.Error{Code: "attempts_exhausted"}
	refused := failed
	refused.ID, refused.Error = "refused", &analysislock.Error{Code: "too_large"}
	stale.Lock.FinishedBy, refused.Lock.FinishedBy = "w/0", "w/0"
	corrupted := analysis("corrupted", "PROCESSING")
	corrupted.Malformed = errors.New("lockToken is a string")
	s := open(t, newSource(heldBy("held", "w/1", 7, 90*time.Second+900*time.Millisecond), stale, analysis("free", "QUEUED"), done, failed, refused, corrupted, analysis("left", "PROCESSING")), console.Options{Every: quick})
	text := page(t, s, "/")
	has(t, rowOf(t, text, "held"), `data-lock="held"`, ">5 min</span> ago")
	has(t, rowOf(t, text, "stale"), `data-lock="stale"`, "its worker is gone")
	hasNot(t, text, "w/1", "w/2", "data-until") // an owner is no business of a list
	has(t, rowOf(t, text, "free"), `data-lock="free"`, ">waiting in the queue<")
	hasNot(t, rowOf(t, text, "left"), "waiting in the queue")
	has(t, rowOf(t, text, "done"), `data-lock="free"`)
	has(t, rowOf(t, text, "corrupted"), `data-lock="malformed"`, "lockToken is a string", `class="number attempts"></td>`)
	has(t, page(t, s, "/analysis?id=free"), `<span id="fact-why">no delivery has come for 5 min`)
	has(t, page(t, s, "/analysis?id=held"), `<span id="fact-why">running`, "w/1", ">1 min 30 s<", "fact-token", "fact-heartbeat")
	has(t, page(t, s, "/analysis?id=corrupted"), "lockToken is a string", `data-lock="malformed"`)
	has(t, page(t, s, "/analysis?id=done"), "Finished by")
	has(t, page(t, s, "/analysis?id=failed"), "flaky", "attempts_exhausted")
	has(t, page(t, s, "/analysis?id=refused"), "flaky", "too_large", "Finished by", "w/0")
	has(t, page(t, s, "/analysis?id=stale"), "flaky")
	hasNot(t, page(t, s, "/analysis?id=stale"), "Finished by", "w/0")
	hasNot(t, text, "/unlock?", "/requeue?")
	hasNot(t, rowOf(t, text, "done")+page(t, s, "/analysis?id=done"), "flaky", "fact-duration")
}

func TestAnAddressFiltersTheListByTheStoresTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		coded, held := analysis("a", "QUEUED"), heldBy("held", "w", 1, time.Hour)
		coded.LastError = &analysislock.Error{Code: "a&b"}
		held.LastError = coded.LastError
		source := newSource(coded, analysis("b", "READY"), held)
		s := open(t, source, console.Options{Every: quick, Limit: 1})
		now := storeNow()
		fixed := time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)
		for query, want := range map[string]repo.Filter{
			"":                           {},
			"?code=a%26b":                {Code: "a&b"},
			"?state=QUEUED":              {Status: "QUEUED"},
			"?code=c&state=FAILED":       {Status: "FAILED", Code: "c"}, // as the commands do
			"?since=150m&older=1h":       {Since: now.Add(-150 * time.Minute), Before: now.Add(-time.Hour)},
			"?since=2006-01-02T15:04:05": {Since: fixed},
			"?q=al&state=READY":          {Prefix: "al", Status: "READY"},
		} {
			source.pages = nil
			text := page(t, s, "/"+query)
			if filter := source.pages[0]; filter != want {
				t.Errorf("%s: %+v, want %+v", query, filter, want)
			}
			has(t, text, `>All <b>3</b>`) // whatever is shown of it
			contains(t, text, query == "", []string{`class="group"`})
			contains(t, text, !strings.Contains(query, "state=") && !strings.Contains(query, "q="), []string{`aria-current="page">All`})
		}
		search := page(t, s, "/?q=al")
		has(t, search, `name="q" type="search" value="al"`)
		hasNot(t, search, `id="oldest"`)
		has(t, page(t, s, "/?state=QUEUED&code=a%26b&since=2h&older=1m"), `id="next" href="/?after=1&amp;code=a%26b&amp;older=1m&amp;since=2h&amp;state=QUEUED"`)
		has(t, page(t, s, "/?state=READY&code=c&since=2h&after=1"), `data-filter="READY" href="/?code=c&amp;since=2h&amp;state=READY" aria-current="page"`, `<option selected>READY</option>`,
			`data-poll="/?after=1&amp;code=c&amp;since=2h&amp;state=READY"`, `name="since" value="2h"`, `name="code" value="c"`, `id="newest" href="/?code=c&amp;since=2h&amp;state=READY"`)
	})
}

// hostileTexts must appear in pages only as text.
var hostileTexts = []string{
	`"><script>alert(1)</script>`, `'onmouseover='alert(1)`, "javascript:alert(1)", "\u202egpj.exe", "a\x00b\nc\x1b[2J", "🦊 <b>&amp;", "`${1}`{{.}}",
	strings.Repeat("é", 750), "a b+c%2F?d=e#f",
}

func TestNoTextOfADocumentBecomesMarkup(t *testing.T) {
	source := newSource()
	for i, text := range hostileTexts {
		w := heldBy(text, "owner "+text, int64(i+1), time.Hour)
		w.Status = "state " + text
		w.Error, w.LastError = &analysislock.Error{Code: "code " + text, Message: "message " + text}, &analysislock.Error{Code: "last " + text, Message: text}
		w.Input, w.Result = encoded(t, text), encoded(t, map[string]string{text: text})
		w.Progress = &analysislock.Progress{Message: "report " + text}
		w.History = []analysislock.Attempt{{Token: 1, Owner: text, Outcome: text, Code: text, Message: text}}
		acts := acting("act "+text, "FAILED")
		acts.Acts[text] = acts.Acts["charge"]
		source.all[text], source.all[acts.ID] = w, acts
		source.failures = append(source.failures, repo.Failure{Code: text, N: 1, Newest: []analysislock.Analysis{w}})
	}
	s, _ := writable(t, source)
	pages := []string{page(t, s, "/"), page(t, s, "/?q="+url.QueryEscape(hostileTexts[1])+"&state=READY&code="+url.QueryEscape(hostileTexts[2])), page(t, s, "/failures"), page(t, s, "/all/cancel?since=1h&code="+url.QueryEscape(hostileTexts[0])+"&state=READY"), ask(t, s, http.MethodGet, "/?state="+url.QueryEscape(hostileTexts[1]), "").Body.String()}
	for _, text := range hostileTexts {
		q := url.QueryEscape(text)
		resolve := "/resolve?id=act+" + q + "&name=" + q
		pages = append(pages, page(t, s, resolve), page(t, s, "/analysis?id=act+"+q))
		if w := ask(t, s, http.MethodPost, resolve, hidden(t, page(t, s, resolve)).Encode()+"&answer=not_done", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusSeeOther {
			t.Errorf("%q is not resolved: %d %s", text, w.Code, w.Body)
		}
		one := page(t, s, "/analysis?show=all&id="+q)
		has(t, one, `href="/analysis?id=`) // its own link
		pages = append(pages, one, page(t, s, "/unlock?id="+q), page(t, s, "/requeue?id="+q), page(t, s, "/cancel?id="+q), ask(t, s, http.MethodGet, "/analysis?id=no"+q, "").Body.String())
	}
	for _, text := range pages {
		hasNot(t, strings.Replace(text, `<script type="module" src="/console.js"></script>`, "", 1), "<script", "<b>&", "\u202e", "\x00", "\x1b", `"'onmouse`, `href="javascript`, `action="javascript`)
	}
	if rows := ids(pages[0]); len(rows) != 2*len(hostileTexts) {
		t.Errorf("%d rows: %q", len(rows), rows)
	}
	has(t, pages[0], `\u202egpj.exe`, `a\x00b\nc\x1b[2J`, "🦊")
}

func encoded(t testing.TB, v any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestInputAndResultAreShownOnlyOnRequest(t *testing.T) {
	w := analysis("a", "READY")
	w.Input, w.Result = encoded(t, map[string]string{"name": "secret.txt"}), encoded(t, strings.Repeat("pad\u00e9", 40<<10)+"end")
	b := analysis("b", "READY")
	b.Result = encoded(t, make([]int, 20<<10)) // 40 KiB, and indented 100
	s := open(t, newSource(w, b), console.Options{Every: quick})
	text := page(t, s, "/analysis?id=a")
	hasNot(t, text+page(t, s, "/"), "secret", "padé")
	has(t, text, `href="/analysis?id=a&amp;show=all"`, "Not shown")
	text = page(t, s, "/analysis?id=a&show=all")
	has(t, text, "secret.txt", "padé", "the first 64 KiB are shown")
	hasNot(t, text, "end&#34;")
	if len(text) > 80<<10 {
		t.Errorf("the page has %d bytes", len(text))
	}
	has(t, page(t, s, "/analysis?id=b&show=all"), "<h3>Input ", "None.", "the first 64 KiB are shown")
}

func TestSimilarIDsAreDistinguishable(t *testing.T) {
	long := strings.Repeat("0123456789", 10)
	s := open(t, newSource(analysis("a b", "QUEUED"), analysis("a\u00a0b", "QUEUED"), analysis("a\u3000b", "QUEUED"), analysis("a  b", "QUEUED"), analysis(long+"-1", "QUEUED"), analysis(long+"-2", "QUEUED")), console.Options{Every: quick})
	text := page(t, s, "/")
	has(t, text, "<bdi>a b</bdi>", `<bdi>a\u00a0b</bdi>`, "<bdi>a\u3000b</bdi>", "<bdi>a  b</bdi>")
	for _, id := range []string{long + "-1", long + "-2"} {
		has(t, rowOf(t, text, id), `title="`+id+`"`, "<bdi>"+long[:12]+"…"+id[len(id)-23:]+"</bdi>")
	}
}

func TestTheUnitsOfADurationChangeAtTheirLimits(t *testing.T) {
	for seconds, want := range map[int]string{
		59: "59 s", 60: "1 min 00 s", 3599: "59 min 59 s", 3600: "1 h 00 min", 86399: "23 h 59 min", 86400: "1 d 0 h", 200000: "2 d 7 h",
	} {
		if got := cli.Span(time.Duration(seconds) * time.Second); got != want {
			t.Errorf("%d s: %s, want %s", seconds, got, want)
		}
	}
	text := strings.Repeat("x", 64)
	if got := console.Number(100) + " " + console.Number(123456) + console.Shorten(text); got != "100 123,456"+text {
		t.Errorf("got %s", got)
	}
}

func TestAPageThatCannotBeMadeIsAnErrorInTheLog(t *testing.T) {
	var log bytes.Buffer
	s := open(t, newSource(analysis("a", "QUEUED")), console.Options{Operator: &recorder{}, Every: quick, Log: slog.New(slog.NewTextHandler(&log, nil))})
	s.Break()
	for _, r := range []string{"GET /", "GET /analysis?id=a", "GET /failures", "GET /cancel?id=a", "GET /all/cancel?state=QUEUED", "POST /cancel?id=a"} {
		method, target, _ := strings.Cut(r, " ")
		log.Reset()
		if w := ask(t, s, method, target, "", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusInternalServerError || !strings.Contains(log.String(), `"page not made"`) {
			t.Errorf("%s: %d %s: %s", r, w.Code, w.Body, &log)
		}
	}
	ask(t, s, http.MethodGet, "/", "", "Host", "evil.example")
	has(t, log.String(), `"answer not sent"`)
}
