package console_test

import (
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/console"
)

func TestAStateThatIsChosenIsNotSaidToBeAllThereIs(t *testing.T) {
	s := open(t, newShelf(of("a", "READY")), console.Options{Pace: quick})
	has(t, page(t, s, "/?state=FAILED"), "In this state, those among the latest 50 are listed, and up to 50 others.")
	has(t, page(t, s, "/?state=ODD"), "In this state, those among the latest 50 are listed. <code>")
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
		hasNot(t, page(t, server, "/"), "data-overdue", `class="stuck">stuck`)
		source.change(func() { source.late = []console.Analysis{waits.Analysis, held.Analysis} })
		time.Sleep(time.Minute)
		text := page(t, server, "/?lock=stuck")
		has(t, rowOf(t, text, "waits"), `data-overdue="true"`, `<span class="stuck">stuck</span>`)
		has(t, text, `href="/?lock=stuck"`, "stuck <b>2</b>")
		if got := strings.Join(ids(text), " "); got != "waits held" {
			t.Errorf("listed are %s", got)
		}
		waits.Updated = storeNow()
		source.put(waits)
		time.Sleep(4 * time.Second) // before those overdue are read again
		text = page(t, server, "/")
		hasNot(t, rowOf(t, text, "waits"), "stuck")
		has(t, text, "stuck <b>1</b>")
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
