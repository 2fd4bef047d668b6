package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/worker/console"
)

// confirmed sends the form of the confirmation page of a change.
func confirmed(t testing.TB, s *console.Server, verb, id string) (code int, text, location string) {
	t.Helper()
	form := hidden(t, page(t, s, "/"+verb+"?id="+url.QueryEscape(id)))
	w := ask(t, s, http.MethodPost, "/"+verb+"?id="+url.QueryEscape(id), form.Encode(), "Sec-Fetch-Site", "same-origin")
	return w.Code, w.Body.String(), w.Header().Get("Location")
}

func TestAChangeIsConfirmedAndMadeByWhoAsks(t *testing.T) {
	for _, verb := range []string{"unlock", "requeue"} {
		s, h := writable(t, newShelf(heldBy("a b", "w/1", 3, -time.Minute)))
		has(t, page(t, s, "/analysis?id=a+b"), `href="/`+verb+`?id=a%20b"`)
		has(t, page(t, s, "/"+verb+"?id=a+b"), "a b", "PROCESSING", "w/1", "What will happen", "A delivery is booked", "as done by <bdi>operator-1</bdi>", `method="post" action="/`+verb+`?id=a%20b"`)
		code, _, location := confirmed(t, s, verb, "a b")
		if code != http.StatusSeeOther || !strings.HasPrefix(location, "/analysis?did="+verb+"&done=booked&id=a+b") {
			t.Fatalf("%s: %d, to %s", verb, code, location)
		}
		h.want(t, verb+" a b by operator-1")
		has(t, page(t, s, location), `id="notice"`, "ed. A delivery is booked.")
	}
}

func TestAChangeSaysWhatWillHappen(t *testing.T) {
	done := of("done", "READY")
	done.Lock.Finished = true
	s, _ := writable(t, newShelf(heldBy("held", "w/1", 3, time.Hour), of("free", "QUEUED"), done))
	for target, want := range map[string]string{
		"/unlock?id=held": "The lock is taken from", "/requeue?id=held": "It will be refused", "/unlock?id=free": "the document stays as it is",
		"/unlock?id=done": "no delivery is booked", "/requeue?id=done": "Its result stays until there is another",
	} {
		has(t, page(t, s, target), want)
	}
	queueless := open(t, newShelf(of("a", "QUEUED")), console.Options{Operator: &hand{}, Pace: quick})
	has(t, page(t, queueless, "/requeue?id=a"), "TASK_QUEUE is not set")
	text := page(t, s, "/analysis?id=held")
	has(t, text, "/unlock?id=held", "Requeue is refused while it is locked")
	hasNot(t, text, "/requeue?id=held")
}

func TestNothingIsChangedUnlessTheFormIsOurs(t *testing.T) {
	s, h := writable(t, newShelf(heldBy("a", "w/1", 3, time.Hour)))
	good := hidden(t, page(t, s, "/unlock?id=a"))
	for name, tc := range map[string]struct {
		query  string
		body   string
		header []string
		want   int
	}{
		"no proof of the site":   {"id=a", good.Encode(), nil, http.StatusForbidden},
		"cross-site":             {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"same-site":              {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		"typed":                  {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "none"}, http.StatusForbidden},
		"cross-site, navigating": {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, http.StatusForbidden},
		"another origin":         {"id=a", good.Encode(), []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		"another port":           {"id=a", good.Encode(), []string{"Origin", "http://localhost:1"}, http.StatusForbidden},
		"no origin":              {"id=a", good.Encode(), []string{"Origin", "null"}, http.StatusForbidden},
		"the lock not seen":      {"id=a", "", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
		"no id":                  {"", good.Encode(), []string{"Sec-Fetch-Site", "same-origin"}, http.StatusBadRequest},
		"a rebound name":         {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "same-origin", "Host", "evil.example"}, http.StatusMisdirectedRequest},
		"a body without end":     {"id=a", good.Encode() + "&x=" + strings.Repeat("x", 20<<10), []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			if w := ask(t, s, http.MethodPost, "/unlock?"+tc.query, tc.body, tc.header...); w.Code != tc.want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tc.want)
			}
		})
	}
	if w := ask(t, s, http.MethodPost, "/unlock?id=a&"+good.Encode(), "", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusConflict {
		t.Errorf("a form in the address: %d", w.Code)
	}
	if w := ask(t, s, http.MethodGet, "/unlock?id=a&"+good.Encode(), ""); w.Code != http.StatusOK {
		t.Errorf("GET: %d", w.Code)
	}
	h.want(t)
	if w := ask(t, s, http.MethodPost, "/unlock?id=a", good.Encode(), "Origin", "http://localhost:8590"); w.Code != http.StatusSeeOther {
		t.Errorf("a browser that sends the origin alone: %d", w.Code)
	}
	h.want(t, "unlock a by operator-1")
}

func TestNothingIsChangedWithoutAnOperator(t *testing.T) {
	s := open(t, newShelf(heldBy("a", "w/1", 3, -1)), console.Options{Pace: quick})
	hasNot(t, page(t, s, "/")+page(t, s, "/analysis?id=a"), "/unlock", "/requeue", "<button id=\"confirm")
	for _, verb := range []string{"unlock", "requeue"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			w := ask(t, s, method, "/"+verb+"?id=a", "", "Sec-Fetch-Site", "same-origin")
			if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "--write") {
				t.Errorf("%s /%s: %d %s", method, verb, w.Code, w.Body)
			}
		}
	}
}

// A page may be another process's than the one that takes its form.
func TestAChangeMayBeConfirmedToAnotherInstance(t *testing.T) {
	source := newShelf(heldBy("a", "w/1", 3, time.Hour))
	one, _ := writable(t, source)
	two, h := writable(t, source)
	w := ask(t, two, http.MethodPost, "/unlock?id=a", hidden(t, page(t, one, "/unlock?id=a")).Encode(), "Sec-Fetch-Site", "same-origin")
	h.want(t, "unlock a by operator-1")
	has(t, page(t, one, w.Header().Get("Location")), "Unlocked. A delivery is booked.")
}

func TestWhatAChangeHasComeToIsSaidInWordsOfOurs(t *testing.T) {
	s, _ := writable(t, newShelf(of("a", "QUEUED")))
	for query, want := range map[string]string{
		"did=unlock&done=booked": "Unlocked. A delivery is booked.", "did=requeue&done=none": "Requeued. No delivery is booked, as no queue is named",
		"did=unlock&done=not_needed": "Unlocked. It is finished",
	} {
		has(t, page(t, s, "/analysis?id=a&"+query), `id="notice"`, want)
	}
	for _, query := range []string{"", "did=unlock", "done=booked", "did=x&done=booked", "did=unlock&done=x", "did=unlock&done=failed"} {
		hasNot(t, page(t, s, "/analysis?id=a&"+query), `id="notice"`)
	}
}

func TestABookingThatFailsCanBeRepeated(t *testing.T) {
	for verb, past := range map[string]string{"unlock": "Unlocked", "requeue": "Requeued"} {
		s, h := writable(t, newShelf(of("a", "QUEUED")))
		h.booked = console.Failed
		code, text, _ := confirmed(t, s, verb, "a")
		if code != http.StatusBadGateway {
			t.Errorf("%s: %d", verb, code)
		}
		has(t, text, past+", but no delivery could be booked", `href="/unlock?id=a"`)
		h.booked = console.Booked
		if code, text, _ = confirmed(t, s, "unlock", "a"); code != http.StatusSeeOther {
			t.Errorf("once more: %d %s", code, text)
		}
	}
}

// posted sends the form of an unlock of "a" with ctx as the request's, and answers
// the status.
func posted(ctx context.Context, s *console.Server, form url.Values) (code int) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/unlock?id=a", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code
}

func TestAStopWaitsForAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := writable(t, newShelf(heldBy("a", "w/1", 3, time.Hour)))
		form := hidden(t, page(t, s, "/unlock?id=a"))
		h.during = func(context.Context) { time.Sleep(5 * time.Second) }
		go posted(t.Context(), s, form)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if left := s.Drain(ctx); left != 0 {
			t.Errorf("%d left", left)
		}
		h.want(t, "unlock a by operator-1")
	})
}

func TestAChangeOutlivesThePageButNotAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := writable(t, newShelf(heldBy("a", "w/1", 3, time.Hour)))
		form := hidden(t, page(t, s, "/unlock?id=a"))
		request, leave := context.WithCancel(t.Context())
		began := time.Now()
		h.during = func(ctx context.Context) {
			leave()
			if ctx.Err() != nil {
				t.Error("it ends with its page")
			}
			<-ctx.Done()
		}
		h.fail = lease.ErrUnavailable
		if code := posted(request, s, form); code != http.StatusServiceUnavailable {
			t.Errorf("%d", code)
		}
		if took := time.Since(began); took >= 8*time.Second { // virtual
			t.Errorf("it ended after %v, and a stop waits for 8 s", took)
		}
	})
}

func TestARefusalIsSaidPlainly(t *testing.T) {
	for _, tc := range []struct {
		fail error
		code int
		want string
	}{
		{&lease.HeldError{Owner: "w/<9>", Remaining: 90 * time.Second}, http.StatusConflict, "it is locked by w/&lt;9&gt; for 1 min 30 s more"},
		{lease.ErrNotFound, http.StatusNotFound, "no analysis"},
		{fmt.Errorf("x: %w", lease.ErrUnavailable), http.StatusServiceUnavailable, "does not answer"},
		{lease.ErrMalformed, http.StatusUnprocessableEntity, "cannot be read"},
		{errOdd, http.StatusBadGateway, "odd"},
	} {
		s, h := writable(t, newShelf(of("a", "QUEUED")))
		h.fail = tc.fail
		code, text, _ := confirmed(t, s, "requeue", "a")
		if code != tc.code {
			t.Errorf("%v: %d, want %d", tc.fail, code, tc.code)
		}
		has(t, text, tc.want, `role="alert"`)
	}
}
