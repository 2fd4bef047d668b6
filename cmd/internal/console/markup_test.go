package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

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
