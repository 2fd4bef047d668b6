package console_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

func TestResolve(t *testing.T) {
	const path = "/resolve?id=a&name=charge"
	t.Run("an uncertain act is shown and answered", func(t *testing.T) {
		for answer, want := range map[string]string{
			"answer=done&result=%7B%22receipt%22:7%7D": "resolve a by operator-1: charge {true {\"receipt\":7}}",
			"answer=not_done&result=%7B":               "resolve a by operator-1: charge {false }",
		} {
			s, h := writable(t, newSource(acting("a", "FAILED"), analysis("other", "FAILED")))
			one, failures := page(t, s, "/analysis?id=a"), page(t, s, "/failures")
			for _, text := range []string{one, failures} {
				has(t, text, `data-act="charge"`, orchestrator.ActKey("s", "a", "charge"),
					">2 h</span> ago</span>, token 2", `href="/resolve?id=a&amp;name=charge`)
				hasNot(t, text, "secret receipt", "name=mail")
			}
			has(t, one, `data-act="mail"`, `name=charge&amp;answer=done"`, `name=charge&amp;answer=not_done"`)
			equal(t, "order", listed(one, `id="(why|answers|facts)"`), "why answers facts")
			hasNot(t, failures, `data-act="mail"`, "id=other")
			hasNot(t, page(t, s, "/analysis?id=other"), "data-act=")

			for _, chosen := range []string{"done", "not_done"} {
				chosenPath := path + "&answer=" + chosen
				own := ask(t, s, http.MethodGet, chosenPath, "", "Sec-Fetch-Site", "same-origin").Body.String()
				equal(t, "chosen", listed(own, `value="(\w*)"[^>]* checked`), chosen)
				hasNot(t, page(t, s, chosenPath), " checked") // from a link in a mail
			}
			text := page(t, s, path)
			hasNot(t, text, " checked")
			has(t, text, "a worker will run it", "<bdi>operator-1</bdi>", `action="/resolve?id=a&amp;name=charge"`)
			send := func(rest string, want int) string {
				w := ask(t, s, http.MethodPost, path, hidden(t, text).Encode()+rest, "Sec-Fetch-Site", "same-origin")
				code(t, rest, w, want)
				return w.Header().Get("Location") + w.Body.String()
			}
			hasNot(t, send("", http.StatusBadRequest), "{cut")
			has(t, send("&answer=done&result=%7Bcut", http.StatusBadRequest), "JSON", ">{cut</textarea>")
			h.want(t)
			equal(t, "to", send("&"+answer, http.StatusSeeOther), "/analysis?id=a&did=resolve&done=booked")
			h.want(t, want)
		}
	})
	t.Run("the answer for a finished analysis is only recorded", func(t *testing.T) {
		cancelled := acting("cancelled", "FAILED")
		cancelled.Error = problem(analysislock.Cancelled, "")
		s, _ := writable(t, newSource(acting("ready", "READY"), cancelled))
		for _, id := range []string{"ready", "cancelled"} {
			text := page(t, s, "/resolve?name=charge&id="+id)
			has(t, text, "only recorded")
			hasNot(t, text, "a worker will run it", "QUEUED")
		}
	})
	// Another instance may have answered it, or a run may have begun.
	t.Run("an act with a known outcome is refused", func(t *testing.T) {
		source := newSource(acting("a", "FAILED"))
		s, h := writable(t, source)
		for _, name := range []string{"mail", "none", ""} {
			code(t, name, get(t, s, "/resolve?id=a&name="+name), http.StatusConflict)
		}
		form := hidden(t, page(t, s, path))
		form.Set("answer", "not_done")
		again := acting("a", "PROCESSING")
		again.Lock = heldBy("a", "w/2", 4, time.Hour).Lock
		for _, now := range []analysislock.Analysis{analysis("a", "FAILED"), acting("a", "QUEUED"), again} {
			source.put(now)
			code(t, now.Status, post(t, s, path, form), http.StatusConflict)
		}
		h.want(t)
		text := page(t, s, "/analysis?id=a")
		has(t, text, "under way", `aria-label="Side effects that may have happened" hidden>`)
		hasNot(t, text, "/resolve?", "</svg>may have happened")
		hasNot(t, page(t, readOnly(t, acting("a", "FAILED")), "/analysis?id=a"), "/resolve?")
	})
	// The source finds the last updated first.
	t.Run("those that have waited longest are listed", func(t *testing.T) {
		source := newSource()
		for i := range 60 {
			a := at(acting(fmt.Sprintf("a%02d", i), "FAILED"), time.Duration(60-i)*time.Minute)
			began := storeNow().Add(time.Duration(-i) * time.Hour)
			a.Acts["charge"] = analysislock.Act{State: analysislock.ActStarted, At: began}
			source.put(a)
		}
		text := page(t, open(t, source, console.Options{}), "/failures")
		got := found(text, `data-id="(a\d\d)"`)
		equal(t, "first", got[0], "a59")
		equal(t, "last", got[len(got)-1], "a10")
		has(t, text, "10 more are left out")
	})
}
