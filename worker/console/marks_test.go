package console_test

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/console"
)

func TestAStateThatIsChosenIsNotSaidToBeAllThereIs(t *testing.T) {
	s := open(t, newShelf(of("a", "READY")), console.Options{Pace: quick})
	has(t, page(t, s, "/?state=FAILED"), "Of the latest 50; older ones in this state are not listed: <code>taskguard status</code>.")
	has(t, page(t, s, "/?state=QUEUED"), "Of the latest 50, and of those stuck; older")
	for _, query := range []string{"", "?lock=held", "?q=a"} {
		hasNot(t, page(t, s, "/"+query), `id="latest"`)
	}
}

// By it the focus finds the filter again, whose element is another with each number.
func TestEachFilterKeepsItsNameWhateverItsNumberIs(t *testing.T) {
	source := newShelf(of("a", "odd \"state"), of("b", ""))
	s := open(t, source, console.Options{Pace: quick})
	names := func(text string) string {
		var all []string
		for _, found := range regexp.MustCompile(`<a id="((?:filter|lock)-[a-z0-9]+)"`).FindAllStringSubmatch(text, -1) {
			if strings.Count(text, `id="`+found[1]+`"`) != 1 {
				t.Errorf("%s is there more than once", found[1])
			}
			all = append(all, found[1])
		}
		return strings.Join(all, " ")
	}
	before := page(t, s, "/")
	if n := strings.Count(before, "<li><a "); len(strings.Fields(names(before))) != n || n != 11 {
		t.Errorf("%d filters, and the names %s", n, names(before))
	}
	source.put(of("c", "READY"))
	has(t, before, "All <b>2</b>")
	if after := page(t, s, "/"); names(after) != names(before) {
		t.Errorf("%s\nwas\n%s", names(after), names(before))
	}
}

func TestWhatIsStuckIsMarkedUntilItIsUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits, held := of("waits", "QUEUED"), heldBy("held", "w/1", 1, time.Hour)
		source := newShelf(of("new", "QUEUED"), waits, held)
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		s.until("all", rows("held", "new", "waits"))
		hasNot(t, page(t, server, "/"), "data-overdue", `class="stuck">stuck`)
		source.mu.Lock()
		source.late = []console.Analysis{waits.Analysis, held.Analysis}
		source.mu.Unlock()
		m := s.until("that they are stuck", rows("waits", "held"))
		has(t, m.Rows[0].HTML, `data-overdue="true"`, `<span class="stuck">stuck</span>`)
		has(t, m.Tally, `href="/?lock=stuck"`, "stuck <b>2</b>")
		text := page(t, server, "/?lock=stuck")
		if got := strings.Join(ids(text), " "); got != "waits held" {
			t.Errorf("listed are %s", got)
		}
		waits.Updated = storeNow()
		source.put(waits)
		m = s.until("that one is not", rows("waits"))
		hasNot(t, m.Rows[0].HTML, "stuck")
		has(t, m.Tally, "stuck <b>1</b>")
	})
}

func TestANumberThatNobodyKnowsIsNotZero(t *testing.T) {
	source := newShelf()
	source.dark = true
	text := page(t, open(t, source, console.Options{Pace: quick}), "/")
	has(t, text, `id="filter-all"`, "FAILED")
	hasNot(t, text, "<b>")
	spoilt := of("spoilt", "PROCESSING")
	spoilt.Malformed = "lockToken is a string"
	row := rowOf(t, page(t, open(t, newShelf(spoilt), console.Options{Pace: quick}), "/"), "spoilt")
	has(t, row, `class="number attempts"></td>`, `class="number token"></td>`)
}

func TestAPageThatGetsNoUpdatesSaysThatThereAreTooManyPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := open(t, newShelf(of("a", "QUEUED")), console.Options{Streams: 1})
		targets := []string{"/", "/analysis?id=a"}
		for _, target := range targets {
			hasNot(t, page(t, server, target), `id="full"`)
		}
		first := watch(t, server, "/events")
		first.until("anything", func(told) bool { return true })
		for _, target := range targets {
			has(t, page(t, server, target), "Too many pages are open: ")
		}
		first.cancel()
		<-first.ended
		hasNot(t, page(t, server, "/"), `id="full"`)
	})
}

// slowly is a shelf that takes its time to say that it is dark.
type slowly struct{ *mute }

func (s slowly) Get(ctx context.Context, id string, contents bool) (console.Whole, error) {
	w, err := s.mute.Get(ctx, id, contents)
	if err != nil {
		time.Sleep(5 * time.Second)
	}
	return w, err
}

func TestWhatIsKnownIsShownAtOnceInTheDark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := slowly{&mute{shelf: newShelf(of("a", "QUEUED"))}}
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		s.until("a", rows("a"))
		source.change(func() { source.dark = true })
		s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		began := time.Now()
		has(t, page(t, server, "/analysis?id=a"), "QUEUED", "Firestore has not answered since ")
		if took := time.Since(began); took > 0 {
			t.Errorf("after %v", took)
		}
		if w := ask(t, server, http.MethodGet, "/analysis?id=other", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("what is not known: %d", w.Code)
		}
	})
}

func TestWhatTheStreamDoesNotTellIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &mute{shelf: newShelf(of("a", "QUEUED"))}
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		s.until("a", rows("a"))
		source.set(true, 0)
		time.Sleep(time.Second)
		source.put(of("a", "READY"))
		s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		has(t, page(t, server, "/"), ">QUEUED<")
		has(t, page(t, server, "/analysis?id=a"), ">READY<", "Firestore answers, but has told of no change since ")
	})
}
