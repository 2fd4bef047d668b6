package browser

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
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
	const seen = [];
	for (const element of document.querySelectorAll('body *')) {
		const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
		if (!own && !element.matches('input, textarea') || !element.checkVisibility()) continue;
		const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(ground(element))];
		seen.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.id || element.tagName]);
	}
	return { seen: seen.length, faint: seen.filter(([contrast]) => contrast < 4.5) };
})()`

func TestThePageIsReadableInBothThemesAndFitsASmallScreen(t *testing.T) {
	p := newProfile(t)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{360, 1024} {
			name := theme + map[int64]string{360: " narrow", 1024: " wide"}[width]
			t.Run(name, func(t *testing.T) {
				s := newSite(t, 0)
				b, other := p.in(t).open(s.room("notes")), p.in(t).open(s.room("notes"))
				for _, b := range []*tab{b, other} {
					call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
						Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
					call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
						Width: width, Height: 800, DeviceScaleFactor: 1})
				}
				b.shows("free")
				b.looks(name + " free")
				b.click("edit")
				b.shows("mine")
				b.click("save")
				b.is(`document.getElementById('saved').textContent`)
				b.looks(name + " mine")
				other.shows("other")
				other.click("edit")
				other.is(`!document.getElementById('banner').hidden`)
				other.looks(name + " other")
				if _, err := s.locks.Break(t.Context(), "notes"); err != nil {
					t.Fatal(err)
				}
				b.click("save")
				b.is(`!document.getElementById('banner').hidden`)
				b.looks(name + " lost")
				b.closed()
				other.closed()
			})
		}
	}
}

func TestThePageIsUsedWithTheKeyboardAlone(t *testing.T) {
	s := newSite(t, 0)
	b := newProfile(t).open(s.room("notes"))
	b.shows("free")
	var order []string
	for range 4 {
		b.do(chromedp.KeyEvent(kb.Tab))
		order = append(order, b.eval(`document.activeElement.id || document.activeElement.textContent`))
	}
	want := []string{`"room"`, `"Open"`, `"text"`, `"edit"`}
	if !slices.Equal(order, want) {
		t.Errorf("Tab leads through %v, want %v", order, want)
	}
	if got, want := b.eval(`getComputedStyle(document.activeElement).outlineStyle`), `"solid"`; got != want {
		t.Errorf("the focus is shown by an outline that is %s, want %s", got, want)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.shows("mine")
	b.is(`document.activeElement.id === 'text'`)
	b.do(chromedp.KeyEvent(kb.Tab))
	b.is(`document.activeElement.id === 'save'`)
	b.do(chromedp.KeyEvent(kb.Tab))
	b.do(chromedp.KeyEvent(kb.Enter))
	b.shows("free")
	b.is(`document.activeElement.id === 'edit'`)
}

// looks checks what is shown, and takes a picture where there is a place for it.
func (b *tab) looks(name string) {
	b.t.Helper()
	var contrast struct {
		Seen  int
		Faint [][2]any
	}
	if err := json.Unmarshal([]byte(b.eval(faint)), &contrast); err != nil {
		b.t.Fatal(err)
	}
	if contrast.Seen < 10 {
		b.t.Errorf("%s: %d texts were looked at, want at least 10", name, contrast.Seen)
	}
	if len(contrast.Faint) > 0 {
		b.t.Errorf("%s: contrast under 4.5: %v", name, contrast.Faint)
	}
	if got := b.eval(`document.documentElement.scrollWidth - innerWidth`); got != "0" {
		b.t.Errorf("%s: the page is %s pixels wider than its window", name, got)
	}
	dir := os.Getenv("BROWSER_SHOTS")
	if dir == "" {
		return
	}
	picture := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture.Data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
