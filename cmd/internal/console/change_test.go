package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
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
			"another token":           {held, heldBy("a", "w/1", 4, time.Hour)},
			"another owner":           {held, heldBy("a", "w/2", 3, time.Hour)},
			"stale, then renewed":     {stale, held},
			"held, then expired":      {held, stale},
			"another state":           {analysis("a", "FAILED"), analysis("a", "READY")}, // by another program
			"a lock that was deleted": {held, analysis("a", "PROCESSING")},
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
		{ // no index is missing
			errors.Join(console.ErrUnconfirmed, lease.ErrUnavailable, lease.ErrConflict,
				status.Error(codes.FailedPrecondition, "it has changed")),
			503, "Firestore does not answer. Your change is not confirmed",
		},
		{lease.ErrMalformed, 422, "cannot be read"},
		{status.Error(codes.Unauthenticated, "x"), 502, "UNAUTHENTICATED"},
		{status.Error(codes.NotFound, "x"), 502, "NOT_FOUND"},
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
		if errors.Is(tc.fail, lease.ErrUnavailable) { // it may have been made
			hasNot(t, one.Body.String(), "changed")
		}
		has(t, all.Body.String(), `href="/?state=QUEUED"`)
	}
	s, h := writable(t, newSource(analysis("a", "QUEUED")))
	h.fail = lease.ErrConflict // it has changed since it was read
	w := confirmed(t, s, "requeue", "a")
	code(t, "changed", w, http.StatusConflict)
	hidden(t, w.Body.String())
}
