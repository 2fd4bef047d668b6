package chromiumtest

import (
	"os"
	"path/filepath"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
)

// Show shows the page in a theme, light or dark, and a window of this width in
// pixels.
func (b *Tab) Show(theme string, width int64) {
	b.T.Helper()
	Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: 800, DeviceScaleFactor: 1})
}

// Looks checks that the page fits its window, and saves a picture of it as name.png
// if BROWSER_SHOTS names a directory.
func (b *Tab) Looks(name string) {
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
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture.Data, 0o600); err != nil {
		b.T.Fatal(err)
	}
}
