package browser

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

// Tab is a page of a profile.
type Tab struct {
	T     *testing.T
	Ctx   context.Context // of the tab: for chromedp
	Close func()
}

// In returns the tab for a subtest.
func (b *Tab) In(t *testing.T) *Tab { return &Tab{t, b.Ctx, b.Close} }

// Open opens a tab at url in which scripts run before the page's own.
func (p *Profile) Open(url string, scripts ...string) *Tab {
	p.t.Helper()
	b := open(shared.ctx, p.t, chromedp.WithExistingBrowserContext(p.id))
	for _, s := range scripts {
		Call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: s})
	}
	b.Go(url)
	return b
}

// OpenBeside opens a tab in front of b, in b's window: b is hidden then.
func (b *Tab) OpenBeside(url string) *Tab {
	b.T.Helper()
	front := open(b.Ctx, b.T, chromedp.WithNewWindow(false))
	front.Go(url)
	return front
}

func open(parent context.Context, t *testing.T, option chromedp.ContextOption) *Tab {
	t.Helper()
	ctx, closed := chromedp.NewContext(parent, option)
	t.Cleanup(closed)
	must.OK(t, chromedp.Do(ctx)) // the tab lives as long as the context of this call
	return &Tab{T: t, Ctx: ctx, Close: closed}
}

// Go opens url in b and returns when it is loaded.
func (b *Tab) Go(url string) {
	b.T.Helper()
	b.Do(chromedp.Navigate(url))
}

// Do runs these actions, one after the other.
func (b *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.T.Helper()
	ctx, done := context.WithTimeout(b.Ctx, Patience)
	defer done()
	must.OK(b.T, chromedp.Do(ctx, steps...))
}

// Call runs a command of the DevTools protocol in b.
func Call[P, R any](b *Tab, command cdp.Command[P, R], params P) R {
	b.T.Helper()
	ctx, done := context.WithTimeout(b.Ctx, Patience)
	defer done()
	return must.Get(chromedp.Call(ctx, command, params))(b.T)
}

// Eval returns the value of script, awaited, in JSON; empty for undefined.
func (b *Tab) Eval(script string) string {
	b.T.Helper()
	v, err := b.try(script)
	if err != nil {
		b.T.Fatalf("%s\n%v", script, err)
	}
	return v
}

func (b *Tab) try(script string) (string, error) {
	ctx, done := context.WithTimeout(b.Ctx, Patience)
	defer done()
	return chromedp.Run(ctx, chromedp.Evaluate[string](
		`(async () => JSON.stringify(await (`+script+`)) ?? '')()`, chromedp.EvalAwaitPromise))
}

// Is waits until condition holds.
func (b *Tab) Is(condition string) {
	b.T.Helper()
	var err error
	if !until(func() bool {
		var v string
		v, err = b.try(`Boolean(` + condition + `)`)
		return v == "true"
	}) {
		shown := b.Eval(`[document.body.innerText.slice(0, 1000), globalThis.events?.slice(-5)]`)
		b.T.Fatalf("never true: %s (%v)\nthe page and its last events: %s", condition, err, shown)
	}
}

// until tries done until it is true, and returns false if it is not within Patience.
func until(done func() bool) bool {
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return false
}

// Click clicks the element with this id, once it can be.
func (b *Tab) Click(id string) {
	b.T.Helper()
	b.Is(fmt.Sprintf(`!document.getElementById(%q).disabled`, id))
	b.Do(chromedp.Click(chromedp.ID(id)))
}

// Focus makes b believe that its window has the keyboard's focus, which only one window
// has. A page that believes so is never hidden.
func (b *Tab) Focus() {
	b.T.Helper()
	Call(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
}

// Press presses keys, one after the other, such as those of package kb.
func (b *Tab) Press(keys ...string) {
	b.T.Helper()
	b.Do(chromedp.KeyEvent(strings.Join(keys, "")))
}

// Show shows the page in a theme, light or dark, and a window of this width in
// pixels.
func (b *Tab) Show(theme string, width int64) {
	b.T.Helper()
	Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: 800, DeviceScaleFactor: 1})
}

// CheckLayout checks that the page fits its window, and saves a picture of it as name.png
// if BROWSER_SHOTS names a directory.
func (b *Tab) CheckLayout(name string) {
	b.T.Helper()
	if got := b.Eval(`document.documentElement.scrollWidth - innerWidth`); got != "0" {
		b.T.Errorf("%s: the page is %s pixels wider than its window", name, got)
	}
	dir := os.Getenv("BROWSER_SHOTS")
	if dir == "" {
		return
	}
	beyond := true
	size := Call(b, page.GetLayoutMetrics, cdp.Empty{}).CSSContentSize
	picture := Call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{
		CaptureBeyondViewport: &beyond, Clip: &page.Viewport{Width: size.Width, Height: size.Height, Scale: 1}})
	must.OK(b.T, os.WriteFile(filepath.Join(dir, name+".png"), picture.Data, 0o600))
}

func TestMain(m *testing.M) {
	// The tests mostly wait: for a page to poll, or for a lock to end. With 8 at once, two cores were at
	// times too slow for a lock.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := examplestest.Main(m, "CHROMIUM")
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, "ending Chromium:", err)
		code = 1
	}
	os.Exit(code)
}

// Patience bounds how long a test waits for one condition.
const Patience = 40 * time.Second

// shared is the Chromium that serves all tests of the package, as a start takes seconds.
// The first NewProfile starts it; TestMain ends it.
var shared chromium

type chromium struct {
	once sync.Once
	ctx  context.Context
	err  error
	stop func() // waits for its end
}

// unusedFeatures are the pages that Chromium loads for the address bar of each window,
// and the processes that it starts in advance. They take three quarters of its
// processor time.
const unusedFeatures = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess"

// start starts Chromium. It throttles the timers of hidden tabs, as users' browsers
// do. On a busy machine Chromium sometimes crashes as it starts: it is started again.
func (c *chromium) start() {
	options := []chromedp.ExecAllocatorOption{
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless,
		chromedp.NoSandbox, chromedp.Flag("password-store", "basic"), chromedp.Flag("disable-features", unusedFeatures),
	}
	const disabled = "background-networking component-update sync extensions breakpad dev-shm-usage gpu"
	for name := range strings.FieldsSeq(disabled) {
		options = append(options, chromedp.Flag("disable-"+name, true))
	}
	for range 3 {
		allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(allocated)
		if c.err = chromedp.Do(ctx); c.err == nil {
			c.ctx, c.stop = ctx, stop
			return
		}
		cancel()
		stop()
	}
}

// end closes Chromium if it was started.
func (c *chromium) end() error {
	if c.ctx == nil {
		return nil
	}
	defer c.stop()
	ctx, done := context.WithTimeout(c.ctx, Patience)
	defer done()
	return chromedp.Cancel(ctx)
}

// Profile is a user's data of its own in a Chromium.
type Profile struct {
	t  *testing.T
	id cdp.BrowserContextID
}

// NewProfile returns a profile in the Chromium that the tests of a package share. The
// profile ends with the test.
func NewProfile(t *testing.T) *Profile {
	t.Helper()
	shared.once.Do(shared.start)
	must.OK(t, shared.err)
	browser := chromedp.FromContext(shared.ctx).Browser
	made := must.Get(cdp.Call(shared.ctx, browser, target.CreateBrowserContext, target.CreateBrowserContextParams{}))(t)
	ended := target.DisposeBrowserContextParams(made)
	t.Cleanup(func() {
		_, err := cdp.Call(shared.ctx, browser, target.DisposeBrowserContext, ended)
		must.OK(t, err)
	})
	return &Profile{t, made.BrowserContextID}
}

// In returns the profile for a subtest.
func (p *Profile) In(t *testing.T) *Profile { return &Profile{t, p.id} }
