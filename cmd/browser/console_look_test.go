package browser

import (
	"fmt"
	"net/url"
	"testing"
)

// beyond is a script that returns the elements that are partly outside the window, and cropped
// one that returns those whose text is cut off. Code, which scrolls, texts that end in an
// ellipsis, and texts for screen readers, which are a pixel wide, are allowed.
const (
	beyond = `[...document.querySelectorAll('body *')]
	.filter((e) => e.checkVisibility() && !e.closest('pre, .away, .skip, svg') && e.getClientRects().length)
	.filter((e) => { for (let a = e; a; a = a.parentElement) if (a.clientWidth === 1 || getComputedStyle(a).textOverflow === 'ellipsis') return false; return true; })
	.map((e) => [e, e.getBoundingClientRect()])
	.filter(([, at]) => at.right > innerWidth + 0.5 || at.left < -0.5)
	.map(([e, at]) => [e.tagName, e.id || e.className, Math.round(at.left), Math.round(at.right)]).slice(0, 5)`
	cropped = `[...document.querySelectorAll('body *')]
	.filter((e) => e.checkVisibility() && !e.closest('pre, .away, .skip, svg, input') && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)
	.filter((e) => getComputedStyle(e).overflowX !== 'visible' && getComputedStyle(e).textOverflow !== 'ellipsis')
	.map((e) => [e.tagName, e.id || e.className, e.scrollWidth, e.clientWidth]).slice(0, 5)`
)

func TestEveryPageHasBothThemesAndFitsASmallScreen(t *testing.T) {
	t.Parallel()
	s, unavailable := withStates(t), newSite(t)
	unavailable.Server.Close()
	long := url.QueryEscape(longID)
	b := s.open("/")
	for _, page := range []struct{ name, url string }{
		{"list", s.url},
		{"list filtered", s.url + "/?state=FAILED&code=attempts_exhausted&since=1h&older=0s"},
		{"list, Firestore unavailable", unavailable.url},
		{"failures", s.url + "/failures"},
		{"cancel all", s.url + "/all/cancel?state=QUEUED&since=1h"},
		{"detail held", s.url + "/analysis?id=held"},
		{"detail failed", s.url + "/analysis?id=failed"},
		{"detail malformed", s.url + "/analysis?id=malformed"},
		{"detail long", s.url + "/analysis?id=" + long},
		{"detail with contents", s.url + "/analysis?id=ready&show=all"},
		{"confirm requeue from a checkpoint", s.url + "/requeue?id=failed"},
		{"confirm resolve", s.url + "/resolve?id=uncertain&name=charge"},
		{"confirm long", s.url + "/unlock?id=" + long},
		{"problem", s.url + "/analysis?id=missing"},
	} {
		b.Go(page.url)
		b.Is(`document.getElementById('main') && document.fonts.status === 'loaded'`)
		b.Is(`!document.getElementById('live') || document.getElementById('live').dataset.live !== 'connecting' || !document.body.dataset.poll`)
		grounds := map[string]bool{}
		for theme, width := range map[string]int64{"light": 360, "dark": 1280} { // a theme changes no size
			b.Show(theme, width)
			b.Is(fmt.Sprintf(`innerWidth === %d && matchMedia('(prefers-color-scheme: %s)').matches && document.getAnimations().length === 0`, width, theme))
			name := fmt.Sprintf("console %s %s %d", page.name, theme, width)
			b.CheckLayout(name)
			for what, script := range map[string]string{"outside the window": beyond, "cropped": cropped} {
				if got := b.Eval(script); got != "[]" {
					t.Errorf("%s: %s: %s", name, what, got)
				}
			}
			grounds[b.Eval(`getComputedStyle(document.body).backgroundColor`)] = true
		}
		b.Is(`[...document.querySelectorAll('.failure .message')].every((e) => e.lastElementChild.getBoundingClientRect().bottom <= e.getBoundingClientRect().bottom)`) // its end is visible
		if len(grounds) != 2 {
			t.Errorf("%s: both themes have the background %v", page.name, grounds)
		}
	}
}
