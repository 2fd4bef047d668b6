package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"
)

// live waits until b is live, and marks the page: a reload removes the mark.
func live(b *Tab) *Tab {
	b.T.Helper()
	b.Is(`document.getElementById('live').dataset.live === 'live'`)
	b.Eval(`globalThis.marked = true`)
	return b
}

// ids is a script that returns the sorted ids in the list, and left one that returns the time left.
const (
	ids  = `[...document.querySelectorAll('#rows > [data-id]')].map((r) => r.dataset.id).sort().join(' ')`
	left = `.querySelector('[data-until]')?.textContent`
)

func TestAPageFollowsTheDatabaseWithoutAReload(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	s.analysis("a", map[string]any{"status": "QUEUED"})
	s.analysis("b", map[string]any{"status": "QUEUED"})
	list, one := live(s.open("/")), live(s.open("/analysis?id=a"))
	list.Is(ids + ` === 'a b'`)
	s.update("a", locked(2*time.Minute))
	list.Is(row("a") + `.dataset.lock === 'held' && document.querySelector('#rows > tr').id === 'group-running' && ` + row("a") + left + `.startsWith('1 min ')`)
	one.Is(`document.getElementById('fact-lock').innerText.includes('held by taskguard-worker-00042') && document.getElementById('fact-progress').innerText.includes('40 %')`)
	one.Is(`[...document.querySelectorAll('#timeline li')].map((e) => e.dataset.outcome).join(' ') === 'running retry' && document.getElementById('timeline').checkVisibility()`)
	list.Eval(`globalThis.left = ` + row("a") + left)
	list.Is(row("a") + left + ` !== left`) // it counts down

	// Nothing is written when a lock ends: only the time changes.
	s.update("a", locked(6*time.Second))
	list.Is(row("a") + `.dataset.lock === 'stale' && ` + row("a") + `.querySelector('.word').innerText === 'stale'`)
	one.Is(`document.querySelector('#fact-lock .word').innerText === 'stale'`)

	s.update("a", map[string]any{
		"status": "FAILED", "error": map[string]any{"code": "effect_uncertain", "message": "not a letter"}, "lockOwner": firestore.Delete, "lockExpiresAt": firestore.Delete,
		"openEffects": 1, "effects": map[string]any{"charge": map[string]any{"state": "started", "token": 7, "at": ago(0)}},
	})
	list.Is(row("a") + `.dataset.state === 'FAILED' && ` + row("a") + `.innerText.includes('effect_uncertain')`)
	one.Is(`document.getElementById('fact-error')?.innerText.includes('not a letter') && document.querySelector('#acts [data-action=resolve]').checkVisibility()`)
	s.Delete(t, "a")
	s.Delete(t, "b")
	list.Is(`document.querySelectorAll('#rows > tr').length === 0 && !document.getElementById('empty').hidden`)
	one.Is(`document.getElementById('live-text').innerText.startsWith('There is no analysis with this id. What is shown is as of ')`)
	list.Is(`globalThis.marked`)
	one.Is(`globalThis.marked`)
}

// wantStill fails if the time left of a changes, as its lock may have been renewed.
func wantStill(b *Tab) {
	b.T.Helper()
	before := b.Eval(row("a") + left)
	if after := b.Eval(`new Promise((done) => setTimeout(() => done(` + row("a") + left + `), 2500))`); after != before {
		b.T.Errorf("the time was %s, and then %s", before, after)
	}
}

// A request gets no answer, as with a lost tunnel. Then one gets it after the page is paused.
func TestAPageThatIsStalledOrPausedStopsItsTimes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", locked(10*time.Minute))
	b := live(s.open("/", `const { timeout } = AbortSignal, ask = fetch;
		AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms / 5);
		globalThis.fetch = async (url, { signal }) => {
			if (globalThis.stalled) return new Promise((_, fail) => { signal.onabort = () => fail(signal.reason); });
			const answer = await ask(url);
			await (globalThis.held = globalThis.release);
			return answer;
		};`))
	b.Eval(`globalThis.stalled = true`)
	b.Is(`document.getElementById('live').dataset.live === 'reconnecting'`)
	b.Is(`document.getElementById('live-text').innerText.startsWith('The console does not answer. Reload to see why, or to sign in again. What is shown is as of ')`)
	wantStill(b)
	b.Eval(`globalThis.stalled = false`)
	live(b)

	b.Eval(`globalThis.release = new Promise((done) => { globalThis.answer = done; }), 0`)
	b.Is(`globalThis.held !== undefined`)
	b.Click("pause")
	b.Is(`document.getElementById('live').dataset.live === 'paused' && document.getElementById('pause').getAttribute('aria-pressed') === 'true'`)
	s.analysis("b", map[string]any{"status": "QUEUED"})
	b.Eval(`globalThis.answer()`)
	wantStill(b)
	b.Is(ids + ` === 'a'`)
	b.Click("pause")
	b.Is(ids + ` === 'a b' && globalThis.marked`)
}

func TestAHiddenPageSendsNoRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", map[string]any{"status": "QUEUED"})
	hidden := live(s.open("/"))
	shown := live(hidden.OpenBeside(s.url))
	hidden.Is(`document.hidden && document.getElementById('live').dataset.live === 'connecting'`)
	s.update("a", map[string]any{"status": "READY"})
	shown.Is(row("a") + `.dataset.state === 'READY'`)
	hidden.Is(row("a") + `.dataset.state === 'QUEUED'`)
	Call(hidden, page.BringToFront, cdp.Empty{})
	hidden.Is(row("a") + `.dataset.state === 'READY' && document.getElementById('live').dataset.live === 'live' && globalThis.marked`)
	shown.Is(`document.hidden`)
}

// tabTo presses Tab until the focus is on the element with this id, and checks that
// each element on the way shows the focus.
func tabTo(b *Tab, id string) {
	b.T.Helper()
	for range 100 {
		b.Press(kb.Tab)
		at := b.Eval(`document.activeElement.id || document.activeElement.tagName`)
		if got := b.Eval(`getComputedStyle(document.activeElement).outlineStyle`); got == `"none"` && at != `"BODY"` {
			b.T.Errorf("the focus on %s is not visible", at)
		}
		if at == fmt.Sprintf("%q", id) {
			return
		}
	}
	b.T.Fatalf("Tab does not lead to %s", id)
}

func TestAChangeIsMadeWithOnlyTheKeyboard(t *testing.T) {
	t.Parallel()
	s := withStates(t)
	b := s.open("/")
	b.Focus()
	b.Show("dark", 1280)
	live(b)
	unlock := strings.Trim(b.Eval(row("held")+`.querySelector('[data-action="unlock"]').id`), `"`)
	tabTo(b, unlock)
	s.update("held", locked(8*time.Minute)) // a heartbeat replaces the row and keeps the focus
	b.Is(row("held") + `.innerText.includes('7 min') && document.activeElement.id === '` + unlock + `'`)
	b.Press(kb.Enter)
	b.Is(`document.getElementById('confirm')?.dataset.action === 'unlock'`)
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.Is(`document.getElementById('notice')?.innerText.startsWith('Unlocked. ')`)

	b.Go(s.url + "/resolve?id=uncertain&name=charge")
	tabTo(b, "done")
	b.Press(" ")
	tabTo(b, "result")
	b.Press(`{"receipt": 7}`)
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.Is(`document.getElementById('notice')?.innerText.startsWith('Resolved. ') && document.getElementById('acts').innerText.includes('done')`)
}
