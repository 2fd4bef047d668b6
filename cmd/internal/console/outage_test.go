package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease"
)

// took returns a page, and fails the test unless it took so long.
func took(t *testing.T, h http.Handler, target string, least, most time.Duration) string {
	t.Helper()
	began := time.Now()
	text := page(t, h, target)
	if got := time.Since(began); got < least || got > most {
		t.Errorf("%s took %s, want %s to %s", target, got, least, most)
	}
	return text
}

func TestOutage(t *testing.T) {
	// The holder may have renewed the lock since.
	virtual(t, "a lock stays as it was read last", func(t *testing.T) {
		source := newSource(heldBy("a", "w/1", 1, 3*time.Minute), analysis("b", "QUEUED"),
			heldBy("c", "w/1", 1, -time.Minute))
		server := open(t, source, console.Options{})
		source.breaks(true)
		text := page(t, server, "/")
		has(t, text, `id="filter-all"`, `id="empty" hidden`, "does not answer. Nothing is known yet.",
			`data-live="unavailable"`)
		hasNot(t, text, `data-id="a"`, "All <b>")
		source.breaks(false)
		hasNot(t, polled(t, server, 3), "unavailable") // read after 4 and 12 s

		words := "does not answer. What is shown is as of " + storeNow().UTC().Format("15:04:05 UTC")
		source.breaks(true)
		has(t, polled(t, server, 2), words+".", `data-live="unavailable"`)
		for minutes := range 5 {
			time.Sleep(time.Minute)
			text = page(t, server, "/")
			has(t, rowOf(t, text, "a"), `data-lock="held"`)
			has(t, rowOf(t, text, "c"), `data-lock="stale"`)
			has(t, text, fmt.Sprint(words, ", ", minutes+1, " min ago."), "All</a>") // the numbers are unknown too
			hasNot(t, text, `id="oldest"`)
		}
		code(t, "one analysis", get(t, server, "/analysis?id=a"), http.StatusServiceUnavailable)

		source.breaks(false)
		source.put(analysis("b", "READY"))
		text = polled(t, server, 3)
		has(t, text, `data-live="static"`, "READY")
		has(t, rowOf(t, text, "a"), `data-lock="stale"`)
	})
	// It neither answers nor refuses.
	virtual(t, "a page is answered from memory within a second", func(t *testing.T) {
		source := failing()
		source.put(analysis("a", "QUEUED"))
		work, stop := context.WithCancel(t.Context())
		server := console.NewServer(work, source, console.Options{})
		page(t, server, "/")
		page(t, server, "/failures")
		source.takes(time.Hour)
		time.Sleep(time.Minute)
		for i := range 30 {
			limit, why := 5*time.Second, "" // of the first pages, which find out
			if i > 4 {
				limit, why = time.Second, "Firestore does not answer. "
			}
			for target, want := range map[string]string{"/": `data-id="a"`, "/failures": "1,234"} {
				has(t, took(t, server, target, 0, limit), want, why+"What is shown is as of ")
			}
			time.Sleep(4 * time.Second)
		}

		// A page of which nothing is known waits 5 s in all, and holds up no other.
		var pages sync.WaitGroup
		for _, target := range []string{"/?code=x", "/?code=x", "/?state=READY", "/?q=b"} {
			pages.Go(func() { took(t, server, target, 5*time.Second, 5*time.Second) })
		}
		took(t, server, "/", 0, time.Second)
		pages.Wait()
		time.Sleep(10 * time.Minute)
		source.takes(500 * time.Millisecond)
		page(t, server, "/") // it learns in this order: the list, the counts, the failures
		time.Sleep(time.Second)
		hasNot(t, page(t, server, "/")+page(t, server, "/failures"), "does not answer")

		source.takes(time.Hour)
		time.Sleep(time.Minute)
		page(t, server, "/")
		stop()
		began := time.Now()
		equal(t, "left by a stop", server.Drain(t.Context()), 0)
		equal(t, "a stop took", time.Since(began), 0)
	})
	virtual(t, "a slow answer or one error is none", func(t *testing.T) {
		source := failing()
		server := open(t, source, console.Options{})
		want := func(reloads bool, problem string) {
			t.Helper()
			w := get(t, server, "/failures")
			has(t, w.Body.String(), problem)
			equal(t, "reloads", w.Header().Get("Refresh") != "", reloads)
		}
		source.takes(6 * time.Second)
		want(true, "still being read. Nothing is known yet.")
		time.Sleep(2 * time.Second)
		has(t, page(t, server, "/failures"), "1,234", "as of")
		source.takes(1200 * time.Millisecond)
		time.Sleep(2 * time.Hour)
		hasNot(t, page(t, server, "/failures")+page(t, server, "/"), `id="missing"`, "unavailable")
		source.takes(0)
		source.breaks(true)
		time.Sleep(20 * time.Second)
		want(false, "does not answer. What is shown is as of ")
		source.breaks(false)
		time.Sleep(4 * time.Second)
		hasNot(t, page(t, server, "/failures"), `id="missing"`)
		source.takes(3 * time.Second)
		time.Sleep(35 * time.Second)
		took(t, server, "/failures", time.Second, time.Second) // its data are of the last 42 s
	})
	virtual(t, "a page names what Firestore refuses", func(t *testing.T) {
		source := newSource(analysis("a", "QUEUED"))
		server := open(t, source, console.Options{})
		no := fmt.Errorf("x: %w", status.Error(codes.ResourceExhausted, "odd"))
		for _, tc := range []struct {
			active, page error
			want         string
		}{
			{no, nil, "(RESOURCE_EXHAUSTED). Nothing is known yet."},
			{nil, lease.ErrInvalidKey, "There can be no such id or page. Nothing is known yet."},
			{nil, nil, `data-live="static"`},
			{no, nil, "(RESOURCE_EXHAUSTED). What is shown is as of "},
			{nil, no, "(RESOURCE_EXHAUSTED). What is shown is as of "},
		} {
			source.change(func() { source.errs["Active"], source.errs["Page"] = tc.active, tc.page })
			time.Sleep(2 * time.Minute)
			text := page(t, server, "/")
			has(t, text, tc.want, "All <b>1</b>")
			contains(t, ids(text), !strings.Contains(tc.want, "Nothing"), "a")
		}
	})
}
