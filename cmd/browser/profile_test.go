package browser

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// Patience bounds how long a test waits for one condition.
const Patience = 40 * time.Second

// process is a running Chromium.
type process struct {
	ctx  context.Context
	stop func() // waits for its end
}

// shared is the Chromium that serves all tests of the package, as a start takes seconds.
// The first NewProfile starts it; TestMain ends it.
var shared struct {
	once    sync.Once
	process process
	err     error
}

// unusedFeatures are the pages that Chromium loads for the address bar of each window,
// and the processes that it starts in advance. They take three quarters of its
// processor time.
const unusedFeatures = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess"

// start starts Chromium. It throttles the timers of hidden tabs, as users' browsers
// do. On a busy machine Chromium sometimes crashes as it starts: it is started again.
func start() (p process, err error) {
	path, err := find()
	if err != nil {
		return p, err
	}
	for range 3 {
		alloc, stop := chromedp.NewExecAllocator(context.Background(),
			chromedp.ExecPath(path), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
			chromedp.Headless, chromedp.NoSandbox, chromedp.Flag("disable-background-networking", true),
			chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
			chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-breakpad", true),
			chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("password-store", "basic"),
			chromedp.Flag("disable-features", unusedFeatures))
		ctx, cancel := chromedp.NewContext(alloc)
		if err = chromedp.Do(ctx); err == nil {
			return process{ctx, stop}, nil
		}
		cancel()
		stop()
	}
	return p, err
}

// end closes Chromium if it was started.
func (p process) end() error {
	if p.ctx == nil {
		return nil
	}
	defer p.stop()
	ctx, done := context.WithTimeout(p.ctx, Patience)
	defer done()
	return chromedp.Cancel(ctx)
}

// Profile is a user's data of its own in a Chromium.
type Profile struct {
	t       *testing.T
	process process
	id      cdp.BrowserContextID
}

// NewProfile returns a profile in the Chromium that the tests of a package share. The
// profile ends with the test.
func NewProfile(t *testing.T) *Profile {
	t.Helper()
	shared.once.Do(func() { shared.process, shared.err = start() })
	p := shared.process
	if shared.err != nil {
		t.Fatalf("starting Chromium: %v", shared.err)
	}
	chromium := chromedp.FromContext(p.ctx).Browser
	created := must(cdp.Call(p.ctx, chromium, target.CreateBrowserContext, target.CreateBrowserContextParams{}))(t)
	id := created.BrowserContextID
	t.Cleanup(func() {
		if _, err := cdp.Call(p.ctx, chromium, target.DisposeBrowserContext, target.DisposeBrowserContextParams{BrowserContextID: id}); err != nil {
			t.Error(err)
		}
	})
	return &Profile{t, p, id}
}

// In returns the profile for a subtest.
func (p *Profile) In(t *testing.T) *Profile { return &Profile{t, p.process, p.id} }
