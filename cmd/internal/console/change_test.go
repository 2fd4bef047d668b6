package console_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

func TestChange(t *testing.T) {
	t.Run("is confirmed, and made in the name of the operator", func(t *testing.T) {
		for _, verb := range []string{"unlock", "requeue", "cancel"} {
			s, h := writable(t, newSource(heldBy("a b", "w/1", 3, -time.Minute)))
			has(t, page(t, s, "/analysis?id=a+b"), `href="/`+verb+`?id=a%20b"`)
			text := page(t, s, "/"+verb+"?id=a+b")
			contains(t, text, verb != "cancel", "a worker will run it")
			contains(t, text, verb == "cancel", "error's message")
			has(t, text, "a b", "PROCESSING", "w/1", "<bdi>operator-1</bdi>",
				`method="post" action="/`+verb+`?id=a&#43;b"`)
			w := confirmed(t, s, verb, "a b")
			code(t, verb, w, http.StatusSeeOther)
			location := w.Header().Get("Location")
			equal(t, "to", location, "/analysis?id=a+b&did="+verb+"&done=booked")
			h.want(t, verb+" a b by operator-1")
			has(t, page(t, s, location), `id="notice"`)
		}
	})
	t.Run("can be repeated if it could not be booked", func(t *testing.T) {
		for _, verb := range []string{"unlock", "requeue"} {
			s, h := writable(t, newSource(analysis("a", "QUEUED")))
			h.fail = console.ErrNotBooked
			w := confirmed(t, s, verb, "a")
			code(t, verb, w, http.StatusBadGateway)
			has(t, w.Body.String(), "could not be enqueued", `href="/unlock?id=a"`)
			h.fail = nil
			code(t, "repeated", confirmed(t, s, "unlock", "a"), http.StatusSeeOther)
		}
	})
	for _, tc := range []struct {
		path  string
		stops bool
		took  time.Duration
	}{
		{"/unlock?id=a", false, 7 * time.Second},
		{"/unlock?id=a", true, 7 * time.Second}, // a stop has no more time for it
		{"/all/requeue?state=PROCESSING", false, 20 * time.Second},
		{"/all/requeue?state=PROCESSING", true, 3 * time.Second},
	} {
		virtual(t, fmt.Sprint("outlives its page, and a stop waits for it: ", tc), func(t *testing.T) {
			source, h := newSource(heldBy("a", "w/1", 3, time.Hour)), &recorder{}
			work, stop := context.WithCancel(t.Context())
			defer stop()
			s := console.NewServer(work, source, console.Options{Operator: h})
			h.bulk = console.Bulk{Before: storeNow(), Matched: 1, Changed: 1}
			form := hidden(t, page(t, s, tc.path))
			source.delay = time.Second
			h.during = func(ctx context.Context) {
				equal(t, "ended with its page", ctx.Err(), nil)
				<-ctx.Done()
				equal(t, "what a stop waits for", s.Drain(ctx), 1)
			}

			request, leave := context.WithCancel(t.Context())
			leave()
			began := time.Now()
			if tc.stops {
				time.AfterFunc(3*time.Second, stop)
			}
			postIn(request, s, tc.path, form)
			equal(t, "took", time.Since(began), tc.took)
			equal(t, "changes", len(h.did), 1)
		})
	}
	t.Run("is made only in the state that was shown, and else confirmed again", func(t *testing.T) {
		held, stale := heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/1", 3, -time.Minute)
		for name, tc := range map[string]struct{ was, is analysislock.Analysis }{
			"another token":                {held, heldBy("a", "w/1", 4, time.Hour)},
			"another owner":                {held, heldBy("a", "w/2", 3, time.Hour)},
			"a stale one that was renewed": {stale, held},
			"one that has expired":         {held, stale},
			"another state":                {analysis("a", "FAILED"), analysis("a", "READY")}, // by another program
			"a lock that was deleted":      {held, analysis("a", "PROCESSING")},
		} {
			for _, verb := range []string{"unlock", "requeue", "cancel"} {
				source := newSource(tc.was)
				s, h := writable(t, source)
				path := "/" + verb + "?id=a"
				form := hidden(t, page(t, s, path))
				source.put(tc.is)
				w := post(t, s, path, form)
				code(t, name, w, http.StatusConflict)
				has(t, w.Body.String(), `id="changed"`, tc.is.Status, tc.is.Lock.Owner)
				h.want(t)
				code(t, name+", confirmed again", post(t, s, path, hidden(t, w.Body.String())), http.StatusSeeOther)
				want := analysislock.Seen{Status: tc.is.Status, Grant: tc.is.Lock.Grant()}
				equal(t, name+": changed in", h.seen, want)
			}
		}
	})
}

func TestConfirmation(t *testing.T) {
	s, _ := writable(t, newSource(heldBy("held", "w/1", 3, time.Hour), analysis("free", "QUEUED"),
		analysis("left", "PROCESSING"), ended("done", "READY"), malformed("corrupted", "PROCESSING")))
	t.Run("describes the consequences", func(t *testing.T) {
		for target, want := range map[string]string{
			"/unlock?id=held": "taken from", "/requeue?id=held": "refused", "/unlock?id=free": "stays as it is",
			"/unlock?id=left": "back to QUEUED", "/unlock?id=done": "nothing is enqueued",
			"/requeue?id=done": "result stays", "/cancel?id=held": "taken from", "/cancel?id=free": "FAILED",
			"/cancel?id=done": "Nothing will be changed",
		} {
			has(t, page(t, s, target), want)
		}
		queueless := open(t, newSource(analysis("a", "QUEUED")), console.Options{Operator: &recorder{}, Every: quick})
		has(t, page(t, queueless, "/requeue?id=a"), "TASK_QUEUE")
	})
	t.Run("is offered for what may be done", func(t *testing.T) {
		list := page(t, s, "/")
		for id, want := range map[string]string{
			"held": "cancel", "free": "requeue cancel", "left": "requeue cancel", "done": "", "corrupted": "",
		} {
			equal(t, "in the row of "+id, listed(rowOf(t, list, id), `data-action="(\w+)"`), want)
			contains(t, rowOf(t, list, id), want != "", "checkbox")
		}
		for id, want := range map[string]string{
			"held": "cancel", "free": "requeue cancel", "done": "requeue", "corrupted": "",
		} {
			equal(t, "on the page of "+id, listed(page(t, s, "/analysis?id="+id), `data-action="(\w+)"`), want)
		}
		has(t, page(t, s, "/analysis?id=held"), "silent for 2 min 10 s") // then it may be unlocked
		for _, verb := range []string{"unlock", "requeue", "cancel"} {
			code(t, verb, get(t, s, "/"+verb+"?id=corrupted"), http.StatusUnprocessableEntity)
		}
	})
	t.Run("has addresses below the root of its kind, as all pages", func(t *testing.T) {
		below := open(t, newSource(heldBy("a", "w", 1, time.Hour), at(analysis("b", "QUEUED"), time.Hour)),
			console.Options{Operator: &recorder{}, Root: "/kind/x", Limit: 1})
		for _, target := range []string{
			"/", "/?state=QUEUED", "/?after=1", "/analysis?id=a&show=all", "/failures", "/cancel?id=a", "/requeue?id=b",
			"/all/cancel?state=QUEUED", "/failures/requeue?code=c",
		} {
			for _, link := range found(page(t, below, target), `(?:href|src|action|data-poll)="(/[^"]*)`) {
				equal(t, target+": "+link, strings.HasPrefix(link, "/kind/x/"), true)
			}
		}
	})
}

// The workers renew each 10 s, and have a margin of 3 s.
func TestUnlock_Silence(t *testing.T) {
	policy := lease.Policy{TTL: 30 * time.Second, Heartbeat: 10 * time.Second}
	for name, tc := range map[string]struct {
		silent, left time.Duration
		offered      bool
	}{
		"late":       {12 * time.Second, time.Hour, false},
		"silent":     {14 * time.Second, time.Hour, true},
		"expired":    {12 * time.Second, -time.Second, true},
		"no time":    {0, time.Hour, false},
		"from ahead": {-time.Hour, time.Hour, false},
	} {
		a := heldBy("a", "w/1", 3, tc.left)
		if a.Lock.HeartbeatAt = storeNow().Add(-tc.silent); tc.silent == 0 {
			a.Lock.HeartbeatAt = time.Time{}
		}
		s := open(t, newSource(a), console.Options{Operator: &recorder{}, Lock: policy, Every: quick})
		for _, text := range []string{rowOf(t, page(t, s, "/"), "a"), page(t, s, "/analysis?id=a")} {
			equal(t, name+": offered", strings.Contains(text, `href="/unlock?id=a"`), tc.offered)
		}
		contains(t, page(t, s, "/unlock?id=a"), tc.left > 0, `id="overlap"`, "for up to 13 s")
		hasNot(t, page(t, s, "/cancel?id=a"), `id="overlap"`) // no other run begins
	}
}

func TestRequeue_Checkpoint(t *testing.T) {
	resumable, locked := ended("a", "FAILED"), heldBy("held", "w/1", 3, time.Hour)
	resumable.Checkpoint = &analysislock.Checkpoint{Value: "secret position"}
	locked.Checkpoint = resumable.Checkpoint
	s, h := writable(t, newSource(resumable, locked, analysis("without", "FAILED")))
	text := page(t, s, "/requeue?id=a")
	has(t, text, `id="fresh"`, "continues from its checkpoint")
	for _, other := range []string{"/requeue?id=without", "/requeue?id=held", "/unlock?id=a", "/cancel?id=a"} {
		hasNot(t, page(t, s, other), `id="fresh"`, "continues from its checkpoint")
	}
	form := hidden(t, text)
	post(t, s, "/requeue?id=a", form)
	form.Set("fresh", "yes")
	w := post(t, s, "/requeue?id=a", form)
	equal(t, "to", w.Header().Get("Location"), "/analysis?id=a&did=requeue&done=booked")
	post(t, s, "/unlock?id=a", form) // only a requeue has the choice
	h.want(t, "requeue a by operator-1", "requeue-fresh a by operator-1", "unlock a by operator-1")

	one := page(t, s, "/analysis?id=a&show=all")
	has(t, one, `id="fact-checkpoint">yes; a requeue`)
	hasNot(t, one, "secret position")
	has(t, page(t, s, "/analysis?id=held"), `id="fact-checkpoint">yes; the next attempt`)
	has(t, page(t, s, "/analysis?id=without"), `id="fact-checkpoint"><span class="hint">none`)
}

// headers returns the names and values of a text like "Host: a, Origin: b".
func headers(text string) []string { return regexp.MustCompile(`: |, `).Split(text, -1) }

// Only a form of this console changes something.
func TestForms(t *testing.T) {
	same := headers("Sec-Fetch-Site: same-origin")
	source := newSource(heldBy("a", "w/1", 3, time.Hour), analysis("b", "FAILED"))
	s, h := writable(t, source)
	seen := hidden(t, page(t, s, "/unlock?id=a")).Encode()
	good := map[string]string{
		"/unlock?id=a":             seen,
		"/selected/requeue":        hidden(t, post(t, s, "/selected/requeue", chosen("b")).Body.String()).Encode(),
		"/failures/requeue?code=c": fmt.Sprint("seen=", time.Now().UnixMilli(), "-5"),
	}
	t.Run("another site cannot send one", func(t *testing.T) {
		for from, want := range map[string]int{
			"Sec-Fetch-Site: cross-site": 403, "Sec-Fetch-Site: same-site": 403, "Accept: text/html": 403,
			"Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: document": 403,
			"Origin: https://evil.example": 403, "Origin: http://localhost:1": 403, "Origin: null": 403,
			"Sec-Fetch-Site: same-origin, Host: evil.example": 421,
		} {
			for path, body := range good {
				code(t, path+" "+from, ask(t, s, http.MethodPost, path, body, headers(from)...), want)
			}
		}
		h.want(t)
	})
	t.Run("it has what was seen, and an end", func(t *testing.T) {
		for name, tc := range map[string]struct {
			path, body string
			want       int
		}{
			"the lock not seen":     {"/unlock?id=a", "", 409},
			"a form in the address": {"/unlock?id=a&" + seen, "", 409},
			"no id":                 {"/unlock", seen, 400},
			"without an end":        {"/unlock?id=a", seen + "&x=" + strings.Repeat("x", 300<<10), 409},
		} {
			code(t, name, ask(t, s, http.MethodPost, tc.path, tc.body, same...), tc.want)
		}
		page(t, s, "/unlock?id=a&"+seen)
		h.want(t)
	})
	t.Run("without an operator none is accepted", func(t *testing.T) {
		reader := open(t, source, console.Options{Every: quick})
		shown := page(t, reader, "/?state=QUEUED") + page(t, reader, "/analysis?id=a") + page(t, reader, "/failures")
		hasNot(t, shown, "data-action", "checkbox", `id="selection"`)
		for _, path := range []string{
			"/unlock?id=a", "/requeue?id=a", "/cancel?id=a", "/resolve?id=a", "/all/cancel?state=QUEUED",
			"/failures/requeue?code=c", "/selected/requeue",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				w := ask(t, reader, method, path, good[path], same...)
				code(t, method+" "+path, w, http.StatusForbidden)
				has(t, w.Body.String(), "--write")
			}
		}
	})
	t.Run("a page may come from another instance, and a browser may send only the origin", func(t *testing.T) {
		other, h := writable(t, newSource(heldBy("a", "w/1", 3, time.Hour)))
		w := ask(t, other, http.MethodPost, "/unlock?id=a", seen, headers("Origin: http://localhost:8590")...)
		code(t, "to another instance", w, http.StatusSeeOther)
		h.want(t, "unlock a by operator-1")
	})
}

// Anybody can make the address.
func TestNotice(t *testing.T) {
	s, _ := writable(t, newSource(analysis("a", "QUEUED")))
	for query, want := range map[string]string{
		"did=unlock&done=booked": "Unlocked. ", "did=requeue&done=none": "TASK_QUEUE",
		"did=cancel&done=not_needed": "finished",
	} {
		has(t, page(t, s, "/analysis?id=a&"+query), `id="notice"`, want)
	}
	for _, query := range []string{
		"", "did=unlock", "done=booked", "did=x&done=booked", "did=unlock&done=x", "did=unlock&done=failed",
	} {
		hasNot(t, page(t, s, "/analysis?id=a&"+query), `id="notice"`)
	}
}

func TestChange_Refusals(t *testing.T) {
	for _, tc := range []struct {
		fail error
		code int
		word string
	}{
		{&lease.HeldError{Owner: "w/<9>", Remaining: 90 * time.Second}, 409, "w/&lt;9&gt; for 1 min 30 s"},
		{lease.ErrNotFound, 404, "no analysis"},
		{fmt.Errorf("x: %w", lease.ErrFinished), 409, "finished"},
		{fmt.Errorf("x: %w", lease.ErrUnavailable), 503, "does not answer"},
		{lease.ErrMalformed, 422, "cannot be read"},
		{status.Error(codes.Unauthenticated, "x"), 502, "UNAUTHENTICATED"},
		{analysislock.ErrUncertain, 409, "Resolve"},
		{analysislock.ErrAllActs, 409, "* stands for all acts"},
		{errOdd, 502, "odd"},
	} {
		s, h := writable(t, newSource(analysis("a", "QUEUED")))
		h.fail = tc.fail
		one, all := confirmed(t, s, "requeue", "a"), get(t, s, "/all/cancel?state=QUEUED")
		code(t, tc.fail.Error(), one, tc.code)
		code(t, "of all: "+tc.fail.Error(), all, tc.code)
		has(t, one.Body.String(), `role="alert"`, tc.word, `href="/analysis?id=a"`)
		has(t, all.Body.String(), `href="/?state=QUEUED"`)
	}
	s, h := writable(t, newSource(analysis("a", "QUEUED")))
	h.fail = lease.ErrConflict // it has changed since it was read
	w := confirmed(t, s, "requeue", "a")
	code(t, "changed", w, http.StatusConflict)
	hidden(t, w.Body.String())
}

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
	t.Run("the answer for one that is finished is only recorded", func(t *testing.T) {
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
	t.Run("one that is not uncertain any more is refused", func(t *testing.T) {
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
