package browser

import (
	"context"
	_ "embed" // a script
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
	"taskguard/internal/testing/must"
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

// A page follows the database without a reload.
func TestConsole_Live(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	s.analysis("a", map[string]any{"status": "QUEUED"})
	s.analysis("b", map[string]any{"status": "QUEUED"})
	list, one := live(s.open("/")), live(s.open("/analysis?id=a"))
	list.Is(ids + ` === 'a b'`)
	s.update("a", locked(2*time.Minute))
	list.Is(row("a") + `.dataset.lock === 'held' && document.querySelector('#rows > tr').id === 'group-running'`)
	one.Is(text("fact-lock") + `.includes('held by taskguard-worker-00042')`)
	one.Is(text("fact-progress") + `.includes('40 %')`)
	one.Is(each("#timeline li", "e.checkVisibility() && e.dataset.outcome") + `.join(' ') === 'running retry'`)
	const left = `document.querySelector('#fact-lock [data-until]').textContent`
	one.Is(left + `.startsWith('1 min ')`)
	one.Eval(`globalThis.left = ` + left)
	one.Is(left + ` !== globalThis.left`) // it counts down

	// Nothing is written when a lock ends: only the time changes.
	s.update("a", locked(6*time.Second))
	list.Is(row("a") + `.dataset.lock === 'stale'`)
	one.Is(`document.querySelector('#fact-lock .word').innerText === 'stale'`)

	s.update("a", map[string]any{
		"status": "FAILED", "error": problem("effect_uncertain", "not a letter"),
		"lockOwner": firestore.Delete, "lockExpiresAt": firestore.Delete, "openEffects": 1, "effects": charge(0),
	})
	list.Is(row("a") + `.dataset.state === 'FAILED' && ` + row("a") + `.dataset.group === 'uncertain'`)
	one.Is(text("errors") + `.includes('not a letter')`)
	one.Is(`document.querySelector('#answers [data-action=resolve]').checkVisibility()`)
	s.Delete(t, "a")
	s.Delete(t, "b")
	list.Is(`document.querySelectorAll('#rows > tr').length === 0 && !document.getElementById('empty').hidden`)
	one.Is(text("live-text") + `.startsWith('There is no analysis with this id. What is shown is as of ')`)
	list.Is(`globalThis.marked`)
	one.Is(`globalThis.marked`)
}

// wantStill fails if the time left of a changes, as its lock may have been renewed.
func wantStill(b *Tab) {
	b.T.Helper()
	before := b.Eval(row("a") + left)
	b.want(`new Promise((done) => setTimeout(() => done(`+row("a")+left+`), 2500))`, before)
}

// A page that is stalled or paused stops its times: a request gets no answer, as with a lost tunnel. Then one gets
// it after the page is paused.
func TestConsole_Stalled(t *testing.T) {
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
	b.Is(text("live-text") + `.includes('What is shown is as of ')`)
	wantStill(b)
	b.Eval(`globalThis.stalled = false`)
	live(b)

	b.Eval(`globalThis.release = new Promise((done) => { globalThis.answer = done; }), 0`)
	b.Is(`globalThis.held !== undefined`)
	b.Click("pause")
	b.Is(`document.getElementById('live').dataset.live === 'paused'`)
	b.want(`document.getElementById('pause').getAttribute('aria-pressed')`, `"true"`)
	s.analysis("b", map[string]any{"status": "QUEUED"})
	b.Eval(`globalThis.answer()`)
	wantStill(b)
	b.Is(ids + ` === 'a'`)
	b.Click("pause")
	b.Is(ids + ` === 'a b' && globalThis.marked`)
}

// A hidden page sends no requests.
func TestConsole_Hidden(t *testing.T) {
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
	hidden.Is(row("a") + `.dataset.state === 'READY' && globalThis.marked`)
	live(hidden)
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

// A poll replaces a row, and neither its open menu nor the focus.
func TestConsole_Menu(t *testing.T) {
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
	s.update("held", map[string]any{"progress": map[string]any{"fraction": 0.9}})
	b.Is(row("held") + `.innerText.includes('90 %') && document.activeElement.id === 'cancel-` + key + `'`)
	b.Press(kb.Enter)
	b.Is(`document.getElementById('confirm')?.dataset.action === 'cancel'`)
	tabTo(b, "confirm-submit")
}

//go:embed testdata/layout.js
var layout string

// Each page has both themes, and fits a small screen.
func TestConsole_Layout(t *testing.T) {
	t.Parallel()
	s, unavailable := withStates(t), newSite(t)
	unavailable.Server.Close()
	long := url.QueryEscape(longID)
	b := s.open("/", layout)
	for name, page := range map[string]string{
		"list": "/", "list filtered": "/?state=FAILED&code=attempts_exhausted&since=1h&older=0s",
		"list, Firestore unavailable": unavailable.url,
		"failures":                    "/failures", "cancel all": "/all/cancel?state=QUEUED&since=1h",
		"detail held": "/analysis?id=held", "detail crashed": "/analysis?id=waits",
		"detail failed": "/analysis?id=failed", "detail malformed": "/analysis?id=malformed",
		"detail long": "/analysis?id=" + long, "detail with contents": "/analysis?id=ready&show=all",
		"confirm requeue from a checkpoint": "/requeue?id=failed", "confirm long": "/unlock?id=" + long,
		"confirm resolve": "/resolve?id=uncertain&name=charge", "problem": "/analysis?id=missing",
	} {
		if strings.HasPrefix(page, "/") {
			page = s.url + page
		}
		b.Go(page)
		b.Is(`settled()`)
		grounds := map[string]bool{}
		for theme, width := range map[string]int64{"light": 360, "dark": 1280} { // a theme changes no size
			b.Show(theme, width)
			b.Is(fmt.Sprintf(`innerWidth === %d && matchMedia('(prefers-color-scheme: %s)').matches`, width, theme))
			b.Is(`document.getAnimations().length === 0`)
			shown := fmt.Sprintf("console %s %s %d", name, theme, width)
			b.CheckLayout(shown)
			for _, script := range []string{`beyond()`, `cropped()`} {
				if got := b.Eval(script); got != "[]" {
					t.Errorf("%s: %s: %s", shown, script, got)
				}
			}
			grounds[b.Eval(`getComputedStyle(document.body).backgroundColor`)] = true
		}
		b.Is(`scrolled()`)
		if len(grounds) != 2 {
			t.Errorf("%s: both themes have the background %v", name, grounds)
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
	console := must.Get(operate.NewConsole(ctx, &cli.Call{Lookup: lookup}, operate.ConsoleOptions{
		Write: slices.Contains(flags, "--write"), Every: time.Second,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}))(t)
	l := must.Get((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	ended := make(chan error, 1)
	go func() { ended <- console.Serve(ctx, l) }()
	t.Cleanup(func() { stop(); must.OK(t, <-ended) })
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

func (s *site) wantStatus(id, want string) {
	s.t.Helper()
	if got := s.Fields(s.t, id)["status"]; got != want {
		s.t.Errorf("%s is %v, want %s", id, got, want)
	}
}

// locked returns the fields of an analysis whose lock ends after left.
func locked(left time.Duration) map[string]any {
	return map[string]any{
		"status": "PROCESSING", "attempts": 3, "lockOwner": "taskguard-worker-00042-kib/0087244a81b5c3/9f2c4d",
		"lockToken": 7, "lockExpiresAt": iso8601.Format(time.Now().Add(left)),
		"progress": map[string]any{"fraction": 0.4, "message": words, "at": ago(3 * time.Second)},
		"history": []any{
			map[string]any{
				"attempt": 1, "token": 5, "owner": words, "startedAt": ago(time.Hour), "endedAt": ago(50 * time.Minute),
				"outcome": "retry", "code": "exit_1", "message": words[:256],
			},
			map[string]any{"attempt": 3, "token": 7, "owner": "w/2", "startedAt": ago(time.Minute)},
		},
	}
}

func ago(d time.Duration) string { return iso8601.Format(time.Now().Add(-d)) }

func problem(code, message string) map[string]any {
	return map[string]any{"code": code, "message": message}
}

// charge returns the side effects of an analysis that began its charge so long ago.
func charge(began time.Duration) map[string]any {
	return map[string]any{"charge": map[string]any{"state": "started", "token": 7, "at": ago(began)}}
}

// words is a long text of a document that contains markup, traceback one whose last line is its
// meaning, and longID is longer than a column of the list.
var (
	words = "<b>the</b> document's text is not \"UTF-8\" & cannot be read; " +
		strings.Repeat("a-very-long-word-without-a-place-to-break-it", 8)
	traceback = "Traceback (most recent call last):\n  File \"/app/analyze.py\", line 41, in main\n" +
		strings.Repeat("    step(document)\n", 12) + "KeyError: 'invoice_number'\n"
	longID = "2026-11-21—Überweisung—" + strings.Repeat("0123456789", 20)
)

// withStates returns a site, with changes, that has an analysis in each state.
func withStates(t *testing.T) *site {
	t.Helper()
	s := newSite(t, "--write")
	effects := charge(3 * time.Hour)
	effects["mail"] = map[string]any{"state": "done", "token": 7, "at": ago(4 * time.Hour)}
	crash := map[string]any{
		"attempt": 1, "owner": "taskguard-worker-00042-kib/" + words, "startedAt": ago(time.Hour),
		"endedAt": ago(time.Minute), "outcome": "crashed", "alone": true, "delays": 3,
	}
	for id, fields := range map[string]map[string]any{
		"held": locked(5 * time.Minute), "stale": locked(-time.Minute),
		"foreign": {"status": "ARCHIVED"}, "without": {"input": "the input"},
		longID:  {"status": strings.Repeat("EINGEFROREN", 12), "attempts": 123456},
		"stuck": {"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"},
		"waits": {
			"status": "QUEUED", "attempts": 1, "nextAttemptAt": ago(-9 * time.Minute), "history": []any{crash},
			"lastError": problem("crashed", words),
		},
		"ready": {
			"status": "READY", "attempts": 1, "lockToken": 3, "finishedBy": "a/b/c",
			"input": "the input", "result": map[string]any{"words": 5},
		},
		"failed": {
			"status": "FAILED", "attempts": 10, "checkpoint": "page 7", "lastError": problem("exit_1", traceback),
			"error": problem("attempts_exhausted", "attempt 10 was the last: "+traceback),
		},
		"uncertain": {
			"status": "FAILED", "lockToken": 7, "error": problem("effect_uncertain", "act charge"), "openEffects": 1,
			"effects": effects,
		},
		"malformed": {"status": "PROCESSING", "lockToken": "seven", "lockExpiresAt": "tomorrow"},
	} {
		s.analysis(id, fields)
	}
	return s
}

// row returns a script for the row of the analysis id.
func row(id string) string { return fmt.Sprintf(`document.querySelector('#rows [data-id=%q]')`, id) }

// text returns a script for the text of the element id.
func text(id string) string { return fmt.Sprintf(`(document.getElementById(%q)?.innerText ?? '')`, id) }
