package console_test

import (
	"context"
	"fmt"
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

// failing returns a source with 1,234 failures with the code a&b, 4 with another, 50 that are
// cancelled, and 3 with none of these codes.
func failing() *memorySource {
	const crash = "Traceback (most recent call last):\r\n  File \"x.py\"\n\traise E\nValueError: <b>the cause</b>\n"
	source := newSource()
	source.failed, source.left = 1291, 7
	older := failed("older", "attempts_exhausted", "gave up after 3 attempts", 3*time.Minute)
	older.LastError = problem("a&b", crash)
	cancelled := failed("c", "cancelled", "cancelled by me", time.Hour)
	cancelled.Lock.FinishedBy = "operator"
	plain := failed("plain", "a", "panic: x\n\nthe end\n", time.Hour)
	source.failures = []repo.Failure{
		{Code: "a", N: 4, Newest: []analysislock.Analysis{plain}},
		{Code: "cancelled", N: 50, Newest: []analysislock.Analysis{cancelled}},
		{Code: "a&b", N: 1234, Newest: []analysislock.Analysis{
			failed("newest", "a&b", crash, 2*time.Minute), failed("other", "a&b", "\n another", 3*time.Minute), older,
			failed("mute", "a&b", "", time.Hour),
		}},
	}
	return source
}

func TestFailures(t *testing.T) {
	virtual(t, "are grouped by code and line", func(t *testing.T) {
		source := failing()
		server, _ := writable(t, source)
		text := page(t, server, "/failures")
		var groups []string
		for _, heading := range found(text, `<h[34].*</h[34]>`) {
			groups = append(groups, words(heading))
		}
		equal(t, "groups", strings.Join(groups, "; "),
			"a&b 1,234; ValueError: <b>the cause</b> 2; another 1; no message 1; "+
				"a 4; panic: x 1; Cancelled by operators 50; cancelled by me 1")
		has(t, text, `href="/analysis?id=newest"`, ">2 min ago</time>", "the last 4.", "Requeue all 1,234…",
			`href="/?state=FAILED&amp;code=a%26b"`, `href="/failures/requeue?code=a%26b"`,
			"<pre>panic: x\n\nthe end</pre>", `id="rest">3 more`, "7 more codes")
		hasNot(t, text, `\n`, `\r`, `\t`, "id=older", "data-poll") // nothing is read until the operator asks
		has(t, page(t, open(t, newSource(), console.Options{}), "/failures"), `id="empty"`)

		shared := open(t, source, console.Options{})
		for range 20 {
			hasNot(t, page(t, shared, "/failures"), "/failures/requeue")
			time.Sleep(time.Second)
		}
		equal(t, "reads in 20 s", source.calls("Failures"), 1+2)
		byCustomer := failed("own", "cancelled", "by the customer", time.Hour)
		byCustomer.Lock.FinishedBy = "w/1"
		own := &source.failures[1]
		own.Newest = append(own.Newest, byCustomer)
		time.Sleep(time.Minute)
		has(t, page(t, shared, "/failures"), "<code>cancelled</code>")
		source.breaks(true)
		has(t, page(t, open(t, source, console.Options{}), "/failures"),
			"Firestore does not answer. Nothing is known yet.")
	})
	// The input killer took its neighbour with it twice, and then died alone twice.
	t.Run("show what crashed where, and whether it ran alone", func(t *testing.T) {
		neighbour := crashed("neighbour", "QUEUED", "", "rev/0", "rev/1", "rev/2")
		neighbour.UpdatedAt, neighbour.NextAttemptAt = storeNow(), storeNow().Add(30*time.Second+900*time.Millisecond)
		neighbour.History[0].Outcome = "retry"
		others := []analysislock.Analysis{
			analysis("new", "QUEUED"), crashed("ready", "READY", "", "rev/1"),
			crashed("refused", "FAILED", "too_large", "rev/1"), crashed("named", "QUEUED", ""), // as its analyzer says
		}
		source := newSource(append(others, neighbour,
			crashed("killer", "FAILED", "crashed", "rev/1", "rev/2", "rev/3 alone", "rev/4 alone"),
			crashed("exhausted", "FAILED", "attempts_exhausted", "rev/1"))...)

		text := page(t, open(t, source, console.Options{}), "/failures")
		section := found(text, `(?s)<section id="crashed".*</section>`)[0]
		var shown []string
		for _, item := range found(section, `(?s)<li class="failure".*?</ul>`) {
			shown = append(shown, words(item))
		}
		equal(t, "shown", strings.Join(shown, "\n"), "exhausted FAILED attempt 1 crashed on rev/1\n"+
			"killer FAILED attempt 4 crashed on rev/4 , alone attempt 3 crashed on rev/3 , alone "+
			"attempt 2 crashed on rev/2 attempt 1 crashed on rev/1\n"+
			"neighbour QUEUED next attempt in 30 s attempt 3 crashed on rev/2 attempt 2 crashed on rev/1")
		equal(t, "read", fmt.Sprint(source.pages), fmt.Sprint([]repo.Filter{{Code: "crashed"}}))
		has(t, text, `href="/analysis?id=killer"`, `href="/?code=crashed"`, `id="to-crashed" href="#crashed"`)
		hasNot(t, page(t, readOnly(t, others...), "/failures"), `id="crashed"`, `id="others"`)
	})
}

// crashed returns an analysis with an attempt that crashed on each of instances, such as "rev/1 alone".
func crashed(id, status, code string, instances ...string) analysislock.Analysis {
	a := analysis(id, status)
	a.LastError = problem("crashed", "its worker died")
	if code != "" {
		a.Error = problem(code, "")
	}
	for i, instance := range instances {
		owner, alone := strings.CutSuffix(instance, " alone")
		a.History = append(a.History, analysislock.Attempt{
			Number: i + 1, Owner: owner + "/9F2C", Outcome: "crashed", Alone: alone,
		})
	}
	return a
}

func TestTopic(t *testing.T) {
	const reason = "KeyError: boom"
	for message, want := range map[string]string{
		"ended: loading\nTraceback (most recent call last):\n  File \"x.py\"\n" + reason + "\n\n": reason,
		// Its head is cut, and then it is cut in a line.
		"  File \"x.py\", line 1\n    f()\nNo colon: KeyError: x\n" + reason: reason,
		"e 3, in f\n  File \"x.py\", line 1\n" + reason:                      reason,

		"Error: try again\n/app/x.js:3\n  ^\n\n" + reason + "\n    at f (/app/x.js:3)\n\nNode.js v22": reason,

		"node ended: node:fs:3\n\nError [ERR_X]: boom\n    at Error: f": "Error [ERR_X]: boom",

		"loading\na.b.KeyException: boom\n\tat a.b":       "a.b.KeyException: boom",
		"panic: boom\nan Error: x\nError without a colon": "panic: boom",

		"the worker rev/1 ended during attempt 2 and recorded no outcome": "the worker ended during the run " +
			"and recorded no outcome",
	} {
		equal(t, message, console.Topic(message), want)
	}
}

// Another page reads during each change, and its reading has the state from before.
func TestChange_Read(t *testing.T) {
	virtual(t, "a change is followed by a new reading", func(t *testing.T) {
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
		source.takes(4 * time.Second)
		time.Sleep(time.Minute)
		go ask(t, server, http.MethodGet, "/", "")
		synctest.Wait()
		source.takes(0)
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
