package browser

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/operate"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
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
	list.Is(row("a") + `.dataset.lock === 'held' && document.querySelector('#rows > tr').id === 'group-running'`)
	one.Is(`document.getElementById('fact-lock').innerText.includes('held by taskguard-worker-00042') && document.getElementById('fact-progress').innerText.includes('40 %')`)
	one.Is(`[...document.querySelectorAll('#timeline li')].map((e) => e.dataset.outcome).join(' ') === 'running retry' && document.getElementById('timeline').checkVisibility()`)
	const left = `document.querySelector('#fact-lock [data-until]').textContent`
	one.Is(left + `.startsWith('1 min ')`)
	one.Eval(`globalThis.left = ` + left)
	one.Is(left + ` !== globalThis.left`) // it counts down

	// Nothing is written when a lock ends: only the time changes.
	s.update("a", locked(6*time.Second))
	list.Is(row("a") + `.dataset.lock === 'stale' && ` + row("a") + `.querySelector('.word').innerText === 'its worker is gone'`)
	one.Is(`document.querySelector('#fact-lock .word').innerText === 'stale'`)

	s.update("a", map[string]any{
		"status": "FAILED", "error": map[string]any{"code": "effect_uncertain", "message": "not a letter"}, "lockOwner": firestore.Delete, "lockExpiresAt": firestore.Delete,
		"openEffects": 1, "effects": map[string]any{"charge": map[string]any{"state": "started", "token": 7, "at": ago(0)}},
	})
	list.Is(row("a") + `.dataset.state === 'FAILED' && ` + row("a") + `.innerText.includes('effect_uncertain')`)
	one.Is(`document.getElementById('errors').innerText.includes('not a letter') && document.querySelector('#answers [data-action=resolve]').checkVisibility()`)
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
	s.analysis("a", map[string]any{"status": "QUEUED", "nextAttemptAt": ago(-10 * time.Minute)})
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
	key := strings.Trim(b.Eval(row("held")+`.dataset.key`), `"`)
	tabTo(b, "menu-open-"+key)
	b.Press(kb.Enter)
	b.Press(kb.Escape) // closes the menu, and leaves the focus on its button
	b.Is(`!document.querySelector('.menu[open]') && document.activeElement.id === 'menu-open-` + key + `'`)
	b.Press(kb.Enter)
	tabTo(b, "cancel-"+key)
	s.update("held", map[string]any{"progress": map[string]any{"fraction": 0.9}}) // it replaces the row, and keeps the menu and the focus
	b.Is(row("held") + `.innerText.includes('90 %') && document.activeElement.id === 'cancel-` + key + `'`)
	b.Press(kb.Enter)
	b.Is(`document.getElementById('confirm')?.dataset.action === 'cancel'`)
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.Is(`document.getElementById('notice')?.innerText.startsWith('Cancelled. ')`)

	b.Go(s.url + "/resolve?id=uncertain&name=charge")
	tabTo(b, "done")
	b.Press(" ")
	tabTo(b, "result")
	b.Press(`{"receipt": 7}`)
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.Is(`document.getElementById('notice')?.innerText.startsWith('Resolved. ') && document.getElementById('acts').innerText.includes('done')`)
}

// beyond is a script that returns the elements that are partly outside the window, and cropped
// one that returns those whose text is cut off. Code, which scrolls, texts that end in an
// ellipsis, and texts for screen readers, which are a pixel wide, are allowed.
const (
	beyond = `[...document.querySelectorAll('body *')]
	.filter((e) => e.checkVisibility() && !e.closest('pre, .away, .skip, svg') && e.getClientRects().length)
	.filter((e) => { for (let a = e; a; a = a.parentElement) if (a.clientWidth === 1 || getComputedStyle(a).textOverflow === 'ellipsis') return false; return true; })
	.map((e) => [e, e.getBoundingClientRect()])
	.filter(([, at]) => at.right > innerWidth + 0.5 || at.left < -0.5)
	.map(([e, at]) => [e.tagName, e.id || e.className, Math.round(at.left), Math.round(at.right)]).slice(0, 5)`
	cropped = `[...document.querySelectorAll('body *')]
	.filter((e) => e.checkVisibility() && !e.closest('pre, .away, .skip, svg, input') && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)
	.filter((e) => getComputedStyle(e).overflowX !== 'visible' && getComputedStyle(e).textOverflow !== 'ellipsis')
	.map((e) => [e.tagName, e.id || e.className, e.scrollWidth, e.clientWidth]).slice(0, 5)`
)

func TestEveryPageHasBothThemesAndFitsASmallScreen(t *testing.T) {
	t.Parallel()
	s, unavailable := withStates(t), newSite(t)
	unavailable.Server.Close()
	long := url.QueryEscape(longID)
	b := s.open("/")
	for _, page := range []struct{ name, url string }{
		{"list", s.url},
		{"list filtered", s.url + "/?state=FAILED&code=attempts_exhausted&since=1h&older=0s"},
		{"list, Firestore unavailable", unavailable.url},
		{"failures", s.url + "/failures"},
		{"cancel all", s.url + "/all/cancel?state=QUEUED&since=1h"},
		{"detail held", s.url + "/analysis?id=held"},
		{"detail crashed", s.url + "/analysis?id=waits"},
		{"detail failed", s.url + "/analysis?id=failed"},
		{"detail malformed", s.url + "/analysis?id=malformed"},
		{"detail long", s.url + "/analysis?id=" + long},
		{"detail with contents", s.url + "/analysis?id=ready&show=all"},
		{"confirm requeue from a checkpoint", s.url + "/requeue?id=failed"},
		{"confirm resolve", s.url + "/resolve?id=uncertain&name=charge"},
		{"confirm long", s.url + "/unlock?id=" + long},
		{"problem", s.url + "/analysis?id=missing"},
	} {
		b.Go(page.url)
		b.Is(`document.getElementById('main') && document.fonts.status === 'loaded'`)
		b.Is(`!document.getElementById('live') || document.getElementById('live').dataset.live !== 'connecting' || !document.body.dataset.poll`)
		grounds := map[string]bool{}
		for theme, width := range map[string]int64{"light": 360, "dark": 1280} { // a theme changes no size
			b.Show(theme, width)
			b.Is(fmt.Sprintf(`innerWidth === %d && matchMedia('(prefers-color-scheme: %s)').matches && document.getAnimations().length === 0`, width, theme))
			name := fmt.Sprintf("console %s %s %d", page.name, theme, width)
			b.CheckLayout(name)
			for what, script := range map[string]string{"outside the window": beyond, "cropped": cropped} {
				if got := b.Eval(script); got != "[]" {
					t.Errorf("%s: %s: %s", name, what, got)
				}
			}
			grounds[b.Eval(`getComputedStyle(document.body).backgroundColor`)] = true
		}
		b.Is(`[...document.querySelectorAll('.trace')].filter((e) => e.checkVisibility()).every((e) => e.lastElementChild.getBoundingClientRect().bottom <= e.getBoundingClientRect().bottom)`) // its end is visible
		if len(grounds) != 2 {
			t.Errorf("%s: both themes have the background %v", page.name, grounds)
		}
	}
}

// site is a console and what it shows.
type site struct {
	*emulatortest.Backend
	t       *testing.T
	url     string
	profile *Profile
}

// newSite starts the console, with changes if flags has --write, until the test ends. It reads each
// second what a page shows, instead of each eight.
func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	b := emulatortest.Embedded(t)
	env := map[string]string{"GOOGLE_CLOUD_PROJECT": b.Project, "FIRESTORE_EMULATOR_HOST": b.Listen(t)}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	ctx, stop := context.WithCancel(context.Background())
	console := must(operate.NewConsole(ctx, &cli.Call{Lookup: lookup}, operate.ConsoleOptions{
		Write: slices.Contains(flags, "--write"), Every: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}))(t)
	l := must((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	ended := make(chan error, 1)
	go func() { ended <- console.Serve(ctx, l) }()
	t.Cleanup(func() { stop(); check(t, <-ended) })
	return &site{Backend: b, t: t, url: "http://" + l.Addr().String(), profile: NewProfile(t)}
}

// open opens a page of the console, which polls every second instead of every four, and in which
// scripts run before the page's own.
func (s *site) open(path string, scripts ...string) *Tab {
	s.t.Helper()
	const faster = `const wait = setTimeout; globalThis.setTimeout = (call, ms) => wait(call, ms / 4);`
	return s.profile.Open(s.url+path, append([]string{faster}, scripts...)...)
}

// analysis writes the analysis id as another program would: created and updated now,
// unless fields has these times.
func (s *site) analysis(id string, fields map[string]any) {
	s.t.Helper()
	all := map[string]any{"createdAt": ago(0), "updatedAt": ago(0)}
	maps.Copy(all, fields)
	s.Put(s.t, id, all)
}

// update changes fields as a worker does, with updatedAt.
func (s *site) update(id string, fields map[string]any) {
	s.t.Helper()
	fields["updatedAt"] = ago(0)
	s.Merge(s.t, id, fields)
}

// locked returns the fields of an analysis whose lock ends after left.
func locked(left time.Duration) map[string]any {
	return map[string]any{
		"status": "PROCESSING", "attempts": 3, "lockOwner": "taskguard-worker-00042-kib/0087244a81b5c3/9f2c4d", "lockToken": 7,
		"lockExpiresAt": iso8601.Format(time.Now().Add(left)), "progress": map[string]any{"fraction": 0.4, "message": words, "at": ago(3 * time.Second)},
		"history": []any{
			map[string]any{"attempt": 1, "token": 5, "owner": words, "startedAt": ago(time.Hour), "endedAt": ago(50 * time.Minute), "outcome": "retry", "code": "exit_1", "message": words[:256]},
			map[string]any{"attempt": 3, "token": 7, "owner": "w/2", "startedAt": ago(time.Minute)},
		},
	}
}

func ago(d time.Duration) string { return iso8601.Format(time.Now().Add(-d)) }

// words is a long text of a document that contains markup, traceback one whose last line is its
// meaning, and longID is longer than a column of the list.
var (
	words     = "<b>the</b> document's text is not \"UTF-8\" & cannot be read; " + strings.Repeat("a-very-long-word-without-a-place-to-break-it", 8)
	traceback = "Traceback (most recent call last):\n  File \"/app/analyze.py\", line 41, in main\n" + strings.Repeat("    step(document)\n", 12) + "KeyError: 'invoice_number'\n"
	longID    = "2026-11-21—Überweisung—" + strings.Repeat("0123456789", 20)
)

// withStates returns a site, with changes, that has an analysis in each state.
func withStates(t *testing.T) *site {
	t.Helper()
	s := newSite(t, "--write")
	failed := map[string]any{"code": "exit_1", "message": traceback}
	act := map[string]any{"charge": map[string]any{"state": "started", "token": 7, "at": ago(3 * time.Hour)}, "mail": map[string]any{"state": "done", "token": 7, "at": ago(4 * time.Hour)}}
	crashed := []any{map[string]any{"attempt": 1, "owner": "taskguard-worker-00042-kib/" + words, "startedAt": ago(time.Hour),
		"endedAt": ago(time.Minute), "outcome": "crashed", "alone": true, "delays": 3}}
	for id, fields := range map[string]map[string]any{
		"held": locked(5 * time.Minute), "stale": locked(-time.Minute), "foreign": {"status": "ARCHIVED"}, "without": {"input": "the input"},
		longID:      {"status": strings.Repeat("EINGEFROREN", 12), "attempts": 123456},
		"stuck":     {"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"},
		"waits":     {"status": "QUEUED", "attempts": 1, "nextAttemptAt": ago(-9 * time.Minute), "history": crashed, "lastError": map[string]any{"code": "crashed", "message": words}},
		"ready":     {"status": "READY", "attempts": 1, "input": "the input", "result": map[string]any{"words": 5}, "lockToken": 3, "finishedBy": "a/b/c"},
		"failed":    {"status": "FAILED", "attempts": 10, "checkpoint": "page 7", "lastError": failed, "error": map[string]any{"code": "attempts_exhausted", "message": "attempt 10 was the last: " + traceback}},
		"uncertain": {"status": "FAILED", "lockToken": 7, "error": map[string]any{"code": "effect_uncertain", "message": "act charge"}, "openEffects": 1, "effects": act},
		"malformed": {"status": "PROCESSING", "lockOwner": "unknown", "lockToken": "seven", "lockExpiresAt": "tomorrow"},
	} {
		s.analysis(id, fields)
	}
	return s
}

// row returns a script for the row of the analysis id.
func row(id string) string { return fmt.Sprintf(`document.querySelector('#rows [data-id=%q]')`, id) }
