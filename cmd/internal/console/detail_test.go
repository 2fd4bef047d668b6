package console_test

import (
	"bytes"
	"cmp"
	"errors"
	"html"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/internal/delivery"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
)

func TestStates(t *testing.T) {
	t.Run("have their names and looks", func(t *testing.T) {
		s := readOnly(t, analysis("a", "QUEUED"), heldBy("b", "w/1", 7, time.Hour), analysis("c", "READY"),
			failed("d", "too_large", "the result is too large\n\tby 5", time.Minute), analysis("e", "PAUSED"),
			analysis("f", ""))
		text := page(t, s, "/")
		for id, state := range map[string]string{
			"a": "QUEUED", "b": "PROCESSING", "c": "READY", "d": "FAILED", "e": "PAUSED", "f": "no status",
		} {
			kind := cmp.Or(map[string]string{"PAUSED": "other", "no status": "none"}[state], strings.ToLower(state))
			has(t, rowOf(t, text, id), ">"+state+"</bdi>", `data-state="`+state+`"`, `class="state `+kind+`"`)
			has(t, page(t, s, "/analysis?id="+id), ">"+state+"</bdi>")
		}
		has(t, rowOf(t, text, "d"), "too_large", "the result is too large</span>")
		text = page(t, s, "/analysis?id=d")
		has(t, text, "too_large", "<pre>the result is too large\n    by 5</pre>")
		equal(t, "order", listed(text, `id="(fact-state|errors|timeline|fact-lock)"`),
			"fact-state errors timeline fact-lock")
	})
	t.Run("of locks are judged by the store's clock", func(t *testing.T) {
		flaky := problem("flaky", "")
		stale, done, spent := heldBy("stale", "w/2", 8, -time.Minute), ended("done", "READY"), ended("failed", "FAILED")
		stale.LastError, done.LastError, spent.LastError = flaky, flaky, flaky
		spent.Error = problem("attempts_exhausted", "")
		refused := spent
		refused.ID, refused.Error = "refused", problem("too_large", "")
		stale.Lock.FinishedBy, done.Lock.FinishedBy, refused.Lock.FinishedBy = "w/0", "w/3", "w/0"
		corrupted := analysis("corrupted", "PROCESSING")
		corrupted.Malformed = errors.New("lockToken is a string")
		held := heldBy("held", "w/1", 7, 90*time.Second+900*time.Millisecond)
		s := readOnly(t, held, stale, analysis("free", "QUEUED"), done, spent, refused, corrupted,
			analysis("left", "PROCESSING"))

		list := page(t, s, "/")
		locks := map[string]string{"held": "held", "stale": "stale", "free": "free", "corrupted": "malformed"}
		for id, want := range locks {
			has(t, rowOf(t, list, id), `data-lock="`+want+`"`)
			has(t, page(t, s, "/analysis?id="+id), `data-lock="`+want+`"`)
		}
		has(t, rowOf(t, list, "held"), ">5 min</span> ago")
		has(t, rowOf(t, list, "stale"), "its worker is gone")
		has(t, rowOf(t, list, "free"), ">waiting in the queue<")
		has(t, rowOf(t, list, "corrupted"), "lockToken is a string", `class="number attempts"></td>`)
		hasNot(t, rowOf(t, list, "left"), "waiting in the queue")
		hasNot(t, list, "w/1", "w/2", "data-until") // an owner is no business of a list

		for id, words := range map[string][]string{
			"free":      {"no delivery has come"},
			"held":      {"running", "w/1", ">1 min 30 s<", "fact-token", "fact-heartbeat"},
			"corrupted": {"lockToken is a string"},
			"done":      {"Finished by", "w/3"},
			"failed":    {"flaky", "attempts_exhausted"},
			"refused":   {"flaky", "too_large", "Finished by", "w/0"},
			"stale":     {"flaky"},
		} {
			has(t, page(t, s, "/analysis?id="+id), words...)
		}
		hasNot(t, page(t, s, "/analysis?id=stale"), "Finished by", "w/0")
		hasNot(t, rowOf(t, list, "done")+page(t, s, "/analysis?id=done"), "flaky", "fact-duration")
	})
}

func TestContents(t *testing.T) {
	a, b := analysis("a", "READY"), analysis("b", "READY")
	a.Input, a.Result = map[string]string{"name": "secret.txt"}, strings.Repeat("pad\u00e9", 40<<10)+"end"
	b.Result = make([]int, 20<<10) // 40 KiB, and indented 100
	s := readOnly(t, a, b)
	text := page(t, s, "/analysis?id=a")
	hasNot(t, text+page(t, s, "/"), "secret", "padé") // only on request
	has(t, text, `href="/analysis?id=a&amp;show=all"`)
	text = page(t, s, "/analysis?id=a&show=all")
	has(t, text, "secret.txt", "padé", "the first 64 KiB are shown")
	hasNot(t, text, "end&#34;")
	if len(text) > 80<<10 {
		t.Errorf("the page has %d bytes", len(text))
	}
	has(t, page(t, s, "/analysis?id=b&show=all"), "<h3>Input ", "None.", "the first 64 KiB are shown")
}

func TestProgress(t *testing.T) {
	running, stale := heldBy("running", "w/1", 3, time.Hour), heldBy("stale", "w/1", 3, -time.Minute)
	wordless := heldBy("wordless", "w/1", 3, time.Hour)
	fraction := 0.416
	running.Progress = &analysislock.Progress{
		Fraction: &fraction, Message: "page 7 of 17, " + strings.Repeat("x", 900) + " the end",
		At: storeNow().Add(-90 * time.Second),
	}
	stale.Progress, wordless.Progress = running.Progress, &analysislock.Progress{Message: "reads"}
	s := readOnly(t, running, stale, wordless)
	text := page(t, s, "/")
	has(t, rowOf(t, text, "running"), `<progress max="100" value="42"`, "42 %", "page 7 of 17", "the end</span>")
	hasNot(t, rowOf(t, text, "running"), strings.Repeat("x", 160))
	hasNot(t, rowOf(t, text, "stale"), "<progress", "page 7")
	has(t, rowOf(t, text, "wordless"), "reads")
	hasNot(t, rowOf(t, text, "wordless"), "<progress", " %")
	has(t, page(t, s, "/analysis?id=running"), `id="fact-progress"`, "42 %", "page 7", ">1 min</span> ago")
}

func TestTimeline_Page(t *testing.T) {
	a := heldBy("a", "w/9", 9, time.Hour)
	began := storeNow().Add(-time.Hour)
	changed := began.Add(time.Minute)
	a.History = []analysislock.Attempt{
		{
			Number: 1, Token: 7, Owner: "w/7", StartedAt: began, EndedAt: began.Add(350 * time.Millisecond),
			Outcome: "retry", Code: "exit_1", Message: "not\nnow", Changes: []analysislock.OperatorChange{
				{Change: "unlocked", By: "ana", At: changed}, {Change: "requeued", By: "<me>@here", At: changed},
			},
		},
		{Number: 2, Token: 8, Owner: "rev/8/9F2C", StartedAt: began.Add(2 * time.Minute), Alone: true, Delays: 2},
		{Number: 3, Token: 9, Owner: "w/9", StartedAt: storeNow().Add(-10*time.Minute - time.Second)},
	}
	s := readOnly(t, a, analysis("new", "QUEUED"))
	const item, bar = `(?s)<li data-outcome=.*?</li>`, `(?s)<g data-outcome=.*?</g>`
	text := page(t, s, "/analysis?id=a")
	has(t, text, `data-poll="/analysis?id=a"`, `data-live="static"`, "<pre>not\nnow</pre>")
	for i, want := range []struct{ item, bar []string }{
		{
			item: []string{`"running"`, "attempt 3<", "token 9", "w/9", `for <span data-since=`, ">10 min</span>"},
			bar:  []string{"attempt 3: running, on w", `x="83.3%"`, `width="16.7%"`},
		},
		{
			item: []string{`"no end recorded"`, "attempt 2<", `title="rev/8/9F2C">rev/8</bdi>, <b`, "delayed 2 times"},
			bar:  []string{"attempt 2: no end recorded, on rev/8, alone<", `class="alone"`},
		},
		{
			item: []string{`"retry"`, "attempt 1<", ">350 ms<", ">exit_1</code>", "unlocked by ana", "by &lt;me&gt;@"},
			bar:  []string{"attempt 1: retry, 350 ms, on w<", `x="0.0%"`, `width="0.8%"`},
		},
	} {
		has(t, found(text, item)[i], want.item...)
		has(t, found(text, bar)[i], want.bar...)
	}
	equal(t, "alone or delayed", strings.Count(text, "alone</b>")+strings.Count(text, "delayed"), 2) // the second only
	has(t, page(t, s, "/analysis?id=new"), `aria-labelledby="timeline-title" hidden`)
}

func TestBrokenPage(t *testing.T) {
	var log bytes.Buffer
	s := open(t, newSource(analysis("a", "QUEUED")),
		console.Options{Operator: &recorder{}, Every: quick, Log: logTo(&log)})
	s.Break()
	for _, r := range []string{
		"GET /", "GET /analysis?id=a", "GET /failures", "GET /cancel?id=a", "GET /all/cancel?state=QUEUED",
		"POST /cancel?id=a",
	} {
		method, target, _ := strings.Cut(r, " ")
		log.Reset()
		code(t, r, ask(t, s, method, target, "", "Sec-Fetch-Site", "same-origin"), http.StatusInternalServerError)
		has(t, log.String(), `"page not made"`)
	}
	ask(t, s, http.MethodGet, "/", "", "Host", "evil.example")
	has(t, log.String(), `"answer not sent"`)
}

// logLinks returns the decoded queries of a page's links to Cloud Logging, each on one line.
func logLinks(t *testing.T, a analysislock.Analysis, project string) (all []string) {
	t.Helper()
	s := open(t, newSource(a), console.Options{Every: quick, Project: project})
	text := page(t, s, "/analysis?id="+url.QueryEscape(a.ID))
	contains(t, text, project != "", "Logs")
	for _, link := range found(text, `href="https://console\.cloud\.google\.com/logs/query;query=([^"]*)"`) {
		query := must.Get(url.PathUnescape(html.UnescapeString(link)))(t)
		all = append(all, strings.ReplaceAll(query, "\n", " "))
	}
	return all
}

func TestLogs(t *testing.T) {
	t.Run("an analysis and each attempt link their lines", func(t *testing.T) {
		began := time.Date(2026, 11, 30, 9, 0, 30, 0, time.UTC)
		a := ended(`a b+"c";d?e=1&f/%`, "FAILED")
		a.Lock.Token, a.CreatedAt, a.UpdatedAt = 8, began.Add(-time.Hour), began.Add(10*time.Minute)
		a.History = []analysislock.Attempt{
			{Number: 1, Token: 7, StartedAt: began, EndedAt: began.Add(time.Minute), Outcome: "retry"},
			{Number: 2, Token: 8, StartedAt: began.Add(5 * time.Minute)},
		}
		const id, project = `jsonPayload.analysis_id="a b+\"c\";d?e=1&f/%"`, "?project=p-1"
		equal(t, "links", strings.Join(logLinks(t, a, "p-1"), "\n"),
			id+` timestamp>="2026-11-30T07:59:30Z" timestamp<="2026-11-30T09:11:30Z"`+project+"\n"+
				id+` timestamp>="2026-11-30T09:04:30Z"`+project+"\n"+ // it has no end
				id+` timestamp>="2026-11-30T08:59:30Z" timestamp<="2026-11-30T09:02:30Z"`+project)
		equal(t, "without a project", len(logLinks(t, a, "")), 0)
	})
	t.Run("the query uses a field that the worker logs", func(t *testing.T) {
		field := found(logLinks(t, analysis("a", "QUEUED"), "p")[0], `jsonPayload\.(\w+)`)[0]
		line := delivery.LogLine{Result: delivery.Result{ID: "a"}}
		at := slices.IndexFunc(line.Attrs(), func(a slog.Attr) bool { return a.Key == field })
		equal(t, field, line.Attrs()[at].Value.String(), "a")
	})
}
