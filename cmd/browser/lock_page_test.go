package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

// If the tab that edits is closed, the other tab may edit.
func TestLockPage_Closed(t *testing.T) {
	t.Parallel()
	s, p := newLockSite(t, long), NewProfile(t)
	first, second := p.Open(s.page("notes")), p.Open(s.page("notes"))
	first.shows("free")
	first.Click("edit")
	first.shows("mine")
	second.shows("other")
	first.Close()
	second.shows("free")
	second.want(`document.getElementById('text').readOnly`, "true")
}

// Leaving the page frees the lock.
func TestLockPage_Left(t *testing.T) {
	t.Parallel()
	s := newLockSite(t, long)
	b := NewProfile(t).Open(s.page("notes"), withoutWebLocks)
	b.Click("edit")
	b.shows("mine")
	b.Do(chromedp.Navigate(s.url + "/health/live"))
	s.free(t, "notes")
	b.goBack(`document.getElementById('state')?.dataset.state === 'free'`) // kept or loaded: as the browser chooses
	b.want(`document.getElementById('text').readOnly`, "true")
	s.hold(t, "notes")
	b.shows("other") // the page receives events again
}

// The page ignores older events, and connects again.
func TestLockPage_Events(t *testing.T) {
	t.Parallel()
	s := newLockSite(t, 0)
	b := NewProfile(t).Open(s.page("notes"), `
		globalThis.sockets = [];
		globalThis.WebSocket = class { constructor(url) { this.url = String(url); sockets.push(this); } };
		globalThis.send = (version, type) => sockets.at(-1).onmessage({ data: JSON.stringify({
			type, version, room_id: 'notes', reason: 'current', expires_at: null,
			holder: type === 'DocumentLocked' ? 'h' + version : null }) });
		globalThis.state = () => document.getElementById('state').dataset.state;`)
	b.want(`state()`, `"connecting"`)
	b.want(`(send(5, 'DocumentLocked'), state())`, `"other"`)
	b.want(`(send(4, 'DocumentUnlocked'), state())`, `"other"`)
	b.want(`(sockets.at(-1).onclose({}), state())`, `"connecting"`)
	b.Is(`sockets.length === 2`)
	b.want(`(send(4, 'DocumentUnlocked'), state())`, `"other"`)
	b.want(`(send(6, 'DocumentUnlocked'), state())`, `"free"`)
}

// A save that the server does not confirm is not made.
func TestLockPage_Save(t *testing.T) {
	t.Parallel()
	s := newLockSite(t, 0)
	b := NewProfile(t).Open(s.page("room"))
	b.Click("edit")
	b.shows("mine")
	b.Eval(`document.getElementById('text').value = 'first'`)
	b.Click("save")
	b.Is(`document.getElementById('saved').textContent.startsWith('Saved with token ')`)
	// The event of the unlock causes a renewal, which must not detect the loss first.
	b.Eval(`(() => {
		const ask = fetch;
		globalThis.fetch = (url, init) => (init?.method === 'PUT' ? new Promise(() => {}) : ask(url, init));
	})()`)
	s.unlock(t, "room")
	b.Eval(`document.getElementById('text').value = 'second'`)
	b.Click("save")
	b.Is(`document.getElementById('saved').textContent.startsWith('Not saved')`)
	b.want(`localStorage.getItem('text of room')`, `"first"`)
	b.want(`[document.getElementById('banner').hidden, document.getElementById('text').readOnly]`, `[false,true]`)
}

// The page has both themes, and fits a small screen.
func TestLockPage_Layout(t *testing.T) {
	t.Parallel()
	s, p := newLockSite(t, long), NewProfile(t)
	b, other := p.Open(s.page("notes")), p.Open(s.page("notes"))
	backgrounds := map[string]bool{}
	looks := func(b *Tab, state string) {
		for theme, width := range map[string]int64{"light": 360, "dark": 1024} { // a theme changes no size
			b.Show(theme, width)
			b.CheckLayout(theme + " " + state)
			backgrounds[b.Eval(`getComputedStyle(document.body).backgroundColor`)] = true
		}
	}
	b.shows("free")
	looks(b, "free")
	b.Click("edit")
	b.shows("mine")
	b.Click("save")
	b.Is(`document.getElementById('saved').textContent`)
	looks(b, "mine")
	other.shows("other")
	other.Click("edit")
	other.Is(`document.getElementById('banner').textContent.includes('someone else is editing')`)
	looks(other, "other")
	s.unlock(t, "notes")
	b.Is(`document.getElementById('banner').textContent.includes('your lock has ended')`)
	b.want(`document.getElementById('text').readOnly`, "true")
	looks(b, "lost")
	if len(backgrounds) != 2 {
		t.Errorf("two themes have the backgrounds %v", backgrounds)
	}
}

func TestLockPage_Keyboard(t *testing.T) {
	t.Parallel()
	s := newLockSite(t, 0)
	b := NewProfile(t).Open(s.page("notes"))
	b.Focus()
	b.shows("free")
	var order []string
	for range 4 {
		b.Press(kb.Tab)
		order = append(order, b.Eval(`document.activeElement.id || document.activeElement.textContent`))
	}
	if want := []string{`"room"`, `"Open"`, `"text"`, `"edit"`}; !slices.Equal(order, want) {
		t.Errorf("Tab moves through %v, want %v", order, want)
	}
	b.want(`getComputedStyle(document.activeElement).outlineStyle`, `"solid"`)
	b.Press(kb.Enter)
	b.shows("mine")
	b.Is(`document.activeElement.id === 'text'`)
	b.Press(kb.Tab)
	b.Is(`document.activeElement.id === 'save'`)
	b.Press(kb.Tab, kb.Enter)
	b.shows("free")
	b.Is(`document.activeElement.id === 'edit'`)
}

// keptPages are what a page may do when the browser keeps it for the Back button.
// begin is a script that leaves a promise in `taking`; `back` resolves when the
// page is shown again.
var keptPages = []struct {
	name  string
	posts int // until it is asked again
	begin string
}{
	{"holding the lock", 1, `take().then(({ leaseId }) => {
		globalThis.taking = back.then(() => failure(locks.renewProjectLock({ leaseId })));
	})`},
	{"asking the server", 1, `new Promise((asked) => {
		globalThis.fetch = (url, init) => {
			if (init.method !== 'POST') return real(url, init);
			globalThis.fetch = real;
			asked();
			return back.then(() => real(url, init)); // after the page has released what it may have got
		};
		globalThis.taking = denied();
	})`},
}

// A page that the Back button restores is read-only.
func TestLockPage_Restored(t *testing.T) {
	t.Parallel()
	s, p := newLockSite(t, long), NewProfile(t)
	for _, c := range keptPages {
		t.Run(c.name, func(t *testing.T) {
			b := p.In(t).load(s)
			b.Eval(`void (globalThis.back = new Promise((shown) => {
				addEventListener('pageshow', ({ persisted }) => { globalThis.kept = persisted; shown(); });
			}))`)
			before := s.count("POST")
			b.Eval(c.begin)
			b.Do(chromedp.Navigate(s.url + "/health/live"))
			b.goBack(`globalThis.kept === true`)
			b.want(`taking.then((failed) => [failed, readonly, kept])`, `["lease-stale",["lease-stale"],true]`)
			b.want(`navigator.locks.query().then(({ held }) => held.length)`, "0")
			s.free(t, "room")
			if got := s.count("POST") - before; got != c.posts {
				t.Errorf("the server was asked for the lock %d times, want %d", got, c.posts)
			}
			b.want(`failure(locks.withProjectLock(() => {}, quick))`, `"none"`)
			b.Close()
		})
	}
}

// goBack goes back to the page before, and waits until condition holds there. A
// page that the browser has kept is not loaded, so there is no event to wait for.
func (b *Tab) goBack(condition string) {
	b.T.Helper()
	h := Call(b, page.GetNavigationHistory, cdp.Empty{})
	Call(b, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: h.Entries[h.CurrentIndex-1].ID})
	if !until(func() bool {
		ctx, done := context.WithTimeout(b.Ctx, time.Second)
		defer done()
		holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool](condition)) // fails while one page replaces the other
		return err == nil && holds
	}) {
		b.T.Fatalf("the page does not come back so that %s", condition)
	}
}

// renewing takes the project as `lease`, and waits for a heartbeat.
const renewing = `(async () => {
	globalThis.lease = await take({ heartbeatIntervalMs: 2000 });
	await next('lock:renewed');
	return [lease.strategy, readonly];
})()`

// The Workers run in a bundle and from another origin: the heartbeats come from them, as the page has no timers.
// Names to keep and an old target make the bundler add calls of its own to each function.
func TestLocksJS_Bundle(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	esbuild := filepath.Join(examplestest.Modules(t, paths[1], web+"testdata"), "esbuild-wasm", "bin", "esbuild")
	t.Parallel()
	dir := t.TempDir()
	examplestest.Copy(t, dir, web+"locks.js", web+"page.css")
	for name, text := range map[string]string{
		"app.html": `<!doctype html><script type="module" src="app.min.js"></script>`,
		"app.js": `import * as locks from './locks.js';
			fetch('/started');
			globalThis.events = [];
			globalThis.locks = locks;`,
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	bundle := exec.CommandContext(t.Context(), paths[0], esbuild,
		"app.js", "--bundle", "--minify", "--format=esm", "--keep-names", "--target=es2016", "--outfile=app.min.js")
	bundle.Dir = dir
	examplestest.Output(t, bundle)
	var started atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/started" {
			started.Add(1)
		}
		w.Header().Set("Access-Control-Allow-Origin", "*")
		http.FileServer(http.Dir(dir)).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	for strategy, before := range strategies {
		bundled := p.Open(server.URL+"/app.html", instrumented, before, serverless, withoutTimers)
		bundled.Is(`globalThis.locks`)
		other := p.Open(s.url+"/page.css", instrumented, before, serverless, withoutTimers)
		other.imported(server.URL + "/locks.js")
		for _, b := range []*Tab{bundled, other} {
			b.want(renewing, `["`+strategy+`",[]]`)
			b.want(`locks.releaseProjectLock(lease).then(file)`, `"NotFoundError"`)
			b.Close()
		}
		if got := started.Swap(0); got != 1 {
			t.Errorf("%s: the application ran %d times", strategy, got)
		}
	}
}

// A policy without blob: Workers refuses the file, and keeps the Web Lock.
func TestLocksJS_Policy(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		http.FileServer(http.Dir(web)).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p := NewProfile(t)
	for strategy, want := range map[string]string{
		"web-lock":  `["web-lock",[]]`,
		"file-lock": `["acquire-denied",false,"no_worker"]`,
	} {
		b := p.load(&lockSite{url: server.URL}, strategies[strategy], serverless)
		b.want(renewing+`.catch(({ code, retryable, context }) => [code, retryable, context.error])`, want)
		b.Close()
	}
}
