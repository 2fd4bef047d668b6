package console_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskguard/worker/console"
)

func TestIdsThatLookAlikeAreToldApart(t *testing.T) {
	long := strings.Repeat("0123456789", 10)
	s := open(t, newShelf(of("a b", "QUEUED"), of("a\u00a0b", "QUEUED"), of("a\u3000b", "QUEUED"), of("a  b", "QUEUED"), of(long+"-1", "QUEUED"), of(long+"-2", "QUEUED")), console.Options{Pace: quick})
	text := page(t, s, "/")
	has(t, text, "<bdi>a b</bdi>", `<bdi>a\u00a0b</bdi>`, `<bdi>a\u3000b</bdi>`, "<bdi>a  b</bdi>")
	for _, id := range []string{long + "-1", long + "-2"} {
		has(t, rowOf(t, text, id), `title="`+id+`"`, "<bdi>"+long[:32]+"…"+id[len(id)-31:]+"</bdi>")
	}
}

func TestTheOrderIsThatOfCreation(t *testing.T) {
	older, newer := of("a", "QUEUED"), of("z", "QUEUED")
	newer.Created = older.Created.Add(time.Hour)
	s := open(t, newShelf(older, newer), console.Options{Pace: quick})
	if got := strings.Join(ids(page(t, s, "/")), " "); got != "z a" {
		t.Errorf("listed are %s, want z a", got)
	}
}

func TestForeignStatesDoNotFillThePage(t *testing.T) {
	source := newShelf()
	for i := range 20 {
		w := of(fmt.Sprint(i), fmt.Sprint("ODD", i))
		source.all[w.ID] = w
	}
	if n := strings.Count(page(t, open(t, source, console.Options{Pace: quick}), "/"), `data-filter="ODD`); n != 8 {
		t.Errorf("%d filters of foreign states, want 8", n)
	}
}

func TestATracebackIsShownLineByLine(t *testing.T) {
	failed, waits := of("failed", "FAILED"), of("waits", "QUEUED")
	trace := &console.Failure{Code: "c", Message: "Traceback:\n  File <x>\r\nEOF"}
	failed.Error, waits.LastError = trace, trace
	s := open(t, newShelf(failed, waits), console.Options{Pace: quick})
	for _, id := range []string{"failed", "waits"} {
		has(t, page(t, s, "/analysis?id="+id), "<p class=\"message\">Traceback:\n  File &lt;x&gt;\\r\nEOF</p>")
	}
	css := page(t, s, "/console.css")
	if rule := regexp.MustCompile(`\.facts \.message \{[^}]*\}`).FindString(css); !strings.Contains(rule, "white-space: pre-wrap;") {
		t.Errorf("the line ends are lost: %s", rule)
	}
}

func TestTheLastErrorOfWhatIsFinishedIsNotShown(t *testing.T) {
	w := of("a", "READY")
	w.Lock.Finished, w.LastError = true, &console.Failure{Code: "flaky", Message: "it was flaky"}
	s := open(t, newShelf(w), console.Options{Pace: quick})
	hasNot(t, page(t, s, "/")+page(t, s, "/analysis?id=a"), "flaky")
}
