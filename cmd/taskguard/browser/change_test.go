package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"taskguard/cmd/chromiumtest"
	"taskguard/lease/iso8601"
)

// tabTo presses Tab until the focus is on the element with this id, and wants to
// see, each time, where it is.
func tabTo(b *chromiumtest.Tab, id string) {
	b.T.Helper()
	var passed []string
	for range 100 {
		b.Press(kb.Tab)
		at := b.Eval(`document.activeElement.id || document.activeElement.className || document.activeElement.innerText || document.activeElement.tagName`)
		if got := b.Eval(`getComputedStyle(document.activeElement).outlineStyle`); got == `"none"` && at != `"BODY"` {
			b.T.Errorf("the focus on %s is not to be seen", at)
		}
		if at == fmt.Sprintf("%q", id) {
			return
		}
		passed = append(passed, at)
	}
	b.T.Fatalf("Tab does not lead to %s: %v", id, passed)
}

func anAnalysisIsUnlockedByTheKeyboardAlone(t *testing.T, p *chromiumtest.Profile) {
	s := withStates(t, "--write")
	b := p.Open(s.url)
	b.Show("dark", 1280)
	live(b)
	unlock := strings.Trim(b.Eval(row("held")+`.querySelector('[data-action="unlock"]').id`), `"`)
	// A heartbeat, which writes the row anew, leaves the focus where it is.
	tabTo(b, unlock)
	s.Merge(t, "held", locked(8*time.Minute))
	b.Is(row("held") + `.innerText.includes('7 min')`)
	b.Is(fmt.Sprintf(`document.activeElement.id === %q`, unlock))
	b.CheckLayout("console keyboard, unlock in focus")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('confirm')?.dataset.action === 'unlock'`)
	if got := b.Eval(`document.getElementById('confirm-id').innerText`); got != `"held"` {
		t.Errorf("to be confirmed is %s", got)
	}
	if fields := s.Fields(t, "held"); fields["lockOwner"] == nil {
		t.Error("it is unlocked before it is confirmed")
	}
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.'`)
	b.CheckLayout("console unlocked")
	b.Is(`document.getElementById('fact-state').innerText === 'QUEUED' && document.querySelector('#fact-lock .word').innerText === 'free'`)
	if fields := s.Fields(t, "held"); fields["lockOwner"] != nil || fields["status"] != "QUEUED" || fields["lockToken"] != int64(7) {
		t.Errorf("the document holds %v", fields)
	}
	s.wantDelivery("held")
}

func aStaleLockThatItsOwnerHasRenewedIsAskedAboutAgain(t *testing.T, p *chromiumtest.Profile) {
	s := withStates(t, "--write")
	b := p.Open(s.url + "/unlock?id=stale")
	b.IsAfterLoad(`document.getElementById('consequences').innerText.includes('The stale lock is removed')`)
	s.Merge(t, "stale", map[string]any{"lockExpiresAt": iso8601.Format(time.Now().Add(time.Hour))})
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('changed') && document.querySelector('#confirm-lock .word').innerText === 'held'`)
	if fields := s.Fields(t, "stale"); fields["lockOwner"] == nil || len(s.deliveries()) > 0 {
		t.Errorf("the document holds %v; delivered are %v", fields, s.deliveries())
	}
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.'`)
	s.wantDelivery("stale")
}

func aPageFromBeforeTheConsoleWasStartedAnewCanStillConfirm(t *testing.T, p *chromiumtest.Profile) {
	s := withStates(t, "--write")
	b := p.Open(s.url + "/unlock?id=held")
	b.IsAfterLoad(`document.getElementById('confirm-submit')`)
	s.stop()
	s.start(s.port())
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.'`)
	s.wantDelivery("held")
}

// secrets are what no page holds unless it is asked for.
var secrets = []string{"the-secret-input", "the-secret-result"}

func inputAndResultAreInNoPageUnlessTheyAreAskedFor(t *testing.T, p *chromiumtest.Profile) {
	s := withStates(t, "--write")
	b := p.Open("about:blank", `globalThis.heard = '';
		const ask = fetch;
		globalThis.fetch = async (...of) => { const answer = await ask(...of); heard += await answer.clone().text(); return answer; };`)
	for path, attempts := range map[string]string{
		"/": row("ready") + `.querySelector('.attempts')`, "/analysis?id=ready": `document.getElementById('fact-attempts')`,
	} {
		s.Merge(t, "ready", map[string]any{"attempts": 4})
		b.Go(s.url + path)
		live(b)
		b.Is(attempts + `.innerText === '4'`)
		s.Merge(t, "ready", map[string]any{"attempts": 5})
		b.Is(attempts + `.innerText === '5' && heard.includes('ready')`)
		for _, secret := range secrets {
			if got := b.Eval(fmt.Sprintf(`heard.includes(%q) || document.documentElement.outerHTML.includes(%q)`, secret, secret)); got != "false" {
				t.Errorf("%s: %s was not asked for", path, secret)
			}
		}
	}
	b.Go(s.url + "/analysis?id=ready")
	live(b)
	b.Click("show")
	b.IsAfterLoad(`document.getElementById('content-Result')?.innerText.includes('the-secret-result')`)
	live(b)
	b.Click("hide")
	b.IsAfterLoad(`!document.getElementById('content-Result') && !document.documentElement.outerHTML.includes('the-secret-result')`)
}
