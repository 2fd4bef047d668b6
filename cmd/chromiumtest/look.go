package chromiumtest

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
)

// faint is a script for the texts whose contrast with what is behind them is
// under 4.5, by WCAG 2's formula.
const faint = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
	const rgba = (color) => { // also of color(…) and the like
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		return [...canvas.getImageData(0, 0, 1, 1).data];
	};
	const luminance = (color) => {
		const [r, g, b] = color.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const ground = (element) => {
		for (let e = element; e; e = e.parentElement) {
			const color = rgba(getComputedStyle(e).backgroundColor);
			if (color[3] === 255) return color;
			if (color[3] !== 0) throw new Error('translucent ground');
		}
		throw new Error('no ground');
	};
	const opacity = (element) => {
		let all = 1;
		for (let e = element; e; e = e.parentElement) all *= getComputedStyle(e).opacity;
		return all;
	};
	const seen = [];
	const look = (element, style) => {
		const behind = ground(element);
		const color = rgba(style.color);
		const alpha = color[3] / 255 * opacity(element);
		const mixed = color.map((c, i) => c * alpha + behind[i] * (1 - alpha));
		const [a, b] = [luminance(mixed.slice(0, 3)), luminance(behind.slice(0, 3))];
		seen.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.id || element.tagName]);
	};
	for (const element of document.querySelectorAll('body *')) {
		const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
		if (!own && !element.matches('input, textarea') || !element.checkVisibility()) continue;
		look(element, getComputedStyle(element));
		if (element.placeholder && !element.value) look(element, getComputedStyle(element, '::placeholder'));
	}
	return { seen: seen.length, faint: seen.filter(([contrast]) => contrast < 4.5) };
})()`

// Show shows the page in a theme, light or dark, and a window of this width in
// pixels.
func (b *Tab) Show(theme string, width int64) {
	b.T.Helper()
	Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: 800, DeviceScaleFactor: 1})
}

// Looks checks what is shown, and takes a picture of the whole page where there is
// a place for it, as name.png.
func (b *Tab) Looks(name string) {
	b.T.Helper()
	var contrast struct {
		Seen  int
		Faint [][2]any
	}
	if err := json.Unmarshal([]byte(b.Eval(faint)), &contrast); err != nil {
		b.T.Fatal(err)
	}
	if want := cmp.Or(b.Texts, 10); contrast.Seen < want {
		b.T.Errorf("%s: %d texts were looked at, want at least %d", name, contrast.Seen, want)
	}
	if len(contrast.Faint) > 0 {
		b.T.Errorf("%s: contrast under 4.5: %v", name, contrast.Faint)
	}
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
