package browser

import (
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
)

// live waits until b is live, and marks the page: a reload removes the mark.
func live(b *Tab) {
	b.T.Helper()
	b.Is(`document.getElementById('live').dataset.live === 'live'`)
	b.Eval(`globalThis.marked = true`)
}

// wantMarked fails if b was loaded again.
func wantMarked(b *Tab) {
	b.T.Helper()
	if got := b.Eval(`globalThis.marked === true`); got != "true" {
		b.T.Error("the page was loaded again")
	}
}

// ids is a script that returns the sorted ids in the list.
const ids = `[...document.querySelectorAll('#rows > [data-id]')].map((r) => r.dataset.id).sort().join(' ')`

func TestTheListFollowsTheDatabaseWithoutAReload(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	s.analysis("a", map[string]any{"status": "QUEUED"})
	s.analysis("b", map[string]any{"status": "QUEUED"})
	b := s.open("/")
	live(b)
	b.Is(ids + ` === 'a b'`)
	s.update("a", locked(time.Hour))
	b.Is(row("a") + `.dataset.lock === 'held' && ` + row("a") + `.querySelector('.cell-state bdi').innerText === 'PROCESSING'`)
	b.Is(`document.querySelector('#rows > tr').id === 'group-running'`)
	s.update("a", map[string]any{"status": "FAILED", "error": map[string]any{"code": "bad_input", "message": "m"}, "lockOwner": firestore.Delete, "lockExpiresAt": firestore.Delete})
	b.Is(row("a") + `.dataset.state === 'FAILED' && ` + row("a") + `.innerText.includes('bad_input')`)
	s.analysis("c", map[string]any{"status": "READY"})
	b.Is(ids + ` === 'a b c'`)
	for _, id := range []string{"a", "b", "c"} {
		s.Delete(t, id)
	}
	b.Is(`document.querySelectorAll('#rows > tr').length === 0 && !document.getElementById('empty').hidden`)
	wantMarked(b)
}

func TestAnAnalysisPageFollowsTheDatabaseWithoutAReload(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", map[string]any{"status": "QUEUED"})
	b := s.open("/analysis?id=a")
	live(b)
	s.update("a", reported(locked(time.Hour)))
	b.Is(`document.getElementById('fact-state').innerText === 'PROCESSING' && document.getElementById('fact-lock').innerText.includes('held by taskguard-worker-00042')`)
	b.Is(`document.getElementById('fact-progress').innerText.includes('40 %') && [...document.querySelectorAll('#timeline li')].map((e) => e.dataset.outcome).join(' ') === 'running no end recorded retry' && document.getElementById('timeline').checkVisibility()`)
	s.update("a", map[string]any{"status": "FAILED", "error": map[string]any{"code": "bad_input", "message": "not a letter"}})
	b.Is(`document.getElementById('fact-error')?.innerText.includes('not a letter')`)
	s.Delete(t, "a")
	b.Is(`document.getElementById('live-text').innerText.startsWith('There is no analysis with this id. What is shown is as of ')`)
	wantStill(b, `document.querySelector('#fact-updated [data-since]')`)
	wantMarked(b)
}

// wantStill fails if the time in this element changes.
func wantStill(b *Tab, element string) {
	b.T.Helper()
	before := b.Eval(element + `.textContent`)
	if after := b.Eval(`new Promise((done) => setTimeout(() => done(` + element + `.textContent), 2500))`); after != before {
		b.T.Errorf("the time was %s, and then %s", before, after)
	}
}

// Nothing is written when a lock ends: only the time changes.
func TestTheTimeLeftCountsDownAndALockThatIsNotRenewedBecomesStale(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	list := s.open("/")
	live(list)
	s.analysis("a", locked(2*time.Minute))
	const left = `.querySelector('[data-until]')?.textContent`
	list.Is(row("a") + `?.dataset.lock === 'held'`)
	list.Eval(`globalThis.left = ` + row("a") + left)
	list.Is(row("a") + left + ` !== left`)
	if got := list.Eval(row("a") + left + `.startsWith('1 min ')`); got != "true" {
		t.Errorf("%s counted down to %s", list.Eval(`left`), list.Eval(row("a")+left))
	}
	// A heartbeat extends the lock.
	s.update("a", locked(10*time.Minute))
	list.Is(row("a") + left + `.startsWith('9 min ')`)
	one := s.open("/analysis?id=a")
	live(one)
	s.update("a", locked(6*time.Second))
	list.Is(row("a") + left + `.endsWith(' s')`)
	list.Is(row("a") + `.dataset.lock === 'stale' && ` + row("a") + `.querySelector('.word').innerText === 'stale'`)
	one.Is(`document.querySelector('#fact-lock .word').innerText === 'stale'`)
	wantMarked(list)
	wantMarked(one)
}

func TestAPausedPageDoesNotChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.open("/", `const ask = fetch;
		globalThis.fetch = async (...request) => {
			const answer = await ask(...request);
			await (globalThis.held = globalThis.release);
			return answer;
		};`)
	live(b)
	s.analysis("l", locked(10*time.Minute))
	b.Is(ids + ` === 'l'`)
	b.Eval(`globalThis.release = new Promise((done) => { globalThis.answer = done; }), 0`)
	b.Is(`globalThis.held !== undefined`)
	b.Click("pause")
	b.Is(`document.getElementById('live').dataset.live === 'paused' && document.getElementById('pause').getAttribute('aria-pressed') === 'true'`)
	s.analysis("a", map[string]any{"status": "QUEUED"})
	b.Eval(`globalThis.answer()`)
	wantStill(b, row("l")+`.querySelector('[data-until]')`) // the lock may have been renewed
	if got := b.Eval(ids); got != `"l"` {
		t.Errorf("listed are %s", got)
	}
	b.Click("pause")
	b.Is(ids + ` === 'a l'`)
	wantMarked(b)
}

// A request gets no answer, as with a lost tunnel.
func TestAPageReportsAStalledConnectionAndStopsItsTimes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", locked(10*time.Minute))
	b := s.open("/", `const { timeout } = AbortSignal, ask = fetch;
		AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms / 5);
		globalThis.fetch = (url, { signal }) => globalThis.stalled ?
			new Promise((_, fail) => { signal.onabort = () => fail(signal.reason); }) : ask(url, { signal });`)
	live(b)
	b.Eval(`globalThis.stalled = true`)
	b.Is(`document.getElementById('live').dataset.live === 'reconnecting'`)
	b.Is(`document.getElementById('live-text').innerText.startsWith('The console does not answer. Reload to see why, or to sign in again. What is shown is as of ')`)
	b.CheckLayout("console without updates")
	wantStill(b, row("a")+`.querySelector('[data-until]')`)
	b.Eval(`globalThis.stalled = false`)
	b.Is(`document.getElementById('live').dataset.live === 'live'`)
	wantMarked(b)
}

// front shows b in front of the other tabs of its window.
func front(b *Tab) {
	b.T.Helper()
	Call(b, page.BringToFront, cdp.Empty{})
	b.Is(`!document.hidden`)
}

func TestAHiddenPageSendsNoRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", map[string]any{"status": "QUEUED"})
	tabs := []*Tab{s.open("/")}
	live(tabs[0])
	for range 2 {
		b := tabs[0].OpenBeside(s.url)
		live(b)
		tabs = append(tabs, b)
	}
	for _, b := range tabs[:2] {
		b.Is(`document.hidden && document.getElementById('live').dataset.live === 'connecting'`)
	}
	s.update("a", map[string]any{"status": "READY"})
	tabs[2].Is(row("a") + `.dataset.state === 'READY'`)
	if got := tabs[0].Eval(row("a") + `.dataset.state`); got != `"QUEUED"` {
		t.Errorf("the hidden page shows %s", got)
	}
	front(tabs[0])
	tabs[0].Is(row("a") + `.dataset.state === 'READY' && document.getElementById('live').dataset.live === 'live'`)
	wantMarked(tabs[0])
	tabs[0].Click("pause")
	front(tabs[1])
	tabs[1].Is(`document.getElementById('live').dataset.live === 'live'`)
	front(tabs[0])
	tabs[0].Is(`document.getElementById('live').dataset.live === 'paused'`)
}
