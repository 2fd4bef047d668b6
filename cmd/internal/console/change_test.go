package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// post sends a form as a page of the console does, and returns the answer.
func post(t testing.TB, s *console.Server, path string, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	return ask(t, s, http.MethodPost, path, form.Encode(), "Sec-Fetch-Site", "same-origin")
}

// confirmed sends the form of the confirmation page of a change.
func confirmed(t testing.TB, s *console.Server, verb, id string) *httptest.ResponseRecorder {
	t.Helper()
	path := "/" + verb + "?id=" + url.QueryEscape(id)
	return post(t, s, path, hidden(t, page(t, s, path)))
}

func TestAChangeIsConfirmedAndMadeInTheNameOfTheOperator(t *testing.T) {
	for verb, log := range map[string]string{"unlock": "The log names", "requeue": "The log names", "cancel": "The log and the error's message name"} {
		s, h := writable(t, newSource(heldBy("a b", "w/1", 3, -time.Minute)))
		has(t, page(t, s, "/analysis?id=a+b"), `href="/`+verb+`?id=a%20b"`)
		text := page(t, s, "/"+verb+"?id=a+b")
		if got, want := strings.Contains(text, "enqueued, and a worker will run it"), verb != "cancel"; got != want {
			t.Errorf("%s announces a delivery: %v, want %v", verb, got, want)
		}
		has(t, text, "a b", "PROCESSING", "w/1", "What will happen", log+" <bdi>operator-1</bdi>", `method="post" action="/`+verb+`?id=a&#43;b"`)
		w := confirmed(t, s, verb, "a b")
		location := w.Header().Get("Location")
		if w.Code != http.StatusSeeOther || location != "/analysis?id=a+b&did="+verb+"&done=booked" {
			t.Fatalf("%s: %d, to %s", verb, w.Code, location)
		}
		h.want(t, verb+" a b by operator-1")
		has(t, page(t, s, location), `id="notice"`, "ed. It is in the queue again.")
	}
}

func TestAConfirmationPageDescribesTheConsequences(t *testing.T) {
	done := analysis("done", "READY")
	done.Lock.Finished = true
	corrupted := analysis("corrupted", "PROCESSING")
	corrupted.Malformed = errOdd
	s, _ := writable(t, newSource(heldBy("held", "w/1", 3, time.Hour), analysis("free", "QUEUED"), analysis("left", "PROCESSING"), done, corrupted))
	hasNot(t, page(t, s, "/analysis?id=corrupted"), "data-action")
	for _, verb := range []string{"unlock", "requeue", "cancel"} {
		if w := ask(t, s, http.MethodGet, "/"+verb+"?id=corrupted", ""); w.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s of a malformed one: %d", verb, w.Code)
		}
	}
	for target, want := range map[string]string{
		"/unlock?id=held": "The lock is taken from", "/requeue?id=held": "It will be refused", "/unlock?id=free": "the document stays as it is",
		"/unlock?id=left": "PROCESSING goes back to QUEUED", "/unlock?id=done": "nothing is enqueued", "/requeue?id=done": "Its result stays",
		"/cancel?id=held": "The lock is taken from", "/cancel?id=free": "Its state becomes FAILED", "/cancel?id=done": "Nothing will be changed",
	} {
		has(t, page(t, s, target), want)
	}
	queueless := open(t, newSource(analysis("a", "QUEUED")), console.Options{Operator: &recorder{}, Every: quick})
	has(t, page(t, queueless, "/requeue?id=a"), "TASK_QUEUE is not set")
	text := page(t, s, "/")
	has(t, rowOf(t, text, "held"), "/cancel?id=held")
	has(t, rowOf(t, text, "free"), "/cancel?id=free", "/requeue?id=free")
	hasNot(t, rowOf(t, text, "free"), "/unlock?")
	hasNot(t, rowOf(t, text, "done")+rowOf(t, text, "corrupted"), "/unlock?", "/cancel?", "/requeue?", "checkbox")
	hasNot(t, rowOf(t, text, "held"), "/unlock?") // it had a heartbeat just now
	text = page(t, s, "/analysis?id=held")
	has(t, text, "possible when its worker is silent for 2 min 10 s")
	hasNot(t, text, "/requeue?id=held", "/unlock?id=held")
	hasNot(t, page(t, s, "/analysis?id=done"), "/cancel?id=done")

	// Each address is below the root of the kind.
	below := open(t, newSource(heldBy("a", "w", 1, time.Hour), at(analysis("b", "QUEUED"), time.Hour)), console.Options{Operator: &recorder{}, Root: "/kind/x", Limit: 1})
	for _, target := range []string{"/", "/?state=QUEUED", "/?after=1", "/analysis?id=a&show=all", "/failures", "/cancel?id=a", "/requeue?id=b", "/all/cancel?state=QUEUED", "/failures/requeue?code=c"} {
		for _, link := range regexp.MustCompile(`(href|src|action|data-poll)="/[^"]*`).FindAllString(page(t, below, target), -1) {
			if !strings.Contains(link, `="/kind/x/`) {
				t.Errorf("%s has %s", target, link)
			}
		}
	}
}

func TestARequeueContinuesFromTheCheckpointUnlessTheOperatorChoosesTheBeginning(t *testing.T) {
	resumable, locked := analysis("a", "FAILED"), heldBy("held", "w/1", 3, time.Hour)
	resumable.Lock.Finished = true
	resumable.Checkpoint = &analysislock.Checkpoint{Value: "secret position"}
	locked.Checkpoint = resumable.Checkpoint
	s, h := writable(t, newSource(resumable, locked, analysis("without", "FAILED")))
	const choice = `id="fresh" class="danger" name="fresh" value="yes"`
	text := page(t, s, "/requeue?id=a")
	has(t, text, choice, "It continues from its checkpoint")
	for _, other := range []string{"/requeue?id=without", "/requeue?id=held", "/unlock?id=a", "/cancel?id=a"} {
		hasNot(t, page(t, s, other), choice, "It continues from its checkpoint")
	}
	form := hidden(t, text)
	post(t, s, "/requeue?id=a", form)
	form.Set("fresh", "yes")
	w := post(t, s, "/requeue?id=a", form)
	if want := "/analysis?id=a&did=requeue&done=booked"; w.Header().Get("Location") != want {
		t.Errorf("to %s, want %s", w.Header().Get("Location"), want)
	}
	post(t, s, "/unlock?id=a", form) // only a requeue has the choice
	h.want(t, "requeue a by operator-1", "requeue-fresh a by operator-1", "unlock a by operator-1")
	one := page(t, s, "/analysis?id=a&show=all")
	has(t, one, `id="fact-checkpoint">yes; a requeue continues from it`)
	has(t, page(t, s, "/analysis?id=held"), `id="fact-checkpoint">yes; the next attempt continues from it`)
	hasNot(t, one, "secret position")
	has(t, page(t, s, "/analysis?id=without"), `id="fact-checkpoint"><span class="hint">none`)
}

func TestOnlyAFormOfThisConsoleChangesSomething(t *testing.T) {
	s, h := writable(t, newSource(heldBy("a", "w/1", 3, time.Hour)))
	good := hidden(t, page(t, s, "/unlock?id=a"))
	for name, tc := range map[string]struct {
		query  string
		body   string
		header []string
		want   int
	}{
		"cross-site":             {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"same-site":              {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		"cross-site, navigating": {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, http.StatusForbidden},
		"another origin":         {"id=a", good.Encode(), []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		"another port":           {"id=a", good.Encode(), []string{"Origin", "http://localhost:1"}, http.StatusForbidden},
		"no proof":               {"id=a", good.Encode(), []string{"Accept", "text/html"}, http.StatusForbidden},
		"no origin":              {"id=a", good.Encode(), []string{"Origin", "null"}, http.StatusForbidden},
		"the lock not seen":      {"id=a", "", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
		"a form in the address":  {"id=a&" + good.Encode(), "", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
		"no id":                  {"", good.Encode(), []string{"Sec-Fetch-Site", "same-origin"}, http.StatusBadRequest},
		"a rebound name":         {"id=a", good.Encode(), []string{"Sec-Fetch-Site", "same-origin", "Host", "evil.example"}, http.StatusMisdirectedRequest},
		"a body without end":     {"id=a", good.Encode() + "&x=" + strings.Repeat("x", 300<<10), []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
	} {
		if w := ask(t, s, http.MethodPost, "/unlock?"+tc.query, tc.body, tc.header...); w.Code != tc.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tc.want)
		}
	}
	if w := ask(t, s, http.MethodGet, "/unlock?id=a&"+good.Encode(), ""); w.Code != http.StatusOK {
		t.Errorf("GET: %d", w.Code)
	}
	h.want(t)
	// A page may come from another instance, and a browser may send only the origin.
	other, h := writable(t, newSource(heldBy("a", "w/1", 3, time.Hour)))
	if w := ask(t, other, http.MethodPost, "/unlock?id=a", good.Encode(), "Origin", "http://localhost:8590"); w.Code != http.StatusSeeOther {
		t.Errorf("to another instance: %d", w.Code)
	}
	h.want(t, "unlock a by operator-1")
}

func TestNothingIsChangedWithoutAnOperator(t *testing.T) {
	s := open(t, newSource(heldBy("a", "w/1", 3, -1)), console.Options{Every: quick})
	hasNot(t, page(t, s, "/")+page(t, s, "/analysis?id=a"), "/unlock", "/requeue", "/cancel", "<button id=\"confirm")
	for _, verb := range []string{"unlock", "requeue", "cancel", "resolve"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			w := ask(t, s, method, "/"+verb+"?id=a", "", "Sec-Fetch-Site", "same-origin")
			if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "--write") {
				t.Errorf("%s /%s: %d %s", method, verb, w.Code, w.Body)
			}
		}
	}
}

func TestTheNoticeOfAChangeIsOneOfFixedTexts(t *testing.T) {
	s, _ := writable(t, newSource(analysis("a", "QUEUED")))
	for query, want := range map[string]string{
		"did=unlock&done=booked": "Unlocked. It is in the queue again.", "did=requeue&done=none": "Requeued. Nothing was enqueued: TASK_QUEUE is not set",
		"did=unlock&done=not_needed": "Unlocked. It is finished", "did=cancel&done=not_needed": "Cancelled. It is finished",
	} {
		has(t, page(t, s, "/analysis?id=a&"+query), `id="notice"`, want)
	}
	for _, query := range []string{"", "did=unlock", "done=booked", "did=x&done=booked", "did=unlock&done=x", "did=unlock&done=failed"} {
		hasNot(t, page(t, s, "/analysis?id=a&"+query), `id="notice"`)
	}
}

func TestABookingThatFailsCanBeRepeated(t *testing.T) {
	for verb, past := range map[string]string{"unlock": "Unlocked", "requeue": "Requeued"} {
		s, h := writable(t, newSource(analysis("a", "QUEUED")))
		h.fail = console.ErrNotBooked
		w := confirmed(t, s, verb, "a")
		if w.Code != http.StatusBadGateway {
			t.Errorf("%s: %d", verb, w.Code)
		}
		has(t, w.Body.String(), past+", but could not be enqueued", `href="/unlock?id=a"`)
		h.fail = nil
		if w = confirmed(t, s, "unlock", "a"); w.Code != http.StatusSeeOther {
			t.Errorf("repeated: %d %s", w.Code, w.Body)
		}
	}
}

func TestAChangeOutlivesItsPageAndAStopWaitsForIt(t *testing.T) {
	for _, tc := range []struct {
		path  string
		stops bool
		took  time.Duration
	}{
		{"/unlock?id=a", false, 7 * time.Second}, {"/unlock?id=a", true, 7 * time.Second}, // before a stop has no more time for it
		{"/all/requeue?state=PROCESSING", false, 20 * time.Second}, {"/all/requeue?state=PROCESSING", true, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			source, h := newSource(heldBy("a", "w/1", 3, time.Hour)), &recorder{}
			work, stop := context.WithCancel(t.Context())
			defer stop()
			s := console.NewServer(work, source, console.Options{Operator: h})
			h.bulk = console.Bulk{Before: storeNow(), Matched: 1, Changed: 1}
			form := hidden(t, page(t, s, tc.path))
			source.delay = time.Second
			h.during = func(ctx context.Context) {
				if ctx.Err() != nil {
					t.Error("it ends with its page")
				}
				<-ctx.Done()
				if s.Drain(ctx) != 1 {
					t.Error("a stop does not wait for it")
				}
			}

			request, leave := context.WithCancel(t.Context())
			leave()
			began := time.Now()
			if tc.stops {
				time.AfterFunc(3*time.Second, stop)
			}
			r := httptest.NewRequestWithContext(request, http.MethodPost, "http://localhost"+tc.path, strings.NewReader(form.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			s.ServeHTTP(httptest.NewRecorder(), r)
			if took := time.Since(began); took != tc.took || len(h.did) != 1 {
				t.Errorf("%+v: took %s, and did %q", tc, took, h.did)
			}
		})
	}
}

func TestARefusedChangeNamesTheReason(t *testing.T) {
	for _, tc := range []struct {
		fail error
		code int
		want string
	}{
		{&lease.HeldError{Owner: "w/<9>", Remaining: 90 * time.Second}, http.StatusConflict, "it is locked by w/&lt;9&gt; for 1 min 30 s more. Cancel it first"},
		{lease.ErrNotFound, http.StatusNotFound, "no analysis"},
		{fmt.Errorf("x: %w", lease.ErrFinished), http.StatusConflict, "it is finished"},
		{fmt.Errorf("x: %w", lease.ErrUnavailable), http.StatusServiceUnavailable, "does not answer"},
		{lease.ErrMalformed, http.StatusUnprocessableEntity, "cannot be read"},
		{status.Error(codes.Unauthenticated, "x"), http.StatusBadGateway, "Firestore refuses: it does not accept these credentials (UNAUTHENTICATED)."},
		{analysislock.ErrUncertain, http.StatusConflict, "an act that may have been done"},
		{analysislock.ErrAllActs, http.StatusConflict, "* stands for all acts"},
		{errOdd, http.StatusBadGateway, "odd"},
		{lease.ErrConflict, http.StatusConflict, "It has changed since you looked"},
	} {
		s, h := writable(t, newSource(analysis("a", "QUEUED")))
		h.fail = tc.fail
		w := confirmed(t, s, "requeue", "a")
		if w.Code != tc.code {
			t.Errorf("%v: %d, want %d", tc.fail, w.Code, tc.code)
		}
		has(t, w.Body.String(), tc.want, `role="alert"`)
		if has(t, w.Body.String(), `href="/analysis?id=a"`); errors.Is(tc.fail, lease.ErrConflict) {
			continue
		}
		all := ask(t, s, http.MethodGet, "/all/cancel?state=QUEUED", "")
		if has(t, all.Body.String(), `href="/?state=QUEUED"`); all.Code != tc.code {
			t.Errorf("of all, %v: %d, want %d", tc.fail, all.Code, tc.code)
		}
	}
}

func TestAChangedAnalysisIsConfirmedAgain(t *testing.T) {
	for name, tc := range map[string]struct{ was, is analysislock.Analysis }{
		"another owner and token":      {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/2", 4, time.Hour)},
		"another token":                {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/1", 4, time.Hour)},
		"another owner":                {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/2", 3, time.Hour)},
		"a stale one that was renewed": {heldBy("a", "w/1", 3, -time.Minute), heldBy("a", "w/1", 3, time.Hour)},
		"one that has expired":         {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/1", 3, -time.Minute)},
		"another state":                {analysis("a", "FAILED"), analysis("a", "READY")}, // as a worker in another language may leave it
		"a lock that was deleted":      {heldBy("a", "w/1", 3, time.Hour), analysis("a", "PROCESSING")},
	} {
		for _, verb := range []string{"unlock", "requeue", "cancel"} {
			source := newSource(tc.was)
			s, h := writable(t, source)
			path := "/" + verb + "?id=a"
			form := hidden(t, page(t, s, path))
			source.put(tc.is)
			w := post(t, s, path, form)
			if w.Code != http.StatusConflict {
				t.Errorf("%s, %s: %d", verb, name, w.Code)
			}
			has(t, w.Body.String(), `id="changed"`, "It has changed since you looked", "nothing was changed", tc.is.Status, tc.is.Lock.Owner)
			h.want(t)
			if again := post(t, s, path, hidden(t, w.Body.String())); again.Code != http.StatusSeeOther {
				t.Errorf("%s, %s: confirmed again: %d", verb, name, again.Code)
			}
			if want := (analysislock.Seen{Status: tc.is.Status, Grant: tc.is.Lock.Grant()}); h.seen != want {
				t.Errorf("%s, %s: changed %+v, want %+v, which was shown", verb, name, h.seen, want)
			}
		}
	}
}

// acting returns an analysis with an uncertain act, charge, and one that is done.
func acting(id, status string) analysislock.Analysis {
	a := analysis(id, status)
	a.Lock.Token, a.OpenActs = 3, 1
	a.Acts = analysislock.Acts{
		"charge": {State: analysislock.ActStarted, Token: 2, At: storeNow().Add(-2 * time.Hour)},
		"mail":   {State: analysislock.ActDone, Token: 2, At: storeNow(), Result: []byte(`"secret receipt"`)},
	}
	return a
}

func TestAnUncertainActIsShownAndResolved(t *testing.T) {
	const path = "/resolve?id=a&name=charge"
	for answer, want := range map[string]string{
		"answer=done&result=%7B%22receipt%22:7%7D": "resolve a by operator-1: charge {true {\"receipt\":7}}",
		"answer=not_done&result=%7B":               "resolve a by operator-1: charge {false }",
	} {
		s, h := writable(t, newSource(acting("a", "FAILED"), analysis("other", "FAILED")))
		one, failures := page(t, s, "/analysis?id=a"), page(t, s, "/failures")
		for _, text := range []string{one, failures} {
			has(t, text, `data-act="charge"`, orchestrator.ActKey("s", "a", "charge"), "may have happened", ">2 h</span> ago</span>, token 2", `href="/resolve?id=a&amp;name=charge`)
			hasNot(t, text, "secret receipt", "name=mail")
		}
		has(t, one, `data-act="mail"`, `name=charge&amp;answer=done"`, "no run repeats it", `name=charge&amp;answer=not_done"`, "it happens twice")
		if order := regexp.MustCompile(`id="(why|answers|facts)"`).FindAllString(one, -1); len(order) != 3 || order[1] != `id="answers"` {
			t.Errorf("the order is %s, want the answers before the facts", order)
		}
		hasNot(t, failures, `data-act="mail"`, "id=other")
		hasNot(t, page(t, s, "/analysis?id=other"), "data-act=")

		for _, chosen := range []string{"done", "not_done", ""} {
			has(t, page(t, s, path+"&answer="+chosen), "You do not know?", "it happens twice")
			own := ask(t, s, http.MethodGet, path+"&answer="+chosen, "", "Sec-Fetch-Site", "same-origin").Body.String()
			checked := regexp.MustCompile(`value="(\w*)"[^>]* checked`).FindStringSubmatch(own + `value="" checked`)[1]
			hasNot(t, page(t, s, path+"&answer="+chosen), " checked") // from a link in a mail
			if checked != chosen {
				t.Errorf("%q is chosen, want %q", checked, chosen)
			}
		}
		text := page(t, s, path)
		has(t, text, "enqueued, and a worker will run it", "The log names <bdi>operator-1</bdi>", `action="/resolve?id=a&amp;name=charge"`)
		form := hidden(t, text).Encode()
		for problem, wrong := range map[string]string{"choose whether": "", "is not JSON": "&answer=done&result=%7Bcut"} {
			w := ask(t, s, http.MethodPost, path, form+wrong, "Sec-Fetch-Site", "same-origin")
			if has(t, w.Body.String(), problem, "Nothing was changed"); w.Code != http.StatusBadRequest {
				t.Errorf("%s: %d", wrong, w.Code)
			}
			contains(t, w.Body.String(), strings.HasSuffix(wrong, "cut"), []string{">{cut</textarea>"})
		}
		h.want(t)
		if w := ask(t, s, http.MethodPost, path, form+"&"+answer, "Sec-Fetch-Site", "same-origin"); w.Header().Get("Location") != "/analysis?id=a&did=resolve&done=booked" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		h.want(t, want)
	}
}

// The source finds the last updated first.
func TestTheActsThatHaveWaitedLongestAreListed(t *testing.T) {
	source := newSource()
	for i := range 60 {
		a := at(acting(fmt.Sprintf("a%02d", i), "FAILED"), time.Duration(60-i)*time.Minute)
		a.Acts["charge"] = analysislock.Act{State: analysislock.ActStarted, At: storeNow().Add(time.Duration(-i) * time.Hour)}
		source.put(a)
	}
	text := page(t, open(t, source, console.Options{}), "/failures")
	got := regexp.MustCompile(`data-id="a\d\d"`).FindAllString(text, -1)
	if len(got) != 50 || got[0] != `data-id="a59"` || got[49] != `data-id="a10"` {
		t.Errorf("listed are %s", got)
	}
	has(t, text, "10 more are left out")
}

// The workers renew each 10 s, and have a margin of 3 s.
func TestAnUnlockIsOfferedWhenTheOwnerIsSilentAndNamesTheOverlap(t *testing.T) {
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
			if got := strings.Contains(text, `href="/unlock?id=a"`); got != tc.offered {
				t.Errorf("%s: offered is %v", name, got)
			}
		}
		const overlap = "two runs overlap</strong> until its next heartbeat, for up to 13 s"
		contains(t, page(t, s, "/unlock?id=a"), tc.left > 0, []string{overlap})
		hasNot(t, page(t, s, "/cancel?id=a"), overlap) // no other run begins
	}
}

// Another instance may have answered it, or a run may have begun.
func TestAnActThatIsNotUncertainAnyMoreIsNotResolved(t *testing.T) {
	cancelled := acting("cancelled", "FAILED")
	cancelled.Error = &analysislock.Error{Code: analysislock.Cancelled}
	source := newSource(acting("a", "FAILED"), acting("ready", "READY"), cancelled)
	s, h := writable(t, source)
	for _, id := range []string{"ready", "cancelled"} {
		text := page(t, s, "/resolve?name=charge&id="+id)
		has(t, text, "the answer is only recorded")
		hasNot(t, text, "enqueued, and a worker will run it", "QUEUED")
	}
	form := hidden(t, page(t, s, "/resolve?id=a&name=charge"))
	form.Set("answer", "not_done")
	again := acting("a", "PROCESSING")
	again.Lock = heldBy("a", "w/2", 4, time.Hour).Lock
	for _, now := range []analysislock.Analysis{again, analysis("a", "FAILED"), acting("a", "QUEUED")} {
		source.put(now)
		if w := post(t, s, "/resolve?id=a&name=charge", form); w.Code != http.StatusConflict {
			t.Errorf("%+v: %d %s", now, w.Code, w.Body)
		}
	}
	for _, name := range []string{"mail", "none", ""} {
		if w := ask(t, s, http.MethodGet, "/resolve?id=ready&name="+name, ""); w.Code != http.StatusConflict {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	h.want(t)
	source.put(again)
	text := page(t, s, "/analysis?id=a")
	has(t, text, "under way")
	has(t, text, `aria-label="Side effects that may have happened" hidden>`)
	hasNot(t, text, "/resolve?", "</svg>may have happened")
	hasNot(t, page(t, open(t, newSource(acting("a", "FAILED")), console.Options{}), "/analysis?id=a"), "/resolve?")
}
