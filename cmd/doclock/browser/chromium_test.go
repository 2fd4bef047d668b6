package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// patience bounds what a test waits for one thing, which is a hang, not a figure.
const patience = 40 * time.Second

// profile is a Chromium process with a user's data of its own.
type profile struct {
	t      *testing.T
	ctx    context.Context
	killed *bool
}

// newProfile starts Chromium; it ends with the test. Its own timers are throttled
// in hidden tabs, as users' are. Where the machine is busy Chromium at times
// crashes as it starts, which is no failure of ours: it is started again.
func newProfile(t *testing.T) *profile {
	t.Helper()
	path, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p := &profile{t: t, killed: new(bool)}
		if err = p.start(path); err == nil {
			return p
		}
		t.Logf("starting Chromium: %v", err)
	}
	t.Fatalf("Chromium does not start: %v", err)
	return nil
}

func (p *profile) start(path string) error {
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(userData(p.t)), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Headless, chromedp.NoSandbox, chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-breakpad", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("password-store", "basic"))
	var cancel context.CancelFunc
	p.ctx, cancel = chromedp.NewContext(alloc)
	if err := chromedp.Do(p.ctx); err != nil {
		cancel()
		stop()
		return err
	}
	p.t.Cleanup(stop) // waits for the process
	p.t.Cleanup(func() {
		if *p.killed {
			return
		}
		closing, done := context.WithTimeout(p.ctx, patience)
		defer done()
		if err := chromedp.Cancel(closing); err != nil {
			p.t.Errorf("closing Chromium: %v", err)
		}
	})
	return nil
}

// in is the profile for a subtest.
func (p *profile) in(t *testing.T) *profile { return &profile{t, p.ctx, p.killed} }

// kill ends Chromium as a crash does.
func (p *profile) kill() {
	p.t.Helper()
	*p.killed = true
	if err := chromedp.FromContext(p.ctx).Browser.Process().Kill(); err != nil {
		p.t.Fatal(err)
	}
}

// userData is a directory for a profile. Chromium's children may write in it for
// a moment after the process that anyone waits for, so it is removed patiently.
func userData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		var err error
		for range 200 {
			if err = os.RemoveAll(dir); err == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("a profile's directory stays in use: %v", err)
	})
	return dir
}

// tab is a page of a profile.
type tab struct {
	t      *testing.T
	ctx    context.Context
	closed func()
}

// open is a new tab at url in which scripts run before the page's own.
func (p *profile) open(url string, scripts ...string) *tab {
	p.t.Helper()
	ctx, closed := chromedp.NewContext(p.ctx)
	p.t.Cleanup(closed)
	b := &tab{p.t, ctx, closed}
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as the context of this call
		p.t.Fatal(err)
	}
	for _, s := range scripts {
		call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: s})
	}
	b.do(chromedp.Navigate(url))
	return b
}

// load is a tab with the module as `locks` and its events, in order, in `events`.
func (p *profile) load(url string, scripts ...string) *tab {
	p.t.Helper()
	b := p.open(url, scripts...)
	b.eval(`import('/locks.js').then((module) => {
		globalThis.locks = module;
		globalThis.events = [];
		globalThis.unsubscribe = module.subscribeLockEvents((event) => events.push(event));
	})`)
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, done := context.WithTimeout(b.ctx, patience)
	defer done()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// call runs a command of the DevTools protocol in b.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, done := context.WithTimeout(b.ctx, patience)
	defer done()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// eval is what script comes to, awaited, in JSON; empty for undefined.
func (b *tab) eval(script string) string {
	b.t.Helper()
	ctx, done := context.WithTimeout(b.ctx, patience)
	defer done()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[string](
		`(async () => JSON.stringify(await (`+script+`)) ?? '')()`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s\n%v", script, err)
	}
	return v
}

// is waits until condition holds.
func (b *tab) is(condition string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for b.eval(`Boolean(`+condition+`)`) != "true" {
		if time.Now().After(deadline) {
			b.t.Fatalf("never came true: %s\nthe page shows %s\nlast events: %s", condition, b.eval(`document.body.innerText.slice(0, 1000)`), b.eval(`globalThis.events?.slice(-5)`))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shows waits until the page's state is that: free, mine, other.
func (b *tab) shows(state string) {
	b.t.Helper()
	b.is(fmt.Sprintf(`document.getElementById('state').dataset.state === %q`, state))
}

func (b *tab) click(id string) {
	b.t.Helper()
	b.is(fmt.Sprintf(`!document.getElementById(%q).disabled`, id))
	b.do(chromedp.Click(chromedp.ID(id)))
}

// events are those so far, each in the words of brief.
func (b *tab) events() []string {
	b.t.Helper()
	var all []event
	if err := json.Unmarshal([]byte(b.eval(`events`)), &all); err != nil {
		b.t.Fatal(err)
	}
	lines := make([]string, len(all))
	for i := range all {
		lines[i] = all[i].brief()
	}
	return lines
}

// event is an event of the module, as far as tests compare it.
type event struct {
	Type      string
	Strategy  string
	Retry     *int
	Code      string
	Retryable *bool
	WaitMs    *int
	Warning   string
	Force     *bool
	Reason    string
	Info      struct {
		Reason string
	}
}

// brief is the event's type and what of its details is certain.
func (e *event) brief() string {
	words := []string{strings.TrimPrefix(e.Type, "lock:")}
	for _, w := range []string{e.Strategy, e.Code, e.Warning, e.Reason, e.Info.Reason} {
		if w != "" {
			words = append(words, w)
		}
	}
	if e.Retry != nil {
		words = append(words, fmt.Sprintf("retry=%d", *e.Retry))
	}
	if e.Retryable != nil {
		words = append(words, fmt.Sprintf("retryable=%t", *e.Retryable))
	}
	if e.WaitMs != nil {
		words = append(words, fmt.Sprintf("wait=%d", *e.WaitMs))
	}
	if e.Force != nil && *e.Force {
		words = append(words, "force")
	}
	return strings.Join(words, " ")
}
