package console_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestTheListShowsTheProgressOfRunningAnalyses(t *testing.T) {
	running, stale, wordless := heldBy("running", "w/1", 3, time.Hour), heldBy("stale", "w/1", 3, -time.Minute), heldBy("wordless", "w/1", 3, time.Hour)
	fraction := 0.416
	running.Progress = &analysislock.Progress{Fraction: &fraction, Message: "page 7 of 17, " + strings.Repeat("x", 900) + " the end"}
	stale.Progress, wordless.Progress = running.Progress, &analysislock.Progress{Message: "reads"}
	text := page(t, open(t, newSource(running, stale, wordless), console.Options{Every: quick}), "/")
	has(t, rowOf(t, text, "running"), `<progress max="100" value="42"`, "42 %", "page 7 of 17", "the end</span>")
	hasNot(t, rowOf(t, text, "running"), strings.Repeat("x", 160))
	hasNot(t, rowOf(t, text, "stale"), "<progress", "page 7")
	has(t, rowOf(t, text, "wordless"), "reads")
	hasNot(t, rowOf(t, text, "wordless"), "<progress", " %")
}

func TestAnAnalysisHasItsProgressAndATimelineOfItsAttempts(t *testing.T) {
	a := heldBy("a", "w/9", 9, time.Hour)
	fraction, at := 0.5, storeNow().Add(-90*time.Second)
	a.Progress = &analysislock.Progress{Fraction: &fraction, Message: "page 7", At: at}
	began := storeNow().Add(-time.Hour)
	a.History = []analysislock.Attempt{
		{Number: 1, Token: 7, Owner: "w/7", StartedAt: began, EndedAt: began.Add(350 * time.Millisecond), Outcome: "retry", Code: "exit_1", Message: "not\nnow", Changes: []analysislock.OperatorChange{
			{Change: "unlocked", By: "ana", At: began.Add(time.Minute)}, {Change: "requeued", By: "<me>@here", At: began.Add(time.Minute)},
		}},
		{Number: 2, Token: 8, Owner: "rev/8/9F2C", StartedAt: began.Add(2 * time.Minute), Alone: true, Delays: 2},
		{Number: 3, Token: 9, Owner: "w/9", StartedAt: storeNow().Add(-10*time.Minute - time.Second)},
	}
	source := newSource(a, analysis("new", "QUEUED"))
	s := open(t, source, console.Options{Every: quick})
	text := page(t, s, "/analysis?id=a")
	has(t, text, `data-poll="/analysis?id=a"`, `data-live="static"`, `id="fact-progress"`, "50 %", "page 7", ">1 min</span> ago")
	item, bar := regexp.MustCompile(`(?s)<li data-outcome=.*?</li>`), regexp.MustCompile(`(?s)<g data-outcome=.*?</g>`)
	for i, want := range []struct{ item, bar []string }{
		{[]string{`"running"`, "attempt 3<", "token 9", "w/9", `for <span data-since=`, ">10 min</span>"}, []string{"attempt 3: running, on w", `x="83.3%"`, `width="16.7%"`}},
		{[]string{`"no end recorded"`, "attempt 2<", "token 8", `title="rev/8/9F2C">rev/8</bdi>, <b`, "delayed 2 times: "}, []string{"attempt 2: no end recorded, on rev/8, alone<", `class="alone"`}},
		{[]string{`"retry"`, "attempt 1<", "token 7", "w/7", ">350 ms<", ">exit_1</code>", "unlocked by ana at ", "requeued by &lt;me&gt;@here at "}, []string{"attempt 1: retry, 350 ms, on w<", `x="0.0%"`, `width="0.8%"`}},
	} {
		has(t, item.FindAllString(text, -1)[i], want.item...)
		has(t, bar.FindAllString(text, -1)[i], want.bar...)
	}
	has(t, text, "<pre>not\nnow</pre>")
	if n := strings.Count(text, "alone</b>") + strings.Count(text, "delayed"); n != 2 {
		t.Errorf("%d of the attempts ran alone or were delayed, want the second only:\n%s", n, text)
	}
	has(t, page(t, s, "/analysis?id=new"), `aria-labelledby="timeline-title" hidden`)
	done := a
	done.History = []analysislock.Attempt{{Number: 1, Token: 9, Owner: "w/9", StartedAt: began, EndedAt: began.Add(time.Minute), Outcome: "failed"}}
	done.Status, done.Lock = "FAILED", lease.Lease{Token: 9, Finished: true}
	source.put(done)
	has(t, bar.FindString(page(t, s, "/analysis?id=a")), `x="0.0%"`, `width="100.0%"`)
	a.Lock.ExpiresAt = storeNow().Add(-time.Second)
	source.put(a)
	has(t, item.FindString(page(t, s, "/analysis?id=a")), `"no end recorded"`, "token 9")
	a.Malformed = errOdd
	source.put(a)
	has(t, item.FindString(page(t, s, "/analysis?id=a")), `"unknown"`, "token 9")
}
