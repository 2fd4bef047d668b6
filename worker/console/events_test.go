package console_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/console"
)

// told is a message as a page gets it.
type told struct {
	Rows []struct {
		Key, HTML string
	}
	Order  []string
	Empty  bool
	Tally  string
	Detail string
	Gone   bool
	Feed   struct{ Word, At, Dark, Missing string }
}

// screen is a page's end of a stream, without a network.
type screen struct {
	t      *testing.T
	header http.Header
	code   int
	lines  chan told
	cancel context.CancelFunc
	ended  chan struct{}
}

func (s *screen) Header() http.Header              { return s.header }
func (s *screen) WriteHeader(code int)             { s.code = code }
func (s *screen) Flush()                           {}
func (s *screen) SetReadDeadline(time.Time) error  { return nil }
func (s *screen) SetWriteDeadline(time.Time) error { return nil }

func (s *screen) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var m told
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				s.t.Errorf("%q: %v", data, err)
			}
			s.lines <- m
		}
	}
	return len(p), nil
}

// watch opens a stream in a bubble.
func watch(t *testing.T, h http.Handler, target string) *screen {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &screen{t: t, header: http.Header{}, lines: make(chan told, 1000), cancel: cancel, ended: make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	r.Host = "localhost"
	go func() { defer close(s.ended); h.ServeHTTP(s, r) }()
	t.Cleanup(func() { cancel(); <-s.ended })
	return s
}

// until is the next message that is what is wanted; it must come within a minute.
func (s *screen) until(what string, is func(told) bool) told {
	s.t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case m := <-s.lines:
			if is(m) {
				return m
			}
		case <-timeout:
			s.t.Fatalf("not told within a minute: %s", what)
		}
	}
}

func rows(ids ...string) func(told) bool {
	return func(m told) bool {
		if len(m.Rows) != len(ids) {
			return false
		}
		for i, id := range ids {
			if !strings.Contains(m.Rows[i].HTML, `data-id="`+id+`"`) {
				return false
			}
		}
		return true
	}
}

func TestAPageIsToldTheStateAndThenWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"), of("b", "READY"))
		s := watch(t, open(t, source, console.Options{}), "/events")
		first := s.until("all", rows("a", "b"))
		if len(first.Order) != 2 || first.Tally == "" || first.Feed.Word != "live" || s.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%+v, %v", first, s.header)
		}
		source.put(of("a", "FAILED"))
		m := s.until("a", rows("a"))
		has(t, m.Rows[0].HTML, ">FAILED<")
		has(t, m.Tally, `<bdi>FAILED</bdi> <b>1</b>`)
		if m.Order != nil {
			t.Errorf("the order is told again: %v", m.Order)
		}
		source.put(of("c", "QUEUED"))
		if m = s.until("c", rows("c")); len(m.Order) != 3 {
			t.Errorf("order %v", m.Order)
		}
		source.change(func() { delete(source.all, "b") })
		if m = s.until("b is gone", func(m told) bool { return m.Order != nil }); len(m.Order) != 2 || len(m.Rows) != 0 {
			t.Errorf("%+v", m)
		}
		source.change(func() { clear(source.all) })
		s.until("nothing is left", func(m told) bool { return m.Empty })
		if m = s.until("a beat", func(told) bool { return true }); m.Rows != nil || m.Order != nil || m.Tally != "" {
			t.Errorf("a beat says %+v", m)
		}
	})
}

func TestAPageIsToldOfWhatItShowsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"), of("b", "READY"))
		s := watch(t, open(t, source, console.Options{}), "/events?state=READY")
		s.until("b", rows("b"))
		source.put(of("a", "READY"))
		s.until("a", rows("a"))
		source.put(of("a", "QUEUED"))
		if m := s.until("a is left out", func(m told) bool { return m.Order != nil }); len(m.Order) != 1 {
			t.Errorf("%+v", m)
		}
	})
}

// Nothing is written when a lock runs out: time alone makes it stale.
func TestALockThatRunsOutIsToldAsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(heldBy("a", "w/1", 1, 42*time.Second), heldBy("b", "w/1", 1, time.Hour))
		server := open(t, source, console.Options{})
		all, one := watch(t, server, "/events"), watch(t, server, "/events?id=a")
		began := time.Now()
		has(t, all.until("held", rows("a", "b")).Rows[0].HTML, `data-lock="held"`, `data-left-ms="4`)
		has(t, one.until("held", func(m told) bool { return m.Detail != "" }).Detail, `data-lock="held"`)
		has(t, all.until("stale", rows("a")).Rows[0].HTML, `data-lock="stale"`)
		if took := time.Since(began); took < 42*time.Second || took > 43*time.Second {
			t.Errorf("told after %v", took)
		}
		has(t, one.until("stale", func(m told) bool { return m.Detail != "" }).Detail, `data-lock="stale"`)
	})
}

func TestThePageOfOneAnalysisIsToldOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"))
		s := watch(t, open(t, source, console.Options{}), "/events?id=a")
		s.until("it", func(m told) bool { return strings.Contains(m.Detail, "QUEUED") })
		source.put(of("b", "QUEUED"))
		if m := s.until("nothing of another", func(told) bool { return true }); m.Detail != "" || m.Rows != nil || m.Tally != "" {
			t.Errorf("%+v", m)
		}
		source.put(of("a", "READY"))
		s.until("it again", func(m told) bool { return strings.Contains(m.Detail, "READY") })
		source.change(func() { delete(source.all, "a") })
		s.until("it is gone", func(m told) bool { return m.Gone })
	})
}

func TestTheSourceIsFollowedOnceAndOnlyWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"))
		server := open(t, source, console.Options{})
		want := func(what string, ever, now int) {
			t.Helper()
			synctest.Wait()
			if e, n := source.followed(); e != ever || n != now {
				t.Errorf("%s: followed %d times, %d now; want %d, %d", what, e, n, ever, now)
			}
		}
		want("at first", 0, 0)
		page(t, server, "/")
		want("a page without JavaScript", 1, 1)
		screens := []*screen{watch(t, server, "/events"), watch(t, server, "/events?id=a"), watch(t, server, "/events")}
		time.Sleep(9 * time.Minute)
		want("many pages, for long", 1, 1)
		for _, s := range screens {
			s.cancel()
		}
		time.Sleep(2 * time.Minute)
		want("when all have left", 1, 0)
		time.Sleep(time.Hour)
		want("long after", 1, 0)
		watch(t, server, "/events").until("all anew", rows("a"))
		want("when somebody looks again", 2, 1)
	})
}

func TestAPageThatIsLoadedNowAndThenKeepsTheSourceFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"))
		server := open(t, source, console.Options{})
		for range 9 {
			page(t, server, "/")
			time.Sleep(20 * time.Second)
		}
		if ever, now := source.followed(); ever != 1 || now != 1 {
			t.Errorf("followed %d times, %d now", ever, now)
		}
	})
}

func TestADarkStoreIsToldAndRecoveredFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"))
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		s.until("all", rows("a"))
		source.change(func() { source.dark = true })
		m := s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		if m.Feed.At == "" || m.Order != nil {
			t.Errorf("%+v", m)
		}
		text := page(t, server, "/")
		has(t, m.Feed.Dark, "Firestore has not answered since ", "; what is shown is as of "+m.Feed.At)
		has(t, text, m.Feed.Dark, `data-id="a"`)
		has(t, page(t, server, "/analysis?id=a"), "QUEUED", "Firestore has not answered since") // as it is known
		source.change(func() { source.dark = false; source.all["a"] = of("a", "READY") })
		m = s.until("light", func(m told) bool { return m.Feed.Word == "live" })
		has(t, m.Rows[0].HTML, "READY")
	})
}

func TestWhatIsNotKnownIsNotToldAsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf()
		source.dark = true
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		quiet := func(m told) bool {
			if m.Empty || m.Tally != "" {
				t.Errorf("told %+v", m)
			}
			return m.Feed.Word == "dark"
		}
		s.until("dark", quiet)
		has(t, page(t, server, "/"), `id="empty" hidden`)
		source.change(func() { source.dark = false })
		s.until("there is nothing", func(m told) bool { return m.Empty })
		hasNot(t, page(t, server, "/"), `id="empty" hidden`)
	})
}

func TestAStreamEndsAfterAWhileSoThatThePageProvesAgainWhoItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, open(t, newShelf(), console.Options{}), "/events")
		began := time.Now()
		<-s.ended
		if took := time.Since(began); took != 10*time.Minute {
			t.Errorf("after %v", took)
		}
	})
}

func TestThereAreNoMoreStreamsThanMeant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := open(t, newShelf(), console.Options{Streams: 1})
		first := watch(t, server, "/events")
		first.until("anything", func(told) bool { return true })
		if w := ask(t, server, http.MethodGet, "/events", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d", w.Code)
		}
		first.cancel()
		<-first.ended
		watch(t, server, "/events").until("anything", func(told) bool { return true })
	})
}
