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
	for _, name := range []string{"background-networking", "component-update", "sync", "extensions", "breakpad", "dev-shm-usage", "gpu"} {
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
	check(t, shared.err)
	browser := chromedp.FromContext(shared.ctx).Browser
	id := must(cdp.Call(shared.ctx, browser, target.CreateBrowserContext, target.CreateBrowserContextParams{}))(t).BrowserContextID
	t.Cleanup(func() {
		_, err := cdp.Call(shared.ctx, browser, target.DisposeBrowserContext, target.DisposeBrowserContextParams{BrowserContextID: id})
		check(t, err)
	})
	return &Profile{t, id}
}

// In returns the profile for a subtest.
func (p *Profile) In(t *testing.T) *Profile { return &Profile{t, p.id} }
