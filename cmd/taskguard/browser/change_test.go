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

// tabTo presses Tab until the focus is on the element with this id, and checks that
// each element on the way shows the focus.
func tabTo(b *chromiumtest.Tab, id string) {
	b.T.Helper()
	var passed []string
	for range 100 {
		b.Press(kb.Tab)
		at := b.Eval(`document.activeElement.id || document.activeElement.className || document.activeElement.innerText || document.activeElement.tagName`)
		if got := b.Eval(`getComputedStyle(document.activeElement).outlineStyle`); got == `"none"` && at != `"BODY"` {
			b.T.Errorf("the focus on %s is not visible", at)
		}
		if at == fmt.Sprintf("%q", id) {
			return
		}
		passed = append(passed, at)
	}
	b.T.Fatalf("Tab does not lead to %s: %v", id, passed)
}

func TestAnAnalysisIsUnlockedWithOnlyTheKeyboard(t *testing.T) {
	t.Parallel()
	s := withStates(t, "--write")
	b := s.open("/")
	b.Focus()
	b.Show("dark", 1280)
	live(b)
	unlock := strings.Trim(b.Eval(row("held")+`.querySelector('[data-action="unlock"]').id`), `"`)
	// A heartbeat replaces the row and keeps the focus.
	tabTo(b, unlock)
	s.Merge(t, "held", locked(8*time.Minute))
	b.Is(row("held") + `.innerText.includes('7 min')`)
	b.Is(fmt.Sprintf(`document.activeElement.id === %q`, unlock))
	b.CheckLayout("console keyboard, unlock in focus")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('confirm')?.dataset.action === 'unlock'`)
	if got := b.Eval(`document.getElementById('confirm-id').innerText`); got != `"held"` {
		t.Errorf("the page asks to confirm %s", got)
	}
	if fields := s.Fields(t, "held"); fields["lockOwner"] == nil {
		t.Error("the lock was removed before it was confirmed")
	}
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.'`)
	b.CheckLayout("console unlocked")
	b.Is(`document.getElementById('fact-state').innerText === 'QUEUED' && document.querySelector('#fact-lock .word').innerText === 'free'`)
	if fields := s.Fields(t, "held"); fields["lockOwner"] != nil || fields["status"] != "QUEUED" || fields["lockToken"] != int64(7) {
		t.Errorf("the document has %v", fields)
	}
	s.wantDelivery("held")
}

func TestALockThatWasRenewedSinceIsConfirmedAgain(t *testing.T) {
	t.Parallel()
	s := withStates(t, "--write")
	b := s.open("/unlock?id=stale")
	b.IsAfterLoad(`document.getElementById('consequences').innerText.includes('The stale lock is removed')`)
	s.Merge(t, "stale", map[string]any{"lockExpiresAt": iso8601.Format(time.Now().Add(time.Hour))})
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('changed') && document.querySelector('#confirm-lock .word').innerText === 'held'`)
	if fields := s.Fields(t, "stale"); fields["lockOwner"] == nil || len(s.deliveries()) > 0 {
		t.Errorf("the document has %v; deliveries: %v", fields, s.deliveries())
	}
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.'`)
	s.wantDelivery("stale")
}

func TestAPageFromBeforeARestartOfTheConsoleCanStillConfirm(t *testing.T) {
	t.Parallel()
	s := withStates(t, "--write")
	b := s.open("/unlock?id=held")
	b.IsAfterLoad(`document.getElementById('confirm-submit')`)
	s.stop()
	s.start(s.port())
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.'`)
	s.wantDelivery("held")
}

// secrets are the parts of documents that a page has only on request.
var secrets = []string{"the-secret-input", "the-secret-result"}

func TestInputAndResultAreSentOnlyOnRequest(t *testing.T) {
	t.Parallel()
	s := withStates(t, "--write")
	b := s.open("/", `globalThis.received = '';
		const ask = fetch;
		globalThis.fetch = async (...of) => { const answer = await ask(...of); received += await answer.clone().text(); return answer; };`)
	for path, attempts := range map[string]string{
		"/": row("ready") + `.querySelector('.attempts')`, "/analysis?id=ready": `document.getElementById('fact-attempts')`,
	} {
		s.Merge(t, "ready", map[string]any{"attempts": 4})
		b.Go(s.url + path)
		live(b)
		b.Is(attempts + `.innerText === '4'`)
		s.Merge(t, "ready", map[string]any{"attempts": 5})
		b.Is(attempts + `.innerText === '5' && received.includes('ready')`)
		for _, secret := range secrets {
			if got := b.Eval(fmt.Sprintf(`received.includes(%q) || document.documentElement.outerHTML.includes(%q)`, secret, secret)); got != "false" {
				t.Errorf("%s: %s was sent without a request", path, secret)
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
