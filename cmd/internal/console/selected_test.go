package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// chosen is the form of a list in which these ids are selected.
func chosen(ids ...string) url.Values {
	form := url.Values{}
	for _, id := range ids {
		form.Add("id", url.QueryEscape(id))
	}
	return form
}

// hundred returns a source with a hundred failed analyses, and the form that selects them.
func hundred() (*memorySource, url.Values) {
	source, form := newSource(), url.Values{}
	for i := range 100 {
		id := fmt.Sprint("x", i)
		source.put(analysis(id, "FAILED"))
		form.Add("id", id)
	}
	return source, form
}

// several returns one analysis in each state that decides about a change.
func several() *memorySource {
	cancelled := ended("cancelled", "FAILED")
	cancelled.Error = problem(analysislock.Cancelled, "")
	return newSource(analysis("queued", "QUEUED"), analysis("a b&c", "QUEUED"), heldBy("held", "w/1", 3, time.Hour),
		ended("done", "READY"), cancelled, malformed("malformed", "QUEUED"), acting("uncertain", "FAILED"))
}

func TestSelected(t *testing.T) {
	t.Run("those that may be are changed, once they are confirmed", func(t *testing.T) {
		all := chosen("queued", "a b&c", "held", "done", "cancelled", "malformed", "uncertain", "missing", "a/b",
			"queued")
		for verb, tc := range map[string]struct{ change, past, button, left string }{
			"requeue": {
				change: "a b&c, cancelled, queued", past: "requeued", button: "Requeue 3", left: "held done uncertain",
			},
			"cancel": {
				change: "a b&c, held, queued", past: "cancelled", button: "Cancel 3", left: "done cancelled uncertain",
			},
		} {
			s, h := writable(t, several())
			path := "/selected/" + verb + "?state=QUEUED"
			text := post(t, s, path, all).Body.String()
			h.want(t) // nothing yet
			for _, id := range append(strings.Fields(tc.left), "malformed", "missing", "a/b") {
				item := listed(text, `<li data-id="`+id+`">.*</li>`)
				has(t, item, "left alone: ")
				hasNot(t, item, `name="id"`)
			}
			has(t, text, "selected twice", tc.button, "<bdi>operator-1</bdi>", `action="`+path+`"`,
				`href="/?state=QUEUED"`)
			contains(t, text, verb == "cancel", "<strong>1 runs now.</strong>", `class="main danger"`)
			contains(t, text, verb == "requeue", "Each is enqueued", "It runs.", "It has finished.", "Resolve that")

			text = post(t, s, path, hidden(t, text)).Body.String()
			has(t, text, `role="status">3 `+tc.past+".", `href="/?state=QUEUED"`)
			slices.Sort(h.did)
			var want []string
			for id := range strings.SplitSeq(tc.change, ", ") {
				want = append(want, verb+" "+id+" by operator-1")
			}
			h.want(t, want...)
		}
	})
	t.Run("one that has changed is left alone", func(t *testing.T) {
		source := newSource(analysis("a", "FAILED"), heldBy("b", "w/1", 3, time.Hour), analysis("c", "FAILED"))
		s, h := writable(t, source)
		form := hidden(t, post(t, s, "/selected/cancel", chosen("b")).Body.String())
		source.put(heldBy("b", "w/2", 4, time.Hour)) // another run
		has(t, post(t, s, "/selected/cancel", form).Body.String(), "0 cancelled, 1 to look at", "It has changed")

		form = hidden(t, post(t, s, "/selected/requeue", chosen("a", "c")).Body.String())
		source.put(analysis("a", "READY"))
		h.fail = lease.ErrConflict // of c: between the reading and the change
		text := post(t, s, "/selected/requeue", form).Body.String()
		equal(t, "changed since", strings.Count(text, "It has changed"), 2)
		h.want(t, "requeue c by operator-1")
		equal(t, "the change is made in", h.seen, analysislock.Seen{Status: "FAILED"})
	})
	t.Run("a change ends where the queue refuses, as it would refuse all", func(t *testing.T) {
		source, all := hundred()
		s, h := writable(t, source)
		form := hidden(t, post(t, s, "/selected/requeue", all).Body.String())
		h.fail = console.ErrNotBooked
		text := post(t, s, "/selected/requeue", form).Body.String()
		has(t, text, "could not be enqueued", "Not tried: ")
		wantFew(t, h, 20)
	})
	t.Run("a form has some ids, at most 200, and what was seen of each", func(t *testing.T) {
		s, h := writable(t, several())
		has(t, get(t, s, "/").Body.String(), `data-most="200"`) // the script says it before
		good := hidden(t, post(t, s, "/selected/requeue", chosen("queued")).Body.String()).Encode()
		large, longest := chosen(), chosen()
		for i := range 201 {
			large.Add("id", fmt.Sprint(i))
		}
		for i := range 200 {
			longest.Add("id", url.QueryEscape(fmt.Sprint(1000+i)+strings.Repeat("é", 748)))
			longest.Add("seen", "9223372036854775807-0123456789abcdef-stale-0123456789abcdef")
		}
		for name, tc := range map[string]struct {
			query, body string
			want        int
		}{
			"none":            {"", "", http.StatusBadRequest},
			"in the address":  {"?" + good, "", http.StatusBadRequest},
			"too many":        {"", large.Encode(), http.StatusBadRequest},
			"the longest ids": {"", longest.Encode(), http.StatusOK},
			"without an end":  {"", good + "&x=" + strings.Repeat("x", 2<<20), http.StatusBadRequest},
			"two for one":     {"", good + "&seen=x", http.StatusConflict},
			"a wrong filter":  {"?state=FAILD", good, http.StatusBadRequest},
			"not what's seen": {"", chosen("queued").Encode() + "&seen=x", http.StatusOK},
		} {
			w := ask(t, s, http.MethodPost, "/selected/requeue"+tc.query, tc.body, "Sec-Fetch-Site", "same-origin")
			code(t, name, w, tc.want)
		}
		code(t, "GET", get(t, s, "/selected/requeue?"+good), http.StatusBadRequest)
		h.want(t)
	})
	virtual(t, "changes outlive the page, a stop waits for those under way, and begins no other", func(t *testing.T) {
		source, all := hundred()
		h := &recorder{}
		work, stop := context.WithCancel(t.Context())
		defer stop()
		s := console.NewServer(work, source, console.Options{Operator: h, User: "operator-1"})
		form := hidden(t, post(t, s, "/selected/requeue", all).Body.String())
		h.during = func(ctx context.Context) {
			stop()
			time.Sleep(time.Second)
			ended, end := context.WithCancel(ctx)
			end()
			equal(t, "forms that a stop waits for", s.Drain(ended), 1)
			equal(t, "the change", ctx.Err(), nil)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		has(t, postIn(gone, s, "/selected/requeue", form).Body.String(), "Not tried: ")
		wantFew(t, h, 16)
	})
}

// wantFew checks that some changes were made: those that had begun.
func wantFew(t *testing.T, h *recorder, most int) {
	t.Helper()
	if n := len(h.did); n < 1 || n > most {
		t.Errorf("%d are changed, want 1 to %d", n, most)
	}
}
