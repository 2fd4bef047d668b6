package browser

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// lasting is a TTL that no test waits for: what is freed was given back.
const lasting = time.Hour

func TestClosingTheTabThatEditsLetsTheOtherTabEdit(t *testing.T) {
	s := newSite(t, lasting)
	p := newProfile(t)
	first, second := p.open(s.room("notes")), p.open(s.room("notes"))
	first.shows("free")
	first.Click("edit")
	first.shows("mine")
	second.shows("other")
	if got, want := second.Eval(`document.getElementById('text').readOnly`), "true"; got != want {
		t.Errorf("the other tab's text is read-only: %s, want %s", got, want)
	}
	second.Click("edit")
	second.Is(`!document.getElementById('banner').hidden`)
	second.shows("other")
	first.Close()
	second.shows("free")
	if got, want := second.Eval(`document.getElementById('text').readOnly`), "true"; got != want {
		t.Errorf("before its user asks, the other tab's text is read-only: %s, want %s", got, want)
	}
	second.Click("edit")
	second.shows("mine")
}

func TestAnotherBrowserIsKeptOutUntilTheFirstReleases(t *testing.T) {
	s := newSite(t, lasting)
	first, second := newProfile(t).open(s.room("notes")), newProfile(t).open(s.room("notes"))
	first.Click("edit")
	first.shows("mine")
	second.shows("other")
	second.Click("edit")
	second.Is(`document.getElementById('banner').textContent.includes('someone else is editing')`)
	first.Click("release")
	second.shows("free")
	second.Click("edit")
	second.shows("mine")
	first.shows("other")
}

func TestLeavingThePageFreesTheLock(t *testing.T) {
	for _, c := range []struct{ name, before string }{{"with Web Locks", ""}, {"without", withoutWebLocks}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, lasting)
			b := newProfile(t).open(s.room("notes"), c.before)
			b.Click("edit")
			b.shows("mine")
			b.Do(chromedp.Navigate(s.url + "/health/live"))
			s.free(t, "notes")
			b.goBack(`document.getElementById('state')?.dataset.state === 'free'`) // kept, or loaded: as the browser likes
			if got, want := b.Eval(`document.getElementById('text').readOnly`), "true"; got != want {
				t.Errorf("back on the page, its text is read-only: %s, want %s", got, want)
			}
			other := newProfile(t).open(s.room("notes"))
			other.Click("edit")
			other.shows("mine")
			b.shows("other") // it is told again
		})
	}
}

func TestThePageIgnoresOlderNewsAndConnectsAgain(t *testing.T) {
	s := newSite(t, 0)
	b := newProfile(t).open(s.room("notes"), `
		globalThis.sockets = [];
		globalThis.WebSocket = class { constructor(url) { this.url = String(url); sockets.push(this); } };
		globalThis.tell = (version, type) => sockets.at(-1).onmessage({ data: JSON.stringify({
			type, version, room_id: 'notes', reason: 'current', holder: type === 'DocumentLocked' ? 'h' + version : null, expires_at: null }) });`)
	state := func(want string) {
		t.Helper()
		if got := b.Eval(`document.getElementById('state').dataset.state`); got != `"`+want+`"` {
			t.Errorf("the page shows %s, want %q", got, want)
		}
	}
	state("connecting")
	b.Eval(`tell(5, 'DocumentLocked')`)
	state("other")
	b.Eval(`tell(4, 'DocumentUnlocked')`)
	state("other")
	b.Eval(`sockets.at(-1).onclose()`)
	state("connecting")
	b.Is(`sockets.length === 2`)
	b.Eval(`tell(4, 'DocumentUnlocked')`)
	state("other")
	b.Eval(`tell(6, 'DocumentUnlocked')`)
	state("free")
}

func TestAnOperatorsUnlockEndsEditingAtOnce(t *testing.T) {
	s := newSite(t, lasting)
	b := newProfile(t).open(s.room("notes"))
	b.Click("edit")
	b.shows("mine")
	if broken, err := s.locks.Break(t.Context(), "notes"); !broken || err != nil {
		t.Fatal(broken, err)
	}
	b.Is(`document.getElementById('banner').textContent.includes('your lock has ended')`)
	if got, want := b.Eval(`document.getElementById('text').readOnly`), "true"; got != want {
		t.Errorf("the text is read-only: %s, want %s", got, want)
	}
}

// The sweep is not running here: only the lock's own end frees it.
func TestABrowserThatIsKilledLosesItsLockAtTheEndOfItsTTL(t *testing.T) {
	s := newSite(t, 4*time.Second)
	first, second := newProfile(t), newProfile(t)
	editor, reader := first.open(s.room("notes")), second.open(s.room("notes"))
	editor.Click("edit")
	editor.shows("mine")
	reader.shows("other")
	first.Kill()
	reader.shows("free")
	reader.Is(`document.getElementById('log').textContent.includes('DocumentUnlocked reason=expired')`)
	reader.Click("edit")
	reader.shows("mine")
}
