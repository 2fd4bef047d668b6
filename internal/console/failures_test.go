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

	"taskguard/internal/console"
	"taskguard/lease/analysislock"
)

// failing returns a source with 1,234 failures with the code a&b, and 3 with another.
func failing() *memorySource {
	newest := at(analysis("newest", "FAILED"), 2*time.Minute)
	newest.Error = &analysislock.Error{Code: "a&b", Message: "<b>the cause</b>"}
	newest.ReadAt = storeNow()
	source := newSource()
	source.failed, source.failures = 1241, []console.Failure{{Code: "a", N: 4, Newest: newest.Analysis}, {Code: "a&b", N: 1234, Newest: newest.Analysis}}
	return source
}

func TestTheFailuresAreGroupedByTheirCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := failing()
		server, _ := writable(t, source)
		text := page(t, server, "/failures")
		has(t, text, "<code>a&amp;b</code>", "1,234", `href="/analysis?id=newest"`, "&lt;b&gt;the cause&lt;/b&gt;", ">2 min ago</time>", `href="/?state=FAILED&amp;code=a%26b"`, `href="/failures/requeue?code=a%26b"`, "3 more are FAILED with none of these codes.")
		if strings.Index(text, "a&amp;b") > strings.Index(text, ">4<") {
			t.Errorf("the most frequent code is not the first in\n%s", text)
		}
		hasNot(t, text, "console.js") // nothing is read until the operator asks
		hasNot(t, page(t, open(t, source, console.Options{}), "/failures"), "/failures/requeue")

		shared := open(t, source, console.Options{})
		for range 20 {
			page(t, shared, "/failures")
			time.Sleep(time.Second)
		}
		if n := source.calls("Failures"); n != 2+2 {
			t.Errorf("read %d times, want every 15 s", n)
		}
		source.unavailable = true
		time.Sleep(time.Hour)
		text = page(t, shared, "/failures")
		has(t, text, "The failures are not known now. Firestore does not answer.")
		hasNot(t, text, "1,234")
	})
}

func TestARequeueOfFailuresIsConfirmedWithItsNumberAndContinued(t *testing.T) {
	server, h := writable(t, failing())
	before := storeNow()
	h.bulk = console.Bulk{Before: before, Matched: 6234, Changed: 4997, Skipped: 3}
	const path = "/failures/requeue?code=a%26b"
	text := page(t, server, path)
	has(t, text, `id="matched">6,234<`, `id="would">4,997<`, `id="skipped">3<`, "Of the first 5,000", "Requeue 6,234</button>", "A delivery is booked for each", "operator-1")
	h.want(t)
	form := hidden(t, text)
	h.bulk = console.Bulk{Before: before, Matched: 6300, Changed: 1200, Skipped: 3, Failed: 1}
	w := post(t, server, path, form)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	has(t, w.Body.String(), "1,200 requeued, 3 skipped, 1 failed, 5,030 left.", "Requeue the other 5,030</button>")
	h.bulk = console.Bulk{Before: before, Matched: 30, Changed: 30}
	w = post(t, server, path, hidden(t, w.Body.String()))
	has(t, w.Body.String(), "30 requeued, 0 skipped, 0 failed, 0 left.")
	hasNot(t, w.Body.String(), "confirm-submit")
	at := before.UnixMilli()
	h.want(t, fmt.Sprint("requeue up to 5000 of a&b before ", at, " by operator-1"), fmt.Sprint("requeue up to 5000 of a&b before ", at, " by operator-1"))
	// No more than was confirmed.
	h.bulk.Before = before
	post(t, server, path, url.Values{"seen": {fmt.Sprint(at, "-7")}})
	h.want(t, h.did[0], h.did[1], fmt.Sprint("requeue up to 7 of a&b before ", at, " by operator-1"))
}

func TestTheFailuresAreReadAgainAfterARequeue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := failing()
		server := open(t, source, console.Options{Operator: &recorder{}})
		has(t, page(t, server, "/failures"), "1,234")
		source.change(func() { source.failures, source.failed = source.failures[:1], 7 })
		page(t, server, "/failures/requeue?code=a%26b") // a dry run
		has(t, page(t, server, "/failures"), "1,234")
		post(t, server, "/failures/requeue?code=a%26b", url.Values{"seen": {"1-5"}})
		text := page(t, server, "/failures")
		has(t, text, "3 more are FAILED with none of these codes.")
		hasNot(t, text, "1,234")
	})
}

func TestOnlyAConfirmedFormRequeuesFailures(t *testing.T) {
	server, h := writable(t, failing())
	seen := fmt.Sprint("seen=", time.Now().UnixMilli(), "-5")
	for name, tc := range map[string]struct {
		body   string
		header []string
		want   int
	}{
		"cross-site":   {seen, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"no proof":     {seen, nil, http.StatusForbidden},
		"not the form": {"x=y", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
		"no number":    {"seen=7", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
		"none":         {"seen=7-0", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
		"no time":      {"seen=0-7", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusConflict},
	} {
		if w := ask(t, server, http.MethodPost, "/failures/requeue?code=c", tc.body, tc.header...); w.Code != tc.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tc.want)
		}
	}
	h.want(t)
	readOnly := open(t, failing(), console.Options{})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if w := ask(t, readOnly, method, "/failures/requeue?code=c", seen, "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusForbidden {
			t.Errorf("read-only, %s: %d", method, w.Code)
		}
	}
}

func TestARequeueOfFailuresEndsInTimeAndAtAStop(t *testing.T) {
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			work, stop := context.WithCancel(t.Context())
			h := &recorder{during: func(ctx context.Context) { <-ctx.Done() }}
			server := console.NewServer(work, failing(), console.Options{Operator: h})
			began := time.Now()
			if stops {
				time.AfterFunc(time.Second, stop)
			}
			request, leave := context.WithCancel(t.Context())
			leave() // it goes on without its page
			r := httptest.NewRequestWithContext(request, http.MethodPost, "http://localhost/failures/requeue?code=c", strings.NewReader("seen=1-5"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			server.ServeHTTP(httptest.NewRecorder(), r)
			want := 20 * time.Second
			if stops {
				want = time.Second
			}
			if took := time.Since(began); took != want || len(h.did) != 1 {
				t.Errorf("stopped: %v: took %s, and did %q", stops, took, h.did)
			}
			stop()
		})
	}
}
