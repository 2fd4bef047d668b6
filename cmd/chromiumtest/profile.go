package chromiumtest

import (
	"context"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Patience bounds how long a test waits for one condition.
const Patience = 40 * time.Second

// Profile is a Chromium process with a user's data of its own.
type Profile struct {
	t      *testing.T
	ctx    context.Context
	killed *bool
}

// NewProfile starts Chromium; it ends with the test. It throttles the timers of hidden
// tabs, as users' browsers do. On a busy machine Chromium sometimes crashes as it
// starts: it is started again.
func NewProfile(t *testing.T) *Profile {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p := &Profile{t: t, killed: new(bool)}
		if err = p.start(path); err == nil {
			return p
		}
		t.Logf("starting Chromium: %v", err)
	}
	t.Fatalf("Chromium does not start: %v", err)
	return nil
}

func (p *Profile) start(path string) error {
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
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
		closing, done := context.WithTimeout(p.ctx, Patience)
		defer done()
		if err := chromedp.Cancel(closing); err != nil {
			p.t.Errorf("closing Chromium: %v", err)
		}
	})
	return nil
}

// In returns the profile for a subtest.
func (p *Profile) In(t *testing.T) *Profile { return &Profile{t, p.ctx, p.killed} }

// Kill ends Chromium as a crash does.
func (p *Profile) Kill() {
	p.t.Helper()
	*p.killed = true
	if err := chromedp.FromContext(p.ctx).Browser.Process().Kill(); err != nil {
		p.t.Fatal(err)
	}
}
